"""The windows of tokens of a data set of questions."""

from datasets import Dataset
from transformers import PreTrainedTokenizerBase as Tokenizer

from ...answers import make_windows

# Columns of a window that `decode` needs besides the logits, and that are not inputs of the model.
DECODING_COLUMNS = ["question_index", "offsets"]


def window_dataset(
    questions: Dataset, tokenizer: Tokenizer, *, training: bool = False, num_proc: int | None = None, **lengths: int
) -> Dataset:
    """Return the windows of the questions of `load_questions`, labeled with the first answer, if there is one.

    With `training`, they lack the columns that only decoding needs. `lengths` are "max_seq_length" and "doc_stride".
    """

    def map_batch(batch: dict, indices: list[int]) -> dict:
        answers = batch.get("answers")
        windows = make_windows(batch["question"], batch["context"], tokenizer, answers=answers, **lengths)
        windows["question_index"] = [indices[index] for index in windows["question_index"]]
        # Keep training rows small, since every process holds them in memory.
        return {name: windows[name] for name in windows if not training or name not in DECODING_COLUMNS}

    options = {"batched": True, "with_indices": True, "num_proc": num_proc, "desc": "Cutting windows"}
    return questions.map(map_batch, remove_columns=questions.column_names, **options)
