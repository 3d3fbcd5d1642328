"""The text of the replication, in three parts: to train on, to choose settings by, and to evaluate on."""

import ast
import json
import random
import re
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

from hf_gmlp.errors import InputError
from hf_gmlp.training.run_folder import write_text

# Maximum characters of the held-out parts, on which a hundred models are evaluated.
HELD_OUT = {"development": 300_000, "evaluation": 1_000_000}


def prepare_text(train_file: list[str], validation_file: list[str], folder: Path) -> dict[str, Path]:
    """Write the three parts of the text into a folder, as JSON lines, and return their files by part.

    Without training files, the text is Python's documentation of itself; without files for evaluation, that is every
    twentieth training document. Every hundredth is for development. Raise InputError if the folder has another text, on
    which runs may have been trained.
    """
    train = read_documents(train_file) if train_file else standard_library()
    evaluation = read_documents(validation_file)
    # Documents of one kind are next to each other in the files.
    for documents in (train, evaluation):
        random.Random(0).shuffle(documents)
    if not validation_file:
        evaluation = train[::20]
        del train[::20]
    step = 100 if len(train) >= 1000 else 20
    development = train[::step]
    del train[::step]
    paths = {}
    for part, documents in {"train": train, "development": development, "evaluation": evaluation}.items():
        text, left = "", HELD_OUT.get(part, sum(map(len, documents)))
        for document in documents:
            if left > 0:
                text += json.dumps({"text": document[:left]}, ensure_ascii=False) + "\n"
            left -= len(document)
        path = paths[part] = folder / f"{part}.jsonl"
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            raise InputError(f"{path} was made from other files. Choose another --output_dir.")
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
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


def standard_library() -> list[str]:
    """Return the topics of Python's reference, and the docstrings of every module of its standard library."""
    documents = []
    for _, text in sorted(topics.items()):
        paragraphs = (re.sub(r"\s+", " ", paragraph).strip() for paragraph in re.split(r"\n\s*\n", text))
        documents.append("\n".join(paragraph for paragraph in paragraphs if re.search(r"[a-z]{2}", paragraph)))
    library = Path(sysconfig.get_path("stdlib"))
    excluded = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    for path in sorted(library.rglob("*.py")):
        if excluded & set(path.relative_to(library).parts):
            continue
        try:
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        except (SyntaxError, ValueError):
            # Some modules are wrong on purpose.
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
        lines = (line.strip() for docstring in docstrings for line in docstring.splitlines())
        if document := "\n".join(line for line in lines if line):
            documents.append(document)
    return documents


def write_pairs(tokenizer: Path, counts: dict[Path, int], words: str, most: int = 64, longest: int = 4):
    """Write so many pairs of sentences for the word-matching task into each file that is not there.

    A sentence is one to `longest` different words. In half of the pairs (label 1), one word of the second is one of the
    first; in the others (0), they share none. No pair is in two files. The words are the likeliest pieces of a
    tokenizer, at most `most`, that match the pattern `words`: every word is one token.

    Raises:
        InputError: If a pair is not [CLS] A [SEP] B [SEP] with one token per word.
    """
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(tokenizer)
    pieces = sorted(tokens.get_vocab().items(), key=lambda item: item[1])
    known = [piece for piece, _ in pieces if re.fullmatch(words, piece)][:most]
    # Tokenizing takes a tenth of a second for a thousand pairs; each word stands at both ends of a sentence.
    for one, other in zip(known, known[1:] + known[:1]):
        if len(tokens(one + other, other + one)["input_ids"]) != 7:
            raise InputError(f"{one!r} or {other!r} is not one token.")
    earlier: set[str] = set()
    for number, (path, count) in enumerate(counts.items()):
        if not path.is_file():
            pick = random.Random(number)
            lines: list[str] = []
            while len(lines) < count:
                line = draw_pair(pick, known, longest, label=len(lines) % 2)
                if line not in earlier:
                    lines.append(line)
            pick.shuffle(lines)
            write_text(path, "".join(f"{line}\n" for line in lines))
        earlier.update(path.read_text(encoding="utf-8").splitlines())


def draw_pair(pick: random.Random, words: list[str], longest: int, label: int) -> str:
    """Return a pair for the word-matching task, as a line of JSON."""
    first, second = pick.randint(1, longest), pick.randint(1, longest)
    chosen = pick.sample(words, first + second)
    sentences = chosen[:first], chosen[first:]
    if label:
        sentences[1][pick.randrange(second)] = pick.choice(sentences[0])
    return json.dumps({"sentence1": "".join(sentences[0]), "sentence2": "".join(sentences[1]), "label": label})
