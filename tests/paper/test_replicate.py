"""The complete replication: its runs, its report and its commands."""

import json
import math
from pathlib import Path

import pytest
from transformers import TrainerState

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue.arguments import GlueArguments, SentenceModelArguments
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments
from hf_gmlp.training.arguments import parse_arguments as parse_flags
from paper import replicate, report
from paper.__main__ import main
from paper.protocol import MODELS, SEEDS, TASK_MODELS
from paper.replicate import Run, Study

from .test_corpus import write_documents

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of the smallest size without a text, whose trainings are not executed."""
    baseline = {"unigram": 6.0, "bigram_context": 2.0}
    monkeypatch.setattr(Study, "baselines", {"development": baseline, "evaluation": baseline})
    text = {part: tmp_path / f"{part}.jsonl" for part in ("train", "development", "evaluation")}
    for path in text.values():
        path.touch()
    return Study("tiny", tmp_path / "out", text)


def finish(run):
    """Write results as a training leaves them: losses in the paper's order, less the nearer the setting is to the best
    one, which for the Mixer is outside of where its search begins, and falling in short trainings."""
    run.folder.mkdir(parents=True)
    key, results = run.key, {"train_runtime": 120.0}
    best = {"mixer": (8e-3, 5)}.get(key["model"], (2e-3, 25))
    if run.stage.startswith("task"):
        distance = 10 * abs(key["learning_rate"] - 2e-3) + 0.01 * abs(math.log(key["multiplier"] / 5))
        results |= {"eval_accuracy": 0.9 - 0.1 * (key["model"] == "gmlp") - distance}
    else:
        loss = math.log(MODELS[key["model"]].perplexity or 4.0) + 0.003 * key["seed"] + 2 / key["steps"]
        loss += 0.1 * abs(math.log(key["learning_rate"] / best[0])) + 0.1 * abs(math.log(key["multiplier"] / best[1]))
        results |= {"eval_loss": loss, "eval_perplexity": math.exp(loss)}
    slope = 0.02 if key["steps"] == 10 and key["model"] == "gmlp" else 0.0
    history = [{"step": key["steps"] * i / 100, "loss": 8.0 - slope * i} for i in range(1, 101)]
    TrainerState(log_history=history).save_to_json(run.folder / "trainer_state.json")
    (run.folder / "all_results.json").write_text(json.dumps(results))


@pytest.mark.heavy
def test_every_stage_is_run_and_reported(study, tmp_path):
    stages = []
    while runs := study.left():
        stages.append((runs[0].stage, len(runs)))
        for run in runs:
            finish(run)
    # The search tries five settings with two seeds for ten models, then the neighbors of the best ones, and more for
    # the Mixer. It repeats with eight steps for models that are behind the count model after four.
    assert stages[0] == ("selection", 100) and {name for name, _ in stages[1:-6]} == {"selection"}
    # The loss of one model still falls after ten steps, so all are trained for twenty.
    assert stages[-6:-3] == [("pretraining", 30), ("pretraining", 30), ("task selection", 15)]
    # The search moves to twice the learning rate, and then to five times the multiplier.
    assert stages[-3:] == [("task selection", 9), ("task selection", 6), ("task", 9)]
    report.write(report.collect(study), tmp_path / "report")
    results = report.Results(json.loads((tmp_path / "report" / "results.json").read_text(encoding="utf-8")))
    rows = {row[0]: row for row in report.settings_rows(results)}
    assert rows["Multiplicative, Split gMLP"][3:5] == ["0.002", "x25"] and rows["MLP-Mixer"][3:5] == ["0.008", "x5"]
    assert rows["MLP-Mixer"][2] == 8 and rows["aMLP"][2] == 4
    assert not any("not tried" in cells or cell.startswith("-") for cells in rows.values() for cell in cells[6:])
    rows = {row[0]: row for row in report.perplexity_rows(results)}
    assert rows["BERT + rel pos"][4] == 3 and abs(float(rows["BERT + rel pos"][5])) < 1e-3 and len(rows) == 13
    assert float(rows["aMLP"][2].split()[0]) > float(rows["aMLP"][3].split()[0]) > 4
    assert [row[5] for row in report.task_rows(results)[1:]] == ["90.0 %", "80.0 %", "90.0 %"]
    claims = report.claims_rows(results)[1:]
    assert {row[-1] for row in claims} >= {"held"} and len({len(row) for row in claims}) == 1
    # Claims in bold are not part of another claim.
    assert report.verdicts_rows(results)[-1][1] == sum(row[0].startswith("**") for row in claims) == 9
    # The search of one of the three was longer than that of the others.
    assert [row[0] for row in report.lengths_rows(results)[1:]] == ["10", "20"]
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert text.count("| ") > 300 and (tmp_path / "report" / "training.png").stat().st_size > 10_000
    # On another machine, no runs remain and nothing is measured again.
    other = Study("tiny", tmp_path / "elsewhere", study.text, results.numbers)
    assert not other.left() and report.collect(other)["runs"] == results.numbers["runs"]
    # If the task is unfinished, the longest pretrainings are repeated, since their weights are missing.
    for names in (("gmlp",), TASK_MODELS):
        rows = [row for row in results.numbers["runs"] if row["stage"] != "task" or row["model"] not in names]
        other = Study("tiny", tmp_path / "elsewhere", study.text, {**results.numbers, "runs": rows})
        left = {(run.stage, run.key["model"], run.key["seed"], run.key["steps"]) for run in other.left()}
        assert left == {("pretraining", name, seed, 20) for name in names for seed in SEEDS}
    # The report can be rewritten from results.json alone.
    main(["report", str(tmp_path / "report" / "results.json"), str(tmp_path / "again")])
    assert (tmp_path / "again" / "report.md").read_text(encoding="utf-8") == text


def test_commands_are_those_that_the_scripts_take(study):
    types = {"mlm": (ModelArguments, MLMArguments), "glue": (SentenceModelArguments, GlueArguments)}
    while runs := study.left():
        for run in runs[::7]:
            *module, task = run.command[:4]
            assert module == ["-m", "paper", "run"]
            parsed = parse_flags((*types[task], RunArguments), "", run.command[4:])
            assert parsed[2].output_dir == run.command[-1] and parsed[2].do_train
        for run in runs:
            finish(run)
    assert task == "glue"


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
    assert len(lines) == 100 and all(line.startswith("python -m paper run mlm ") for line in lines)


@pytest.mark.parametrize(("results", "words"), [({"size": "small"}, "size small"), ({"text": {}}, "different text")])
def test_results_of_another_size_or_text_are_not_continued(tmp_path, results, words):
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(InputError, match=words):
        replicate.replicate("tiny", [str(train)], [], tmp_path, plan=True)
