"""The data of the replication: a text, and classifications of one or two sentences, each in three parts."""

import ast
import json
import random
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from hf_gmlp.errors import InputError

PARTS = ("train", "development", "evaluation")
# Most characters of the held-out parts, on which a hundred models are evaluated.
HELD_OUT = {"development": 300_000, "evaluation": 1_000_000}
# Fewest words, in sequences of n.
LEAST_SEQUENCES = {"train": 200, "development": 5, "evaluation": 20}
PAIR_WORDS = 8


def prepare_text(train_files: list[str], validation_files: list[str], length: int, folder: Path) -> dict[str, Path]:
    """
    Writes the three parts of the text as JSON lines. Every hundredth document of the training files is for development.
    Without validation files, every twentieth is for evaluation. Without files, the text is Python's documentation of
    itself. Raises InputError if the files cannot be read, or a part is too short for sequences of `length` tokens.
    """
    found = read_documents(train_files) if train_files else list(standard_library())
    # Documents of one kind stand together in the files.
    random.Random(0).shuffle(found)
    documents = {"evaluation": read_documents(validation_files)} if validation_files else {"evaluation": found[::20]}
    if validation_files:
        random.Random(0).shuffle(documents["evaluation"])
    else:
        found = [document for number, document in enumerate(found) if number % 20]
    documents["development"] = found[::100] if len(found) >= 1000 else found[::20]
    held = {id(document) for document in documents["development"]}
    documents["train"] = [document for document in found if id(document) not in held]
    paths = {}
    for part in PARTS:
        kept, left = [], HELD_OUT.get(part, sys.maxsize)
        for document in documents[part]:
            if left > 0:
                kept.append({"text": document[:left]})
            left -= len(document)
        words = sum(len(row["text"].split()) for row in kept)
        if words < LEAST_SEQUENCES[part] * length:
            raise InputError(
                f"The text for {part} has {words:,} words, but needs at least {LEAST_SEQUENCES[part] * length:,}. "
                f"Give more text, or --size tiny."
            )
        paths[part] = write_once(folder / f"{part}.jsonl", kept)
    return paths


def read_documents(files: list[str]) -> list[str]:
    """Returns the documents of files of any kind that run_mlm.py reads; the lines of a file with few documents."""
    from hf_gmlp.tasks.text import TextArguments, load_texts

    found = []
    for path in files:
        texts = load_texts(TextArguments(train_file=[path], validation_file=[path]), validate=False)["train"]["text"]
        texts = [text for text in texts if text and not text.isspace()]
        if len(texts) < 20:
            texts = [line for text in texts for line in text.splitlines() if line.strip()]
        found += texts
    return found


def standard_library() -> Iterator[str]:
    """Yields the topics of Python's reference, then the docstrings of every module of its standard library."""
    from demo import split_topics

    for documents in split_topics():
        yield from documents
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
        described = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        lines = (line.strip() for words in described if words for line in words.splitlines())
        document = "\n".join(line for line in lines if line)
        if document:
            yield document


def prepare_task(task: str, files: list[str], folder: Path) -> dict[str, Path]:
    """
    Writes the three parts of a classification as JSON lines of "sentence" (or "sentence1" and "sentence2") and "label":
    every tenth row of the training file is for development, the validation file for evaluation. Raises InputError if
    the files cannot be read, or do not have the sentences and labels of the task.
    """
    from hf_gmlp.tasks.glue.arguments import GlueArguments
    from hf_gmlp.tasks.glue.sentences import load_sentences

    columns = ["sentence1", "sentence2"] if task == "pair" else ["sentence1"]
    data = load_sentences(GlueArguments(train_file=[files[0]], validation_file=[files[1]]))
    for rows, path in zip(data.splits.values(), files):
        found = [name for name in rows.column_names if name.startswith("sentence")]
        if len(found) != len(columns):
            raise InputError(f"{path} has {len(found)} sentence(s) a row, but --{task} needs {len(columns)}.")
    if data.labels is None or len(data.labels) < 2:
        raise InputError(f"{files[0]} does not have two labels. --{task} needs a classification.")
    names = columns if task == "pair" else ["sentence"]
    train, validation = (
        [{name: row[column] for name, column in zip(names, columns)} | {"label": row["labels"]} for row in rows]
        for rows in data.splits.values()
    )
    parts = {"train": [row for number, row in enumerate(train) if number % 10], "development": train[::10]}
    parts["evaluation"] = validation
    return {part: write_once(folder / task / f"{part}.jsonl", rows) for part, rows in parts.items()}


def prepare_pairs(text: dict[str, Path], count: int, folder: Path) -> dict[str, Path]:
    """
    Writes the three parts of the task of the repeated word (after section 4.3: what attention is for): does B repeat
    the word that A changed? A and B are eight words each from two places of the text. In A one word is changed for
    another, and in B one word for the same (label 1) or for a third (label 0). Both sentences of every label are drawn
    alike, so that no word and no place tells the label. `count` rows are for training, a tenth each for the other
    parts.
    """
    documents = {part: [row["text"].split() for row in read_rows(path)] for part, path in text.items()}
    frequency = Counter(word for words in documents["train"] for word in words if re.fullmatch("[a-z]{4,10}", word))
    # Neither words that are everywhere nor words that the tokenizer has hardly seen.
    first = len(frequency) // 50 if len(frequency) < 2000 else 200
    changed = [word for word, _ in frequency.most_common(2000)[first:]]
    sizes = {"train": count, "development": count // 10, "evaluation": count // 10}
    paths = {}
    for seed, (part, size) in enumerate(sizes.items()):
        rows = pairs(documents[part], changed, size, random.Random(seed))
        paths[part] = write_once(folder / "repeated" / f"{part}.jsonl", rows)
    return paths


def pairs(documents: list[list[str]], changed: list[str], count: int, draw: random.Random) -> Iterator[dict]:
    """Rows of the task of the repeated word."""
    # By length, so that every place of the text is equally likely.
    lengths = [max(0, len(words) - PAIR_WORDS) for words in documents]
    first = draw.choices(documents, lengths, k=count)
    second = draw.choices(documents, lengths, k=count)
    for number, sources in enumerate(zip(first, second)):
        label = number % 2
        word, other = draw.sample(changed, 2)
        row = {}
        for name, words, new in zip(("sentence1", "sentence2"), sources, (word, word if label else other)):
            start = draw.randrange(len(words) - PAIR_WORDS)
            window = words[start : start + PAIR_WORDS]
            window[draw.randrange(PAIR_WORDS)] = new
            row[name] = " ".join(window)
        yield row | {"label": label}


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_once(path: Path, rows: Iterable[dict]) -> Path:
    """Writes rows; raises InputError if the file exists with other contents, which runs may have been trained on."""
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
