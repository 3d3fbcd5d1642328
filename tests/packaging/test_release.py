"""Checks that the files which describe a release agree."""

import os
import re
import tomllib
from pathlib import Path

import yaml

from hf_gmlp import __version__, errors

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d\S*)\] - (\S+)$", changes, flags=re.MULTILINE)
    released = [(__version__, str(citation["date-released"]))] if "date-released" in citation else []
    assert versions[:1] == released and citation["version"] == __version__
    # A tag publishes, and needs the date.
    assert released or os.environ.get("GITHUB_REF_TYPE") != "tag"
    # Each version has a link.
    assert re.findall(r"^\[(\d\S*)\]: https://", changes, flags=re.MULTILINE) == [name for name, _ in versions]


def test_the_citation_names_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys() and citation["type"] == "software"
    assert "arxiv.org/abs/2105.08050" in citation["references"][0]["url"]


def test_errors_about_missing_modules_name_the_right_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    packages = {"PIL": "pillow", "sklearn": "scikit-learn"}

    def packages_of(extra: str) -> set[str]:
        names = {re.match(r"[\w-]+(\[\w+\])?", requirement)[0] for requirement in extras[extra]}
        return names.union(*(packages_of(name[8:-1]) for name in names if name.startswith("hf-gmlp[")))

    for package, modules in errors.OPTIONAL.items():
        if extra := package.removeprefix("hf-gmlp").strip("[]"):
            names = packages_of(extra) if extra in extras else {package}
            assert {packages.get(module, module) for module in modules} <= names
