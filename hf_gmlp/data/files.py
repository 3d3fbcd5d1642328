"""Data sets of the Hub and local files as rows, with one clear sentence for what cannot be read."""

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

# File ending -> builder of the `datasets` library and its options; text is read by `documents`. "NA" and "null" are
# text like any other; in a .tsv file, as GLUE hands them out, a quotation mark is only a quotation mark.
FILE_KINDS: dict[str, tuple[str, dict]] = {
    "txt": ("documents", {}),
    "json": ("json", {}),
    "jsonl": ("json", {}),
    "csv": ("csv", {"keep_default_na": False, "index_col": False}),
    "tsv": ("csv", {"keep_default_na": False, "index_col": False, "sep": "\t", "quoting": 3}),
    "parquet": ("parquet", {}),
}
COMPRESSIONS = ("gz", "bz2", "xz", "zst")
# Bytes of text that are read, tokenized and written together.
BATCH_BYTES = 4_000_000
# Characters that are tokenized together: what a tokenizer gives takes up to 80 times the memory of its text.
GROUP_SIZE = 250_000

Item = TypeVar("Item")


@dataclass(frozen=True)
class Access:
    """How data are had: `cache_dir` keeps them, `token` opens what is private, `overwrite_cache` reads them anew."""

    cache_dir: str | None = None
    token: str | None = None
    overwrite_cache: bool = False


def load_data(
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
    streaming: bool = False,
    access: Access = Access(),
    lines: bool = False,
    text_columns: Sequence[str] = (),
) -> "Mapping[str, Dataset | IterableDataset]":
    """
    The splits of some local files or, without files, of a data set on the Hub.

    Args:
        files: Split -> paths of files of one kind.
        lines, text_columns: As for `read_files`.

    Raises:
        InputError: If neither is named, a file cannot be read, or the data set cannot be had.
    """
    if files:
        # All are looked at before the first is read.
        for paths in files.values():
            file_kind(paths)
        options = {"streaming": streaming, "access": access, "lines": lines, "text_columns": text_columns}
        return {split: read_files(paths, **options) for split, paths in files.items()}
    if dataset_name is None:
        raise InputError("No data are named.")
    from datasets import DownloadMode, load_dataset

    try:
        return load_dataset(
            dataset_name,
            dataset_config_name,
            streaming=streaming,
            cache_dir=access.cache_dir,
            token=access.token,
            download_mode=DownloadMode.FORCE_REDOWNLOAD if access.overwrite_cache else None,
        )
    except Exception as error:
        title = f"{dataset_name} {dataset_config_name or ''}".strip()
        raise InputError(f"The data set {title} cannot be loaded: {hub_reason(error)}.") from error


def file_kind(paths: Iterable[str | Path]) -> str:
    """
    The one kind of some files, a key of `FILE_KINDS`; an ending such as .gz behind it does not matter.

    Raises:
        InputError: If there are none, one does not exist or is empty, or they are not of one known kind.
    """
    kinds = set()
    for path in map(Path, paths):
        check_file(path)
        endings = [suffix.lower().lstrip(".") for suffix in path.suffixes]
        if endings and endings[-1] in COMPRESSIONS:
            endings.pop()
        if not endings or endings[-1] not in FILE_KINDS:
            raise InputError(f"{path} is of no known kind; give files that end in {', '.join(FILE_KINDS)}.")
        kinds.add(endings[-1])
    if len(kinds) != 1:
        raise InputError(f"Give at least one file, and files of one kind at a time, got {', '.join(sorted(kinds))}.")
    return kinds.pop()


def check_file(path: Path):
    """
    Raises:
        InputError: If there is no such file, it is a folder, or it is empty.
    """
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
    """
    The rows of some files of one kind. What is in the cache is found by the files' contents, not by their times.

    Args:
        lines: Take every line of a .txt file for a text; else texts are parted by blank lines.
        text_columns: Columns of .csv and .tsv files that are text even where all of it looks like numbers.

    Raises:
        InputError: As `file_kind`, or if the files cannot be read as what they say they are.
    """
    # Takes a second, which `hf-gmlp --help` does without.
    import glob

    from datasets import DownloadMode, load_dataset_builder

    from .documents import Documents

    paths = [str(path) for path in paths]
    kind = file_kind(paths)
    builder, options = FILE_KINDS[kind]
    mode = DownloadMode.FORCE_REDOWNLOAD if access.overwrite_cache else DownloadMode.REUSE_DATASET_IF_EXISTS
    with reading(paths, kind):
        # Two files may have one size and one time. Of a stream nothing is kept.
        contents = "" if streaming else content_hash(paths)
        if kind == "txt":
            rows = Documents(cache_dir=access.cache_dir, paths=tuple(paths), contents=contents, lines=lines)
        else:
            if builder == "csv" and text_columns:
                options = options | {"converters": dict.fromkeys(text_columns, str)}
            # Names, not patterns.
            named = {"data": [glob.escape(path) for path in paths]}
            rows = load_dataset_builder(
                builder, f"contents-{contents}", data_files=named, cache_dir=access.cache_dir, **options
            )
        if streaming:
            data = rows.as_streaming_dataset(split="data")
            # A stream is opened by its first row.
            next(iter(data), None)
            return data
        rows.download_and_prepare(download_mode=mode)
        return rows.as_dataset(split="data")


@contextmanager
def reading(paths: Iterable[str | Path], kind: str) -> Iterator[None]:
    """Turns what goes wrong while files are read into one sentence."""
    try:
        with warnings.catch_warnings():
            # What pandas says of rows with more cells than the header, which it would cut off.
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
            reason = "it is not UTF-8: convert it, or mend the bytes that are not"
        elif isinstance(cause, Warning):
            reason = "its rows have more cells than its header names"
        elif "corresponds to no data" in reason:
            # What `datasets` says of files without a single row.
            reason = "it has no rows"
        names = ", ".join(map(str, paths))
        raise InputError(f"{names} cannot be read as {kind}: {reason.splitlines()[0].rstrip('.')}.") from error


def open_text(path: str | Path) -> io.TextIOBase:
    """A file of text in UTF-8, unpacked on the way if it ends in one of `COMPRESSIONS`."""
    from fsspec.compression import compr
    from fsspec.utils import infer_compression

    packing = infer_compression(str(path))
    if packing is not None and packing not in compr:
        raise InputError(f"{path} is packed by {packing}, which cannot be read here: unpack it first.")
    file = open(path, "rb")
    return io.TextIOWrapper(file if packing is None else compr[packing](file, mode="rb"), encoding="utf-8-sig")


def in_batches(
    texts: Iterable[Item], size: int, *, count: int | None = None, size_of: Callable[[Item], int] = len
) -> Iterator[list[Item]]:
    """Lists of texts that have `size` characters together, or a little more, and are `count` at most."""
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
    """A hash of all bytes of some files, in their order."""
    import xxhash

    digest = xxhash.xxh3_128()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
        # Where one ends and the next begins.
        digest.update(b"%d" % Path(path).stat().st_size)
    return digest.hexdigest()
