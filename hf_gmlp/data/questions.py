"""Questions with their answers in a context: SQuAD by name or from files, and the windows of tokens that a model reads.

`datasets` is imported only to load data: `hf_gmlp.answerer` makes windows without it.
"""

import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .files import Access, check_file, load_data, open_text, reading

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

# Columns of a window that `decode` needs besides the logits, and the model does not.
DECODING_COLUMNS = ("question_index", "cls_index", "context_start", "offsets")


def load_questions(
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
    splits: Sequence[str] = ("train", "validation"),
    version_2_with_negative: bool = False,
    max_samples: Mapping[str, int | None] | None = None,
    access: Access | None = None,
) -> dict[str, "Dataset"]:
    """Returns checked questions, one per row: "id", "question", "context" and "answers" {"text": [...], "answer_start":
    [...]}, both lists empty if there is no answer. A "test" split without any answer has no such column.

    Args:
        dataset_name: Used if there are no files.
        files: Split -> JSON files, nested as SQuAD is published, flat (rows, possibly under "data"), or JSON lines.
        splits: Which of "train", "validation" and "test" are needed.
        version_2_with_negative: Whether questions may have no answer.
        max_samples: Split -> maximum number of questions.

    Raises an InputError if data are missing or are not such JSON, two questions share an id, an answer is not in its
    place, or a question has no answer but must have one.
    """
    from datasets import Dataset, Features, Value

    if not files and dataset_name is None:
        raise InputError("Name the data: --dataset_name, or --train_file, --validation_file, --test_file.")
    names = {"dataset_name": dataset_name, "dataset_config_name": dataset_config_name}
    loaded = files or load_data(**names, access=access or Access())
    if missing := [split for split in splits if split not in loaded]:
        where = f"--{missing[0]}_file" if files else f"{dataset_name} has {', '.join(loaded)}"
        raise InputError(f"There are no {missing[0]} data: {where}.")
    questions = {}
    for split in splits:
        limit = (max_samples or {}).get(split)
        if files:
            sources = [(str(path), _read_rows(Path(path))) for path in files[split]]
        else:
            sources = [(dataset_name, itertools.islice(loaded[split], limit))]
        rows = [row for source in sources for row in _checked(*source, split)][:limit]
        names = ", ".join(name for name, _ in sources)
        ((key, count),) = Counter(row["id"] for row in rows).most_common(1)
        if count > 1:
            raise InputError(f"Two questions in {names} have the id {key}: predictions need unique ids.")
        without = [row["id"] for row in rows if not row["answers"]["text"]]
        answered = split != "test" or len(without) < len(rows)
        if without and answered and not version_2_with_negative:
            raise InputError(f"There is no answer to question {without[0]} in {names}: give --version_2_with_negative.")
        features = {name: Value("string") for name in ("id", "question", "context")}
        if answered:
            features["answers"] = {"text": [Value("string")], "answer_start": [Value("int32")]}
        with reading([names], "questions"):
            columns = {name: [row[name] for row in rows] for name in features}
            questions[split] = Dataset.from_dict(columns, features=Features(features))
    return questions


def make_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    doc_stride: int,
    answers: Sequence[tuple[int, int] | None] | None = None,
) -> dict[str, list]:
    """Makes windows [CLS] question [SEP] context [SEP] of each pair. A long context gives several windows that overlap
    by `doc_stride` tokens. A question is cut if it is longer than a window's share of new context.

    Args:
        answers: First character of the answer in the context and the one after its last; None if there is no answer.

    Returns:
        Columns with an entry per window: those of the tokenizer ("input_ids" etc.); "question_index"; "cls_index" and
        "context_start", the places of [CLS] and of the first context token; "offsets", the characters [start, end) of
        each context token, empty for white space; and with `answers` "start_positions" and "end_positions", the first
        and last token of the answer, or [CLS] if the window does not hold all of it.

    Raises an InputError if the tokenizer cannot do this, or `doc_stride` is more than half of `max_seq_length`.
    """
    check_tokenizer(tokenizer)
    check_lengths(max_seq_length, doc_stride)
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
    longest_question = (room - doc_stride) // 2
    encoded = tokenizer(
        shorten_questions(questions, tokenizer, longest_question),
        list(contexts),
        truncation="only_second",
        max_length=max_seq_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        # "[SEP]" in an article is text.
        split_special_tokens=True,
    )
    sources, all_offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    windows: dict[str, list] = {name: list(encoded[name]) for name in encoded}
    windows |= {"question_index": list(sources), "cls_index": [], "context_start": [], "offsets": []}
    windows |= {} if answers is None else {"start_positions": [], "end_positions": []}
    for index, (source, offsets) in enumerate(zip(sources, all_offsets)):
        context_tokens = [place for place, part in enumerate(encoded.sequence_ids(index)) if part == 1]
        first = context_tokens[0] if context_tokens else 0
        offsets = [list(offsets[place]) for place in context_tokens]
        cls_index = windows["input_ids"][index].index(tokenizer.cls_token_id)
        windows["cls_index"].append(cls_index)
        windows["context_start"].append(first)
        windows["offsets"].append(offsets)
        if answers is not None:
            span = _answer_tokens(offsets, answers[source])
            windows["start_positions"].append(cls_index if span is None else first + span[0])
            windows["end_positions"].append(cls_index if span is None else first + span[1])
    return windows


