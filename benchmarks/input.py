"""How fast batches are made, beside how fast a model on this machine trains on them: how many workers a recipe needs.

    python benchmarks/input.py
    python benchmarks/input.py --quick
    python benchmarks/input.py --images_per_second 2500 --sequences_per_second 300     for a device that is not at hand

One worker process is measured as one thread, by its CPU time: tokenizing and packing, masking, and decoding and
augmenting pictures of ImageNet's size (500 x 375 pixels, JPEG). A worker's rate and the rate of a training step in the
same run give the number of workers (`--dataloader_num_workers`) with which the step never waits.

    python benchmarks/input.py --memory corpus.txt

Instead: peak memory and CPU time of two steps of a tiny model on a large text, by run_mlm.py and by the pipeline of
transformers' example of that name, each in a process of its own with an empty cache.

The results are added to benchmarks/results/input-DATE.csv.
"""

import argparse
import datetime
import io
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Tokenizers would use every core, but this is about one worker.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import harness
import numpy as np
import torch
from datasets import load_dataset
from peers import ROOT
from PIL import Image
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

from hf_gmlp import GMLPConfig, GMLPForImageClassification, GMLPForMaskedLM, GMLPVisionConfig, errors
from hf_gmlp.markdown import markdown_table
from hf_gmlp.processor import evaluation_processor
from hf_gmlp.tasks.image_classification.images import ImageCollator, mixing_transform, training_transform
from hf_gmlp.tasks.mlm.masking import MaskingCollator
from hf_gmlp.tasks.text import pack
from hf_gmlp.tokenizer import train_tokenizer

