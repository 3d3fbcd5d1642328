"""The bundled models have the scores of their cards.

Without the data, the tests are skipped. HF_GMLP_DATA names a folder with sst2/validation.jsonl (sentence, label),
stsb/dev.csv (sentence1, sentence2, score), cifar10_full/test.zip (8,000 images, one folder per class),
prose/books_validation.jsonl.gz (the chapters of Emma and Main Street), photos/trash (six kinds of waste, train and
test) and tiny_imagenet/train.parquet.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.encoders import Encoder, sts_score
from common.pictures import ROWS

ROOT = Path(__file__).parent.parent
CHECKPOINTS = ROOT / "checkpoints"


@pytest.fixture
def data():
    """data(path) returns the path of a file in the folder of HF_GMLP_DATA, or skips the test."""

    def find(path):
        folder = os.environ.get("HF_GMLP_DATA")
        if folder is None or not (Path(folder) / path).exists():
            pytest.skip(f"HF_GMLP_DATA names no folder with {path}")
        return Path(folder) / path

    return find


def evaluate(folder, script, model, *flags):
    """Return the results of `script --do_eval`, in single precision."""
    words = [f"run_{script}.py", "--model_name_or_path", CHECKPOINTS / model, *flags, "--do_eval", "--use_cpu"]
    subprocess.run([sys.executable, *map(str, words), "--output_dir", str(folder)], cwd=ROOT, check=True)
    return json.loads((folder / "all_results.json").read_text(encoding="utf-8"))


@pytest.mark.heavy
def test_amlp_mini_sst2_classifies_sentences(data, tmp_path):
    flags = ("--task_name", "sst2", "--validation_file", data("sst2/validation.jsonl"))
    results = evaluate(tmp_path / "out", "glue", "amlp-mini-sst2", *flags)
    # One of the 872 sentences is 0.0011.
    assert results["eval_accuracy"] == pytest.approx(0.8406, abs=0.0025)


@pytest.mark.heavy
def test_gmlp_mini_cifar10_classifies_images(data, tmp_path):
    shutil.unpack_archive(data("cifar10_full/test.zip"), tmp_path / "test")
    flags = ("--validation_dir", tmp_path / "test", "--per_device_eval_batch_size", 100)
    results = evaluate(tmp_path / "out", "image_classification", "gmlp-mini-cifar10", *flags)
    assert results["eval_accuracy"] == pytest.approx(0.8576, abs=0.001)


@pytest.mark.heavy
def test_amlp_mini_predicts_masked_tokens_of_novels(data, tmp_path):
    flags = ("--validation_file", data("prose/books_validation.jsonl.gz"), "--max_seq_length", 128)
    flags += ("--mlm_probability", 0.15, "--per_device_eval_batch_size", 32)
    results = evaluate(tmp_path / "out", "mlm", "amlp-mini", *flags)
    # A perplexity of 24.9 on the novels alone; with reviews, the card has 23.2.
    assert results["eval_loss"] == pytest.approx(3.2163, abs=0.003)


@pytest.mark.heavy
def test_gmlp_mini_sentences_measures_similarity(data):
    score = sts_score(Encoder(str(CHECKPOINTS / "gmlp-mini-sentences")), data("stsb/dev.csv"))
    assert score == pytest.approx(0.8412, abs=0.001)


@pytest.mark.heavy
def test_gmlp_mini_photos_knows_kinds_of_waste(data):
    words = ["-m", "benchmarks.photos", CHECKPOINTS / "gmlp-mini-photos", "--samples", 10]
    words += ["--photos", data("photos/trash"), "--leave_out", data("tiny_imagenet/train.parquet")]
    run = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, check=True, capture_output=True, text=True)
    scores = run.stdout.strip().splitlines()[-1].split("|")[2 : 2 + len(ROWS)]
    assert [float(score) for score in scores] == pytest.approx([0.540, 0.587, 0.679], abs=0.006)
