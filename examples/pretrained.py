"""Train text models like checkpoints/amlp-mini and amlp-mini-sst2 from text and sentences, on two CPU cores.

    python -m examples.pretrained --prose PROSE --sst2 SST2 --output_dir build/pretrained

PROSE holds books and film reviews, gzipped JSON lines with a column "text": books_train.jsonl.gz, books_more,
books_validation, and the same of reviews. SST2 holds train.jsonl and validation.jsonl with the columns "sentence" and
"label". Reviews whose hashes are in imdb_test.txt, from the test split of the Large Movie Review Dataset, are left out,
so that the models can be evaluated on them. The published models were trained before that, on 97.9 % of these reviews
too, so this command does not make the same models.

The steps are: a tokenizer; masked language modeling on sequences of 128 tokens (`mlm`), and then of 1,024 (`long`,
published as `amlp-mini`); starting from `mlm`, training on single sentences of the reviews, each labeled with the
opinion of its review (`opinions`); five fine-tuned teachers; soft labels for sentences of the reviews, the mean
probabilities of the teachers and tf-idf; and students trained on them (`amlp-mini-sst2`). Both models are copied in
half precision. When the command is repeated, it skips finished steps and resumes an interrupted one. Other flags go to
all training scripts (default: --use_cpu --bf16, for processors that compute in bfloat16).
"""

import argparse
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, normalizers
from transformers import AutoConfig, AutoTokenizer, pipeline

import hf_gmlp
from common.baselines import tfidf_classifier
from hf_gmlp.data.files import stream_rows
from hf_gmlp.loading import open_tokenizer
from hf_gmlp.tokenizer import train_tokenizer
from hf_gmlp.training.run_folder import write_text

ROOT = Path(__file__).resolve().parent.parent
LABELS = ("negative", "positive")
# A rating in a review, out of ten.
RATING = re.compile(r"(?<![\d./])(10|\d(?:\.\d+)?)\s*(?:/|out of)\s*(?:10|ten)\b", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z])")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prose", type=Path, required=True, help="folder of books and reviews")
    parser.add_argument("--sst2", type=Path, required=True, help="folder of SST-2")
    parser.add_argument("--output_dir", type=Path, default=Path("build/pretrained"))
    args, flags = parser.parse_known_args()
    flags = flags or ["--use_cpu", "--bf16"]
    output = args.output_dir
    output.mkdir(parents=True, exist_ok=True)
    prose = {
        part: [str(args.prose / f"{kind}_{part}.jsonl.gz") for kind in ("books", "reviews")]
        for part in ("train", "more", "validation")
    }
    for part in ("train", "more"):
        prose[part][1] = str(leave_out_test_reviews(prose[part][1], output / f"reviews_{part}.jsonl"))

    def run(script: str, recipe: str, name: str, *own_flags: object) -> None:
        if not (output / name / "all_results.json").is_file():
            command = [script, f"recipes/{recipe}.yaml", *map(str, own_flags), *flags]
            command += ["--output_dir", str(output / name)]
            print("$ python", *command, flush=True)
            subprocess.run([sys.executable, *command], cwd=ROOT, check=True)

    if not (output / "tokenizer").is_dir():
        make_tokenizer(prose["train"], output / "tokenizer")
    run("run_mlm.py", "laptop", "mlm", "--tokenizer_name", output / "tokenizer", "--lowercase", "false",
        "--train_file", *prose["train"], *prose["more"], "--validation_file", *prose["validation"],
        "--eval_strategy", "no", "--torch_compile", "--attn_implementation", "eager")  # fmt: skip
    run("run_mlm.py", "laptop-long", "long", "--model_name_or_path", output / "mlm",
        "--train_file", *prose["train"], *prose["more"])  # fmt: skip

    train, validation = args.sst2 / "train.jsonl", args.sst2 / "validation.jsonl"
    task: tuple = ("--task_name", "sst2")
    reviews, opinions = [prose["train"][1], prose["more"][1]], output / "opinions.jsonl"
    if not opinions.is_file():
        write_opinions(reviews, opinions, make_spelling(output / "mlm"), 200_000)
    # Evaluate on the SST-2 training sentences here, since the validation sentences are used only once, at the end.
    run("run_glue.py", "laptop-distill", "opinions", *task, "--model_name_or_path", output / "mlm", "--seed", 1,
        "--train_file", opinions, "--validation_file", train)  # fmt: skip
    task += ("--model_name_or_path", output / "opinions", "--validation_file", validation)
    teachers = [f"teachers/seed-{seed}" for seed in range(1, 6)]
    for seed, name in enumerate(teachers, start=1):
        run("run_glue.py", "laptop-finetune", name, *task, "--train_file", train, "--seed", seed)
    sentences, soft = output / "sentences.jsonl", output / "soft.jsonl"
    if not soft.is_file():
        write_sentences(reviews, sentences, 150_000)
        write_soft_labels(sentences, train, [output / name for name in teachers], soft)
    for seed in (1, 2, 3):
        run("run_glue.py", "laptop-distill", f"students/seed-{seed}", *task, "--train_file", soft, "--seed", seed)
    results = [json.loads(path.read_text()) for path in sorted(output.glob("students/*/all_results.json"))]
    print("Accuracy of the students:", *(result["eval_accuracy"] for result in results))
    halve(output / "long", output / "amlp-mini")
    halve(output / "students" / "seed-1", output / "amlp-mini-sst2")


