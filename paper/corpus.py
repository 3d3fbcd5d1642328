"""The text of the replication, in three parts: to train on, to choose settings by, and to evaluate on."""

import ast
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

from hf_gmlp.errors import InputError

PARTS = ("train", "development", "evaluation")
# Maximum characters of the held-out parts, on which a hundred models are evaluated.
HELD_OUT = {"development": 300_000, "evaluation": 1_000_000}
# Fewest words, in sequences of n.
LEAST_SEQUENCES = {"train": 200, "development": 5, "evaluation": 20}


def prepare_text(train_file: list[str], validation_file: list[str], length: int, folder: Path) -> dict[str, Path]:
    """
    Write the three parts of the text as JSON lines, and return their files. Every hundredth document of the training
    files is for development. Without validation files, every twentieth is for evaluation.

    Args:
        train_file: Without files, the text is Python's documentation of itself.
        validation_file: For evaluation only.
        length: Tokens of a sequence.
        folder: Gets the files.

    Raises:
        InputError: A file cannot be read, or a part is too short.
    """
    texts = read_documents(train_file) if train_file else list(standard_library())
    # Documents of one kind are next to each other in the files.
    random.Random(0).shuffle(texts)
    documents = {"evaluation": read_documents(validation_file) if validation_file else texts[::20]}
    if validation_file:
        random.Random(0).shuffle(documents["evaluation"])
    else:
        texts = [document for number, document in enumerate(texts) if number % 20]
    step = 100 if len(texts) >= 1000 else 20
    documents["development"] = texts[::step]
    documents["train"] = [document for number, document in enumerate(texts) if number % step]
    paths = {}
    for part in PARTS:
        rows, left = [], HELD_OUT.get(part, sys.maxsize)
        for document in documents[part]:
            if left > 0:
                rows.append({"text": document[:left]})
            left -= len(document)
        words, least = sum(len(row["text"].split()) for row in rows), LEAST_SEQUENCES[part] * length
        if words < least:
            raise InputError(f"The text for {part} has {words:,} words, but needs at least {least:,}.")
        paths[part] = write_once(folder / f"{part}.jsonl", rows)
    return paths


def read_documents(files: list[str]) -> list[str]:
    """Return the documents of files of any kind that run_mlm.py reads; the lines of a file with few documents."""
    from hf_gmlp.tasks.text import TextArguments, load_texts

    documents = []
    for path in files:
        texts = load_texts(TextArguments(train_file=[path], validation_file=[path]), validate=False)["train"]["text"]
        texts = [text for text in texts if text and not text.isspace()]
        if len(texts) < 20:
            texts = [line for text in texts for line in text.splitlines() if line.strip()]
        documents += texts
    return documents


def standard_library() -> Iterator[str]:
    """Yield the topics of Python's reference, then the docstrings of every module of its standard library."""
    for _, text in sorted(topics.items()):
        paragraphs = (re.sub(r"\s+", " ", paragraph).strip() for paragraph in re.split(r"\n\s*\n", text))
        yield "\n".join(paragraph for paragraph in paragraphs if re.search(r"[a-z]{2}", paragraph))
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(library.rglob("*.py")):
        if left_out & set(path.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            # Some modules are wrong on purpose.
            continue
        docstrings = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        lines = (line.strip() for docstring in docstrings if docstring for line in docstring.splitlines())
        if document := "\n".join(line for line in lines if line):
            yield document


def write_once(path: Path, rows: Iterable[dict]) -> Path:
    """Write rows; raise InputError if the file exists with other contents, which runs may have been trained on."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.is_file():
        if path.read_text(encoding="utf-8") != text:
            raise InputError(f"{path} was made from other files. Choose another --output_dir.")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path
