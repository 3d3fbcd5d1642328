"""Text files as rows: a builder of `datasets`, whose own keeps the white space of "blank" lines for text."""

from collections.abc import Iterator
from dataclasses import dataclass

import datasets
import pyarrow as pa

from .files import BATCH_BYTES, in_batches, open_text


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
        # Offsets of 64 bits: a file without a blank line is one text.
        return datasets.DatasetInfo(features=datasets.Features({"text": datasets.Value("large_string")}))

    def _split_generators(self, dl_manager: object) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name="data", gen_kwargs={"paths": list(self.config.paths)})]

    def _generate_tables(self, paths: list[str]) -> Iterator[tuple]:
        for number, path in enumerate(paths):
            texts = read_lines(path) if self.config.lines else read_documents(path)
            for count, batch in enumerate(in_batches(texts, BATCH_BYTES)):
                yield (number, count), pa.table({"text": pa.array(batch, type=pa.large_string())})


def read_lines(path: str) -> Iterator[str]:
    """The lines of a text file that are not blank, without their line ends."""
    with open_text(path) as file:
        for line in file:
            if not line.isspace():
                yield line.rstrip("\n")


def read_documents(path: str) -> Iterator[str]:
    """The documents of a text file, which blank lines part."""
    with open_text(path) as file:
        lines: list[str] = []
        for line in file:
            if not line.isspace():
                lines.append(line)
            elif lines:
                yield "".join(lines).rstrip("\n")
                lines = []
        if lines:
            yield "".join(lines).rstrip("\n")
