"""How models match words of two sentences: accuracy by the number of words, and what tiny attention looks at."""

import json
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from hf_gmlp.errors import InputError
from hf_gmlp.markdown import markdown_table
from hf_gmlp.training.run_folder import FINISHED

from .protocol import MODELS


@torch.no_grad()
def print_pairs(folder: Path):
    """Print tables of the fine-tuned models in the folder of a replication, measured on its pairs to evaluate.

    Raises:
        InputError: There is no such model in the folder.
    """
    runs = sorted(path.parent for path in folder.glob(f"task/*/*/{FINISHED}"))
    if not runs:
        raise InputError(f"{folder} has no model fine-tuned on the word-matching task. Run `paper replicate` first.")
    lines = (folder / "data" / "pairs-evaluation.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    labels = torch.tensor([row["label"] for row in rows])
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    sentences = [[row[name] for row in rows] for name in ("sentence1", "sentence2")]
    batch = dict(tokenizer(*sentences, padding=True, return_token_type_ids=True, return_tensors="pt"))
    is_word = torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids), invert=True)
    numbers = is_word.sum(1)
    columns = numbers.unique().tolist()
    accuracies: list[list] = [["accuracy, %, by the number of words", *columns, "all"]]
    attention: list[list] = [["attention of a word", "block", "to its copy", "to another word of that sentence"]]
    for run in runs:
        model = AutoModelForSequenceClassification.from_pretrained(run, attn_implementation="eager").eval()
        name = f"{MODELS[run.parent.name].title}, seed {run.name.rpartition('-')[2]}"
        is_right, means = evaluate(model, batch, labels, is_word)
        parts = [is_right[numbers == number] for number in columns]
        accuracies.append([name, *(f"{100 * part.float().mean():.1f}" for part in (*parts, is_right))])
        attention += [[name, block, f"{copy:.3f}", f"{other:.3f}"] for block, (copy, other) in means.items()]
    print(markdown_table(accuracies), markdown_table(attention), sep="\n\n")


def evaluate(
    model: PreTrainedModel, batch: dict[str, torch.Tensor], labels: torch.Tensor, is_word: torch.Tensor
) -> tuple[torch.Tensor, dict[int, tuple[float, float]]]:
    """
    Return which pairs a model has right, [B], and of an aMLP, by block, the mean `attention_to_copies`.

    Args:
        batch: `input_ids`, `attention_mask` and `token_type_ids`, [B, m].
        labels: [B]
        is_word: [B, m], False for special tokens.
    """
    is_amlp = bool(getattr(model.config, "attention_size", 0))
    is_right, found = [], defaultdict(list)
    for part in torch.arange(len(labels)).split(500):
        inputs = {name: tensor[part] for name, tensor in batch.items()}
        segments = inputs["token_type_ids"]
        if not getattr(model.config, "type_vocab_size", 0):
            del inputs["token_type_ids"]
        output = model(**inputs, output_attentions=is_amlp)
        is_right.append(output.logits.argmax(1) == labels[part])
        for block, weights in enumerate(output.attentions or (), start=1):
            # One head.
            found[block].append(attention_to_copies(weights[:, 0], inputs["input_ids"], segments, is_word[part]))
    means = {}
    for block, weights in found.items():
        copies, others = (torch.cat(values) for values in zip(*weights))
        means[block] = (copies.mean().item(), others.mean().item())
    return torch.cat(is_right), means


def attention_to_copies(
    weights: torch.Tensor, input_ids: torch.Tensor, segments: torch.Tensor, is_word: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return the attention of each word to its copy in the other sentence, and to each other word there, as vectors.

    Args:
        weights: [B, m, m], from the query (rows) to the key (columns).
        input_ids, segments, is_word: [B, m]
    """
    across = (segments[:, :, None] != segments[:, None]) & is_word[:, :, None] & is_word[:, None]
    copies = across & (input_ids[:, :, None] == input_ids[:, None])
    others = across & ~copies & copies.any(2, keepdim=True)
    return weights[copies], weights[others]
