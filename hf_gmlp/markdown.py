"""Markdown tables for the package, the paper's reports and the benchmarks."""

import re
from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[object]]) -> str:
    """Return a table with the first row as its header. None makes an empty cell; cells are not escaped (`escape`)."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def escape(text: object) -> str:
    """Return text on one line in which nothing starts a cell, a tag, a link, code or emphasis with asterisks."""
    return re.sub(r"([\\`*\[<|])", r"\\\1", " ".join(str(text).split()))
