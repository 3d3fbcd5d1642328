"""Rows of local files and of datasets on the Hub.

Training and `hf-gmlp predict` read a file with the same code, `stream_rows`; training gets its rows as Arrow tables.
"""

import bz2
import csv
import glob
import gzip
import io
import itertools
import json
import lzma
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import pyarrow
import pyarrow.parquet
from datasets import ClassLabel, Dataset, IterableDataset, config, load_dataset
from datasets.exceptions import DatasetsError
from datasets.fingerprint import Hasher

from ..errors import InputError, causes, first_line

# File ending -> "text", "json", "csv" with options of Python's reader, or a builder of the `datasets` library with its
# options. In .tsv files such as those of GLUE, a quotation mark is an ordinary character.
FILE_KINDS: dict[str, tuple[str, dict]] = {
    "txt": ("text", {}),
    "json": ("json", {}),
    "jsonl": ("json", {}),
    "csv": ("csv", {}),
    "tsv": ("csv", {"delimiter": "\t", "quoting": csv.QUOTE_NONE}),
    "parquet": ("parquet", {}),
}
# By default, a cell may have at most 131,072 characters.
csv.field_size_limit(2**31 - 1)
# What is read here, without the `datasets` library.
READERS = ("text", "json", "csv")
# Maximum number of lines of a document in a .txt file. Longer parts without a blank line are split.
MOST_LINES = 100
# Number of rows that are converted to columns together.
CHUNK_ROWS = 1000
# Errors that reading a file may raise, in `datasets`, pyarrow and csv.
READ_ERRORS = (
    *(OSError, ValueError, RuntimeError, EOFError, zlib.error, lzma.LZMAError),
    *(DatasetsError, pyarrow.ArrowException, csv.Error),
)


def _open_zst(path: str, mode: str, **options) -> TextIO:
    # The package zstandard does not notice that a file is incomplete.
    return io.TextIOWrapper(pyarrow.input_stream(path, compression="zstd"), **options)


# How compressed files begin -> their ending, and what opens them.
MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
COMPRESSIONS: dict[str, Callable] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open, "zst": _open_zst}


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
    encoding: str | None = None,
) -> Dataset | IterableDataset:
    """Return the rows of files of one kind; an InputError if they cannot be read as this kind, or have no rows.

    Args:
        paths: Paths, or patterns such as "data/*.jsonl".
        encoding: That of text, by default UTF-8.
    """
    paths = expand(paths)
    kind = file_kind(paths)
    builder, options = FILE_KINDS[kind]
    with reading(paths, kind):
        if builder in READERS:
            # Streams are split among workers by the lists among their arguments.
            arguments: dict = {"paths": paths, "encoding": encoding}
            first = next(_columns(**arguments), None)
            if first is None:
                raise InputError(f"{', '.join(paths)} has no rows: pass another file.")
            if streaming:
                return IterableDataset.from_generator(_stream, gen_kwargs=arguments)
            return Dataset.from_file(_cached(arguments, pyarrow.table(first).schema, access))
        if builder == "parquet" and not any(pyarrow.parquet.read_metadata(path).num_rows for path in paths):
            raise InputError(f"{', '.join(paths)} has no rows: pass another file.")
        # `load_dataset` would treat the paths as patterns.
        files = [glob.escape(path) for path in paths]
        options = options | access.options() | {"split": "train", "streaming": streaming}
        data = load_dataset(builder, data_files=files, **options)
        if streaming:
            # The stream is opened by reading the first row.
            next(iter(data), None)
        return data


def expand(paths: Iterable[str | Path]) -> list[str]:
    """Replace patterns such as "data/*.jsonl", unless a file has this name, by the files that match, sorted."""
    expanded: list[str] = []
    for path in map(str, paths):
        is_pattern = glob.has_magic(path) and not Path(path).exists()
        expanded += (matches := sorted(glob.glob(path, recursive=True)) if is_pattern else [path])
        if not matches:
            raise InputError(f"No file matches {path}: correct the pattern.")
    return expanded