def window_dataset(
    questions: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    *,
    training: bool = False,
    num_proc: int | None = None,
    **lengths: int,
) -> "Dataset":
    """Returns the windows of what `load_questions` gave, labeled with the first answer of each question, if any.

    With `training`, they lack the columns that only decoding needs. `lengths` are "max_seq_length" and "doc_stride" of
    `make_windows`.
    """
    from datasets import Features, Value

    # Small integers: every process keeps the training windows in memory.
    features: dict = {name: [Value("int32" if name == "input_ids" else "int8")] for name in tokenizer.model_input_names}
    if not training:
        features |= {name: Value("int32") for name in ("question_index", "cls_index", "context_start")}
        features["offsets"] = [[Value("int32")]]
    if "answers" in questions.column_names:
        features |= {"start_positions": Value("int32"), "end_positions": Value("int32")}

    def map_batch(batch: dict, indices: list[int]) -> dict:
        answers = [_first_answer(answer) for answer in batch["answers"]] if "answers" in batch else None
        windows = make_windows(batch["question"], batch["context"], tokenizer, answers=answers, **lengths)
        windows["question_index"] = [indices[index] for index in windows["question_index"]]
        return {name: windows[name] for name in features}

    return questions.map(
        map_batch,
        batched=True,
        with_indices=True,
        remove_columns=questions.column_names,
        features=Features(features),
        num_proc=num_proc,
        desc="Cutting windows",
    )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase):
    """Raises an InputError if the tokenizer has no offsets, puts no [CLS] into a sequence, or does not pad right."""
    if not tokenizer.is_fast:
        raise InputError(f"{type(tokenizer).__name__} does not say where its tokens stand: choose a fast tokenizer.")
    if tokenizer.cls_token_id is None or tokenizer.cls_token_id not in tokenizer("", "")["input_ids"]:
        raise InputError("The tokenizer puts no [CLS] into a sequence, which marks that there is no answer.")
    if tokenizer.pad_token_id is None:
        raise InputError("The tokenizer has no padding token: set its pad_token, and save it again.")
    if tokenizer.padding_side != "right":
        raise InputError("The tokenizer pads on the left: set padding_side to right, or choose another.")


def check_lengths(max_seq_length: int, doc_stride: int):
    """Raises an InputError if a window has no room for a question and new context."""
    if max_seq_length < 16:
        raise InputError(f"--max_seq_length, of question and context, must be at least 16, got {max_seq_length}.")
    if not 0 <= doc_stride <= max_seq_length // 2:
        limit = f"from 0 to half of --max_seq_length, {max_seq_length // 2}"
        raise InputError(f"--doc_stride {doc_stride}, the overlap of two windows, must be {limit}.")


