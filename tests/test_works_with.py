"""docs/works_with.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| [^|]+ \| ([\w/.]+\.py)::(\w+) \|$", re.MULTILINE)


def test_every_row_has_a_test():
    text = (ROOT / "docs/works_with.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert len(rows) == text.count(".py::") >= 40
    missing = [
        f"{path}::{name}"
        for path, name in rows
        if not (ROOT / path).is_file() or f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert not missing