TINY = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 128}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--images_per_second", type=float, help="rate of a training step on another device")
    parser.add_argument("--sequences_per_second", type=float, help="rate of a training step on another device")
    parser.add_argument("--memory", type=Path, metavar="TEXT", help="a .txt file of about 100 MB to measure memory on")
    parser.add_argument("--peer", nargs=3, metavar=("TEXT", "VALIDATION", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=harness.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    if arguments.peer:
        train_peer(*arguments.peer)
        return
    rows = measure_memory(arguments.memory) if arguments.memory else measure_rates(arguments)
    table = [list(rows[0])]
    table += [[f"{value:,.2f}" if isinstance(value, float) else value for value in row.values()] for row in rows]
    print(markdown_table(table) + "\n")
    path = arguments.out / f"input-{datetime.date.today().isoformat()}.csv"
    harness.write_results(path, rows, harness.about())


def measure_rates(arguments: argparse.Namespace) -> list[dict]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count, rounds = (16, 2) if arguments.quick else (64, 5)
    step_images = arguments.images_per_second or image_step(rounds)
    step_sequences = arguments.sequences_per_second or text_step(rounds, 1 if arguments.quick else 2)
    rates = [(step_sequences, f"{what}, sequences of 512 tokens", rate) for what, rate in text_rates(count, rounds)]
    rates += [(step_images, f"{what}, images of 224 pixels", rate) for what, rate in image_rates(count, rounds)]
    rows = []
    for step, what, rate in rates:
        row = {"what": what, "samples_per_second": rate, "training_samples_per_second": step}
        rows.append(row | {"workers": math.ceil(step / rate)})
    return rows


def rate_of(step: Callable[[], object], samples: int, rounds: int) -> float:
    """Samples per second of CPU time, the median of some rounds."""
    step()
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return samples / statistics.median(times)


def text_rates(count: int, rounds: int) -> list[tuple[str, float]]:
    """Sequences per second of tokenizing and packing, and of masking."""
    from pydoc_data.topics import topics

    # The reference of Python, the largest English text on every machine that runs this.
    documents = [text for _, text in sorted(topics.items())]
    tokenizer = train_tokenizer(documents, vocab_size=4000)

    def samples(**options) -> tuple[list[dict], int]:
        packed = pack(documents, tokenizer, 512, **options)
        sequences = len(packed["input_ids"])
        return [{key: column[i % sequences] for key, column in packed.items()} for i in range(count)], sequences

    (rows, sequences), (with_offsets, _) = samples(), samples(offsets=True)
    mask, mask_words = MaskingCollator(tokenizer), MaskingCollator(tokenizer, whole_word_mask=True)
    return [
        ("tokenize and pack", rate_of(lambda: pack(documents, tokenizer, 512), sequences, rounds)),
        ("tokenize and group (peer)", rate_of(lambda: group(encode(documents, tokenizer), 512), sequences, rounds)),
        ("mask", rate_of(lambda: mask(rows), count, rounds)),
        ("mask whole words", rate_of(lambda: mask_words(with_offsets), count, rounds)),
    ]


def image_rates(count: int, rounds: int) -> list[tuple[str, float]]:
    """Images per second of the training pipeline and of evaluation, from JPEG to pixels."""
    rows = [{"image": {"bytes": jpeg(i), "path": None}, "labels": i, "index": i} for i in range(count)]
    unnumbered = [{"image": row["image"], "labels": row["labels"]} for row in rows]
    processor = evaluation_processor((224, 224))
    normalize = processor.image_mean, processor.image_std
    plain = ImageCollator(processor, training_transform((224, 224), *normalize, auto_augment=None))
    augment = training_transform((224, 224), *normalize, auto_augment="imagenet")
    augmented = ImageCollator(processor, augment, mixing_transform(1000, mixup_alpha=0.8, cutmix_alpha=1.0))
    evaluation = ImageCollator(processor)
    return [
        ("decode, crop, flip", rate_of(lambda: plain(rows), count, rounds)),
        ("decode, crop, flip, AutoAugment, mix", rate_of(lambda: augmented(rows), count, rounds)),
        ("decode, evaluation", rate_of(lambda: evaluation(unnumbered), count, rounds)),
    ]


def jpeg(seed: int) -> bytes:
    """A picture with large and small structure, 500 x 375, of about the 110 kB of a file of ImageNet."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int16)
    picture = np.clip(picture + generator.normal(0, 22, (*picture.shape[:2], 1)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=90)
    return file.getvalue()


def image_step(rounds: int) -> float:
    """Images per second of training gMLP-S, whose 30 blocks are extrapolated from a few."""

    def seconds(layers: int) -> float:
        model = GMLPForImageClassification(GMLPVisionConfig(num_hidden_layers=layers, num_labels=1000)).train()
        pixels, labels = torch.randn(8, 3, 224, 224), torch.zeros(8, dtype=torch.long)
        return 1 / rate_of(lambda: model(pixels, labels=labels).loss.backward(), 8, rounds)

    two = seconds(2)
    return 1 / (two + 28 * (seconds(4) - two) / 2)


def text_step(rounds: int, batch: int) -> float:
    """Sequences of 512 tokens per second of training gMLP-base, whose 48 blocks are extrapolated from two."""

    def seconds(layers: int) -> float:
        model = GMLPForMaskedLM(GMLPConfig(num_hidden_layers=layers, sparse_prediction=True)).train()
        ids = torch.randint(5, 32000, (batch, 512))
        labels = masked_labels(ids)
        return 1 / rate_of(lambda: model(ids, labels=labels).loss.backward(), batch, rounds)

    one = seconds(1)
    return 1 / (one + 47 * (seconds(2) - one))


def masked_labels(ids: torch.Tensor) -> torch.Tensor:
    """Labels of 15 % of the positions of each text, as of BERT."""
    labels = torch.full_like(ids, -100)
    labels[:, : int(0.15 * ids.shape[1])] = 5
    return labels


def measure_memory(text: Path) -> list[dict]:
    """Peak memory and CPU time of run_mlm.py and of its peer on a text, the end of which validates, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        validation = Path(folder, "validation.txt")
        with open(text, "rb") as file:
            lines = file.read(4_000_000).decode("utf-8", "ignore").splitlines()
            train_tokenizer(lines, vocab_size=8000).save_pretrained(folder)
            file.seek(-100_000, os.SEEK_END)
            validation.write_bytes(file.read().split(b"\n", 1)[1])
        sizes = ",".join(f"{key}={value}" for key, value in TINY.items())
        flags = f"--config_name gmlp-base --config_overrides {sizes} --tokenizer_name {folder} --do_train --do_eval "
        flags += f"--max_steps 2 --use_cpu --report_to none --output_dir {folder}/out --cache_dir {folder}/cache"
        script = [ROOT / "run_mlm.py", "--train_file", text, "--validation_file", validation, *flags.split()]
        peer = [__file__, "--peer", text, validation, folder]
        rows = []
        for what, command in (("run_mlm.py", script), ("run_mlm.py of transformers (peer)", peer)):
            process = subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"{what} failed.")
            rows.append({"what": what, "peak_mib": used.ru_maxrss / 1024, "cpu_seconds": used.ru_utime + used.ru_stime})
    ratios = {key: rows[0][key] / rows[1][key] for key in ("peak_mib", "cpu_seconds")}
    return [*rows, {"what": "ratio"} | ratios]


def train_peer(text: str, validation: str, folder: str):
    """Two steps and an evaluation as in the example of transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    data = load_dataset("text", data_files={"train": text, "validation": validation}, cache_dir=f"{folder}/peer")
    data = data.map(lambda rows: encode(rows["text"], tokenizer), batched=True, remove_columns=["text"])
    data = data.map(lambda rows: group(rows, TINY["max_position_embeddings"]), batched=True)
    trainer = Trainer(
        GMLPForMaskedLM(GMLPConfig(vocab_size=len(tokenizer), **TINY)),
        TrainingArguments(f"{folder}/peer-out", max_steps=2, use_cpu=True, report_to="none"),
        DataCollatorForLanguageModeling(tokenizer),
        data["train"],
        data["validation"],
    )
    trainer.train()
    trainer.evaluate()


def encode(texts: list[str], tokenizer: Callable) -> dict[str, list[list[int]]]:
    """Tokenizes a batch of texts as the example of transformers does."""
    return dict(tokenizer(texts, return_special_tokens_mask=True, verbose=False))


def group(batch: dict[str, list[list[int]]], length: int) -> dict[str, list[list[int]]]:
    """Joins the sequences of a batch and cuts them into parts of one length, without the rest."""
    columns = {name: list(itertools.chain.from_iterable(rows)) for name, rows in batch.items()}
    stop = len(columns["input_ids"]) // length * length
    return {name: [ids[i : i + length] for i in range(0, stop, length)] for name, ids in columns.items()}


if __name__ == "__main__":
    errors.run(main)
