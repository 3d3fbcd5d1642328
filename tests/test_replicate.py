"""examples/replicate.py as a user calls it, at its smallest size."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

ROOT = Path(__file__).parent.parent


def replicate(*flags):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "replicate.py", "--size", "tiny", *map(str, flags)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(text for _, text in sorted(topics.items())[:40]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    rows = [
        {"sentence1": f"The {animal} has {n} legs.", "sentence2": f"How many legs has the {animal}?", "label": n % 2}
        for n in range(20)
        for animal in ("cat", "spider")
    ]
    for split, part in (("train", rows[:30]), ("validation", rows[30:])):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, part)), encoding="utf-8")
    return folder / "train.jsonl", folder / "validation.jsonl"


@pytest.mark.slow
def test_trains_reports_and_goes_on(tmp_path, text, pairs):
    out = tmp_path / "out"
    flags = ["--models", "gmlp", "gmlp-dense", "--steps", 4, "--finetune_steps", 2, "--train_file", text]
    flags += ["--pair", *pairs, "--seeds", 1, "--jobs", 2, "--output_dir", out]
    process = replicate(*flags)
    assert process.returncode == 0, process.stderr
    assert "No fine-tuning on one sentence: name two files by --single" in process.stdout
    table = list(csv.DictReader((out / "table.csv").open(encoding="utf-8")))
    assert [row["model"] for row in table] == ["gmlp", "gmlp-dense"]
    results = json.loads((out / "mlm" / "seed-1" / "gmlp" / "all_results.json").read_text())
    assert float(table[0]["seed_1"]) == results["eval_perplexity"]
    report = (out / "report.md").read_text(encoding="utf-8")
    assert f"| {results['eval_perplexity']:.2f} |" in report and "no verdict (one seed)" in report
    tuned = json.loads((out / "pair" / "seed-1" / "gmlp" / "all_results.json").read_text())
    assert f"| {100 * tuned['eval_accuracy']:.1f} |" in report and "10 held out" in report
    assert report.count("run_mlm.py") == 2 and report.count("run_glue.py") == 1
    for picture in ("training.png", "filters.png", "matrices.png"):
        assert f"({picture})" in report and (out / picture).stat().st_size > 10_000

    # What was cut off is made again, and nothing else.
    weights = out / "mlm" / "seed-1" / "gmlp" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    (out / "mlm" / "seed-1" / "gmlp-dense" / "all_results.json").unlink()
    (out / "report.md").unlink()
    process = replicate(*flags)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("(finished before)") == 2 and weights.stat().st_mtime_ns == before
    assert (out / "report.md").is_file()

    refused = replicate(*flags, "--steps", 5)
    assert refused.returncode == 2 and "holds a replication with steps 4, now it is 5" in refused.stderr


def test_what_cannot_work_is_said_before_any_work(tmp_path, text, pairs, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("replicate", ROOT / "examples" / "replicate.py")
    script = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, "replicate", script)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(script, "call", lambda *arguments: pytest.fail("something was run"))

    short = tmp_path / "short.txt"
    short.write_text("\n\n".join(["Nothing much to be read here."] * 100), encoding="utf-8")
    held = tmp_path / "held"
    (held / "data").mkdir(parents=True)
    (held / "data" / "train.txt").write_text("Another text.")
    cases = [
        (["--train_file", "nowhere.txt"], "There is no file nowhere.txt"),
        (["--train_file", short], f"The training text of {short} has 570 words; the size tiny needs 6,400"),
        (["--train_file", text, "--single", *pairs], "has 2 sentence(s) a sample; --single takes one sentence"),
        (["--seeds", 1, 1], "names a seed twice"),
        (["--validation_file", text], "without a --train_file"),
        (["--minutes", 0], "--minutes must be above 0"),
        (["--train_file", text, "--output_dir", held], "holds a replication with another text"),
    ]
    for flags, words in cases:
        argv = ["replicate.py", "--size", "tiny", "--output_dir", tmp_path / "out", *flags]
        monkeypatch.setattr(sys, "argv", list(map(str, argv)))
        with pytest.raises(SystemExit) as stopped:
            script.main()
        assert stopped.value.code == 2 and words in capsys.readouterr().err, flags
