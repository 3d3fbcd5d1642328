"""Rows of local files and of data sets on the Hub; one sentence explains what cannot be read."""

import glob
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import InputError, causes, hub_reason, is_disk_full

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_CSV = {"keep_default_na": False, "index_col": False}
# File ending -> builder of the `datasets` library and its options; `documents` reads text. "NA" and "null" stay text;
# in a .tsv file, as GLUE publishes them, a quotation mark is a plain character.
FILE_KINDS: dict[str, tuple[str, dict]] = {
    "txt": ("documents", {}),
    "json": ("json", {}),
    "jsonl": ("json", {}),
    "csv": ("csv", _CSV),
    "tsv": ("csv", _CSV | {"sep": "\t", "quoting": 3}),
    "parquet": ("parquet", {}),
}
COMPRESSIONS = ("gz", "bz2", "xz", "zst")
# Bytes of text that are read, tokenized and written together.
BATCH_BYTES = 4_000_000
# Characters that are tokenized together: a tokenizer's output takes up to 80 times the memory of its text.
GROUP_SIZE = 250_000

Item = TypeVar("Item")


@dataclass(frozen=True)
class Access:
    """How to get data: `cache_dir` keeps it, `token` opens private data, `overwrite_cache` reads it again."""

    cache_dir: str | None = None
    token: str | None = None
    overwrite_cache: bool = False

    @property
    def download_mode(self) -> str | None:
        return "force_redownload" if self.overwrite_cache else None


def load_data(
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
    streaming: bool = False,
    access: Access = Access(),
    **reading_options,
) -> "Mapping[str, Dataset | IterableDataset]":
    """Returns the splits of local files (split -> paths of one kind) or, without files, of a data set on the Hub.

    `reading_options` are `lines` and `text_columns` of `read_files`. Raises an InputError if neither is named, a file
    cannot be read, or the data set cannot be loaded.
    """
    if files:
        # Check all files before reading the first.
        for paths in files.values():
            file_kind(paths)
        options = {"streaming": streaming, "access": access} | reading_options
        return {split: read_files(paths, **options) for split, paths in files.items()}
    if dataset_name is None:
        raise InputError("No data are named.")
    from datasets import load_dataset

    try:
        return load_dataset(
            dataset_name,
            dataset_config_name,
            streaming=streaming,
            cache_dir=access.cache_dir,
            token=access.token,
            download_mode=access.download_mode,
        )
    except Exception as error:
        title = f"{dataset_name} {dataset_config_name or ''}".strip()
        raise InputError(f"The data set {title} cannot be loaded: {hub_reason(error)}.") from error


def file_kind(paths: Iterable[str | Path]) -> str:
    """Returns the common kind of the files, a key of `FILE_KINDS`, ignoring a compression ending such as .gz; an
    InputError if there are no files, one is missing or empty, or they are not of one known kind.
    """
    kinds = set()
    for path in map(Path, paths):
        check_file(path)
        endings = [suffix.lower().lstrip(".") for suffix in path.suffixes]
        if endings and endings[-1] in COMPRESSIONS:
            endings.pop()
        if not endings or endings[-1] not in FILE_KINDS:
            raise InputError(f"{path} is of an unknown kind; give files that end in {', '.join(FILE_KINDS)}.")
        kinds.add(endings[-1])
    if len(kinds) != 1:
        raise InputError(f"Give at least one file, and files of one kind at a time, got {', '.join(sorted(kinds))}.")
    return kinds.pop()


def check_file(path: Path):
    """Raises an InputError if there is no such file, it is a folder, or it is empty."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the files in it.")
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if path.stat().st_size == 0:
        raise InputError(f"The file {path} is empty.")


def read_files(
    paths: Iterable[str | Path],
    *,
    streaming: bool = False,
    access: Access = Access(),
    lines: bool = False,
    text_columns: Sequence[str] = (),
) -> "Dataset | IterableDataset":
    """Returns the rows of files of one kind. The cache identifies files by their contents, not by their times.

    Args:
        lines: Take every line of a .txt file as a text; otherwise blank lines separate texts.
        text_columns: Columns of .csv and .tsv files that stay text even if every value looks like a number.

    Raises an InputError as `file_kind` does, or if the contents are not what the file's ending says.
    """
    # These imports take a second, which `hf-gmlp --help` does without: it lists the kinds of files.
    from datasets import load_dataset_builder

    from .documents import Documents

    paths = [str(path) for path in paths]
    kind = file_kind(paths)
    builder, options = FILE_KINDS[kind]
    with reading(paths, kind):
        # Two files may have the same size and time. A stream is not cached.
        contents = "" if streaming else content_hash(paths)
        if kind == "txt":
            rows = Documents(cache_dir=access.cache_dir, paths=tuple(paths), contents=contents, lines=lines)
        else:
            if builder == "csv" and text_columns:
                options = options | {"converters": dict.fromkeys(text_columns, str)}
            # Names, not patterns.
            named = {"data": [glob.escape(path) for path in paths]}
            name = f"contents-{contents}"
            rows = load_dataset_builder(builder, name, data_files=named, cache_dir=access.cache_dir, **options)
        if streaming:
            data = rows.as_streaming_dataset(split="data")
            # Reading the first row opens the stream.
            next(iter(data), None)
            return data
        rows.download_and_prepare(download_mode=access.download_mode)
        return rows.as_dataset(split="data")


@contextmanager
def reading(paths: Iterable[str | Path], kind: str) -> Iterator[None]:
    """Turns any error in reading files into an InputError of one sentence, except a full disk."""
    try:
        with warnings.catch_warnings():
            # pandas warns of rows with more cells than the header, and would cut them off.
            warnings.filterwarnings("error", "Length of header or names does not match")
            yield
    except InputError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise
        *_, cause = causes(error)
        reason = str(cause) or type(cause).__name__
        if isinstance(cause, EOFError):
            reason = "it is cut off"
        elif isinstance(cause, UnicodeDecodeError):
            reason = "it is not UTF-8: convert it, or repair the bytes that are not"
        elif isinstance(cause, Warning):
            reason = "its rows have more cells than its header names"
        elif "corresponds to no data" in reason:
            # The message of `datasets` for files without a single row.
            reason = "it has no rows"
        names = ", ".join(map(str, paths))
        raise InputError(f"{names} cannot be read as {kind}: {reason.splitlines()[0].rstrip('.')}.") from error


def open_text(path: str | Path) -> io.TextIOBase:
    """Opens a UTF-8 text file, decompressing it if its ending is one of `COMPRESSIONS`."""
    from fsspec.compression import compr
    from fsspec.utils import infer_compression

    packing = infer_compression(str(path))
    if packing is not None and packing not in compr:
        raise InputError(f"{path} is compressed with {packing}, which cannot be read here: decompress it first.")
    file = open(path, "rb")
    return io.TextIOWrapper(file if packing is None else compr[packing](file, mode="rb"), encoding="utf-8-sig")


def in_batches(
    texts: Iterable[Item], size: int, *, count: int | None = None, size_of: Callable[[Item], int] = len
) -> Iterator[list[Item]]:
    """Yields lists of texts with a total of `size` characters or slightly more, and at most `count` texts each."""
    batch: list[Item] = []
    total = 0
    for text in texts:
        batch.append(text)
        total += size_of(text)
        if total >= size or len(batch) == count:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def content_hash(paths: Iterable[str | Path]) -> str:
    """Returns a hash of the bytes of the files, in order."""
    import xxhash

    digest = xxhash.xxh3_128()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
        # Marks where one file ends and the next begins.
        digest.update(b"%d" % Path(path).stat().st_size)
    return digest.hexdigest()