def _cached(arguments: dict, schema: pyarrow.Schema, access: Access) -> str:
    """Return the path of an Arrow file in the cache with the rows of `_columns`, whose first rows have this schema.

    The arguments and the times of the files identify it. If later rows have more columns, all are read twice.
    """
    files = [(os.path.abspath(path), os.stat(path).st_mtime_ns) for path in arguments["paths"]]
    folder = Path(access.cache_dir or config.HF_DATASETS_CACHE, "hf_gmlp", Hasher.hash([arguments, files]))
    if access.overwrite_cache or not (folder / "rows.arrow").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        options: dict = {"promote_options": "permissive"}
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            written = None
            while schema != written:
                written = schema
                with pyarrow.ipc.new_stream(f"{temporary}/rows", written) as writer:
                    for table in map(pyarrow.table, _columns(**arguments)):
                        schema = pyarrow.unify_schemas([schema, table.schema], **options)
                        if schema == written:
                            writer.write_table(pyarrow.concat_tables([written.empty_table(), table], **options))
            os.replace(f"{temporary}/rows", folder / "rows.arrow")
    return str(folder / "rows.arrow")


def _columns(paths: Iterable[str], encoding: str | None) -> Iterator[dict[str, list]]:
    """Yield the rows of files in chunks, as columns of text: numbers in JSON may stand beside text, and may be written
    differently in each row.
    """
    names: dict[str, None] = {}
    rows = itertools.chain.from_iterable(_rows(path, encoding, _documents) for path in paths)
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
        names |= dict.fromkeys(itertools.chain.from_iterable(chunk))
        columns = {name: [row.get(name) for row in chunk] for name in names}
        for name, values in columns.items():
            types = {*map(type, values)} - {type(None)}
            if len(types) > 1 and types & {list, dict}:
                raise InputError(f"Only some rows of {', '.join(paths)} have lists or objects in the column {name!r}.")
            if types != {str}:
                columns[name] = _as_text(values)
        yield columns


def _stream(**arguments) -> Iterator[dict]:
    """Yield the rows of `_columns`."""
    for columns in _columns(**arguments):
        yield from (dict(zip(columns, row)) for row in zip(*columns.values()))


def _as_text(value: Any) -> Any:
    """Return a value of JSON, or those in a list or object, as text."""
    if isinstance(value, list):
        return [*map(_as_text, value)]
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    return value if value is None else str(value)


def _documents(file: TextIO) -> Iterator[str]:
    """Yield the documents between blank lines. Blank lines may hold white space, as in WikiText."""
    for blank, group in itertools.groupby(file, str.isspace):
        while not blank and (part := list(itertools.islice(group, MOST_LINES))):
            yield "".join(part).rstrip("\n")


@contextmanager
def reading(paths: Iterable[str | Path], kind: str) -> Iterator[None]:
    """Convert an error in reading files into an InputError of one line."""
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


def stream_rows(path: str, encoding: str | None = None) -> Iterator[dict]:
    """Yield the rows of a file, or of the files of a pattern, one by one, with values as they are in the file: the
    cells of csv and tsv files as text, dates in JSON as text, and every line of a .txt file, also if it is blank.
    """
    for file_path in expand([path]):
        kind = file_kind([file_path])
        if FILE_KINDS[kind][0] in READERS:
            yield from _rows(file_path, encoding, lambda file: (line.rstrip("\n") for line in file))
            continue
        with reading([file_path], kind):
            data = cast(IterableDataset, read_files([file_path], streaming=True)).decode(False)
            features = (data.features or {}).items()
            classes = {name: dict(enumerate(x.names)) for name, x in features if isinstance(x, ClassLabel)}
            for row in data:
                yield row | {name: names.get(row[name]) for name, names in classes.items()}


def _rows(path: str, encoding: str | None, texts: Callable[[TextIO], Iterable[str]]) -> Iterator[dict]:
    """Yield the rows of a csv, tsv or JSON file, or the `texts` of a .txt file."""
    kind = file_kind([path])
    builder, options = FILE_KINDS[kind]
    with reading([path], kind), open_text(path, encoding, newline="" if builder == "csv" else None) as file:
        if builder == "csv":
            yield from _csv_rows(file, **options)
        elif builder == "json":
            yield from _json_rows(file)
        else:
            yield from ({"text": text} for text in texts(file))


