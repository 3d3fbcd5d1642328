"""Windows of tokens over a question and its context, as a model for question answering reads them."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase as Tokenizer

from ...errors import InputError

if TYPE_CHECKING:
    # `QuestionAnswerer` makes windows where it is not installed.
    from datasets import Dataset

logger = logging.getLogger(__name__)

# Columns of a window that `decode` needs besides the logits, and the model does not.
DECODING_COLUMNS = ["question_index", "offsets"]


def make_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    max_seq_length: int,
    doc_stride: int,
    answers: Sequence[dict[str, list]] | None = None,
) -> dict[str, list]:
    """Make windows [CLS] question [SEP] context [SEP] of each pair.

    A long context gives several windows that overlap by `doc_stride` tokens. A question that leaves too little room for
    the context is cut.

    Args:
        answers: "text" and "answer_start" of each question's answers, of which the first counts.

    Returns:
        The columns of the tokenizer; "question_index"; "offsets", the characters [start, end) of the context that each
        token covers, [0, 0) for tokens outside of it; and with `answers` "start_positions" and "end_positions", the
        first and last token of the answer, or 0, that of [CLS], if the window lacks it.
    """
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
    # "[SEP]" in an article is text.
    options: dict[str, object] = {"split_special_tokens": True, "return_offsets_mapping": True, "verbose": False}
    questions = _shorten(questions, tokenizer, (room - doc_stride) // 2, **options)
    options |= {"truncation": "only_second", "max_length": max_seq_length, "stride": doc_stride}
    encoded = tokenizer(questions, list(contexts), return_overflowing_tokens=True, **options)
    sources, all_offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    windows: dict[str, list] = dict(encoded) | {"question_index": sources, "offsets": []}
    for index, offsets in enumerate(all_offsets):
        parts = encoded.sequence_ids(index)
        windows["offsets"].append([list(span) if part == 1 else [0, 0] for span, part in zip(offsets, parts)])
    if answers is not None:
        spans = [_answer_tokens(offsets, answers[source]) for source, offsets in zip(sources, windows["offsets"])]
        windows |= {"start_positions": [first for first, _ in spans], "end_positions": [last for _, last in spans]}
    return windows


def _shorten(questions: Sequence[str], tokenizer: Tokenizer, longest: int, **options: object) -> list[str]:
    """Strip the questions of white space, and cut those of more than `longest` tokens."""
    questions = [question.strip() for question in questions]
    encoded = tokenizer(questions, add_special_tokens=False, truncation=True, max_length=longest + 1, **options)
    short = []
    for question, offsets in zip(questions, encoded["offset_mapping"]):
        if len(offsets) > longest:
            logger.warning("A question was cut to %d tokens: %s", longest, question)
            question = question[: offsets[longest][0]].rstrip()
        short.append(question)
    return short


def _answer_tokens(offsets: list[list[int]], answers: dict[str, list]) -> tuple[int, int]:
    """Return the first and last token that the first answer touches; 0 and 0 if the window does not hold all of it."""
    text = [index for index, (start, end) in enumerate(offsets) if start < end]
    for start, answer in zip(answers["answer_start"][:1], answers["text"]):
        end = start + len(answer)
        touched = [index for index in text if offsets[index][0] < end and offsets[index][1] > start]
        if touched and offsets[text[0]][0] <= start and end <= offsets[text[-1]][1]:
            return touched[0], touched[-1]
    return 0, 0


def window_dataset(
    questions: "Dataset", tokenizer: Tokenizer, *, training: bool = False, num_proc: int | None = None, **lengths: int
) -> "Dataset":
    """Return the windows of what `load_questions` gave, labeled with the first answer of each question, if any.

    With `training`, they lack the columns that only decoding needs. `lengths` are "max_seq_length" and "doc_stride".
    """

    def map_batch(batch: dict, indices: list[int]) -> dict:
        answers = batch.get("answers")
        windows = make_windows(batch["question"], batch["context"], tokenizer, answers=answers, **lengths)
        windows["question_index"] = [indices[index] for index in windows["question_index"]]
        # Every process keeps the training windows in memory.
        return {name: windows[name] for name in windows if not training or name not in DECODING_COLUMNS}

    options = {"batched": True, "with_indices": True, "num_proc": num_proc, "desc": "Cutting windows"}
    return questions.map(map_batch, remove_columns=questions.column_names, **options)


def check_windows(tokenizer: Tokenizer, max_seq_length: int, doc_stride: int):
    """Raise an InputError if a window has no room for new context, or the tokenizer cannot make or pad it."""
    if not 0 <= doc_stride <= max_seq_length // 2:
        limit = f"from 0 to half of --max_seq_length, {max_seq_length // 2}"
        raise InputError(f"--doc_stride {doc_stride}, the overlap of two windows, must be {limit}.")
    pads = tokenizer.pad_token_id is not None and tokenizer.padding_side == "right"
    if not (tokenizer.is_fast and pads and tokenizer("", "")["input_ids"][:1] == [tokenizer.cls_token_id]):
        needs = "a fast one that puts [CLS] first, and pads on the right with a padding token"
        raise InputError(f"{type(tokenizer).__name__} cannot find answers: choose {needs}.")
