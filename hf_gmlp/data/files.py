"""Rows of local files and of datasets on the Hub."""

import glob
import itertools
import json
import lzma
import os
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import fsspec
import pandas
import pyarrow
from datasets import Dataset, Features, IterableDataset, Value, load_dataset
from datasets.exceptions import DatasetsError

from ..errors import InputError, causes, first_line, hub_reason

# By default, pandas would replace "NA" and "null" by missing values.
_CSV = {"keep_default_na": False, "index_col": False}
# By default, a column of texts and numbers would become JSON: "a" with its quotation marks.
_JSON = {"on_mixed_types": None}
# File ending -> builder of the `datasets` library and its options; `_documents` reads text. In .tsv files such as those
# of GLUE, a quotation mark is an ordinary character.
FILE_KINDS: dict[str, tuple[str, dict]] = {
    "txt": ("text", {}),
    "json": ("json", _JSON),
    "jsonl": ("json", _JSON),
    "csv": ("csv", _CSV),
    "tsv": ("csv", _CSV | {"sep": "\t", "quoting": 3}),
    "parquet": ("parquet", {}),
}
# Maximum number of lines of a document in a .txt file. Longer parts without a blank line are split.
MOST_LINES = 100
COMPRESSIONS = ("gz", "bz2", "xz", "zst")
# Errors that reading a file may raise, in `datasets`, pyarrow, codecs and pandas (as a warning).
READ_ERRORS = (
    *(OSError, ValueError, RuntimeError, EOFError, zlib.error, lzma.LZMAError),
    *(DatasetsError, pyarrow.ArrowException, Warning),
)


@dataclass(frozen=True)
class Access:
    """How to load data: the folder of the cache, the token for private data, and whether to prepare the data again."""

    cache_dir: str | None = None
    token: str | None = None
    overwrite_cache: bool = False

    def options(self) -> dict[str, str | None]:
        """Return them as arguments of `load_dataset`."""
        mode = "force_redownload" if self.overwrite_cache else None
        return {"cache_dir": self.cache_dir, "token": self.token, "download_mode": mode}


def load_data(
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
    streaming: bool = False,
    access: Access = Access(),
    **options,
) -> Mapping[str, Dataset | IterableDataset]:
    """Return the splits of local `files`, with `options` of `read_files`, or else of a dataset on the Hub."""
    if files:
        options |= {"streaming": streaming, "access": access}
        return {split: read_files(paths, **options) for split, paths in files.items()}
    if dataset_name is None:
        raise InputError("Name the data: --dataset_name for the Hub, or --train_file and --validation_file.")
    try:
        return load_dataset(dataset_name, dataset_config_name, streaming=streaming, **access.options())
    except READ_ERRORS as error:
        raise InputError(f"Cannot load {dataset_name} {dataset_config_name or ''}: {hub_reason(error)}.") from error


def file_kind(paths: Sequence[str | Path]) -> str:
    """Return the kind of files, a key of `FILE_KINDS`: "jsonl" for a.jsonl.gz. Raise InputError if they have none."""
    endings = [[suffix.lower().removeprefix(".") for suffix in Path(path).suffixes] for path in paths]
    kinds = {next((kind for kind in reversed(parts) if kind not in COMPRESSIONS), "") for parts in endings}
    if len(kinds) != 1 or not kinds <= FILE_KINDS.keys():
        names = ", ".join(map(str, paths))
        raise InputError(f"Cannot read {names}: pass files that all end in one of {', '.join(FILE_KINDS)}.")
    return kinds.pop()


def read_files(
    paths: Sequence[str | Path],
    *,
    streaming: bool = False,
    access: Access = Access(),
    text_columns: Sequence[str] | None = (),
) -> Dataset | IterableDataset:
    """Return the rows of files of one kind; an InputError if they cannot be read as this kind.

    Args:
        text_columns: Columns of .csv and .tsv files that stay text even if every value looks like a number; None for
            all columns.
    """
    kind = file_kind(paths)
    builder, options = FILE_KINDS[kind]
    with reading(paths, kind):
        if builder == "csv":
            options = options | csv_layout(paths[0])
            columns = pandas.read_csv(paths[0], nrows=0, **options) if text_columns is None else text_columns
            options = options | {"converters": dict.fromkeys(columns, str)}
        if builder == "text":
            # The arguments identify the cached copy. With `overwrite_cache`, they differ from those of any copy.
            times = [time.time_ns() if access.overwrite_cache else os.stat(path).st_mtime_ns for path in paths]
            arguments = {"paths": [os.path.abspath(path) for path in paths], "times": times}
            # 64-bit offsets allow more than 2 GB of text.
            options = {"gen_kwargs": arguments, "features": Features({"text": Value("large_string")})}
            if not streaming:
                return Dataset.from_generator(_documents, cache_dir=access.cache_dir, **options)
            data = IterableDataset.from_generator(_documents, **options)
        else:
            # `load_dataset` would treat the paths as patterns.
            files = [glob.escape(str(path)) for path in paths]
            options = options | access.options() | {"split": "train", "streaming": streaming}
            data = load_dataset(builder, data_files=files, **options)
        if streaming:
            # The stream is opened by reading the first row.
            next(iter(data), None)
        else:
            # The JSON reader does not check that strings are UTF-8.
            data.data.validate(full=True)
        return data


