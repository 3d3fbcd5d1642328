"""Questions with their answers in a context: SQuAD by name or from files, and the windows of tokens that a model reads.

`datasets` is imported only to load data: `hf_gmlp.answerer` makes windows without it.
"""

import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase as Tokenizer

from ..errors import InputError
from .files import Access, check_file, load_data, open_text, reading

if TYPE_CHECKING:
    from datasets import Dataset

    from ..training.arguments import QAArguments

logger = logging.getLogger(__name__)

# Columns of a window that `decode` needs besides the logits, and the model does not.
DECODING_COLUMNS = ("question_index", "cls_index", "context_start", "offsets")


def load_questions(arguments: "QAArguments", splits: Sequence[str], access: Access = Access()) -> dict[str, "Dataset"]:
    """Returns checked questions, one per row: "id", "question", "context" and "answers" {"text": [...], "answer_start":
    [...]}, both lists empty if there is no answer. A "test" split without any answer has no such column.

    Files are nested as SQuAD is published, flat (rows, possibly under "data"), or JSON lines. Raises an InputError if
    data are missing or are not such JSON, two questions share an id, an answer is not in its place, or a question has
    no answer but must have one.
    """
    from datasets import Dataset, Features, Value

    files, name = arguments.files(), arguments.dataset_name
    loaded = files or load_data(dataset_name=name, dataset_config_name=arguments.dataset_config_name, access=access)
    questions = {}
    for split in splits:
        if split not in loaded:
            where = f"give --{split}_file" if files else f"{name} has {', '.join(loaded)}"
            raise InputError(f"There are no {split} data: {where}.")
        limit = arguments.max_samples()[split]
        sources = [(str(path), _read_rows(Path(path))) for path in files.get(split, ())]
        sources = sources or [(name, itertools.islice(loaded[split], limit))]
        rows = [row for source in sources for row in _checked(*source, split)][:limit]
        names = ", ".join(source for source, _ in sources)
        ((key, count),) = Counter(row["id"] for row in rows).most_common(1)
        if count > 1:
            raise InputError(f"Two questions in {names} have the id {key}: predictions need unique ids.")
        without = [row["id"] for row in rows if not row["answers"]["text"]]
        answered = split != "test" or len(without) < len(rows)
        if without and answered and not arguments.version_2_with_negative:
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
    checked = []
    for number, row in enumerate(rows, start=1):
        name = f"question {row.get('id', f'number {number}')} in {where}"
        for field, kinds in {"id": str | int, "question": str, "context": str}.items():
            if not isinstance(row.get(field), kinds):
                raise InputError(f"The {name} has no field {field!r} with text, only {', '.join(row) or 'nothing'}.")
        if not row["context"].strip():
            raise InputError(f"The context of {name} is empty.")
        answers = _answers(row, name, split)
        starts = [_find_answer(row["context"], text, start, name) for text, start in answers]
        fields = {"id": str(row["id"]), "question": row["question"], "context": row["context"]}
        checked.append(fields | {"answers": {"text": [text for text, _ in answers], "answer_start": starts}})
    if not checked:
        raise InputError(f"There is no question in {where}.")
    return checked


def _answers(row: dict, name: str, split: str) -> list[tuple[str, int]]:
    """Texts and first characters of a row's answers, from a dictionary of lists or a list of dictionaries."""
    match row.get("answers"):
        case None if row.get("is_impossible") or split == "test":
            answers = []
        case {"text": [*texts], "answer_start": [*starts]} if len(texts) == len(starts):
            answers = list(zip(texts, starts))
        case [*entries] if all(isinstance(one, dict) and {"text", "answer_start"} <= one.keys() for one in entries):
            answers = [(one["text"], one["answer_start"]) for one in entries]
        case _:
            raise InputError(f"The 'answers' of {name} must have as many 'text's as 'answer_start's.")
    if answers and row.get("is_impossible"):
        raise InputError(f"'is_impossible' of {name} is true, but it has {len(answers)} answers.")
    return answers


def _find_answer(context: str, text: str, start: int, name: str) -> int:
    """The first character of an answer: `start`, or after the white space there."""
    if not isinstance(text, str) or not text.strip() or type(start) is not int or start < 0:
        raise InputError(f"An answer to {name} must be text at a whole number, got {text!r} at {start!r}.")
    rest = context[start:]
    for place in (start, len(context) - len(rest.lstrip())):
        if context.startswith(text, place):
            return place
    place = f"at character {start} of its context, where {rest[: len(text)]!r} stands"
    raise InputError(f"An answer to {name}, {text!r}, is not {place}: correct 'answer_start', or remove the question.")
