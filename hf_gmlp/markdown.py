"""Markdown: the tables of the package, of the paper's reports and of the benchmarks."""

import re
from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[object]]) -> str:
    """Returns a table. The first row is its header; None is an empty cell. Cells are not escaped: see `escape`."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def escape(text: object) -> str:
    """Returns text that starts no cell, no line, no tag and no emphasis."""
    return re.sub(r"([\\`*\[<|])", r"\\\1", " ".join(str(text).split()))
