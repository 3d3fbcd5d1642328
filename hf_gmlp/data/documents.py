"""Text files as rows: the text builder of `datasets` would keep the white space of "blank" lines."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import datasets
import pyarrow as pa

from .files import BATCH_BYTES, in_batches, open_text

# 64-bit offsets: a file without a blank line is a single text.
TEXT_FEATURES = datasets.Features({"text": datasets.Value("large_string")})


@dataclass
class DocumentsConfig(datasets.BuilderConfig):
    """Where the rows come from; the fields together identify the cached copy."""

    paths: tuple[str, ...] = ()
    contents: str = ""
    lines: bool = False


class Documents(datasets.ArrowBasedBuilder):
    """A column "text" with the documents of text files; with `lines`, with every line that is not blank."""

    BUILDER_CONFIG_CLASS = DocumentsConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=TEXT_FEATURES)

    def _split_generators(self, dl_manager: object) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name="data", gen_kwargs={"paths": list(self.config.paths)})]

    def _generate_tables(self, paths: list[str]) -> Iterator[tuple]:
        for number, path in enumerate(paths):
            for count, batch in enumerate(in_batches(_read_documents(path, self.config.lines), BATCH_BYTES)):
                yield (number, count), pa.table({"text": pa.array(batch, type=pa.large_string())})


def _read_documents(path: str, lines: bool) -> Iterator[str]:
    """Blank lines, which may have white space, separate documents, as in WikiText."""
    with open_text(path) as file:
        for blank, group in itertools.groupby(file, str.isspace):
            if not blank:
                yield from (text.rstrip("\n") for text in (group if lines else ["".join(group)]))
