"""Every script and command starts, and every benchmark runs to its end."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from .samples import write_rows

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[1]
FOLDERS = ("hf_gmlp", "benchmarks", "examples", "paper")
PATHS = [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in PATHS
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
# The flags of the smallest run of each benchmark. {} is a temporary folder with the files of `data`.
SMALLEST_RUNS = {
    "block_bytes": "--tokens 512 --rounds 1",
    "clm": "--quick --out {}",
    "cpu": "--quick --out {} --suites short",
    "dtypes": "--models gmlp-mini-cifar10 --systems bfloat16 --rows 2 --rounds 1 --out {}",
    "gpu": "--device cpu --quick --out {} --suites text",
    "length": "--lengths 128 --rounds 1 --out {}",
    "packed": "--lengths 128 --rounds 1",
    "sentences": "checkpoints/gmlp-mini-sentences tfidf --stsb {}/pairs.csv --banking77 {} --sst2 {}",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder with files in the formats of the datasets of `benchmarks.sentences`."""
    folder = tmp_path_factory.mktemp("data")
    texts = [f"I {verb} this {noun}." for verb in ("like", "hate") for noun in ("book", "film", "soup", "song")]
    labels = [int(text.startswith("I like")) for text in texts]
    write_rows(folder / "pairs.csv", [{"sentence1": text, "sentence2": texts[0], "score": len(text)} for text in texts])
    for part in ("train", "test"):
        write_rows(folder / f"{part}.csv", [{"text": x, "category": y} for x, y in zip(texts, labels)])
    for part in ("train", "validation"):
        write_rows(folder / f"{part}.jsonl", [{"sentence": x, "label": y} for x, y in zip(texts, labels)])
    return folder


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_starts(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    assert not end.value.code and "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("benchmark", [name.partition(".")[2] for name in SCRIPTS if name.startswith("benchmarks.")])
def test_every_benchmark_runs(benchmark, data):
    if (ROOT / f"tests/benchmarks/test_{benchmark}.py").is_file() and benchmark not in SMALLEST_RUNS:
        pytest.skip("It runs in a test of its own.")
    flags = SMALLEST_RUNS[benchmark].format(*[data] * 3).split()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