def _documents(paths: list[str], times: list[int]) -> Iterator[dict[str, str]]:
    """Yield the documents between blank lines. Blank lines may hold white space, as in WikiText."""
    for path in paths:
        with open_text(path) as file:
            for blank, group in itertools.groupby(file, str.isspace):
                while not blank and (part := list(itertools.islice(group, MOST_LINES))):
                    yield {"text": "".join(part).rstrip("\n")}


@contextmanager
def reading(paths: Iterable[str | Path], kind: str) -> Iterator[None]:
    """Convert an error in reading files into an InputError of one line."""
    # Where pandas drops cells of rows that have more cells than the header, it only warns.
    warnings.filterwarnings("error", "Length of header or names does not match")
    try:
        yield
    except READ_ERRORS as error:
        if isinstance(error, InputError):
            raise
        # `datasets` wraps the errors of readers.
        cause = next((cause for cause in causes(error) if not isinstance(cause, DatasetsError)), error)
        reason = first_line(cause).rstrip(".")
        if "in DataLoader worker process" in reason:
            # The message is the traceback in the worker, whose last line is the error.
            reason = str(cause).strip().rpartition("\n")[2].rstrip(".")
        raise InputError(f"{', '.join(map(str, paths))} cannot be read as {kind}: {reason}.") from error


def stream_rows(path: str) -> Iterator[dict]:
    """Yield the rows of a file one by one, with values as they are in the file: the cells of csv and tsv files as text,
    dates in JSON as text, and every line of a .txt file, also if it is blank.
    """
    kind = file_kind([path])
    builder, options = FILE_KINDS[kind]
    with reading([path], kind):
        if builder == "csv":
            options = options | csv_layout(path) | {"dtype": str}
            # Only in a file with one column is a blank line a row.
            columns = pandas.read_csv(path, nrows=0, **options).columns
            options |= {"chunksize": 1000, "skip_blank_lines": len(columns) > 1}
            for table in pandas.read_csv(path, **options):
                yield from table.fillna("").to_dict("records")
        elif builder in ("text", "json"):
            with open_text(path) as file:
                yield from ({"text": line.rstrip("\n")} for line in file) if builder == "text" else json_rows(file)
        else:
            yield from cast(IterableDataset, read_files([path], streaming=True)).decode(False)


def json_rows(file: TextIO) -> Iterator[dict]:
    """Yield the rows of JSON lines one by one, or of any other JSON file, such as a list of rows, after reading it."""
    head = next((line for line in file if not line.isspace()), "")
    try:
        first = json.loads(head)
    except json.JSONDecodeError:
        text, end = (head + file.read()).strip(), 0
        while end < len(text):
            start = next(index for index in range(end, len(text)) if not text[index].isspace())
            value, end = json.JSONDecoder().raw_decode(text, start)
            yield from flatten_json(value)
        return
    yield from flatten_json(first)
    for line in file:
        yield from () if line.isspace() else flatten_json(json.loads(line))


def flatten_json(value: Any) -> Iterator[dict]:
    """Yield the rows of a JSON value: a row, a list of rows, rows under "data", or SQuAD's articles."""
    if isinstance(value, list):
        for item in value:
            yield from flatten_json(item)
    elif not isinstance(value, dict):
        yield {"text": value}
    elif isinstance(value.get("data"), list):
        yield from flatten_json(value["data"])
    elif isinstance(value.get("paragraphs"), list):
        for paragraph in value["paragraphs"]:
            yield from ({**question, "context": paragraph.get("context")} for question in paragraph.get("qas", ()))
    else:
        yield value


def open_text(path: str | Path) -> TextIO:
    """Open a UTF-8 text file, decompressed if its extension is one of `COMPRESSIONS`."""
    return fsspec.open(str(path), "rt", encoding="utf-8-sig", compression="infer").open()


def csv_layout(path: str | Path) -> dict[str, Any]:
    """Return pandas' options for the separator of a csv file, unless its kind, such as tsv, has one: that of Excel's
    first line "sep=;", or the most frequent one of the first line: a comma, or the semicolon or tab of other languages.
    """
    if "sep" in FILE_KINDS[file_kind([path])][1]:
        return {}
    with open_text(path) as file:
        line = file.readline()
    if line.lower().startswith("sep="):
        return {"sep": line[4:5], "skiprows": 1}
    return {"sep": max(",;\t", key=line.count)}
