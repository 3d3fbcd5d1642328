"""The complete replication: its runs, its report and its commands."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from transformers import TrainerState

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue import GlueArguments
from hf_gmlp.tasks.mlm import MLMArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from paper import replicate, report, trainings
from paper.__main__ import main
from paper.protocol import MODELS

from .conftest import write_documents


@pytest.fixture
def commands(monkeypatch):
    """Collect the commands of trainings, which only write results."""
    commands = []

    def call(command, log):
        commands.append(command)
        flags = dict(zip(command[::-1][1::2], command[::-1][::2]))
        rate, multiplier = float(flags["--learning_rate"]), float(flags["--spatial_lr_multiplier"])
        finish(Path(flags["--output_dir"]), rate, multiplier, int(flags["--max_steps"]))

    baseline = {"unigram": 6.0, "bigram_context": 2.0}
    monkeypatch.setattr(replicate.Study, "baselines", {"development": baseline, "evaluation": baseline})
    monkeypatch.setattr(replicate, "make_tokenizer", lambda *_: None)
    monkeypatch.setattr(replicate, "write_pairs", lambda *_: None)
    monkeypatch.setattr(trainings, "call", call)
    return commands


def finish(folder, rate, multiplier, steps):
    """Write results as a training leaves them. Losses are in the paper's order, and increase with the distance from the
    best setting, which for the Mixer is not a neighbor of the first one; short trainings still fall.
    """
    stage, name, seed = *folder.parts[-3:-1], int(folder.name.rpartition("-")[2])
    folder.mkdir(parents=True)
    results = {"train_runtime": 120.0}
    if stage.startswith("task"):
        distance = 10 * abs(rate - 2e-3) + 0.01 * abs(math.log(multiplier / 5))
        results["eval_accuracy"] = 0.9 - 0.1 * (name == "gmlp") - distance
    else:
        best = {"mixer": (8e-3, 5)}.get(name, (2e-3, 25))
        loss = math.log(MODELS[name].perplexity or 4.0) + 0.003 * seed + 2 / steps
        results["eval_loss"] = loss + 0.1 * abs(math.log(rate / best[0])) + 0.1 * abs(math.log(multiplier / best[1]))
    slope = 0.02 if steps == 10 and name == "gmlp" else 0.0
    history = [{"step": steps * i / 100, "loss": 8.0 - slope * i} for i in range(1, 101)]
    TrainerState(log_history=history).save_to_json(folder / "trainer_state.json")
    (folder / "all_results.json").write_text(json.dumps(results))


@pytest.mark.heavy
def test_every_stage_is_run_and_reported(commands, tmp_path, monkeypatch):
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    words = ["replicate", "--size", "tiny", "--train_file", str(train), "--output_dir"]
    output = tmp_path / "out"
    save_picture = report.save_picture
    monkeypatch.setattr(report, "save_picture", lambda *_: None)
    main([*words, str(output)])
    results = report.Results(json.loads((output / "results.json").read_text(encoding="utf-8")))
    runs = results.numbers["runs"]
    # The loss of one model still falls after ten steps, so all are trained for twenty. The search for the task tries
    # five settings, then the neighbors of twice the learning rate, then those of five times the multiplier.
    stages = Counter((row["stage"], row["steps"]) for row in runs)
    assert stages["pretraining", 10] == stages["pretraining", 20] == 30
    assert stages["task selection", 2] == 30 and stages["task", 4] == 9
    assert len(commands) == len(runs) == stages.total()
    rows = {row[0]: row for row in report.settings_rows(results)}
    # Searches continue beyond the first settings, and are repeated with eight steps if four are too few.
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
    text = (output / "report.md").read_text(encoding="utf-8")
    assert text.count("| ") > 300
    # With results.json alone, nothing runs again.
    commands.clear()
    other = tmp_path / "other"
    other.mkdir()
    (other / "results.json").write_text(json.dumps(results.numbers))
    main([*words, str(other)])
    assert not commands and json.loads((other / "results.json").read_text(encoding="utf-8"))["runs"] == runs
    # The report can be rewritten from results.json alone.
    monkeypatch.setattr(report, "save_picture", save_picture)
    main(["report", str(output / "results.json"), str(tmp_path / "again")])
    assert (tmp_path / "again" / "report.md").read_text(encoding="utf-8") == text
    assert (tmp_path / "again" / "training.png").stat().st_size > 10_000


def test_commands_are_those_that_the_scripts_accept(commands, tmp_path):
    text = {part: tmp_path / f"{part}.jsonl" for part in ("train", "development", "evaluation")}
    for path in text.values():
        path.touch()
    study = replicate.Study("tiny", tmp_path / "out", text, {})
    study.settings, study.steps = {"gmlp": (1e-3, 5.0)}, 20
    study.run("task", "gmlp", (1e-3, 1.0), 1, 4)
    types = {"mlm": (ModelArguments, MLMArguments), "glue": (ModelArguments, GlueArguments)}
    for command, task in zip(commands, types, strict=True):
        assert command[:4] == ["-m", "paper", "run", task]
        parsed = parse_arguments((*types[task], RunArguments), "", command[4:])
        assert parsed[2].output_dir == command[-1] and parsed[2].do_train


@pytest.mark.parametrize(("results", "words"), [({"size": "small"}, "size small"), ({"text": {}}, "different text")])
def test_results_of_another_size_or_text_are_not_continued(tmp_path, results, words):
    train = write_documents(tmp_path / "train.jsonl", 200, 100)
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(InputError, match=words):
        replicate.replicate("tiny", [str(train)], [], tmp_path, jobs=1)
