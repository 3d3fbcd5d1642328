"""Questions with a context that contains the answers, from files."""

from operator import index
from pathlib import Path

from datasets import Value

from ..errors import InputError
from .files import check_file, extension, flatten_json, open_text, parse_json, read_errors, stream_rows

TEXT = {name: Value("string") for name in ("id", "question", "context")}
ANSWERS = {"answers": {"text": [Value("string")], "answer_start": [Value("int32")]}}


def read_questions(path: str) -> list[dict]:
    """Return the unchecked questions of a file: nested as SQuAD is published, flat (rows, possibly under "data"), JSON
    lines, or a table (csv, tsv or parquet).
    """
    check_file(Path(path))
    if extension(path) not in ("json", "jsonl"):
        return list(stream_rows(path))
    errors: tuple[type[BaseException], ...] = (*read_errors(), KeyError, TypeError, AttributeError)
    try:
        with open_text(path) as file:
            text = file.read()
        return [row for value in parse_json(text) for row in flatten_json(value)]
    except errors as error:
        problem = f"{type(error).__name__}, {error}"
        raise InputError(f"{path} cannot be read as questions (SQuAD, flat, or JSON lines): {problem}.") from error


def check_question(row: dict, where: str, split: str) -> dict:
    """Return the four fields of a row, checked, and with answers stripped of white space."""
    missing = [field for field in TEXT if not isinstance(row.get(field), str | int if field == "id" else str)]
    if missing:
        raise InputError(f"A question in {where} has no field {missing[0]!r} with text, only {', '.join(row)}.")
    name = f"question {row['id']} in {where}"
    pairs = known_answers(row, where, required=split != "test")
    if empty := [field for field in ("question", "context") if not row[field].strip()]:
        raise InputError(f"The {name} has an empty {empty[0]}: remove it, or add the text.")
    if pairs and row.get("is_impossible"):
        raise InputError(f"The {name} has answers, and 'is_impossible': remove one of them.")
    starts = [_find_answer(row["context"], text, start, name) for text, start in pairs or []]
    answers = {"text": [text for text, _ in pairs or []], "answer_start": starts}
    return {"id": str(row["id"]), "question": row["question"], "context": row["context"], "answers": answers}


def known_answers(row: dict, where: str, required: bool = False) -> list[tuple[str, int]] | None:
    """Return the stripped text and the start of each answer, none for an impossible question; None if it has no field
    of answers.
    """
    answers = row.get("answers")
    if answers is None or isinstance(answers, str):
        # A table has no lists of answers.
        if row.get("is_impossible") or not required:
            return [] if row.get("is_impossible") else None
        # This is refused below.
        answers = [{}]
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
