"""Teach a small gMLP the sentence embeddings of a larger model, and so re-create checkpoints/gmlp-mini-sentences.

    python -m examples.teach TEACHER texts.jsonl.gz --output_dir build/teach --stsb dev.csv --banking77 FOLDER

TEACHER is a folder with a BERT whose embedding of a text is the mean of its token vectors, scaled to length 1, such as
all-MiniLM-L6-v2. The texts are gzipped JSON lines with a column "text". The steps are: the teacher's embeddings of all
texts; a static start, a table of token vectors whose mean, mapped linearly, approximates the teacher's embedding; and
training, in which `pooler_output` and its similarities within a batch approach those of the teacher. When the command
is repeated, it skips finished steps and resumes an interrupted one.

The budget is a number of tokens; the default takes three hours on two CPU cores. With --tokens 0, only the static start
is written. On a GPU, use --tokens 1000000000 --batch_tokens 32768.
"""

import argparse
import gzip
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from hf_gmlp import GMLPConfig, GMLPModel
from hf_gmlp.models.modeling_gmlp import pool_tokens
from hf_gmlp.training.run_folder import write_json

PIECE = 254  # tokens per piece in which the teacher reads long texts, without [CLS] and [SEP]
MAX_LENGTH = 640  # tokens of a training text, without [CLS] and [SEP]
CHUNK = 20_000  # texts per file of the teacher's embeddings
FIT = 10_000  # texts to which the linear map of the static start is fitted
SCALE = 16.0  # length of the longest token vector
# Learning rates of the blocks, of W, of the token vectors, and of the map. One rate for all would destroy the start.
BLOCKS, SPATIAL, TOKENS, MAP = 1.5e-3, 7.5e-3, 1e-3, 5e-4
SECONDS = 600  # between two checkpoints


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", help="folder of the teacher")
    parser.add_argument("texts", type=Path, help="gzipped JSON lines with a column text")
    parser.add_argument("--stsb", type=Path, help="csv file with pairs of STS-B, to report Spearman's correlation")
    parser.add_argument("--banking77", type=Path, help="folder with train.csv and test.csv, to report the accuracy")
    parser.add_argument("--output_dir", type=Path, default=Path("build/teach"))
    parser.add_argument("--name", default="gmlp-mini-sentences", help="folder of the model in the output folder")
    parser.add_argument("--architecture", choices=("gmlp", "amlp", "bert"), default="gmlp")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--max_texts", type=int, help="use only the first texts")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="budget, with padding (default: %(default)s)")
    parser.add_argument("--batch_tokens", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=BLOCKS, help="learning rate of the blocks (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)

    tokenizer = AutoTokenizer.from_pretrained(args.teacher, model_max_length=2048)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    with gzip.open(args.texts, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines][: args.max_texts]
    ids = tokenize(tokenizer, texts)
    teacher = AutoModel.from_pretrained(args.teacher).eval().to(device)
    targets = teacher_embeddings(teacher, tokenizer, ids, args.output_dir / "teacher")
    model = build(args, tokenizer).to(device)
    set_token_vectors(model, token_vectors(teacher, tokenizer, ids, model.config.hidden_size))
    del teacher
    directions = set_map(model, tokenizer, ids[:FIT], targets[:FIT])
    report(model, tokenizer, args, "static start")
    if args.tokens:
        teach(model, tokenizer, ids, targets, directions, args)
        report(model, tokenizer, args, f"{args.tokens:,} tokens")
    save(model, tokenizer, args.output_dir / args.name)


# ---------------------------------------------------------------------------------------------------------------------
# Embeddings


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text, without special ones."""
    return tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def collate(tokenizer: PreTrainedTokenizerBase, ids: Sequence[list[int]]) -> dict[str, torch.Tensor]:
    """Return a batch of texts with [CLS], [SEP] and padding."""
    rows = [[tokenizer.cls_token_id, *row, tokenizer.sep_token_id] for row in ids]
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def embed(
    encode: Callable, tokenizer: PreTrainedTokenizerBase, ids: Sequence[list[int]], device: torch.device | str
) -> np.ndarray:
    """Return `encode(batch)` [B, D] for all texts, in batches of similar length: [texts, D]"""
    order, batches, start = np.argsort([-len(row) for row in ids], kind="stable"), [], 0
    while start < len(order):
        end = start + max(1, 4096 // (len(ids[order[start]]) + 2))
        batch = collate(tokenizer, [ids[i] for i in order[start:end]])
        batches.append(encode({name: tensor.to(device) for name, tensor in batch.items()}).float().cpu().numpy())
        start = end
    vectors = np.concatenate(batches)
    return vectors[np.argsort(order)]


def teacher_encoder(teacher: PreTrainedModel) -> Callable:
    def encode(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(teacher.device.type, torch.bfloat16):
            states = teacher(**batch).last_hidden_state
        return F.normalize(pool_tokens(states.float(), batch["attention_mask"], "mean"), dim=-1)

    return encode


def teacher_embeddings(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Sequence[list[int]], folder: Path
) -> np.ndarray:
    """Return the teacher's embedding of each text [texts, D], and for a long text the mean over its pieces, scaled to
    length 1. They are kept in files of `folder`, which are not computed again."""
    folder.mkdir(exist_ok=True)
    chunks = []
    for start in range(0, len(ids), CHUNK):
        path = folder / f"{start // CHUNK:03d}.npy"
        if not path.is_file():
            rows = ids[start : start + CHUNK]
            pieces = [(i, row[j : j + PIECE]) for i, row in enumerate(rows) for j in range(0, max(len(row), 1), PIECE)]
            vectors = embed(teacher_encoder(teacher), tokenizer, [piece for _, piece in pieces], teacher.device)
            sums = np.zeros((len(rows), vectors.shape[1]), np.float32)
            np.add.at(sums, [i for i, _ in pieces], vectors)
            partial = folder / "partial.npy"
            np.save(partial, (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float16))
            partial.replace(path)
            print(f"Teacher: {start + len(rows):,} of {len(ids):,} texts", flush=True)
        chunks.append(np.load(path))
    return np.concatenate(chunks)[: len(ids)]


# ---------------------------------------------------------------------------------------------------------------------
# The static start


class MeanPooledBert(BertModel):
    """The baseline: BERT with the pooler of our models, on the mean of all tokens."""

    def forward(self, input_ids, attention_mask):
        outputs = super().forward(input_ids, attention_mask)
        mean = pool_tokens(outputs.last_hidden_state, attention_mask, "mean")
        outputs.pooler_output = self.pooler(mean[:, None])
        return outputs


def build(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return a model whose blocks do not change the token vectors yet."""
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 256, "num_hidden_layers": args.blocks}
    if args.architecture == "bert":
        sizes |= {"intermediate_size": 1024, "num_attention_heads": 4, "max_position_embeddings": MAX_LENGTH + 2}
        rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model: PreTrainedModel = MeanPooledBert(BertConfig(**sizes, **rates))
        outputs = [layer for block in model.encoder.layer for layer in (block.attention.output, block.output)]
        zeros = [parameter for output in outputs for parameter in output.dense.parameters()]
        zeros += [model.embeddings.position_embeddings.weight]
        norm = outputs[-1].LayerNorm
    else:
        # W reaches 31 tokens to both sides, so that a text is read alike alone and as a part of a longer one.
        sizes |= {"intermediate_size": 1024, "max_position_embeddings": 2048, "spatial_reach": 32, "pooling": "mean"}
        ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.cls_token_id}
        attention = 64 if args.architecture == "amlp" else 0
        config = GMLPConfig(**sizes, **ids, eos_token_id=tokenizer.sep_token_id, attention_size=attention)
        model = GMLPModel(config)
        zeros = [parameter for block in model.layers for parameter in block.proj_out.parameters()]
        norm = model.norm
        for projection in model.spatial_projections():
            projection.bias.requires_grad_(False)  # it differs between positions, of which late ones are rarely seen
    segments = model.embeddings.token_type_embeddings.weight.requires_grad_(False)  # all texts have the first segment
    with torch.no_grad():
        for parameter in (*zeros, segments):
            parameter.zero_()
        # The last channel only makes all token vectors equally long, so that no norm changes their relative lengths.
        norm.weight[-1] = 0
    return model


