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
    """Makes windows [CLS] question [SEP] context [SEP] of each pair. A long context gives several windows that overlap
    by `doc_stride` tokens. `answers` are the first character of each answer and the one after its last, or None.

    Returns the columns of the tokenizer; "question_index"; "cls_index" and "context_start", the positions of [CLS] and
    of the first context token; "offsets", the characters [start, end) of each context token; and with `answers`
    "start_positions" and "end_positions", the first and last token of the answer, or [CLS] if it is not in the window.
    """
    check_tokenizer(tokenizer)
    check_lengths(max_seq_length, doc_stride)
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
    options = {"truncation": "only_second", "max_length": max_seq_length, "stride": doc_stride}
    # "[SEP]" in an article is text.
    options |= {"return_overflowing_tokens": True, "return_offsets_mapping": True, "split_special_tokens": True}
    encoded = tokenizer(shorten_questions(questions, tokenizer, (room - doc_stride) // 2), list(contexts), **options)
    sources, all_offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    windows: dict[str, list] = {name: list(encoded[name]) for name in encoded}
    windows |= {"question_index": list(sources), "cls_index": [], "context_start": [], "offsets": []}
    windows |= {} if answers is None else {"start_positions": [], "end_positions": []}
    for index, (source, offsets) in enumerate(zip(sources, all_offsets)):
        context_tokens = [place for place, part in enumerate(encoded.sequence_ids(index)) if part == 1]
        first = context_tokens[0] if context_tokens else 0
        offsets = [list(offsets[place]) for place in context_tokens]
        cls_index = windows["input_ids"][index].index(tokenizer.cls_token_id)
        row = {"cls_index": cls_index, "context_start": first, "offsets": offsets}
        if answers is not None:
            span = _answer_tokens(offsets, answers[source])
            row["start_positions"], row["end_positions"] = (first + place for place in span or [cls_index - first] * 2)
        for name, value in row.items():
            windows[name].append(value)
    return windows


def window_dataset(
    questions: "Dataset", tokenizer: Tokenizer, *, training: bool = False, num_proc: int | None = None, **lengths: int
) -> "Dataset":
    """Returns the windows of what `load_questions` gave, labeled with the first answer of each question, if any.

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


def check_tokenizer(tokenizer: Tokenizer):
    """Raises an InputError if the tokenizer has no offsets, puts no [CLS] into a sequence, or does not pad right."""
    pads = tokenizer.pad_token_id is not None and tokenizer.padding_side == "right"
    if not (tokenizer.is_fast and pads and tokenizer.cls_token_id in tokenizer("", "")["input_ids"]):
        needs = "a fast one that puts [CLS] into a sequence, and pads on the right with a padding token"
        raise InputError(f"{type(tokenizer).__name__} cannot find answers: choose {needs}.")


def check_lengths(max_seq_length: int, doc_stride: int):
    """Raises an InputError if a window has no room for a question and new context."""
    if max_seq_length < 16:
        raise InputError(f"--max_seq_length, of question and context, must be at least 16, got {max_seq_length}.")
    if not 0 <= doc_stride <= max_seq_length // 2:
        limit = f"from 0 to half of --max_seq_length, {max_seq_length // 2}"
        raise InputError(f"--doc_stride {doc_stride}, the overlap of two windows, must be {limit}.")


def shorten_questions(questions: Sequence[str], tokenizer: Tokenizer, longest: int) -> list[str]:
    """Strips the questions of white space, and cuts those of more than `longest` tokens."""
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    short = []
    for question in map(str.strip, questions):
        part = question
        while len(ids := tokenizer(part, **options)["input_ids"]) > longest:
            # Keeps at most the fraction of characters that fits, so it ends; a cut inside a word may take two rounds.
            part = part[: len(part) * longest // len(ids)]
        if part != question:
            logger.warning("A question was cut to %d tokens: %s", longest, question)
        short.append(part)
    return short


def _answer_tokens(offsets: list[list[int]], answer: tuple[int, int] | None) -> tuple[int, int] | None:
    """The first and last token that the answer touches; None if the tokens do not hold all of it."""
    text = [place for place, (start, end) in enumerate(offsets) if start < end]
    if answer is None or not text or answer[0] < offsets[text[0]][0] or answer[1] > offsets[text[-1]][1]:
        return None
    touched = [place for place in text if offsets[place][0] < answer[1] and offsets[place][1] > answer[0]]
    return (touched[0], touched[-1]) if touched else None


def _first_answer(answers: dict[str, list]) -> tuple[int, int] | None:
    """The place of the first answer, without white space at its ends."""
    if not answers["text"]:
        return None
    text = answers["text"][0]
    start = answers["answer_start"][0] + len(text) - len(text.lstrip())
    return start, start + len(text.strip())
