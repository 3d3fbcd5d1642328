"""The replication as a whole: what it runs, what it makes of the results, and that its commands are right."""

import json
import math
import random
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import replicate
import report
from corpus import read_rows
from demo import split_topics
from protocol import FINETUNED, SYSTEMS

from hf_gmlp.tasks.glue.arguments import GlueArguments, SentenceModelArguments
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments
from hf_gmlp.training.arguments import parse_arguments as parse_flags

from .test_corpus import write_documents

ROOT = Path(__file__).parents[2]
UNIGRAM, NEIGHBORS = 6.0, 5.5


def write_pairs(path, count):
    draw = random.Random(0)
    rows = [{"sentence1": f"A {draw.random()}.", "sentence2": "B.", "label": number % 2} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """A call at the smallest size, whose trainings are not made."""

    def parse(*flags):
        words = ["--size", "tiny", "--output_dir", tmp_path / "out", "--train_file", tmp_path / "train.jsonl", *flags]
        monkeypatch.setattr(sys, "argv", ["replicate.py", *map(str, words)])
        return replicate.parse_arguments()

    write_documents(tmp_path / "train.jsonl", 200, 100)
    monkeypatch.setattr(replicate.Study, "yardsticks", {"unigram": UNIGRAM, "neighbors": NEIGHBORS})
    return parse


def finish(run):
    """Results as a training leaves them: losses by the paper's order, and the better the nearer the multiplier to 5."""
    run.folder.mkdir(parents=True)
    draw = np.random.default_rng(run.key["seed"])
    if "task" in run.key:
        share = {"bert-relpos": 0.9, "gmlp": 0.6, "amlp": 0.8}[run.key["model"]] - (run.key["pooling"] == "cls") * 0.1
        labels = [row["label"] for row in read_rows(Path(run.command[run.command.index("--test_file") + 1]))]
        right = draw.random(len(labels)) < share
        results = {"eval_accuracy": float(right.mean()) + (run.key["learning_rate"] == 1e-3), "train_runtime": 60.0}
        lines = [f"{i}\t{label if good else 1 - label}" for i, (label, good) in enumerate(zip(labels, right))]
        (run.folder / "predictions.tsv").write_text("\n".join(["index\tprediction", *lines]) + "\n")
    else:
        loss = math.log(SYSTEMS[run.key["model"]].perplexity or 4.4) + 0.1 * (run.key["multiplier"] != 5)
        loss += 0.003 * run.key["seed"] + 1 / run.key["steps"]
        results = {"eval_loss": loss, "eval_perplexity": math.exp(loss), "train_runtime": 120.0}
        history = [{"step": step, "loss": 8.0 - 0.4 * step} for step in range(1, 11)]
        (run.folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (run.folder / "all_results.json").write_text(json.dumps(results))


@pytest.mark.slow
def test_every_stage_is_run_and_reported(tmp_path, arguments, monkeypatch):
    monkeypatch.setattr(report, "toeplitz_share", lambda folder: 0.9)
    study = replicate.prepare(
        arguments("--pair", write_pairs(tmp_path / "a.jsonl", 40), write_pairs(tmp_path / "b.jsonl", 20))
    )
    stages = []
    while runs := study.left():
        stages.append((runs[0].stage, len(runs)))
        for run in runs:
            finish(run)
    # 10 models with settings of their own; 11 with 3 seeds, of which the fine-tuned have 2 more.
    tuned = len(FINETUNED) * 2 * 2
    assert stages[:2] == [("selection", 30), ("pretraining", 33)] and stages[2] == ("pretraining", 6)
    assert stages[3:] == [("finetuning-selection", 3 * tuned), ("finetuning", 5 * tuned), ("dense", 12)]
    assert study.setting("gmlp-half") == study.setting("gmlp") == (2e-3, 5)
    assert all(run.key["multiplier"] == 5 for run in study.pretrainings())
    assert study.finetuning_rates("pair", "gmlp")["mean"] == 1e-3

    results = report.collect(study)
    report.write(results, tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| Multiplicative, Split gMLP | 0.002 | x5 |" in text
    # The slope of the last tenth is of one point here, and not a number.
    assert (
        "| BERT + rel pos | 4.26 |" in text
        and "**The Toeplitz prior is quality-neutral (dense less prior)**, 10 steps" in text
    )
    assert "| **BERT ahead of gMLP on the repeated word** | MNLI-m 83.3 against 80.9 (Table 4) | +0." in text
    for picture in ("training.png", "perplexity.png", "finetuning.png"):
        assert f"({picture})" in text and (tmp_path / "report" / picture).stat().st_size > 10_000
    # The same again from the numbers alone, by the one command.
    again = [sys.executable, ROOT / "paper" / "report.py", tmp_path / "report" / "results.json", tmp_path / "again"]
    subprocess.run(again, check=True)
    assert (tmp_path / "again" / "report.md").read_text(encoding="utf-8") == text


def test_commands_are_those_that_the_scripts_take(tmp_path, arguments):
    study = replicate.prepare(arguments("--models", "bert", "mixer", "gmlp", "gmlp-dense", "amlp"))
    seen = {}
    while runs := study.left():
        for run in runs:
            seen.setdefault((run.stage, run.key["model"]), run.command)
            finish(run)
    assert len(seen) == 5 + 4 + 2 * 2 + 2
    for command in seen.values():
        glue = command[0].endswith("run_glue.py")
        dataclasses = (SentenceModelArguments, GlueArguments) if glue else (ModelArguments, MLMArguments)
        parsed = parse_flags((*dataclasses, RunArguments), "", command[1:])
        assert parsed[2].output_dir == command[-1]


def test_what_is_left_goes_on_and_a_deadline_begins_nothing(tmp_path, arguments, monkeypatch, capsys):
    study = replicate.prepare(arguments("--models", "gmlp"))
    runs = study.left()
    made = []
    monkeypatch.setattr(replicate, "call", lambda command, log: made.append(command))
    assert not replicate.run_all(runs, 2, deadline=0.0) and made == []
    finish(runs[0])
    assert len(study.left()) == len(runs) - 1
    # Nothing but the finished one is in the report.
    results = report.collect(study)
    assert [run["stage"] for run in results["runs"]] == ["selection"]
    report.write(results, tmp_path / "report")
    assert "## Claims" not in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_a_run_that_fails_ends_all_with_its_words(arguments, monkeypatch):
    study = replicate.prepare(arguments("--models", "gmlp"))
    runs = study.left()
    runs[0].command[:] = ["-c", "import sys; sys.exit('Error: There is no text in it.')"]
    monkeypatch.setattr(replicate, "stopping", replicate.threading.Event())
    with pytest.raises(replicate.InputError, match=r"failed; .* says: There is no text in it\."):
        replicate.run_all(runs[:1], 1, None)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--minutes", 0], "--minutes must be above 0"),
        (["--jobs", -1], "--jobs must be above 0"),
        (["--single", "nowhere.csv", "nowhere.csv"], "There is no file nowhere.csv"),
    ],
)
def test_what_cannot_work_is_said_before_any_work(arguments, flags, words):
    with pytest.raises(replicate.InputError, match=words):
        replicate.check_arguments(arguments(*flags))


def test_pages_have_the_tables_of_the_results():
    found = report.Results(json.loads((ROOT / "paper" / "replication" / "results.json").read_text(encoding="utf-8")))
    for name, tables in (("replication.md", report.TABLES), ("claims.md", ["claims"])):
        text = (ROOT / "paper" / name).read_text(encoding="utf-8")
        assert all(f"<!-- {table} -->" in text for table in tables)
        assert report.filled(text, found) == text, "run paper/report.py with this page"
    text = (ROOT / "paper" / "replication" / "report.md").read_text(encoding="utf-8")
    assert all(report.markdown_table(rows(found)) in text for rows in report.TABLES.values())


def test_a_difference_is_apart_from_its_threshold_and_an_unfair_one_decides_nothing():
    found = report.Results(json.loads((ROOT / "paper" / "replication" / "results.json").read_text(encoding="utf-8")))
    rows = {row[0]: row for row in report.claim_rows(found)}
    losses = found.losses()
    claims = {"BERT + rel pos - attn": "bert-noattn", "MLP-Mixer": "mixer"}
    for title, name in claims.items():
        row = rows[f"gMLP far ahead of {title}"]
        assert float(row[2]) == pytest.approx(np.mean(np.subtract(losses[name], losses["gmlp"][:3])), abs=1e-3)
        low, high = map(float, row[3].split(" to "))
        assert (low + high) / 2 == pytest.approx(float(row[2]), abs=2e-3) and row[4] == "above 0.1"
        assert row[6].startswith("open: ")
    assert rows["Depth 0.5x to 1x lowers the perplexity"][5:] == ["held", "held"]
    # With as many parameters as in the paper, the loser is not handicapped.
    found.all["counts"]["gmlp"] = found.all["counts"]["bert-noattn"]
    rows = {row[0]: row for row in report.claim_rows(found)}
    assert rows["gMLP far ahead of BERT + rel pos - attn"][6] == "not held"


@pytest.mark.slow
def test_real_trainings_are_drawn(tmp_path, arguments, monkeypatch):
    """A real training of every kind, on English; the others as if made."""
    documents = (text for part in split_topics() for text in part)
    rows = (json.dumps({"text": text}) + "\n" for text in documents)
    (tmp_path / "train.jsonl").write_text("".join(rows), encoding="utf-8")
    study = replicate.prepare(arguments("--models", "gmlp", "gmlp-dense"))
    replicate.call(study.tokenizer_command(), study.output / "logs" / "tokenizer.log")
    while runs := study.left():
        longest = max(run.key.get("steps", 0) for run in runs)
        dense = runs[0].stage == "dense"
        real = next(run for run in runs if run.key.get("steps", 0) == longest and (not dense or "dense" in str(run)))
        for run in runs:
            if run is not real:
                finish(run)
        # In this process, which has imported all that it needs.
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", list(map(str, real.command)))
            runpy.run_path(sys.argv[0], run_name="__main__")
    report.draw_models(study, study.output)
    assert {"filters.png", "matrices.png"} == {path.name for path in study.output.glob("*.png")}