def _csv_rows(file: TextIO, **options) -> Iterator[dict]:
    """Yield the rows of a csv or tsv file. Columns without a name are numbered, as in pandas."""
    header = file.readline()
    if header.lower().startswith("sep="):
        # Excel's first line names the separator.
        options, header = {"delimiter": header[4]} | options, file.readline()
    # In other languages, Excel writes semicolons.
    options = {"delimiter": max(",;\t", key=header.count)} | options
    reader = csv.reader(itertools.chain([header], file), strict=True, **options)
    names = [name or f"Unnamed: {number}" for number, name in enumerate(next(reader, []))]
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    for cells in reader:
        if len(cells) > len(names):
            raise ValueError(f"line {reader.line_num} has {len(cells)} cells, more than the header")
        # Only in a file with one column is a blank line a row.
        if len(cells) > 1 or len(names) == 1 or "".join(cells).strip():
            yield dict(itertools.zip_longest(names, cells, fillvalue=""))


def _json_rows(file: TextIO) -> Iterator[dict]:
    """Yield the rows of JSON lines, or those of any other JSON file."""
    lines = ((number, line) for number, line in enumerate(file, start=1) if not line.isspace())
    first = list(itertools.islice(lines, 2))
    try:
        value = json.loads(first[0][1]) if first else []
    except json.JSONDecodeError:
        value, first = _values("".join(line for _, line in itertools.chain(first, lines))), []
    if len(first) < 2:
        yield from _rows_in(value)
        return
    # A fifth faster than json.loads.
    decode = json.JSONDecoder().decode
    for number, line in itertools.chain(first, lines):
        try:
            value = decode(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}: {error}") from error
        yield _as_row(value, number)


def _values(text: str) -> Any:
    """Return the JSON value of a text; a list of values that follow each other, with white space between them."""
    values, end, space = [], 0, re.compile(r"\s*")
    while end < len(text):
        value, end = json.JSONDecoder().raw_decode(text, end)
        values.append(value)
        end = space.match(text, end).end()  # type: ignore[union-attr]
    return values[0] if len(values) == 1 else values


def _rows_in(value: Any) -> list[dict]:
    """Return the rows of a JSON value that is a complete file: a list of rows, rows under "data", SQuAD's articles, or
    one row.
    """
    rows: list = []
    if isinstance(value, dict):
        data, types = value.get("data"), {*map(type, value.values())}
        if isinstance(data, list) and all(isinstance(row, dict) for row in data):
            value = data
        elif types == {dict} or (types == {list} and max(map(len, value.values())) > 1):
            raise ValueError('it has columns, not rows: write it with pandas\' to_json(orient="records")')
    for row in value if isinstance(value, list) else [value]:
        paragraphs = row.get("paragraphs") if isinstance(row, dict) else None
        if isinstance(paragraphs, list) and all(isinstance(part, dict) and "qas" in part for part in paragraphs):
            rows += (question | {"context": part.get("context")} for part in paragraphs for question in part["qas"])
        else:
            rows.append(row)
    return [_as_row(row, number) for number, row in enumerate(rows, start=1)]


def _as_row(value: Any, number: int) -> dict:
    """Return a JSON value as a row: an object, or text, which has the column "text"."""
    if isinstance(value, list):
        raise ValueError(f'row {number} is a list: write rows as objects, in pandas with to_json(orient="records")')
    return value if isinstance(value, dict) else {"text": value}


def open_text(path: str | Path, encoding: str | None = None, newline: str | None = None) -> TextIO:
    """Open a text file, by default in UTF-8, decompressed if it begins or ends in name like a compressed file."""
    with open(path, "rb") as file:
        start = file.read(6)
    # A browser that decompresses or renames a download leaves the other name.
    kind = next(
        (kind for magic, kind in MAGIC.items() if start.startswith(magic)), "bz2" if start[:3] == b"BZh" else ""
    )
    opener = COMPRESSIONS.get(kind, open)
    try:
        return opener(str(path), "rt", encoding=encoding or "utf-8-sig", newline=newline)
    except LookupError as error:
        raise InputError(f"There is no encoding {encoding!r}: pass another --encoding, such as cp1252.") from error
