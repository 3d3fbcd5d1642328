"""What to read: local files or a dataset on the Hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .files import Access, load_data


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

    def load(self, **options: Any) -> dict[str, Any]:
        """Return the splits that exist, with options of `load_data`, such as "streaming"."""
        source = {field.name: getattr(self, field.name) for field in fields(self)}
        return dict(load_data(**source, **options))
