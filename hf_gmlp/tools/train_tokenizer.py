"""The command `hf-gmlp train-tokenizer`, which trains a tokenizer on local files or a dataset (docs/tokenizer.md)."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..data.files import load_data, reading
from ..errors import InputError
from ..tokenizer import train_tokenizer

# The options of `read_texts`. All others are options of `train_tokenizer`.
SOURCE = ("files", "dataset_name", "dataset_config_name", "split", "streaming", "text_column_name")


def train(output_dir: str, max_samples: int | None = None, **options: Any) -> list[str]:
    """Train a tokenizer, save it in a folder, and return a line about it to print."""
    folder, source = Path(output_dir), {name: options.pop(name) for name in SOURCE if name in options}
    if any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise InputError(f"{folder} already holds a tokenizer: choose another --output_dir, or delete it first.")
    if min(options.get("vocab_size", 1), options.get("max_length", 1), max_samples or 1) < 1 or max_samples == 0:
        raise InputError("--vocab_size, --max_length and --max_samples must be at least 1.")
    # An output folder that cannot be written to fails here, not after hours of reading.
    folder.mkdir(parents=True, exist_ok=True)
    documents = tqdm(itertools.islice(read_texts(**source), max_samples), desc="Reading", unit=" documents")
    tokenizer = train_tokenizer(documents, **options)
    tokenizer.save_pretrained(folder)
    return [f"A tokenizer of {len(tokenizer):,} tokens, trained on {documents.n:,} documents, is in {folder}."]


def read_texts(
    files: Sequence[str | Path] = (),
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    streaming: bool = True,
    text_column_name: str = "text",
) -> Iterator[str]:
    """Yield the texts of local files, or of a dataset on the Hub or in a folder, without the blank ones.

    Args:
        files: Files, all of one kind that `hf_gmlp.data.files` reads. Every line of a .txt file is a text.
        streaming: Whether to read the dataset over the network instead of downloading it first.

    Raises:
        InputError: If both files and a dataset or neither are named, or there is no such split or column of text.
    """
    if (dataset_name is None) == (not files):
        raise InputError("Name either files or --dataset_name to train on.")
    if dataset_name is None:
        splits = load_data(
            files={split: list(map(str, files))}, streaming=True, lines=True, text_columns=[text_column_name]
        )
    else:
        splits = load_data(dataset_name=dataset_name, dataset_config_name=dataset_config_name, streaming=streaming)
    if split not in splits:
        raise InputError(f"{dataset_name} has no split {split!r}: pass --split, one of {', '.join(splits)}.")
    with reading(files or [str(dataset_name)], "text"):
        for row in splits[split]:
            text = row.get(text_column_name)
            if text_column_name not in row or not isinstance(text, str | None):
                names = ", ".join(row)
                raise InputError(f"There is no text in {text_column_name!r}: pass --text_column_name, one of {names}.")
            if text and not text.isspace():
                yield text
