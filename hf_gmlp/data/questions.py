"""Questions with a context that contains the answers, from files: as SQuAD is published, flat, or JSON lines."""

import json
from collections.abc import Iterable, Iterator
from operator import index
from pathlib import Path
from typing import Any

from datasets import Value

from ..errors import InputError
from .files import check_file, open_text

TEXT = {name: Value("string") for name in ("id", "question", "context")}
ANSWERS = {"answers": {"text": [Value("string")], "answer_start": [Value("int32")]}}


def read_questions(path: str) -> Iterator[dict]:
    """Yield the unchecked questions of a file in any of the three forms."""
    check_file(Path(path))
    try:
        with open_text(path) as file:
            text = file.read()
        if text.startswith("version https://git-lfs"):
            raise ValueError("it is a Git LFS pointer; fetch the data with `git lfs pull`")
        if text.lstrip().startswith("<"):
            raise ValueError("it is a web page; download the file itself")
        rows = [row for value in _parse(text) for row in _flatten(value)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"there is no {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{path} cannot be read as questions, as SQuAD, flat, or JSON lines: {fault}.") from error
    yield from rows


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
    try:
        pairs = [(str.strip(text), index(start)) for text, start in _answers(row, split)]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"The {name} needs 'answers', each with a 'text' and an integer 'answer_start'.") from error
    if not row["context"].strip():
        raise InputError(f"The {name} has an empty context: remove it, or add the text with the answer.")
    if pairs and row.get("is_impossible"):
        raise InputError(f"The {name} has answers, and 'is_impossible': remove one of them.")
    starts = [_find_answer(row["context"], text, start, name) for text, start in pairs]
    answers = {"text": [text for text, _ in pairs], "answer_start": starts}
    return {"id": str(row["id"]), "question": row["question"], "context": row["context"], "answers": answers}


def _answers(row: dict, split: str) -> Iterable[tuple[Any, Any]]:
    """Return the unchecked text and start of each answer."""
    answers = row.get("answers")
    if answers is None and (row.get("is_impossible") or split == "test"):
        return []
    if isinstance(answers, dict):
        return zip(answers["text"], answers["answer_start"], strict=True)
    return [(answer["text"], answer["answer_start"]) for answer in row["answers"]]


def _find_answer(context: str, text: str, start: int, name: str) -> int:
    """Return the index of an answer's first character: `start`, or the first one after white space there."""
    tail = context[start:].lstrip()
    if start < 0 or not text or not tail.startswith(text):
        where = f"at character {start} of its context, which has {context[max(0, start) :][: len(text)]!r} there"
        advice = "correct 'answer_start', or remove the question"
        raise InputError(f"An answer to {name}, {text!r}, is not {where}: {advice}.")
    return len(context) - len(tail)
