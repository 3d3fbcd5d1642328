"""Markdown tables for the package, the paper's reports and the benchmarks."""

import re
from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[object]]) -> str:
    """Return a table whose header is the first row. None gives an empty cell. Cells are not escaped: see `escape`."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def escape(text: object) -> str:
    """Return text on one line, and escape characters that start a cell, a tag, a link, code or emphasis."""
    return re.sub(r"([\\`*\[<|])", r"\\\1", " ".join(str(text).split()))
