"""Text files as rows: a builder of `datasets`, whose own keeps the white space of "blank" lines for text."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import datasets
import pyarrow as pa

from .files import BATCH_BYTES, in_batches, open_text

# Offsets of 64 bits: a file without a blank line is one text.
TEXT_FEATURES = datasets.Features({"text": datasets.Value("large_string")})


@dataclass
class DocumentsConfig(datasets.BuilderConfig):
    """What rows come from; all of it decides which cached copy is theirs."""

    paths: tuple[str, ...] = ()
    contents: str = ""
    lines: bool = False


class Documents(datasets.ArrowBasedBuilder):
    """
    A column "text": the documents of text files, parted by lines that are empty or have only white space, as those of
    WikiText; or, with `lines`, every line that is not blank.
    """

    BUILDER_CONFIG_CLASS = DocumentsConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=TEXT_FEATURES)

    def _split_generators(self, dl_manager: object) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name="data", gen_kwargs={"paths": list(self.config.paths)})]

    def _generate_tables(self, paths: list[str]) -> Iterator[tuple]:
        for number, path in enumerate(paths):
            for count, batch in enumerate(in_batches(read_documents(path, self.config.lines), BATCH_BYTES)):
                yield (number, count), pa.table({"text": pa.array(batch, type=pa.large_string())})


def read_documents(path: str, lines: bool) -> Iterator[str]:
    """The documents of a text file, or its lines that are not blank, without the line ends behind them."""
    with open_text(path) as file:
        for blank, group in itertools.groupby(file, str.isspace):
            if not blank:
                yield from (text.rstrip("\n") for text in (group if lines else ["".join(group)]))
