"""The command `hf-gmlp train-tokenizer`: a tokenizer from local files or a data set; docs/tokenizer.md says more."""

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from ..tasks.text import text_rows
from ..tokenizer import train_tokenizer
from ..training.files import load_data, read_files, reading


def main(args: argparse.Namespace):
    """Read, train, save and report."""
    output_dir = Path(args.output_dir)
    if any((output_dir / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise InputError(f"{output_dir} already holds a tokenizer: choose another --output_dir, or delete it first.")
    source = ("dataset_name", "dataset_config_name", "split", "streaming", "text_column")
    texts = read_texts(args.files, **{name: getattr(args, name) for name in source})
    progress = tqdm(itertools.islice(texts, args.max_samples), desc="Reading", unit=" documents")
    documents = iter(progress)
    first = list(itertools.islice(documents, 1000))
    # Fails here if it cannot be written, not after hours of reading.
    output_dir.mkdir(parents=True, exist_ok=True)
    names = ("vocab_size", "character_coverage", "input_sentence_size", "max_length", "lowercase")
    options = {name: getattr(args, name) for name in names}
    tokenizer = train_tokenizer(itertools.chain(first, documents), **options)
    tokenizer.save_pretrained(output_dir)
    print(f"vocabulary:           {len(tokenizer):,} tokens")
    print(f"documents read:       {progress.n:,} (rows, or lines of plain text)")
    print(f"characters per token: {characters_per_token(tokenizer, first):.2f} on the first {len(first):,} documents")
    print(f"saved in:             {output_dir}")
    print(f'load it with:         AutoTokenizer.from_pretrained("{output_dir}")')


def read_texts(
    files: Iterable[str | Path] = (),
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    streaming: bool = True,
    text_column: str = "text",
) -> Iterator[str]:
    """Yield the texts of local files or of a data set, without the blank ones.

    Args:
        files: Files of one kind of `hf_gmlp.training.files`. Every line of a .txt file is a text.
        dataset_name: A data set on the Hub, or a folder that `load_dataset` opens.
        streaming: Whether to read the data set over the network instead of downloading it first.

    Raises:
        InputError: If both or none are named, or something cannot be read.
    """
    paths = [str(path) for path in files]
    if (dataset_name is None) == (not paths):
        raise InputError("Name either files or --dataset_name to train on.")
    if dataset_name is None:
        splits: Mapping = {split: read_files(paths, streaming=True, lines=True, text_columns=[text_column])}
    else:
        splits = load_data(dataset_name=dataset_name, dataset_config_name=dataset_config_name, streaming=streaming)
    source = dataset_name or ", ".join(paths)
    if split not in splits:
        raise InputError(f"{source} has no split {split!r}: pass --split, one of {', '.join(splits)}.")
    with reading([source], "text"):
        for row in text_rows(splits[split], text_column, source):
            if row["text"] and not row["text"].isspace():
                yield row["text"]


def characters_per_token(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> float:
    """Return the mean number of characters per token over the first 1,000 characters of each text."""
    texts = [text[:1000] for text in texts]
    # Not verbose: a text may be longer than the model takes.
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return sum(map(len, texts)) / sum(map(len, ids))