def token_vectors(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Sequence[list[int]], width: int
) -> torch.Tensor:
    """Return the teacher's embedding of every token alone, as `width` - 1 principal components, with less weight for
    frequent tokens (Arora et al., 2017), and a last channel that makes all vectors equally long: [V, width]"""
    vectors = embed(teacher_encoder(teacher), tokenizer, [[token] for token in range(len(tokenizer))], teacher.device)
    vectors -= vectors.mean(0)
    components = np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1][:, : width - 1]
    counts = np.bincount(np.concatenate(ids), minlength=len(tokenizer)).astype(float)
    # Every text has both special tokens.
    counts[[tokenizer.cls_token_id, tokenizer.sep_token_id]] = len(ids)
    vectors = vectors @ components * (1e-3 / (1e-3 + counts / counts.sum()))[:, None]
    vectors /= np.linalg.norm(vectors, axis=1).max()
    last = np.sqrt(np.clip(1 - np.square(vectors).sum(1, keepdims=True), 0, 1))
    return torch.from_numpy(np.concatenate([vectors, last], axis=1)).float()


@torch.no_grad()
def set_token_vectors(model: PreTrainedModel, vectors: torch.Tensor):
    # The final norm undoes the scale, by which one step of training changes a vector less.
    model.get_input_embeddings().weight.copy_(SCALE * vectors)


