"""Build the texts of the sentence encoder from public sources: input of examples/teach.py.

    python -m examples.encoder_texts texts.jsonl.gz --books books_train.jsonl.gz books_more.jsonl.gz --peps peps.txt \
        --wiki_split wiki-split --questions query-wellformedness --sgd dstc8-schema-guided-dialogue \
        --taskmaster Taskmaster/TM-4-2024/data --leave_out stsb/dev.csv banking77/test.csv

| source | what is used | of all texts |
| --- | --- | --- |
| books | sentences of 4 to 60 words, editions of Standard Ebooks (standardebooks.org) | 259,964 |
| peps | the same of Python's enhancement proposals (github.com/python/peps; public domain or CC0) | 50,000 |
| books_passages, peps_passages | paragraphs of 40 to 400 words of both | 22,058 and 3,814 |
| wiki_split | sentences of tune.tsv, validation.tsv and test.tsv (google-research-datasets/wiki-split) | 44,942 |
| questions | train.tsv, dev.tsv and test.tsv (google-research-datasets/query-wellformedness) | 25,090 |
| sgd | utterances of 4 words or more (google-research-datasets/dstc8-schema-guided-dialogue, train) | 179,923 |
| taskmaster | utterances of 4 to 49 words (google-research-datasets/Taskmaster, TM-4-2024) | 9,730 |

Files of books are JSON lines with a column "text", one chapter each; of proposals, text files with one paragraph per
line. Each text occurs once. Texts that share eight words in a row with a file of `--leave_out` are left out, a random
sample of each source has the number of the table (or all, if there are fewer), and all are shuffled. The published
encoder was trained on the first 320,000 of a set with this composition, which was made before this script: the sample
and the order are not the same, so a model trained on this output is another one.
"""

import argparse
import csv
import gzip
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from hf_gmlp import errors
from hf_gmlp.data.files import stream_rows

from .pretrained import SENTENCE_END

COUNTS = {
    "books": 259_964, "peps": 50_000, "books_passages": 22_058, "peps_passages": 3_814, "wiki_split": 44_942,
    "questions": 25_090, "sgd": 179_923, "taskmaster": 9_730,
}  # fmt: skip
SHARED = 8  # words in a row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="file to write, gzipped JSON lines with the columns text and source")
    parser.add_argument("--books", nargs="+", default=[], help="files of chapters")
    parser.add_argument("--peps", nargs="+", default=[], help="files of paragraphs")
    for name in ("wiki_split", "questions", "sgd", "taskmaster"):
        parser.add_argument(f"--{name}", type=Path, help="folder of the source")
    parser.add_argument("--leave_out", nargs="+", default=[], help="files whose texts must not be in the output")
    parser.add_argument("--seed", type=int, default=0)
    errors.run_command(lambda: build(parser.parse_args()))


def build(args: argparse.Namespace) -> None:
    """Write the texts of all sources that were passed, and print the number of each."""
    left_out = {words for file in args.leave_out for row in stream_rows(file) for words in runs(" ".join(values(row)))}
    generator, seen, rows = random.Random(args.seed), set[str](), []
    for source, texts in sources(args).items():
        candidates = []
        for text in texts:
            if text not in seen and not left_out.intersection(runs(text)):
                seen.add(text)
                candidates.append({"text": text, "source": source})
        sample = generator.sample(candidates, min(COUNTS[source], len(candidates)))
        print(f"{source}: {len(sample):,} of {len(candidates):,}", flush=True)
        rows += sample
    generator.shuffle(rows)
    with gzip.open(args.output, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def sources(args: argparse.Namespace) -> dict[str, Iterable[str]]:
    """Return the texts of each source that was passed, before duplicates are removed and texts are sampled."""
    found: dict[str, Iterable[str]] = {}
    for name, files in (("books", args.books), ("peps", args.peps)):
        if files:
            texts = [row["text"] for file in files for row in stream_rows(file) if row["text"]]
            paragraphs = [paragraph.strip() for text in texts for paragraph in text.splitlines()]
            sentences = (sentence.strip() for paragraph in paragraphs for sentence in SENTENCE_END.split(paragraph))
            found[name] = between(sentences, 4, 60)
            found[f"{name}_passages"] = between(paragraphs, 40, 400)
    readers: dict[str, tuple[Callable[[Path], Iterator[str]], int, int]] = {
        "wiki_split": (wiki_split, 4, 49), "questions": (questions, 1, 38), "sgd": (dialogues, 4, 84),
        "taskmaster": (dialogues, 4, 49),
    }  # fmt: skip
    for name, (read, least, most) in readers.items():
        if folder := getattr(args, name):
            found[name] = between(read(folder), least, most)
    return found


def between(texts: Iterable[str], least: int, most: int) -> Iterator[str]:
    """Yield the texts of `least` to `most` words."""
    return (text for text in texts if least <= len(text.split()) <= most)


def wiki_split(folder: Path) -> Iterator[str]:
    """Yield all sentences, without the spaces before punctuation marks."""
    for cells in tables(folder, ("tune", "validation", "test")):
        for sentence in re.split(r"\s*<::::>\s*", "<::::>".join(cells)):
            yield re.sub(r"\s+(?=[,.;:!?')\"])", "", sentence).replace("( ", "(").strip()


def questions(folder: Path) -> Iterator[str]:
    """Yield all questions, whose second column is a rating."""
    return (cells[0].strip() for cells in tables(folder, ("train", "dev", "test")))


def tables(folder: Path, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the cells of each row of files without a header."""
    for name in names:
        with open(folder / f"{name}.tsv", encoding="utf-8", newline="") as file:
            yield from csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def dialogues(folder: Path) -> Iterator[str]:
    """Yield the utterances of Schema-Guided Dialogue (of its folder train, if there is one) or Taskmaster."""
    folder = folder / "train" if (folder / "train").is_dir() else folder
    for path in sorted(folder.glob("*.json")):
        for dialogue in json.loads(path.read_text(encoding="utf-8")):
            if isinstance(dialogue, dict):  # schema.json has services
                for turn in dialogue.get("turns") or dialogue.get("utterances") or []:
                    yield (turn.get("utterance") or turn.get("text") or "").strip()


def values(row: dict) -> list[str]:
    """Return the texts of a row."""
    return [value for value in row.values() if isinstance(value, str)]


def runs(text: str) -> set[str]:
    """Return all runs of eight words of a text, in lower case and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + SHARED]) for i in range(len(words) - SHARED + 1)}


if __name__ == "__main__":
    main()
