"""Questions with their answers in a context: SQuAD by name, or from files."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets import Dataset, Features, Value

from ...errors import InputError
from ...training.files import Access, check_file, load_data, open_text, reading
from .arguments import QAArguments


def load_questions(arguments: QAArguments, splits: Sequence[str], access: Access = Access()) -> dict[str, Dataset]:
    """Returns checked questions, one per row: "id", "question", "context" and "answers" {"text": [...], "answer_start":
    [...]}, both lists empty if there is no answer. A "test" split without any answer has no such column.

    Files are nested as SQuAD is published, flat (rows, possibly under "data"), or JSON lines. Raises an InputError if
    data are missing or are not such JSON, two questions share an id, an answer is not in its place, or a question has
    no answer but must have one.
    """
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
