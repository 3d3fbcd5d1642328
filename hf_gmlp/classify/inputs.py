"""Texts and pictures as the inputs of a model: encoded once, for embeddings, fine-tuning and predictions alike."""

import copy
import hashlib
import io
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..data.labels import REGRESSION
from ..errors import InputError
from ..loading import check_vocabulary, choose_dtype, open_image_processor, open_tokenizer
from ..tokenizer import language_note, padding_for
from ..training.build import sequence_length

if TYPE_CHECKING:
    from .classifier import Classifier

# Texts and pairs of a batch may have this many tokens at most, so that memory stays below a gigabyte.
MAX_BATCH_TOKENS = 16_384


def reads_pictures(config: PreTrainedConfig) -> bool:
    """Return whether the inputs of a model are pictures."""
    return hasattr(config, "image_size") or config.model_type == "timm_wrapper"


class Texts:
    """Texts, or pairs of texts, as token ids.

    Args:
        name: The checkpoint.
        length: Maximum number of tokens; by default 512, or the model's n if it is smaller.
    """

    kind, head = "text", "ForSequenceClassification"

    def __init__(self, name: str, config: PreTrainedConfig, length: int | None, **options: Any) -> None:
        if length is not None and length < 5:
            raise InputError(f"--max_seq_length must be at least 5, got {length}.")
        self.length = sequence_length(config, length, default=512)
        self.processing_class = open_tokenizer(name, **options)
        if self.processing_class.pad_token_id is None:
            raise InputError(f"The tokenizer of {name} has no padding token: set its pad_token, and save it again.")
        check_vocabulary(config, self.processing_class, name)
        # The saved tokenizer has the length of the texts that the model was trained on.
        self.processing_class.model_max_length = self.length
        self.padding = padding_for(config)
        # Texts of a row: 2 in pairs.
        self.parts = 0

    def check(self, rows: Sequence) -> list[tuple[str, ...]]:
        """Return the rows as tuples of one or two texts, as many as in the rows that were checked first."""
        if isinstance(rows, str):
            raise InputError("Pass a list of texts, not a single text.")
        texts = [tuple(row) if isinstance(row, list | tuple | np.ndarray) else (row,) for row in rows]
        for number, parts in enumerate(texts, start=1):
            self.parts = self.parts or len(parts)
            if len(parts) != self.parts or len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
                kind = "a pair of texts" if self.parts == 2 else "a text"
                raise InputError(f"Row {number} must be {kind}, as the other rows, got {parts!r:.60}.")
        return texts

    def keys(self, rows: list) -> list[Hashable]:
        """Return what is equal for equal rows."""
        return [tuple(part.strip() for part in parts) for parts in rows]

    def encode(self, rows: list) -> list[dict[str, list[int]]]:
        """Tokenize as BERT's input: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
        columns = [list(column) for column in zip(*rows)]
        encoded = self.processing_class(*columns, truncation="longest_first", max_length=self.length)
        return [dict(zip(encoded, values)) for values in zip(*encoded.values())]

    def notes(self, rows: list, encoded: list[dict]) -> list[str]:
        """Return a line about truncated texts, and one about texts of another language than the tokenizer's."""
        ids = [row["input_ids"] for row in encoded]
        notes = language_note(rows, ids, self.processing_class)
        if long := sum(len(row) >= self.length for row in ids):
            notes += [f"{long} of {len(ids)} rows have {self.length} tokens or more, of which the first are used."]
        return notes

    def collate(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        options: dict[str, Any] = {"padding": self.padding, "max_length": self.length, "return_tensors": "pt"}
        return dict(self.processing_class.pad(rows, **options))


class Pictures:
    """Pictures (PIL images, or paths of files) as pixels."""

    kind, head, parts = "picture", "ForImageClassification", 1

    def __init__(self, name: str, config: PreTrainedConfig, length: int | None, **options: Any) -> None:
        if length is not None:
            raise InputError("--max_seq_length is for texts: leave it out.")
        self.processing_class = open_image_processor(name, **options)

    def check(self, rows: Sequence) -> list[dict]:
        """Return the rows as undecoded images of `datasets`; an InputError names what is not a picture."""
        from PIL.Image import Image

        from ..processor import DEEP_MODES, to_rgb

        images: list[dict] = []
        for number, row in enumerate(rows, start=1):
            if isinstance(row, Image) and row.mode not in DEEP_MODES:
                to_rgb(row).save(content := io.BytesIO(), "PNG", compress_level=1)
                images.append({"bytes": content.getvalue(), "path": None})
            elif isinstance(row, str | Path):
                images.append({"bytes": None, "path": str(row)})
            else:
                raise InputError(f"Row {number} must be a picture (8 bits) or the path of one, got {row!r:.60}.")
        return images

    def keys(self, rows: list) -> list[Hashable]:
        """Return what is equal for equal pictures: a hash of their file."""
        files = (Path(row["path"]).read_bytes() if row["bytes"] is None else row["bytes"] for row in rows)
        try:
            return [hashlib.sha256(file).digest() for file in files]
        except OSError as error:
            raise InputError(
                f"{error.filename} cannot be read ({error.strerror}): replace it, or remove it and start again."
            ) from error

    def encode(self, rows: list) -> list[dict]:
        return rows

    def notes(self, rows: list, encoded: list[dict]) -> list[str]:
        return []

    def collate(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        from ..processor import decode_image

        return dict(self.processing_class([decode_image(row) for row in rows], return_tensors="pt"))


@torch.inference_mode()
def run(
    model: PreTrainedModel,
    inputs: Texts | Pictures,
    encoded: list[dict],
    options: "Classifier",
    *,
    embeddings: bool = False,
) -> np.ndarray:
    """Return the logits of all rows [N, outputs] or their embeddings [N, D], the inputs of the model's `final_layer`,
    in batches and in the type that the options name.
    """
    if not encoded:
        return np.empty((0, model.config.num_labels))
    # Numbers keep their digits, of which bfloat16 has three.
    dtype = torch.float32 if model.config.problem_type == REGRESSION else choose_dtype(options.dtype)
    model = (model if dtype == model.dtype else copy.deepcopy(model).to(dtype)).eval()
    results, read = [np.empty(0)] * len(encoded), []
    # Texts of similar length need little padding.
    lengths = [len(row.get("input_ids", [0])) for row in encoded]
    order, start = sorted(range(len(encoded)), key=lengths.__getitem__, reverse=True), 0
    with final_layer(model).register_forward_pre_hook(lambda module, args: read.append(args[0])):
        while start < len(order):
            indices = order[start : start + max(1, min(options.batch_size, MAX_BATCH_TOKENS // lengths[order[start]]))]
            batch = {k: v.to(model.device) for k, v in inputs.collate([encoded[index] for index in indices]).items()}
            if "pixel_values" in batch:
                batch["pixel_values"] = batch["pixel_values"].to(dtype)
            logits, features = model(**batch).logits, read.pop()
            for index, result in zip(indices, (features if embeddings else logits).float().cpu().numpy()):
                results[index] = result
            start += len(indices)
    return np.stack(results)


def final_layer(model: PreTrainedModel) -> nn.Linear:
    """Return the last linear layer with as many outputs as the model has labels: its classifier."""
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    for layer in reversed(linear):
        if layer.out_features == model.config.num_labels:
            return layer
    raise InputError(f"A {type(model).__name__} does not end in a linear layer: use another checkpoint.")
