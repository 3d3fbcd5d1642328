"""The command `hf-gmlp train-tokenizer`: a tokenizer from local files or a data set; docs/tokenizer.md says more."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from ..errors import InputError
from ..tokenizer import save_tokenizer, train_tokenizer
from ..training.files import load_data


def train(output_dir: str, *, max_samples: int | None = None, options: dict, **source):
    """Train a tokenizer with `options` of `train_tokenizer` on the texts of a `source` of `read_texts`, and save it."""
    folder = Path(output_dir)
    if any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise InputError(f"{folder} already holds a tokenizer: choose another --output_dir, or delete it first.")
    # Fails here if it cannot be written, not after hours of reading.
    folder.mkdir(parents=True, exist_ok=True)
    documents = tqdm(itertools.islice(read_texts(**source), max_samples), desc="Reading", unit=" documents")
    tokenizer = train_tokenizer(documents, **options)
    save_tokenizer(tokenizer, folder)
    print(f"A tokenizer of {len(tokenizer):,} tokens, trained on {documents.n:,} documents, is in {folder}.")


def read_texts(
    files: Sequence[str | Path] = (),
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    streaming: bool = True,
    text_column: str = "text",
) -> Iterator[str]:
    """Yield the texts of local files, or of a data set on the Hub or in a folder, without the blank ones.

    Args:
        files: Files of one kind of `hf_gmlp.training.files`. Every line of a .txt file is a text.
        streaming: Whether to read the data set over the network instead of downloading it first.

    Raises:
        InputError: If both or none are named, or there is no such split or column of text.
    """
    if (dataset_name is None) == (not files):
        raise InputError("Name either files or --dataset_name to train on.")
    if dataset_name is None:
        splits = load_data(files={split: list(map(str, files))}, streaming=True, lines=True, text_columns=[text_column])
    else:
        splits = load_data(dataset_name=dataset_name, dataset_config_name=dataset_config_name, streaming=streaming)
    if split not in splits:
        raise InputError(f"{dataset_name} has no split {split!r}: pass --split, one of {', '.join(splits)}.")
    for row in splits[split]:
        text = row.get(text_column)
        if text_column not in row or not isinstance(text, str | None):
            raise InputError(f"There is no text in {text_column!r}: pass --text_column, one of {', '.join(row)}.")
        if text and not text.isspace():
            yield text
