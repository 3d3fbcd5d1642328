"""The files that describe a release, and those that check one, agree."""

import os
import re
from pathlib import Path

import pytest
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


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="the source archive has no continuous integration")
def test_the_workflow_runs_every_step_of_continuous_integration():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["ci"]["strategy"]["matrix"]["steps"]
    (default,) = re.findall(r"set -- (.*)", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    assert sorted(" ".join(steps).split()) == sorted(default.split())