@torch.no_grad()
def set_map(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Sequence[list[int]], targets: np.ndarray
) -> torch.Tensor:
    """Fit the targets [texts, T] by a linear map A of the mean token vector, and set the pooler to 3 S V^T, where U S
    V^T is the singular value decomposition of A. Returns U [T, D], which turns an embedding into the teacher's."""

    def mean(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return pool_tokens(model(**batch).last_hidden_state, batch["attention_mask"], "mean")

    features = embed(mean, tokenizer, ids, model.device)
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    solution = torch.from_numpy(np.linalg.lstsq(features, targets.astype(float), rcond=None)[0].T)
    u, s, vt = torch.linalg.svd(solution[:, :-1], full_matrices=False)
    # The hyperbolic tangent of such small numbers is almost linear.
    model.pooler.dense.weight.copy_(3 * s[:, None] * vt)
    model.pooler.dense.bias.copy_(3 * u.T @ solution[:, -1])
    return u.float()


# ---------------------------------------------------------------------------------------------------------------------
# Training


class Batches(torch.utils.data.Dataset):
    """Batches of texts of similar length, in random order, that together have `tokens` tokens, with padding."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        ids: Sequence[list[int]],
        targets: np.ndarray,
        tokens: int,
        batch_tokens: int,
        seed: int,
    ):
        self.tokenizer, self.ids, self.targets = tokenizer, [row[:MAX_LENGTH] for row in ids], targets
        self.batches: list[np.ndarray] = []
        lengths, generator = np.array([len(row) + 2 for row in self.ids]), np.random.default_rng(seed)
        while tokens > 0:
            batches = []
            for texts in np.array_split(generator.permutation(len(lengths)), -(-len(lengths) // CHUNK)):
                texts = texts[np.argsort(lengths[texts], kind="stable")]
                start = 0
                while start < len(texts):
                    # The longest text of a batch is its last one.
                    fits = lengths[texts[start:]] * np.arange(1, len(texts) - start + 1) <= batch_tokens
                    end = start + max(1, int(fits.sum()))
                    batches.append(texts[start:end])
                    start = end
            generator.shuffle(batches)
            for batch in batches:
                if tokens > 0:
                    self.batches.append(batch)
                    tokens -= len(batch) * int(lengths[batch].max())

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        texts = self.batches[index]
        batch = collate(self.tokenizer, [self.ids[i] for i in texts])
        return batch | {"labels": torch.from_numpy(self.targets[texts]).float()}


class TimedCheckpoints(TrainerCallback):
    def __init__(self):
        self.saved = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        if time.monotonic() - self.saved > SECONDS:
            self.saved, control.should_save = time.monotonic(), True


def teach(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[list[int]],
    targets: np.ndarray,
    directions: torch.Tensor,
    args: argparse.Namespace,
):
    """Train the model in place."""
    directions = directions.to(model.device)

    def loss(outputs, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
        embeddings = F.normalize(outputs.pooler_output.float() @ directions.T, dim=-1)
        labels = F.normalize(labels, dim=-1)
        cosine = (embeddings * labels).sum(-1).mean()
        return 1 - cosine + 10 * F.mse_loss(embeddings @ embeddings.T, labels @ labels.T)

    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_spatial = name.endswith("spatial_gating_unit.proj.weight") or "position_embeddings" in name
            is_block = name.startswith(("layers", "encoder"))
            rate = SPATIAL if is_spatial else args.rate if is_block else TOKENS if "word" in name else MAP
            groups.setdefault(rate, []).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": parameters, "lr": rate} for rate, parameters in groups.items()],
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    batches = Batches(tokenizer, ids, targets, args.tokens, args.batch_tokens, args.seed)

    def schedule(step: int) -> float:
        return min((step + 1) / 50, 1.0, (1 - step / len(batches)) / 0.6)

    folder = args.output_dir / f"{args.name}-training"
    arguments = TrainingArguments(
        str(folder), max_steps=len(batches), per_device_train_batch_size=1, bf16=True, seed=args.seed,
        train_sampling_strategy="sequential", remove_unused_columns=False, use_cpu=model.device.type == "cpu",
        save_strategy="no", save_total_limit=1, logging_steps=100, disable_tqdm=True, report_to=[],
        include_num_input_tokens_seen="all",
    )  # fmt: skip
    trainer = Trainer(
        model,
        arguments,
        data_collator=lambda rows: rows[0],
        train_dataset=batches,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)),
        compute_loss_func=loss,
        callbacks=[TimedCheckpoints()],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.is_dir() else None)


# ---------------------------------------------------------------------------------------------------------------------
# Results


def report(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace, name: str):
    """Print the scores of `pooler_output` by which models are selected."""
    model.eval()

    def vectors(texts: Sequence[str]) -> np.ndarray:
        outputs = embed(lambda batch: model(**batch).pooler_output, tokenizer, tokenize(tokenizer, texts), model.device)
        return outputs / np.linalg.norm(outputs, axis=1, keepdims=True)

    scores = {}
    if args.stsb:
        scores["STS-B"] = sts_score(vectors, pandas.read_csv(args.stsb))
    if args.banking77:
        scores["banking77"] = few_rows_score(
            vectors, *(pandas.read_csv(args.banking77 / f"{part}.csv") for part in ("train", "test"))
        )
    print(f"{name}:", ", ".join(f"{key} {value:.4f}" for key, value in scores.items()), flush=True)


def sts_score(vectors: Callable, pairs: pandas.DataFrame) -> float:
    """Return Spearman's correlation of the cosines of pairs and their scores."""
    first, second = (vectors(pairs[column].tolist()) for column in ("sentence1", "sentence2"))
    return spearmanr((first * second).sum(1), pairs["score"]).statistic


def few_rows_score(
    vectors: Callable, train: pandas.DataFrame, test: pandas.DataFrame, rows: int = 16, draws: int = 5
) -> float:
    """Return the accuracy of logistic regression on `rows` rows per class, the mean over random samples."""
    inputs, test_inputs = vectors(train["text"].tolist()), vectors(test["text"].tolist())
    accuracies = []
    for seed in range(draws):
        sample = train.groupby("category").sample(rows, random_state=seed).index
        classifier = LogisticRegression(C=10, max_iter=1000).fit(inputs[sample], train["category"][sample])
        accuracies.append(classifier.score(test_inputs, test["category"]))
    return float(np.mean(accuracies))


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path):
    """Save the model with half-precision weights that load in single precision, also for sentence-transformers."""
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"dtype": "float32"}
    write_json(folder / "config.json", config)


if __name__ == "__main__":
    main()
