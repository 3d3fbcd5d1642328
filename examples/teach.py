"""Teach a small gMLP the sentence embeddings of a larger model, as for checkpoints/gmlp-mini-sentences.

    python -m examples.teach TEACHER texts.jsonl.gz --output_dir build/teach --stsb dev.csv --banking77 FOLDER

TEACHER is a folder with a BERT whose embedding of a text is the mean of its token vectors, scaled to length 1, such as
all-MiniLM-L6-v2. The texts are gzipped JSON lines with a column "text", such as those of examples/encoder_texts.py.
The steps are: the teacher's embeddings; a static start, whose token vectors, averaged and mapped linearly, approximate
them; and training, in which embeddings (`pooler_output`) and similarities approach the teacher's. A repeated command
resumes an interrupted step. The budget is a number of tokens. The default takes about three hours of two cores, with a
process on each (torchrun --nproc_per_node 2 -m examples.teach); on a GPU, use --tokens 1000000000 --batch_tokens
32768; --tokens 0 writes the static start.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import torch
from accelerate import PartialState
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from common.encoders import Encoder, collate, embed, few_row_scores, make_bert, read_banking77, sts_score
from hf_gmlp import GMLPConfig, GMLPModel
from hf_gmlp.models.modeling_gmlp import pool_tokens
from hf_gmlp.training.run_folder import write_json

from .teaching import FAST_BF16, compute_in_files, save_halved, train

Rows = Sequence[list[int]]  # token ids of texts
PIECE = 254  # tokens per piece in which the teacher reads long texts, without [CLS] and [SEP]
MAX_LENGTH = 640  # tokens of a training text, without [CLS] and [SEP]
CHUNK = 20_000  # texts per file of the teacher's embeddings, and per pool from which batches are made
FIT = 10_000  # texts to which the linear map of the static start is fitted
SCALE = 16.0  # length of the token vectors
# Learning rates of the blocks, of W, of the token vectors, and of the map. One rate for all would destroy the start.
BLOCKS, SPATIAL, TOKENS, MAP = 1.5e-3, 7.5e-3, 1e-3, 5e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", help="folder of the teacher")
    parser.add_argument("texts", type=Path, help="gzipped JSON lines with a column text")
    parser.add_argument("--stsb", type=Path, required=True, help="csv file with pairs of STS-B; to choose by")
    parser.add_argument("--banking77", type=Path, required=True, help="folder with train.csv; to choose by")
    parser.add_argument("--output_dir", type=Path, default=Path("build/teach"))
    parser.add_argument("--name", default="gmlp-mini-sentences", help="folder of the model in the output folder")
    parser.add_argument("--architecture", choices=("gmlp", "amlp", "bert"), default="gmlp", help="bert: a baseline")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--max_texts", type=int, help="use only the first texts")
    parser.add_argument("--tokens", type=int, default=80_000_000, help="budget, with padding (default: %(default)s)")
    parser.add_argument("--batch_tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    process = PartialState(cpu=not torch.cuda.is_available())
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.teacher, model_max_length=2048)
    for name in ("max_length", "stride", "truncation_strategy", "pad_to_multiple_of"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    texts = datasets.load_dataset("json", data_files=str(args.texts), split=f"train[:{args.max_texts or ''}]")
    tokenize = partial(tokenizer, add_special_tokens=False, return_attention_mask=False, verbose=False)
    ids = texts.map(tokenize, batched=True, input_columns="text", remove_columns=texts.column_names)["input_ids"][:]
    teacher = AutoModel.from_pretrained(args.teacher).eval().to(process.device)
    targets = teacher_embeddings(teacher, tokenizer, ids, args.output_dir / "teacher")
    vectors = teacher_embeddings(teacher, tokenizer, [[i] for i in range(len(tokenizer))], args.output_dir / "tokens")
    model = build(args, tokenizer).to(teacher.device)
    set_token_vectors(model, vectors, tokenizer, ids)
    directions = set_map(model, tokenizer, ids[:FIT], targets[:FIT])
    report(model, tokenizer, args, "static start")
    if args.tokens:
        model = make_bert(model, args.blocks) if args.architecture == "bert" else model
        teach(model, tokenizer, ids, targets, directions, args)
        report(model, tokenizer, args, "trained model")
    if process.is_main_process:
        save(model, tokenizer, args.output_dir / args.name)


def teacher_embeddings(teacher: PreTrainedModel, tokenizer: Tokenizer, ids: Rows, folder: Path) -> np.ndarray:
    """Return the teacher's embedding of each text [texts, T], and for a long text the mean over its pieces, scaled to
    length 1. They are kept in files of `folder`, which are not computed again."""

    def encode(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(teacher.device.type, torch.bfloat16, enabled=FAST_BF16):
            states = teacher(**batch).last_hidden_state
        return F.normalize(pool_tokens(states.float(), batch["attention_mask"], "mean"), dim=-1)

    def compute(rows: slice) -> np.ndarray:
        pieces = [(i, row[j : j + PIECE]) for i, row in enumerate(ids[rows]) for j in range(0, max(len(row), 1), PIECE)]
        vectors = embed(encode, tokenizer, [piece for _, piece in pieces], teacher.device)
        sums = np.zeros((len(ids[rows]), vectors.shape[1]), np.float32)
        np.add.at(sums, [i for i, _ in pieces], vectors)
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)

    return compute_in_files(compute, len(ids), CHUNK, folder)


def build(args: argparse.Namespace, tokenizer: Tokenizer) -> GMLPModel:
    """Return a model whose blocks do not change the token vectors yet."""
    # W reaches 31 tokens to both sides, so that a text is read alike alone and as a part of a longer one.
    config = GMLPConfig(
        vocab_size=len(tokenizer), hidden_size=256, num_hidden_layers=args.blocks, intermediate_size=1024,
        attention_size=64 if args.architecture == "amlp" else 0, max_position_embeddings=2048, spatial_reach=32,
        pooling="mean", pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )  # fmt: skip
    model = GMLPModel(config)
    for projection in model.spatial_projections():
        projection.bias.requires_grad_(False)  # it would differ between positions, of which late ones are rare
    # All texts have the same segment.
    segments = model.get_parameter("embeddings.token_type_embeddings.weight").requires_grad_(False)
    with torch.no_grad():
        for weight in (segments, *(weight for name, weight in model.named_parameters() if ".proj_out." in name)):
            weight.zero_()
        # The last channel only makes all token vectors equally long, so that no norm changes their relative lengths.
        model.norm.weight[-1] = 0
    return model


@torch.no_grad()
def set_token_vectors(model: PreTrainedModel, vectors: np.ndarray, tokenizer: Tokenizer, ids: Rows) -> None:
    """Set the vector of each token to the principal components of the teacher's embedding of the token alone, `vectors`
    [V, T], with less weight for frequent tokens (Arora et al., 2017), and a last channel for equal lengths."""
    counts = np.bincount(np.concatenate(ids), minlength=len(vectors)).astype(float)
    counts[[tokenizer.cls_token_id, tokenizer.sep_token_id]] = len(ids)
    table = model.get_input_embeddings().weight
    vectors = vectors - vectors.mean(0, dtype=np.float32)
    components = np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1][:, : table.shape[1] - 1]
    vectors = vectors @ components * (1e-3 / (1e-3 + counts / counts.sum()))[:, None]
    vectors /= np.linalg.norm(vectors, axis=1).max()
    last = np.sqrt(np.clip(1 - np.square(vectors).sum(1, keepdims=True), 0, 1))
    # The final norm undoes the scale, by which one step of training changes a vector less.
    table.copy_(SCALE * torch.from_numpy(np.concatenate([vectors, last], axis=1)))


@torch.no_grad()
def set_map(model: PreTrainedModel, tokenizer: Tokenizer, ids: Rows, targets: np.ndarray) -> torch.Tensor:
    """Fit the targets [texts, T] by a linear map A of the mean token vector, and set the pooler to 3 S V^T, where U S
    V^T is the singular value decomposition of A. Returns U [T, D], which maps an embedding to the teacher's."""

    def mean(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return pool_tokens(model(**batch).last_hidden_state, batch["attention_mask"], "mean")

    features = embed(mean, tokenizer, ids, model.device)
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    solution = torch.from_numpy(np.linalg.lstsq(features, targets.astype(float), rcond=1e-5)[0].T)
    u, s, vt = torch.linalg.svd(solution[:, :-1], full_matrices=False)
    # The hyperbolic tangent of such small numbers is almost linear.
    model.pooler.dense.weight.copy_(3 * s[:, None] * vt)
    model.pooler.dense.bias.copy_(3 * u.T @ solution[:, -1])
    return u.float().to(model.device)


def make_batches(lengths: np.ndarray, tokens: int, size: int, seed: int) -> list[np.ndarray]:
    """Return batches of texts, as indices. A batch has texts of similar length and at most `size` tokens with padding;
    all batches together have `tokens` tokens. The order is random, and every pass has all texts."""
    result, generator = [], np.random.default_rng(seed)
    while tokens > 0:
        batches = []
        for texts in np.array_split(generator.permutation(len(lengths)), -(-len(lengths) // CHUNK)):
            texts = texts[np.argsort(lengths[texts], kind="stable")]
            while len(texts):
                # The longest text of a batch is its last one.
                count = max(1, int((lengths[texts] * np.arange(1, len(texts) + 1) <= size).sum()))
                batches.append(texts[:count])
                texts = texts[count:]
        generator.shuffle(batches)
        for batch in batches:
            if tokens > 0:
                result.append(batch)
                tokens -= len(batch) * int(lengths[batch].max())
    return result


def teach(
    model: PreTrainedModel, tokenizer: Tokenizer, ids: Rows, targets: np.ndarray, directions: torch.Tensor,
    args: argparse.Namespace,
) -> None:  # fmt: skip
    """Train the model in place, or resume its training."""
    ids = [row[:MAX_LENGTH] for row in ids]
    plan = make_batches(np.array([len(row) + 2 for row in ids]), args.tokens, args.batch_tokens, args.seed)
    steps = len(plan) // PartialState().num_processes  # the processes take batches in turn

    def load(rows: list[np.ndarray]) -> dict[str, torch.Tensor]:
        batch = collate(tokenizer, [ids[i] for i in rows[0]])
        return batch | {"labels": F.normalize(torch.from_numpy(targets[rows[0]]).float(), dim=-1)}

    def loss(outputs, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:  # mean over a process's batch
        embeddings = F.normalize(outputs.pooler_output.float() @ directions.T, dim=-1)
        return 1 - (embeddings * labels).sum(-1).mean() + 10 * F.mse_loss(embeddings @ embeddings.T, labels @ labels.T)

    def schedule(step: int) -> float:
        return min((step + 1) / 50, 1.0, (1 - step / steps) / 0.6)

    groups: dict[float, list[torch.Tensor]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            is_spatial = name.endswith("spatial_gating_unit.proj.weight") or "position_embeddings" in name
            is_block = name.startswith(("layers", "encoder"))
            rate = SPATIAL if is_spatial else BLOCKS if is_block else TOKENS if "word" in name else MAP
            groups.setdefault(rate, []).append(weight)
    parts = [{"params": weights, "lr": rate} for rate, weights in groups.items()]
    optimizer = torch.optim.AdamW(parts, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    train(
        model, plan, load, loss, optimizer, schedule, args.output_dir / f"{args.name}-training", seed=args.seed,
        save_steps=0.1, save_total_limit=1, logging_steps=100,
    )  # fmt: skip


def report(model: PreTrainedModel, tokenizer: Tokenizer, args: argparse.Namespace, name: str) -> None:
    """Print the scores by which models are selected; on banking77, of training rows that were not sampled."""
    if PartialState().is_main_process:
        encode, train = Encoder(model, tokenizer), read_banking77(args.banking77)[0]
        stsb, banking77 = sts_score(encode, args.stsb), few_row_scores(encode, train, None, rows=[16])
        print(f"{name}: STS-B {stsb:.4f}, banking77 (training rows) {banking77[0]:.4f}", flush=True)


def save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Save the model with weights in half precision that load in single precision, also for sentence-transformers."""
    save_halved(model, folder)
    tokenizer.save_pretrained(folder)
    # Embeddings of length 1, so that an index of inner products ranks by cosine.
    kinds = ("transformer.Transformer", "normalize.Normalize")
    types = [f"sentence_transformers.base.modules.{kind}" for kind in kinds]
    modules = [{"idx": i, "name": str(i), "path": "", "type": kind} for i, kind in enumerate(types)]
    write_json(folder / "modules.json", modules)
    modalities = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
    task = {"transformer_task": "feature-extraction", "modality_config": modalities}
    write_json(folder / "sentence_bert_config.json", task | {"module_output_name": "sentence_embedding"})


if __name__ == "__main__":
    main()
