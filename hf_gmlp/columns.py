"""Names of the columns of texts and labels in the files of classifiers."""

from collections.abc import Collection, Sequence

from .errors import InputError

# Columns that are text unless a flag names others: those of GLUE's tasks, and "text". Pairs come first.
KNOWN_TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
    ("sentence1", "sentence2"),
    ("sentence",),
    ("text",),
)
# The column of labels, unless a flag names another: the first of these.
LABEL_COLUMNS = ("label", "labels", "category", "class", "target", "sentiment")


def check_text_columns(names: Sequence[str]):
    """Raise an InputError if --text_column_names has more than two columns, or one twice."""
    if len(names) > 2 or len(set(names)) < len(names):
        raise InputError(f"--text_column_names takes one or two columns, without repetition, got {', '.join(names)}.")


def known_text_columns(names: Collection[str]) -> tuple[str, ...] | None:
    """Return the first of `KNOWN_TEXT_COLUMNS` among the names of all columns, None if there is none."""
    return next((columns for columns in KNOWN_TEXT_COLUMNS if {*columns} <= {*names}), None)
