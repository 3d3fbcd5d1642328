"""The documents of a corpus, for language modeling."""

from datasets import Dataset, Features, IterableDataset, Value

from ..errors import InputError
from .files import reading
from .source import Source

PARTS = ("train", "validation")
# Number of validation documents that are read from a stream by default.
STREAMED_DOCUMENTS = 1000


def load_texts(
    source: Source,
    *,
    text_column: str = "text",
    streaming: bool = False,
    held_out: float = 0.05,
    max_eval_samples: int | None = None,
    train: bool = True,
    validate: bool = True,
    seed: int = 42,
) -> dict[str, Dataset | IterableDataset]:
    """Return the documents of "train" and "validation", if they are needed, in a column "text".

    Blank lines separate the documents of a .txt file. Without validation data, a random fraction `held_out` of the
    training documents is held out, but not of a stream. At most `max_eval_samples` (in a stream, by default 1,000)
    validation documents are read.
    """
    loaded = source.load(streaming=streaming)
    texts = {split: text_rows(loaded[split], text_column, f"the {split} data") for split in PARTS if split in loaded}
    # They are held out even if no evaluation is needed, so that a later evaluation has not been trained on them.
    if "train" in texts and "validation" not in texts and not streaming:
        try:
            texts["train"], texts["validation"] = texts["train"].train_test_split(held_out, seed=seed).values()
        except ValueError as error:
            if validate:
                raise InputError(
                    f"The training data have {len(texts['train'])} document(s), too few to hold some out: pass "
                    "--validation_file, or separate the documents of a .txt file by blank lines."
                ) from error
    needed = [part for part, is_needed in zip(PARTS, (train, validate)) if is_needed]
    for part in needed:
        if part not in texts:
            raise InputError(f"There are no {part} data: pass --{part}_file, or a dataset with this split.")
    if validate and streaming:
        with reading(["The stream"], "text"):
            rows = list(texts["validation"].take(max_eval_samples or STREAMED_DOCUMENTS))
        texts["validation"] = Dataset.from_list(rows, features=Features({"text": Value("large_string")}))
    elif validate and max_eval_samples is not None:
        texts["validation"] = texts["validation"].take(min(max_eval_samples, len(texts["validation"])))
    return {part: texts[part] for part in needed}


def text_rows(data: Dataset | IterableDataset, text_column: str, source: str) -> Dataset | IterableDataset:
    """Return only the column of text, named "text"; raise an InputError if the `source` has no such column of text."""
    with reading([source], "text"):
        # The columns of a stream may be unknown before its first row.
        features = data.features or Dataset.from_list(list(data.take(1))).features
    # A column in which every row is blank has the type null.
    text_types = ("string", "large_string", "string_view", "null")
    if getattr(features.get(text_column), "dtype", None) not in text_types:
        names = ", ".join(features)
        raise InputError(f"No text is in a column {text_column!r} of {source} ({names}): pass --text_column_name.")
    data = data.select_columns([text_column])
    return data if text_column == "text" else data.rename_column(text_column, "text")
