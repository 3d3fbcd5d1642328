"""Files that the documents link to or mention exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("paper/*.md")]
NAMED = re.compile(r"`((?:hf_gmlp|tests|docs|paper|recipes|benchmarks)/[\w./-]+\.\w+)`")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_and_named_files_exist(path):
    text = path.read_text(encoding="utf-8")
    linked = [path.parent / link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    # The log mentions files that no longer exist.
    named = [] if path.parent.name == "log" else [ROOT / name for name in NAMED.findall(text)]
    assert not [str(file) for file in [*linked, *named] if not file.exists()]
