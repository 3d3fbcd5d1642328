"""Local files as data sets, with one clear sentence for what cannot be read."""

from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError

# File ending -> builder of the `datasets` library and its options. "NA" and "null" are text like any other; in a .tsv
# file, as GLUE hands them out, a quotation mark is only a quotation mark.
FILE_KINDS: dict[str, tuple[str, dict]] = {
    "txt": ("text", {}),
    "json": ("json", {}),
    "jsonl": ("json", {}),
    "csv": ("csv", {"keep_default_na": False}),
    "tsv": ("csv", {"keep_default_na": False, "sep": "\t", "quoting": 3}),
    "parquet": ("parquet", {}),
}
COMPRESSIONS = ("gz", "bz2", "xz", "zst")


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


def read_files(paths: Iterable[str | Path], *, streaming: bool = False, cache_dir: str | None = None, **options):
    """
    The rows of some files of one kind as a `datasets.Dataset`, or an `IterableDataset` when `streaming`.

    Args:
        options: More options for the builder of that kind, such as `sample_by` for text.

    Raises:
        InputError: As `file_kind`, or if the files cannot be read as what they say they are.
    """
    # Takes a second, which `hf-gmlp --help` does without.
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    paths = [str(path) for path in paths]
    kind = file_kind(paths)
    builder, defaults = FILE_KINDS[kind]
    try:
        data = load_dataset(
            builder,
            data_files={"data": paths},
            split="data",
            streaming=streaming,
            cache_dir=cache_dir,
            **defaults,
            **options,
        )
        if streaming:
            # A stream is opened by its first row.
            next(iter(data), None)
        return data
    except (DatasetGenerationError, OSError, ValueError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        # What `datasets` says of files without a single row.
        reason = "it has no rows" if "corresponds to no data" in str(cause) else cause
        raise InputError(f"{', '.join(paths)} cannot be read as {kind}: {reason}") from error
