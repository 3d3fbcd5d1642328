"""The replication as a whole: what it runs, what it makes of the results, and that its commands are right."""

import json
import math
from pathlib import Path

import pytest
from transformers import TrainerState

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments
from hf_gmlp.training.arguments import parse_arguments as parse_flags
from paper import replicate, report
from paper.__main__ import main
from paper.protocol import MODELS
from paper.replicate import Run, Study

from .test_corpus import write_documents

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "paper" / "replication" / "results.json"


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of the smallest size without a text, whose trainings are not made."""
    monkeypatch.setattr(Study, "baselines", {"unigram": 6.0, "bigram_context": 5.5})
    text = {part: tmp_path / f"{part}.jsonl" for part in ("train", "development", "evaluation")}
    for path in text.values():
        path.touch()
    return Study("tiny", tmp_path / "out", text)


def finish(run):
    """Write results as a training leaves them: losses in the paper's order, less the nearer the multiplier is to 5."""
    run.folder.mkdir(parents=True)
    loss = math.log(MODELS[run.key["model"]].perplexity or 4.4) + 0.1 * (run.key["multiplier"] != 5)
    loss += 0.003 * run.key["seed"] + 1 / run.key["steps"]
    results = {"eval_loss": loss, "eval_perplexity": math.exp(loss), "train_runtime": 120.0}
    history = [{"step": step, "loss": 8.0 - 0.4 * step} for step in range(1, 11)]
    TrainerState(log_history=history).save_to_json(run.folder / "trainer_state.json")
    (run.folder / "all_results.json").write_text(json.dumps(results))


@pytest.mark.slow
def test_every_stage_is_run_and_reported(study, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "toeplitz_fraction", lambda folder: 0.9)
    stages = []
    while runs := study.left():
        stages.append((runs[0].stage, len(runs)))
        for run in runs:
            finish(run)
    # 10 models with settings of their own; 11 with 3 seeds, of which 3 have 2 more.
    assert stages == [("selection", 30), ("pretraining", 33), ("pretraining", 6), ("dense", 12)]
    assert study.setting("gmlp-half") == study.setting("gmlp") == (2e-3, 5)
    report.write(report.collect(study), tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| Multiplicative, Split gMLP | 0.002 | x5 |" in text and "| BERT + rel pos | 4.26 |" in text
    assert "**The Toeplitz prior is quality-neutral (dense less prior)**, 10 steps" in text
    assert (tmp_path / "report" / "training.png").stat().st_size > 10_000
    # Again from the numbers alone.
    main(["report", str(tmp_path / "report" / "results.json"), str(tmp_path / "again")])
    assert (tmp_path / "again" / "report.md").read_text(encoding="utf-8") == text


def test_commands_are_those_that_the_script_takes(study):
    for run in study.left()[::3]:
        parsed = parse_flags((ModelArguments, MLMArguments, RunArguments), "", run.command[1:])
        assert parsed[2].output_dir == run.command[-1]


def test_finished_and_diverged_runs_are_not_left(study):
    runs = study.left()
    finish(runs[0])
    runs[1].folder.mkdir(parents=True)
    runs[1].diverged.touch()
    assert len(study.left()) == len(runs) - 2
    losses = [row["loss"] for row in report.collect(study)["runs"]]
    assert len(losses) == 2 and losses[1] == math.inf


def failing(folder, message):
    return Run("selection", {"model": "gmlp"}, folder, ["-c", f"import sys; sys.exit('Error: {message}')"])


def test_a_run_that_fails_ends_with_its_error(tmp_path):
    run = failing(tmp_path / "run", "There is no text in it.")
    with pytest.raises(InputError, match="There is no text in it"):
        replicate.make_all([run], 1)


def test_a_run_that_diverges_is_marked(tmp_path):
    run = failing(tmp_path / "run", "The training diverged.")
    run.folder.mkdir()
    replicate.make_all([run], 1)
    assert run.is_finished and run.results["eval_loss"] == math.inf


def test_the_plan_is_printed(tmp_path, capsys):
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    words = ["replicate", "--size", "tiny", "--train_file", str(train), "--output_dir", str(tmp_path / "out")]
    main([*words, "--plan"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30 and all(line.startswith("python ") and "run_mlm.py" in line for line in lines)


def test_pages_have_the_tables_of_the_results():
    results = report.Results(json.loads(RESULTS.read_text(encoding="utf-8")))
    for name in ("replication.md", "claims.md", "replication/report.md"):
        text = (ROOT / "paper" / name).read_text(encoding="utf-8")
        assert "<!-- claims -->" in text and report.filled(text, results) == text


def test_an_unfair_comparison_decides_nothing():
    results = report.Results(json.loads(RESULTS.read_text(encoding="utf-8")))
    claim = "gMLP far ahead of BERT + rel pos - attn"
    rows = {row[0]: row for row in report.claims_rows(results)}
    assert rows[claim][4:6] == ["above 0.1", "not held"] and rows[claim][6].startswith("open: ")
    # With as many parameters as in the paper, the loser is not handicapped.
    results.numbers["counts"]["gmlp"] = results.numbers["counts"]["bert-noattn"]
    rows = {row[0]: row for row in report.claims_rows(results)}
    assert rows[claim][6] == "not held"
