"""The files that describe a release, and those that check one, agree."""

import os
import re
from pathlib import Path

import yaml

from hf_gmlp import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d\S*)\] - (\S+)$", changes, flags=re.MULTILINE)
    released = [(__version__, str(citation["date-released"]))] if "date-released" in citation else []
    assert versions[:1] == released and citation["version"] == __version__
    # A tag publishes a release, which needs a date.
    assert released or os.environ.get("GITHUB_REF_TYPE") != "tag"
    # Every version has a link.
    assert re.findall(r"^\[(\d\S*)\]: https://", changes, flags=re.MULTILINE) == [name for name, _ in versions]
