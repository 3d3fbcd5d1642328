"""Questions with a context that contains the answers, from files."""

import json
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import Any

from datasets import Value

from ..errors import InputError
from .files import check_file, extension, open_text, read_errors, read_files

TEXT = {name: Value("string") for name in ("id", "question", "context")}
ANSWERS = {"answers": {"text": [Value("string")], "answer_start": [Value("int32")]}}


def read_questions(path: str) -> list[dict]:
    """Return the unchecked questions of a file: nested as SQuAD is published, flat (rows, possibly under "data"), JSON
    lines, or a table (csv, tsv or parquet).
    """
    check_file(Path(path))
    if extension(path) in ("csv", "tsv", "parquet"):
        return read_files([path], text_columns=None).to_list()
    errors: tuple[type[BaseException], ...] = (*read_errors(), KeyError, TypeError, AttributeError)
    try:
        with open_text(path) as file:
            text = file.read()
        return [row for value in _parse(text) for row in _flatten(value)]
    except errors as error:
        problem = f"{type(error).__name__}, {error}"
        raise InputError(f"{path} cannot be read as questions (SQuAD, flat, or JSON lines): {problem}.") from error


def _flatten(value: Any) -> Iterator[dict]:
    # A dictionary without "data" is a row.
    for row in value.get("data", [value]) if isinstance(value, dict) else value:
        if "paragraphs" not in row:
            yield row
        for paragraph in row.get("paragraphs", []):
            yield from (question | {"context": paragraph["context"]} for question in paragraph["qas"])


def _parse(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text: a single one, or one per line."""
    decoder, end = json.JSONDecoder(), 0
    text = text.rstrip()
    while end < len(text):
        start = next(index for index in range(end, len(text)) if not text[index].isspace())
        value, end = decoder.raw_decode(text, start)
        yield value


def check_question(row: dict, where: str, split: str) -> dict:
    """Return the four fields of a row, checked, and with answers stripped of white space."""
    missing = [field for field in TEXT if not isinstance(row.get(field), str | int if field == "id" else str)]
    if missing:
        raise InputError(f"A question in {where} has no field {missing[0]!r} with text, only {', '.join(row)}.")
    name = f"question {row['id']} in {where}"
    pairs = known_answers(row, where)
    if pairs is None and split != "test":
        raise InputError(f"The {name} needs 'answers', each with a 'text' and an integer 'answer_start'.")
    if not row["context"].strip():
        raise InputError(f"The {name} has an empty context: remove it, or add the text with the answer.")
    if pairs and row.get("is_impossible"):
        raise InputError(f"The {name} has answers, and 'is_impossible': remove one of them.")
    starts = [_find_answer(row["context"], text, start, name) for text, start in pairs or []]
    answers = {"text": [text for text, _ in pairs or []], "answer_start": starts}
    return {"id": str(row["id"]), "question": row["question"], "context": row["context"], "answers": answers}


def known_answers(row: dict, where: str) -> list[tuple[str, int]] | None:
    """Return the stripped text and the start of each answer, none for an impossible question; None if it has no field
    of answers.
    """
    answers = row.get("answers")
    if answers is None or isinstance(answers, str):
        # A table has no lists of answers.
        return [] if row.get("is_impossible") else None
    try:
        if isinstance(answers, dict):
            answers = [dict(zip(answers, values)) for values in zip(*answers.values(), strict=True)]
        return [(str.strip(answer["text"]), index(answer["answer_start"])) for answer in answers]
    except (KeyError, TypeError, ValueError) as error:
        name = f"question {row.get('id', row.get('question'))!r} in {where}"
        raise InputError(f"The {name} needs 'answers', each with a 'text' and an integer 'answer_start'.") from error


def _find_answer(context: str, text: str, start: int, name: str) -> int:
    """Return the index of an answer's first character: `start`, or the first one after white space there."""
    tail = context[start:].lstrip()
    if start < 0 or not text or not tail.startswith(text):
        where = f"at character {start} of its context, which has {context[max(0, start) :][: len(text)]!r} there"
        advice = "correct 'answer_start', or remove the question"
        raise InputError(f"An answer to {name}, {text!r}, is not {where}: {advice}.")
    return len(context) - len(tail)
