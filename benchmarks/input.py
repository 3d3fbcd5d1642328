"""How fast batches are made, beside how fast a model on this machine trains on them: how many workers a recipe needs.

    python benchmarks/input.py
    python benchmarks/input.py --quick
    python benchmarks/input.py --images_per_second 2500 --sequences_per_second 300     for a device that is not at hand

One worker process is measured as one thread, by its CPU time: tokenizing and packing, masking, and decoding and
augmenting pictures of ImageNet's size (500 x 375 pixels, JPEG). A worker's rate and the rate of a training step in the
same run tell the number of workers (`--dataloader_num_workers`) with which the step never waits.

    python benchmarks/input.py --memory corpus.txt

Instead: peak memory and CPU time of two steps of a tiny model on a large text, by run_mlm.py and by the pipeline of
transformers' example of that name, each in a process of its own with an empty cache.

The results are added to benchmarks/results/input-DATE.csv.
"""

import argparse
import csv
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

# Tokenizers would use every core, and this is about one worker.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from datasets import load_dataset
from PIL import Image
from systems import RESULTS
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

from hf_gmlp import GMLPConfig, GMLPForImageClassification, GMLPForMaskedLM, GMLPVisionConfig, errors
from hf_gmlp.analysis.machine import machine_name
from hf_gmlp.data.images import ImageCollator, mixing_transform, training_transform
from hf_gmlp.data.masking import MaskingCollator
from hf_gmlp.data.processor import evaluation_processor
from hf_gmlp.data.text import pack
from hf_gmlp.data.tokenizer import train_tokenizer

COLUMNS = "date machine torch what samples_per_second training_samples_per_second workers peak_mib cpu_seconds".split()
SCRIPT = Path(__file__).resolve().parent.parent / "run_mlm.py"
TINY = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 128}


