"""The text of the replication, split into training, development (for choosing settings) and evaluation parts."""

import ast
import json
import random
import re
import sysconfig
from pathlib import Path

from common.python_reference import python_reference
from hf_gmlp.errors import InputError
from hf_gmlp.training.run_folder import write_text

# Maximum number of characters in each held-out part, since about a hundred models are evaluated on them.
HELD_OUT = {"development": 300_000, "evaluation": 1_000_000}


def prepare_text(train_file: list[str], validation_file: list[str], folder: Path) -> dict[str, Path]:
    """Write the three parts of the text into a folder as JSON lines, and return the path of each part.

    Without training files, the text is Python's own documentation. Without evaluation files, every twentieth training
    document is held out for evaluation. Every hundredth is for development. Raise InputError if the folder already
    contains different text, since runs may have been trained on it.
    """
    train = read_documents(train_file) if train_file else standard_library()
    evaluation = read_documents(validation_file)
    # The files group similar documents together.
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
            raise InputError(f"{path} was made from different files. Choose another --output_dir.")
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return paths


def read_documents(files: list[str]) -> list[str]:
    """Return the documents of files in any format that run_mlm.py reads; split files of few documents into lines."""
    from hf_gmlp.data.documents import load_texts
    from hf_gmlp.data.source import Source

    documents = []
    for path in files:
        texts = load_texts(Source({"train": [path], "validation": [path]}), validate=False)["train"]["text"]
        texts = [text for text in texts if text and not text.isspace()]
        if len(texts) < 20:
            texts = [line for text in texts for line in text.splitlines() if line.strip()]
        documents += texts
    return documents


def standard_library() -> list[str]:
    """Return the topics of the Python reference and the docstrings of every standard-library module."""
    documents = python_reference()
    library = Path(sysconfig.get_path("stdlib"))
    excluded = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    for path in sorted(library.rglob("*.py")):
        if excluded & set(path.relative_to(library).parts):
            continue
        try:
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        except (SyntaxError, ValueError):
            # Some modules contain deliberate syntax errors.
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
        lines = (line.strip() for docstring in docstrings for line in docstring.splitlines())
        if document := "\n".join(line for line in lines if line):
            documents.append(document)
    return documents


def write_pairs(tokenizer: Path, counts: dict[Path, int], words: str) -> None:
    """Write the given number of sentence pairs for the word-matching task into each file that does not exist yet.

    A sentence has one to four different words. In half of the pairs (label 1), the sentences share one word; in
    the others (label 0), they share none. No pair is in two files. The words are the most probable pieces of a
    tokenizer, at most 64, that match the pattern `words`: every word is one token.

    Raises:
        InputError: If a pair is not [CLS] A [SEP] B [SEP] with one token per word.
    """
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(tokenizer)
    pieces = sorted(tokens.get_vocab().items(), key=lambda item: item[1])
    candidates = [piece for piece, _ in pieces if re.fullmatch(words, piece)][:64]
    # Tokenizing a thousand pairs takes a tenth of a second. Every word is checked at both ends of a sentence.
    for word, other in zip(candidates, candidates[1:] + candidates[:1]):
        if len(tokens(word + other, other + word)["input_ids"]) != 7:
            raise InputError(f"{word!r} or {other!r} is not a single token. Use another pattern for words.")
    earlier: set[str] = set()
    for number, (path, count) in enumerate(counts.items()):
        if not path.is_file():
            generator = random.Random(number)
            lines: list[str] = []
            while len(lines) < count:
                line = sample_pair(generator, candidates, label=len(lines) % 2)
                if line not in earlier:
                    lines.append(line)
            generator.shuffle(lines)
            write_text(path, "".join(f"{line}\n" for line in lines))
        earlier.update(path.read_text(encoding="utf-8").splitlines())


def sample_pair(generator: random.Random, words: list[str], label: int) -> str:
    """Return a pair for the word-matching task, as a line of JSON."""
    first, second = generator.randint(1, 4), generator.randint(1, 4)
    chosen = generator.sample(words, first + second)
    sentences = chosen[:first], chosen[first:]
    if label:
        sentences[1][generator.randrange(second)] = generator.choice(sentences[0])
    return json.dumps({"sentence1": "".join(sentences[0]), "sentence2": "".join(sentences[1]), "label": label})
