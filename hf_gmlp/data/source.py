"""What to read: local files or a dataset on the Hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import load_dataset

from ..errors import InputError, hub_reason
from .files import READ_ERRORS, Access, read_files


@dataclass(frozen=True)
class Source:
    """Local files, or else a dataset on the Hub.

    Attributes:
        files: Paths by split, such as "train". For `load_images`, a path may be a folder of class folders.
        dataset_name: Name on the Hub, or a local copy.
        dataset_config_name: Configuration of that dataset.
        access: The cache and the token.
        encoding: Encoding of csv, tsv, json, jsonl and txt files, by default UTF-8.
    """

    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dataset_name: str | None = None
    dataset_config_name: str | None = None
    access: Access = Access()
    encoding: str | None = None

    def load(self, streaming: bool = False) -> dict[str, Any]:
        """Return the splits that exist; with `streaming`, as streams."""
        options: dict[str, Any] = {"streaming": streaming}
        if self.files:
            options |= {"access": self.access, "encoding": self.encoding}
            return {split: read_files(paths, **options) for split, paths in self.files.items()}
        if self.dataset_name is None:
            raise InputError("Name the data: --dataset_name for the Hub, or --train_file and --validation_file.")
        try:
            return dict(load_dataset(self.dataset_name, self.dataset_config_name, **options, **self.access.options()))
        except READ_ERRORS as error:
            name = f"{self.dataset_name} {self.dataset_config_name or ''}".strip()
            where = "" if Path(self.dataset_name).exists() else "there is no such folder, and on the Hub: "
            raise InputError(f"Cannot load {name}: {where}{hub_reason(error)}.") from error