def read_texts(files: Iterable[str]) -> Iterable[str]:
    return (row["text"] for file in files for row in stream_rows(file) if row["text"])


def fingerprint(text: str) -> str:
    """Return a hash of the words of a text."""
    words = re.findall(r"\w+", text.replace("<br />", " ").lower())
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:10]


def leave_out_test_reviews(file: str, path: Path) -> Path:
    """Write the reviews of a file whose fingerprint is not in imdb_test.txt, and return the path."""
    if not path.is_file():
        left_out = set(Path(__file__).with_name("imdb_test.txt").read_text(encoding="utf-8").split())
        write_rows(path, [{"text": text} for text in read_texts([file]) if fingerprint(text) not in left_out])
    return path


def make_tokenizer(files: Sequence[str], folder: Path, vocab_size: int = 8000) -> None:
    """Train a lower-casing tokenizer that normalizes treebank spelling to natural text, and adds a space before the
    first word of a text, as before all other words.
    """
    tokenizer = train_tokenizer(read_texts(files), vocab_size=vocab_size, max_length=128, lowercase=True)
    replacements = {
        r"`` ?| ?''": '"',
        r"-?\blrb\b-? ?": "(",
        r" ?-?\brrb\b-?": ")",
        r" +(?=n't\b|'(?:s|re|ve|ll|d|m)\b|[.,!?;:%)])": "",
        r"\A(?=\w)": " ",
    }
    rules = [normalizers.Replace(Regex(pattern), text) for pattern, text in replacements.items()]
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rules])
    tokenizer.save_pretrained(folder)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of 5 to 40 words."""
    sentences = (sentence.strip() for sentence in SENTENCE_END.split(text))
    return [sentence for sentence in sentences if 5 <= len(sentence.split()) <= 40]


def write_sentences(files: Sequence[str], path: Path, count: int) -> None:
    """Write a random sample of the sentences, half of them without a final period, as in SST-2."""
    sentences = sorted({sentence for text in read_texts(files) for sentence in sentences_of(text)})
    sample = random.Random(0).sample(sentences, min(count, len(sentences)))
    write_rows(path, [{"text": sentence} for sentence in some_without_full_stop(sample)])


def write_opinions(files: Sequence[str], path: Path, spelled: Callable[[str], str], count: int) -> None:
    """Write a random sample of the sentences, each labeled with the opinion of the review that it is from.

    One review in twelve names a rating, such as 8/10. A tf-idf classifier trained on these labels the others, and
    sentences are sampled from reviews that it classifies with confidence.
    """
    reviews = list(read_texts(files))
    texts = [spelled(RATING.sub(" ", review)) for review in reviews]
    ratings = [{float(rating) for rating in RATING.findall(review)} for review in reviews]
    # Keep reviews with exactly one rating that is clearly negative or positive.
    rated = [index for index, values in enumerate(ratings) if len(values) == 1 and not 4 < min(values) < 7]
    labels = [int(min(ratings[index]) >= 7) for index in rated]
    positive = tfidf_classifier().fit([texts[index] for index in rated], labels).predict_proba(texts)[:, 1]
    positive[rated] = labels
    opinions = {
        sentence: LABELS[int(probability > 0.5)]
        for review, probability in zip(reviews, positive)
        if abs(probability - 0.5) > 0.3
        for sentence in sentences_of(RATING.sub(" ", review))
    }
    sample = random.Random(0).sample(sorted(opinions), min(count, len(opinions)))
    print(f"{len(rated)} reviews with a rating, {len(opinions)} sentences of reviews with a clear opinion", flush=True)
    written = zip(some_without_full_stop(sample), sample)
    write_rows(path, [{"sentence": text, "label": opinions[sentence]} for text, sentence in written])


def some_without_full_stop(sentences: Sequence[str]) -> list[str]:
    """Return the sentences, removing the final period of every other one."""
    return [text.removesuffix(".") if number % 2 else text for number, text in enumerate(sentences)]


def write_rows(path: Path, rows: Iterable[dict[str, object]]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_soft_labels(sentences: Path, train: Path, teachers: Sequence[Path], path: Path) -> None:
    """Write the sentences with the mean probabilities of all teachers and tf-idf, followed by the labeled sentences
    with probabilities of 0 and 1.
    """
    rows = [json.loads(line) for line in open(train, encoding="utf-8")]
    texts = [json.loads(line)["text"] for line in open(sentences, encoding="utf-8")]
    spelled = make_spelling(teachers[0])
    baseline = tfidf_classifier().fit([spelled(row["sentence"]) for row in rows], [row["label"] for row in rows])
    votes = [baseline.predict_proba([spelled(text) for text in texts])]
    votes += [probabilities(teacher, texts) for teacher in teachers]
    labeled = [(row["sentence"], np.eye(len(LABELS))[row["label"]]) for row in rows]
    soft = []
    for sentence, mean in [*zip(texts, np.mean(votes, axis=0)), *labeled]:
        label = dict(zip(LABELS, (mean / mean.sum()).round(6).tolist()))
        soft.append({"sentence": sentence, "label": label})
    write_rows(path, soft)


def make_spelling(folder: Path) -> Callable[[str], str]:
    """Return the function by which the tokenizer in a folder normalizes a text."""
    return open_tokenizer(folder).backend_tokenizer.normalizer.normalize_str


def probabilities(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """Return the class probabilities of a classifier for each text: [texts, classes]."""
    classify = pipeline("text-classification", str(folder), top_k=None, truncation=True, batch_size=64)
    # Sort by length to reduce padding.
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    result = np.empty((len(texts), len(LABELS)))
    for index, scores in zip(order, classify([texts[index] for index in order])):
        by_label = {score["label"]: score["score"] for score in scores}
        result[index] = [by_label[label] for label in LABELS]
    return result


def halve(source: Path, target: Path) -> None:
    """Copy a trained model with tokenizer and card, with weights saved in half precision that load in single."""
    model_class = getattr(hf_gmlp, AutoConfig.from_pretrained(source).architectures[0])
    model_class.from_pretrained(source, dtype=torch.float16).save_pretrained(target)
    # In half precision, the model would be slow on most CPUs and could not be trained.
    config = json.loads((target / "config.json").read_text(encoding="utf-8")) | {"dtype": "float32"}
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    AutoTokenizer.from_pretrained(source).save_pretrained(target)
    shutil.copy(source / "README.md", target)
    print(f"The model in half precision, its tokenizer and its card: {target}")


if __name__ == "__main__":
    main()
