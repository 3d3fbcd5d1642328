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
DECODING_COLUMNS = ("question_index", "cls_index", "context_start", "offsets")


def make_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    max_seq_length: int,
    doc_stride: int,
    answers: Sequence[tuple[int, int] | None] | None = None,
) -> dict[str, list]:
    """Make windows [CLS] question [SEP] context [SEP] of each pair.

    A long context gives several windows that overlap by `doc_stride` tokens. A question that leaves too little room for
    the context is cut.

    Args:
        answers: The first character of each answer and the one after its last, or None.

    Returns:
        The columns of the tokenizer; "question_index"; "cls_index" and "context_start", the positions of [CLS] and of
        the first context token; "offsets", the characters [start, end) of each context token; and with `answers`
        "start_positions" and "end_positions", the first and last token of the answer, or [CLS] if the window lacks it.
    """
    check_tokenizer(tokenizer)
    check_lengths(max_seq_length, doc_stride)
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
    # "[SEP]" in an article is text.
    options: dict[str, object] = {"split_special_tokens": True, "return_offsets_mapping": True, "verbose": False}
    questions = _shorten(questions, tokenizer, (room - doc_stride) // 2, **options)
    options |= {"truncation": "only_second", "max_length": max_seq_length, "stride": doc_stride}
    encoded = tokenizer(questions, list(contexts), return_overflowing_tokens=True, **options)
    all_offsets, sources = encoded.pop("offset_mapping"), encoded.pop("overflow_to_sample_mapping")
    rows = []
    for index, (source, offsets) in enumerate(zip(sources, all_offsets)):
        context = [position for position, part in enumerate(encoded.sequence_ids(index)) if part == 1]
        row = {name: encoded[name][index] for name in encoded} | {"question_index": source}
        row["cls_index"] = cls_index = row["input_ids"].index(tokenizer.cls_token_id)
        row["context_start"] = first = context[0] if context else 0
        row["offsets"] = [list(offsets[position]) for position in context]
        if answers is not None:
            span = _answer_tokens(row["offsets"], answers[source]) or [cls_index - first] * 2
            row["start_positions"], row["end_positions"] = (first + token for token in span)
        rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]}


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


def _answer_tokens(offsets: list[list[int]], answer: tuple[int, int] | None) -> list[int] | None:
    """Return the first and last token that the answer touches; None if the tokens do not hold all of it."""
    text = [index for index, (start, end) in enumerate(offsets) if start < end]
    if answer is None or not text or answer[0] < offsets[text[0]][0] or answer[1] > offsets[text[-1]][1]:
        return None
    touched = [index for index in text if offsets[index][0] < answer[1] and offsets[index][1] > answer[0]]
    return [touched[0], touched[-1]] if touched else None


def window_dataset(
    questions: "Dataset", tokenizer: Tokenizer, *, training: bool = False, num_proc: int | None = None, **lengths: int
) -> "Dataset":
    """Return the windows of what `load_questions` gave, labeled with the first answer of each question, if any.

    With `training`, they lack the columns that only decoding needs. `lengths` are "max_seq_length" and "doc_stride".
    """

    def map_batch(batch: dict, indices: list[int]) -> dict:
        answers = [_first_answer(answer) for answer in batch["answers"]] if "answers" in batch else None
        windows = make_windows(batch["question"], batch["context"], tokenizer, answers=answers, **lengths)
        windows["question_index"] = [indices[index] for index in windows["question_index"]]
        # Every process keeps the training windows in memory.
        return {name: windows[name] for name in windows if not training or name not in DECODING_COLUMNS}

    options = {"batched": True, "with_indices": True, "num_proc": num_proc, "desc": "Cutting windows"}
    return questions.map(map_batch, remove_columns=questions.column_names, **options)


def _first_answer(answers: dict[str, list]) -> tuple[int, int] | None:
    """Return the characters [start, end) of the first answer, without white space at its ends."""
    if not answers["text"]:
        return None
    text = answers["text"][0]
    start = answers["answer_start"][0] + len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def check_tokenizer(tokenizer: Tokenizer):
    """Raise an InputError if the tokenizer has no offsets, puts no [CLS] into a sequence, or does not pad right."""
    pads = tokenizer.pad_token_id is not None and tokenizer.padding_side == "right"
    if not (tokenizer.is_fast and pads and tokenizer.cls_token_id in tokenizer("", "")["input_ids"]):
        needs = "a fast one that puts [CLS] into a sequence, and pads on the right with a padding token"
        raise InputError(f"{type(tokenizer).__name__} cannot find answers: choose {needs}.")


def check_lengths(max_seq_length: int, doc_stride: int):
    """Raise an InputError if a window has no room for a question and new context."""
    if max_seq_length < 16:
        raise InputError(f"--max_seq_length, of question and context, must be at least 16, got {max_seq_length}.")
    if not 0 <= doc_stride <= max_seq_length // 2:
        limit = f"from 0 to half of --max_seq_length, {max_seq_length // 2}"
        raise InputError(f"--doc_stride {doc_stride}, the overlap of two windows, must be {limit}.")
