"""How fast batches are made, beside how fast a model on this machine trains on them: how many workers a recipe needs.

    python -m benchmarks.input
    python -m benchmarks.input --images_per_second 2500 --sequences_per_second 300     for a device that is not at hand

One worker process is measured as one thread, by its CPU time: tokenizing and packing, masking, and decoding and
augmenting pictures of ImageNet's size (500 x 375 pixels, JPEG). A worker's rate and the rate of a training step in the
same run give the number of workers (`--dataloader_num_workers`) with which the step never waits.

The results are added to benchmarks/results/input-DATE.csv.
"""

import argparse
import datetime
import io
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

# Tokenizers would use every core, but this is about one worker.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from PIL import Image

from hf_gmlp import errors
from hf_gmlp.markdown import markdown_table
from hf_gmlp.models.configuration_gmlp import GMLPConfig, GMLPVisionConfig
from hf_gmlp.models.modeling_gmlp import GMLPForImageClassification, GMLPForMaskedLM
from hf_gmlp.processor import evaluation_processor
from hf_gmlp.tasks.image_classification.arguments import ImageArguments
from hf_gmlp.tasks.image_classification.images import ImageCollator, mixing_transform, training_transform
from hf_gmlp.tasks.mlm.masking import MaskingCollator
from hf_gmlp.tasks.text import pack
from hf_gmlp.tokenizer import train_tokenizer

from . import harness


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--images_per_second", type=float, help="rate of a training step on another device")
    parser.add_argument("--sequences_per_second", type=float, help="rate of a training step on another device")
    parser.add_argument("--out", type=Path, default=harness.RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    rows = measure_rates(arguments)
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
        ("mask", rate_of(lambda: mask(rows), count, rounds)),
        ("mask whole words", rate_of(lambda: mask_words(with_offsets), count, rounds)),
    ]


def image_rates(count: int, rounds: int) -> list[tuple[str, float]]:
    """Images per second of the training pipeline and of evaluation, from JPEG to pixels."""
    rows = [{"image": {"bytes": jpeg(i), "path": None}, "labels": i, "index": i} for i in range(count)]
    unnumbered = [{"image": row["image"], "labels": row["labels"]} for row in rows]
    processor = evaluation_processor((224, 224))
    normalize = processor.image_mean, processor.image_std
    plain = ImageCollator(processor, training_transform(ImageArguments(), (224, 224), *normalize))
    arguments = ImageArguments(auto_augment="imagenet", mixup_alpha=0.8, cutmix_alpha=1.0)
    augment = training_transform(arguments, (224, 224), *normalize)
    augmented = ImageCollator(processor, augment, mixing_transform(arguments, 1000))
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
        labels = torch.full_like(ids, -100)
        # 15 % of the positions of each text, as of BERT.
        labels[:, :76] = 5
        return 1 / rate_of(lambda: model(ids, labels=labels).loss.backward(), batch, rounds)

    one = seconds(1)
    return 1 / (one + 47 * (seconds(2) - one))


if __name__ == "__main__":
    errors.run(main)