def shorten_questions(questions: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int) -> list[str]:
    """Strips the questions of white space, and cuts those of more than `longest` tokens."""
    questions = [question.strip() for question in questions]
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    tokens = tokenizer(questions, **options)["input_ids"]
    cut = [index for index, ids in enumerate(tokens) if len(ids) > longest]
    for index in cut:
        while len(ids := tokenizer(questions[index], **options)["input_ids"]) > longest:
            # Keeps at most the share of characters that fits, so it ends; a cut inside a word may take two rounds.
            questions[index] = questions[index][: len(questions[index]) * longest // len(ids)]
    if cut:
        logger.warning(f"{len(cut)} question(s) were cut to {longest} tokens; the first: {questions[cut[0]]}")
    return questions


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


def _read_rows(path: Path) -> list[dict]:
    """The unchecked questions of a file in any of the three forms."""
    check_file(path)
    with reading([path], "JSON or JSON lines"), open_text(path) as file:
        values = _parse(file.read())
    content = values[0] if len(values) == 1 else values
    if isinstance(content, dict):
        # Possibly a single line of JSON lines.
        content = content["data"] if "data" in content else [content]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise InputError(f'{path} has no list of questions: no rows or articles, at the top or under "data".')
    if not any("paragraphs" in row for row in content):
        return content
    with reading([path], 'articles, each with "paragraphs", each with a "context" and its "qas"'):
        paragraphs = [paragraph for article in content for paragraph in article["paragraphs"]]
        return [row | {"context": paragraph["context"]} for paragraph in paragraphs for row in paragraph["qas"]]


def _parse(text: str) -> list:
    """The JSON values of a text: one, or one per line."""
    decoder, space = json.JSONDecoder(), re.compile(r"\s*")
    text, values, place = text.rstrip(), [], 0
    while place < len(text):
        value, place = decoder.raw_decode(text, space.match(text, place).end())
        values.append(value)
    return values


def _checked(where: str, rows: Iterable[dict], split: str) -> list[dict]:
    """Rows with only the four fields, checked."""
    checked, moved = [], []
    for number, row in enumerate(rows, start=1):
        # `type`, not `isinstance`: a boolean is an int, but not an id.
        name = f"question {row['id'] if type(row.get('id')) in (str, int) else f'number {number}'} in {where}"
        for field, kinds in {"id": (str, int), "question": (str,), "context": (str,)}.items():
            if type(row.get(field)) not in kinds:
                raise InputError(f"The {name} has no field {field!r} with text, only {', '.join(row) or 'nothing'}.")
        if not row["context"].strip():
            raise InputError(f"The context of {name} is empty.")
        given = _answers(row, name, split)
        places = [_find_answer(row["context"], text, start, name) for text, start in given]
        moved += [row["id"] for (_, start), place in zip(given, places) if place != start]
        fields = {"id": str(row["id"]), "question": row["question"], "context": row["context"]}
        checked.append(fields | {"answers": {"text": [text for text, _ in given], "answer_start": places}})
    if not checked:
        raise InputError(f"There is no question in {where}.")
    if moved:
        change = "answer_start was moved past white space"
        logger.warning(f"In {where}, {change} for {len(moved)} answer(s), the first in question {moved[0]}.")
    return checked


def _answers(row: dict, name: str, split: str) -> list[tuple[str, int]]:
    """Texts and places of a row's answers, from a dictionary of lists or a list of dictionaries."""
    impossible = row.get("is_impossible")
    match row.get("answers"):
        case None if impossible or split == "test":
            answers = []
        case {"text": [*texts], "answer_start": [*starts]} if len(texts) == len(starts):
            answers = list(zip(texts, starts))
        case [*entries] if all(isinstance(one, dict) and {"text", "answer_start"} <= one.keys() for one in entries):
            answers = [(one["text"], one["answer_start"]) for one in entries]
        case _:
            raise InputError(f"The 'answers' of {name} must have as many 'text's as 'answer_start's.")
    if impossible is not None and impossible is not (not answers) and (answers or split != "test"):
        raise InputError(f"'is_impossible' of {name} is {impossible!r}, but it has {len(answers)} answers.")
    return answers


def _find_answer(context: str, text: str, start: int, name: str) -> int:
    """The place of an answer: `start`, or after the white space there."""
    # Not a boolean or 5.0.
    if not isinstance(text, str) or not text.strip() or type(start) is not int:
        raise InputError(f"An answer to {name} must be text at a whole number, got {text!r} at {start!r}.")
    rest = context[max(start, 0) :]
    for place in (start, len(context) - len(rest.lstrip())):
        if start >= 0 and context.startswith(text, place):
            return place
    place = f"at character {start} of its context, where {rest[: len(text)]!r} stands"
    raise InputError(f"An answer to {name}, {text!r}, is not {place}: correct 'answer_start', or remove the question.")