def main():
    errors.run(lambda: measure(parse_arguments()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples, in less than a minute")
    parser.add_argument("--images_per_second", type=float, help="of a training step elsewhere, in place of ours")
    parser.add_argument("--sequences_per_second", type=float, help="of a training step elsewhere, in place of ours")
    parser.add_argument("--memory", type=Path, metavar="TEXT", help="a .txt file to measure memory on, of 100 MB or so")
    parser.add_argument("--peer", nargs=3, metavar=("TEXT", "VALIDATION", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args()


def measure(arguments: argparse.Namespace):
    if arguments.peer:
        return train_peer(*arguments.peer)
    if arguments.memory:
        return write(arguments.out, memory(arguments.memory))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count, rounds = (16, 2) if arguments.quick else (64, 5)
    step_images = arguments.images_per_second or image_step(arguments.quick, rounds)
    step_sequences = arguments.sequences_per_second or text_step(arguments.quick, rounds)
    rows = []
    print(f"{'what':<52}{'samples/s':>12}{'training/s':>12}{'workers':>9}")
    for kind, step, rates in (
        ("sequences of 512 tokens", step_sequences, text_rates(count, rounds)),
        ("images of 224 pixels", step_images, image_rates(count, rounds)),
    ):
        for what, rate in rates.items():
            workers = math.ceil(step / rate)
            name = f"{what}, {kind}"
            print(f"{name:<52}{rate:>12.1f}{step:>12.2f}{workers:>9}")
            rows.append(
                {"what": name, "samples_per_second": rate, "training_samples_per_second": step, "workers": workers}
            )
    write(arguments.out, rows)


def rate_of(step: Callable[[], object], samples: int, rounds: int) -> float:
    """Samples per second of CPU time, the median of some rounds."""
    step()
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return samples / statistics.median(times)


def text_rates(count: int, rounds: int) -> dict[str, float]:
    """Sequences per second of tokenizing and packing, and of masking."""
    from pydoc_data.topics import topics

    # The reference of Python, the largest English text on every machine that runs this.
    documents = [text for _, text in sorted(topics.items())]
    tokenizer = train_tokenizer(documents, vocab_size=4000)
    packed = pack(documents, tokenizer, 512)
    sequences = len(packed["input_ids"])
    rows = [{key: column[i % sequences] for key, column in packed.items()} for i in range(count)]
    collator = MaskingCollator(tokenizer)
    whole_words = MaskingCollator(tokenizer, whole_word_mask=True)
    packed = pack(documents, tokenizer, 512, offsets=True)
    with_offsets = [{key: column[i % sequences] for key, column in packed.items()} for i in range(count)]
    return {
        "tokenize and pack": rate_of(lambda: pack(documents, tokenizer, 512), sequences, rounds),
        "tokenize and group (peer)": rate_of(lambda: group(encode(documents, tokenizer), 512), sequences, rounds),
        "mask": rate_of(lambda: collator(rows), count, rounds),
        "mask whole words": rate_of(lambda: whole_words(with_offsets), count, rounds),
    }


def encode(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
    """A batch of texts as the example of transformers tokenizes it."""
    return dict(tokenizer(texts, return_special_tokens_mask=True, verbose=False))


def group(batch: dict[str, list[list[int]]], length: int) -> dict[str, list[list[int]]]:
    """Its sequences: all columns end to end, in parts of one length, without what is left."""
    columns = {name: list(itertools.chain.from_iterable(rows)) for name, rows in batch.items()}
    stop = len(columns["input_ids"]) // length * length
    return {name: [ids[i : i + length] for i in range(0, stop, length)] for name, ids in columns.items()}


def train_peer(text: str, validation: str, folder: str):
    """Two steps and an evaluation as by the example of transformers."""
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


def memory(text: Path) -> list[dict]:
    """Peak memory and CPU time of run_mlm.py and of its peer on a text, the end of which validates."""
    with tempfile.TemporaryDirectory() as folder:
        with open(text, "rb") as file:
            train_tokenizer(
                file.read(4_000_000).decode("utf-8", "ignore").splitlines(), vocab_size=8000
            ).save_pretrained(folder)
            file.seek(-100_000, os.SEEK_END)
            validation = Path(folder, "validation.txt")
            validation.write_bytes(file.read().split(b"\n", 1)[1])
        sizes = ",".join(f"{key}={value}" for key, value in TINY.items())
        flags = (
            f"--config_name gmlp-base --config_overrides {sizes} --tokenizer_name {folder} --do_train --do_eval".split()
        )
        flags += f"--max_steps 2 --use_cpu --report_to none --output_dir {folder}/out --cache_dir {folder}/ours".split()
        commands = {
            "run_mlm.py": [SCRIPT, "--train_file", text, "--validation_file", validation, *flags],
            "the steps of run_mlm.py of transformers (peer)": [__file__, "--peer", text, validation, folder],
        }
        rows = []
        print(f"{'what':<52}{'peak MiB':>12}{'CPU s':>12}")
        for what, command in commands.items():
            process = subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"{what} failed.")
            rows.append({"what": what, "peak_mib": used.ru_maxrss / 1024, "cpu_seconds": used.ru_utime + used.ru_stime})
            print(f"{what:<52}{rows[-1]['peak_mib']:>12.0f}{rows[-1]['cpu_seconds']:>12.1f}")
    ratios = {key: rows[0][key] / rows[1][key] for key in ("peak_mib", "cpu_seconds")}
    print(f"{'ratio':<52}{ratios['peak_mib']:>12.2f}{ratios['cpu_seconds']:>12.2f}")
    return rows


def image_rates(count: int, rounds: int) -> dict[str, float]:
    """Images per second of the training pipeline and of evaluation, from JPEG to pixels."""
    rows = [{"image": {"bytes": jpeg(i), "path": None}, "labels": i, "index": i} for i in range(count)]
    processor = evaluation_processor((224, 224))
    mean, std = processor.image_mean, processor.image_std
    plain = training_transform((224, 224), mean, std, auto_augment=None)
    augmented = training_transform((224, 224), mean, std, auto_augment="imagenet")
    mixing = mixing_transform(1000, mixup_alpha=0.8, cutmix_alpha=1.0)
    collators = {
        "decode, crop, flip": ImageCollator(processor, plain),
        "decode, crop, flip, AutoAugment, mix": ImageCollator(processor, augmented, mixing),
    }
    rates = {name: rate_of(lambda: collator(rows), count, rounds) for name, collator in collators.items()}  # noqa: B023
    evaluation = ImageCollator(processor)
    unnumbered = [{"image": row["image"], "labels": row["labels"]} for row in rows]
    return rates | {"decode, evaluation": rate_of(lambda: evaluation(unnumbered), count, rounds)}


def jpeg(seed: int) -> bytes:
    """A picture with large and small structure, 500 x 375, of about the 110 kB of a file of ImageNet."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int16)
    picture = np.clip(picture + generator.normal(0, 22, (*picture.shape[:2], 1)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=90)
    return file.getvalue()


def image_step(quick: bool, rounds: int) -> float:
    """Images per second of training gMLP-S."""
    layers = 30
    times = {}
    # The time of all blocks from that of a few: quick, and the same.
    for few in (2, 4):
        model = GMLPForImageClassification(GMLPVisionConfig(num_hidden_layers=few, num_labels=1000)).train()
        pixels, labels = torch.randn(8, 3, 224, 224), torch.zeros(8, dtype=torch.long)
        times[few] = 8 / rate_of(lambda: model(pixels, labels=labels).loss.backward(), 8, 2 if quick else rounds)  # noqa: B023
    return 8 / (times[2] + (layers - 2) * (times[4] - times[2]) / 2)


def text_step(quick: bool, rounds: int) -> float:
    """Sequences of 512 tokens per second of training gMLP-base, logits at the masked positions only."""
    layers, batch = 48, 1 if quick else 2
    times = {}
    for few in (1, 2):
        model = GMLPForMaskedLM(GMLPConfig(num_hidden_layers=few, sparse_prediction=True)).train()
        ids = torch.randint(5, 32000, (batch, 512))
        labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
        times[few] = batch / rate_of(lambda: model(ids, labels=labels).loss.backward(), batch, 2 if quick else rounds)  # noqa: B023
    return batch / (times[1] + (layers - 1) * (times[2] - times[1]))


def write(out: Path, rows: list[dict]):
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"input-{datetime.date.today().isoformat()}.csv"
    common = {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "machine": machine_name(),
        "torch": torch.__version__,
    }
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow(
                common | {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
            )
    print(f"\nWritten: {path}")


if __name__ == "__main__":
    main()
