"""What masked and causal language modeling share: text as sequences of token ids, padded batches, and metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, IterableDataset, List, Value
from torch.nn.functional import cross_entropy, pad
from transformers import EvalPrediction
from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from ..tokenizer import end_of_text
from ..training.arguments import DataArguments, RunArguments, flag

# Number of bytes of text that are tokenized and written together.
BATCH_BYTES = 4_000_000
# Number of documents of a stream that are tokenized and packed together, and of sequences that each worker shuffles.
STREAM_BATCH, SHUFFLE_BUFFER = 200, 2000

Texts = Iterable[str | None]
Sequences = dict[str, list[np.ndarray]]


@dataclass
class TextArguments(DataArguments):
    """The text to train a language model on."""

    text_column_name: str = flag("Name of the text column.", "text")
    separate_documents: bool = flag("Hide the documents in one sequence from each other (gMLP and aMLP only).", False)
    validation_split_percentage: int = flag(
        "Percentage of documents to hold out if there are no validation data.", 5, interval="(0, 100)"
    )
    streaming: bool = flag(
        "Read a dataset over the network, or files, while training, instead of preparing all of it first.", False
    )

    def loading_options(self, args: RunArguments) -> dict[str, Any]:
        """Return the arguments of `load_texts`."""
        options = {"text_column": self.text_column_name, "held_out": self.validation_split_percentage / 100}
        options |= {"streaming": self.streaming, "max_eval_samples": self.max_eval_samples}
        return options | {"train": args.do_train, "validate": args.do_eval, "seed": args.seed}

    def tokenizing_options(self, args: RunArguments) -> dict[str, Any]:
        """Return the arguments of `tokenize`."""
        options = {"num_proc": self.preprocessing_num_workers, "max_train_samples": self.max_train_samples}
        return options | {"seed": args.seed, "overwrite_cache": self.overwrite_cache and args.local_process_index == 0}


def tokenize(
    texts: Mapping[str, Dataset | IterableDataset],
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    causal: bool = False,
    max_train_samples: int | None = None,
    seed: int = 0,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
) -> tuple[Dataset | IterableDataset | None, Dataset | None]:
    """Make sequences from the texts of `load_texts`: packed documents, or `causal` blocks.

    No token of a validation text or of a stream is left out. Of the training sequences, the first `max_train_samples`
    are kept. The `seed` determines the order of a stream.

    Returns:
        Training and validation sequences, None for a part without texts. Their rows are arrays "input_ids" [m].
    """
    make = partial(pack, tokenizer=tokenizer, max_seq_length=max_seq_length, causal=causal)
    features = Features({"input_ids": List(Value("int32"))})
    columns: dict = {"batched": True, "input_columns": ["text"], "remove_columns": ["text"], "features": features}
    options: dict = {"num_proc": num_proc, "desc": "Tokenizing", "load_from_cache_file": not overwrite_cache}

    sequences: dict = {}
    for split, documents in texts.items():
        limit = max_train_samples if split == "train" else None
        if isinstance(documents, IterableDataset):
            rows = documents.map(partial(make, keep_remainder=True), batch_size=STREAM_BATCH, **columns)
            rows = rows if limit is None else rows.take(limit)
            # Shuffle within one file: `datasets` cannot resume a buffer of several with another number of workers.
            rows = rows.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER, max_buffer_input_shards=1)
        else:
            # Up to a thousand texts, fewer if they are long.
            size = max(1, min(1000, BATCH_BYTES * documents.data.num_rows // max(documents.data.nbytes, 1)))
            make_split = partial(make, keep_remainder=split != "train")
            rows = documents.map(make_split, batch_size=size, **columns, **options)
            if len(rows) == 0:
                raise InputError(f"The {split} text fills no sequence of {max_seq_length} tokens: add text.")
            rows = rows.take(min(limit or len(rows), len(rows)))
        sequences[split] = rows.with_format("numpy")
    return sequences.get("train"), sequences.get("validation")


def pack(
    documents: Texts, tokenizer: Tokenizer, max_seq_length: int, *, causal: bool = False, keep_remainder: bool = False
) -> Sequences:
    """Join documents with [SEP] between them and cut them into sequences [CLS] ... [SEP] of `max_seq_length` tokens.

    Causal blocks have the end-of-text token before each document instead. Every token is predicted exactly once: a
    block starts with the last token of the block before, and a document with the end-of-text token, as in generation
    without a prompt.

    There is no padding or truncation. A shorter last sequence is dropped, or kept with `keep_remainder`.

    Returns:
        The "input_ids" [m] of each sequence.
    """
    sep, cls = end_of_text(tokenizer) if causal else tokenizer.sep_token_id, tokenizer.cls_token_id
    ids, step = _join(documents, tokenizer, np.array([sep], dtype=np.int32)), max_seq_length - (1 if causal else 2)
    # A causal model does not predict the first separator; others do not see it.
    length = len(ids) - 1 if keep_remainder else (len(ids) - 1) // step * step
    parts = [ids[start : start + step + 1] for start in range(0, length, step)]
    if causal:
        return {"input_ids": parts}
    return {"input_ids": [np.concatenate([[cls], part[1:], [sep]], dtype=np.int32) for part in parts]}


def _join(documents: Texts, tokenizer: Tokenizer, separator: np.ndarray) -> np.ndarray:
    """Return the tokens of all documents that are not blank, with the `separator` before each."""
    kept = [text for text in documents if text and not text.isspace()]
    # A verbose tokenizer warns of documents longer than a sequence.
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    encoded = tokenizer(kept, **options)["input_ids"] if kept else []
    parts = (part for ids in encoded for part in (separator, np.array(ids, dtype=np.int32)))
    return np.concatenate([separator[:0], *parts])


def count_bytes(documents: Texts) -> int:
    """Return the number of UTF-8 bytes of the documents that `pack_causal` packs, those that are not blank."""
    return sum(len(text.encode("utf-8")) for text in documents if text and not text.isspace())


def pad_rows(
    rows: Sequence[Mapping[str, np.ndarray]], pad_token_id: int, length: int | None = None
) -> dict[str, torch.Tensor]:
    """Pad rows of "input_ids", "labels" and possibly "position_ids" [m] on the right to `length`, by default that of
    the longest row. The labels of padding are -100.

    Returns:
        The columns [batch, length], and an "attention_mask" if there is padding.
    """
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    length = int(lengths.max()) if length is None else length
    batch = {}
    for name, value in {"input_ids": pad_token_id, "labels": -100, "position_ids": 0}.items():
        if name in rows[0]:
            columns = [torch.as_tensor(row[name]).long() for row in rows]
            batch[name] = torch.stack([pad(column, (0, length - len(column)), value=value) for column in columns])
    mask = torch.arange(length) < lengths[:, None]  # [batch, length]
    return batch if mask.all() else batch | {"attention_mask": mask.long()}


def restarting_positions(starts: np.ndarray) -> np.ndarray:
    """Return `position_ids` [m] that restart from 0 at the first token and wherever `starts` [m] is true."""
    positions = np.arange(len(starts))
    return positions - np.maximum.accumulate(np.where(starts, positions, 0))


def token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the loss of each token: `preprocess_logits_for_metrics` for Trainer.

    Args:
        logits: [batch, m, vocabulary], or a tuple that begins with them.
        labels: [batch, m], -100 where nothing is predicted.

    Returns:
        The loss in nats, and 1 if the prediction is correct, both [batch, m] and 0 where nothing is predicted.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    if logits.device.type == "xla":
        # Use all tokens: the number of predicted ones differs between batches, and XLA compiles for each shape.
        losses = cross_entropy(logits.float().mT, labels, reduction="none")
        return losses, (logits.argmax(-1) == labels).float()
    losses = torch.zeros(labels.shape, device=logits.device)
    correct = torch.zeros_like(losses)
    # Leave the other tokens out, since a masked language model predicts only one in seven.
    predicted = labels != -100
    logits, labels = logits[predicted].float(), labels[predicted]
    losses[predicted] = cross_entropy(logits, labels, reduction="none")
    correct[predicted] = (logits.argmax(-1) == labels).float()
    return losses, correct


def next_token_losses(logits: torch.Tensor | tuple, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `token_losses` of a causal language model, whose logits predict the next label; first tokens have 0.

    Arguments and results have the shapes of `token_losses`.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    losses, correct = token_losses(logits[:, :-1], labels[:, 1:])
    return pad(losses, (1, 0)), pad(correct, (1, 0))


class LanguageModelMetrics:
    """`compute_metrics` over all batches of an evaluation.

    Args:
        num_bytes: Number of bytes of the evaluated text in UTF-8, for "bits_per_byte": the loss of the complete text in
            bits, divided by its bytes, which can be compared between tokenizers. End-of-text tokens add to the loss but
            not to the bytes.
    """

    def __init__(self, num_bytes: int | None = None) -> None:
        self.num_bytes = num_bytes
        # The loss in nats, the number of correct predictions, and that of all predictions.
        self.sums = [0.0, 0.0, 0.0]

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float] | None:
        losses, correct = prediction.predictions
        predicted = prediction.label_ids != -100
        batch = (losses[predicted], correct[predicted], predicted)
        self.sums = [total + values.double().sum().item() for total, values in zip(self.sums, batch)]
        if not compute_result:
            return None
        (nats, right, tokens), self.sums = self.sums, [0.0, 0.0, 0.0]
        # exp overflows past 709 nats.
        results = {"token_loss": nats / tokens, "perplexity": math.exp(min(nats / tokens, 700.0))}
        results |= {"accuracy": right / tokens, "predicted_tokens": int(tokens)}
        if self.num_bytes is not None:
            results |= {"bits_per_byte": nats / math.log(2) / self.num_bytes, "predicted_bytes": self.num_bytes}
        return results
