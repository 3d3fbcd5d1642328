"""Parts of the experiments: searches, finished trainings, passage pairs, extended positions, conclusions."""

import json
import math

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from hf_gmlp.errors import InputError
from paper import experiments, trainings
from paper.extrapolation import LENGTHS, make_positions, rises


def test_a_search_goes_on_to_the_best_setting():
    tried = []

    def measure(setting):
        tried.append(setting)
        rate, multiplier = setting
        return abs(math.log2(rate / 4e-3)) + abs(math.log(multiplier / 25, 5))

    assert trainings.search((1e-3, 5.0), measure) == (4e-3, 25.0)
    assert len(tried) == len(set(tried)) < 15


def test_a_finished_or_diverged_training_is_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "call", lambda *_: pytest.fail("made again"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "all_results.json").write_text('{"eval_loss": 1.5}')
    assert trainings.train(tmp_path / "one", "mlm", "", {})["eval_loss"] == 1.5
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "diverged").touch()
    assert trainings.train(tmp_path / "two", "mlm", "", {})["eval_loss"] == math.inf


def test_a_training_that_fails_ends_with_its_error(tmp_path, monkeypatch):
    message = "There is no text in it."
    monkeypatch.setattr(trainings.sys, "executable", tmp_path / "python")
    (tmp_path / "python").write_text('#!/bin/sh\necho "Error: $MESSAGE"\nmkdir -p out\nexit 1\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESSAGE", message)
    with pytest.raises(InputError, match=message):
        trainings.train(tmp_path / "out", "mlm", "", {})
    monkeypatch.setenv("MESSAGE", "The training diverged.")
    assert trainings.train(tmp_path / "out", "mlm", "", {})["eval_loss"] == math.inf
    assert (tmp_path / "out" / "diverged").is_file()


def test_each_passage_is_as_likely_in_both_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "PAIR_COUNTS", {"train": 100, "development": 4, "evaluation": 4})
    texts = [" ".join(f"Text {text}, sentence {number}." for number in range(9)) for text in range(220)]
    parts = {"development": texts[:10], "evaluation": texts[10:20], "train": texts[20:]}
    experiments.write_passages(parts, tmp_path, 2)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 100 and sum(row["label"] for row in rows) == 50
    for row in rows:
        first, second = (row[name].split(". ") for name in ("sentence1", "sentence2"))
        assert len(first) == len(second) == 2
        assert (first[0].split(",")[0] == second[0].split(",")[0]) == bool(row["label"])
        assert not row["label"] or not {*first} & {*second}
    others = (tmp_path / "evaluation.jsonl").read_text()
    assert not any(row["sentence1"].split(".")[0] + "." in others for row in rows)
    baselines = experiments.pair_baselines(tmp_path)
    assert baselines.keys() == {"tf-idf", "similarity"}
    # A second call reads what the first one measured.
    (tmp_path / "train.jsonl").unlink()
    assert experiments.pair_baselines(tmp_path) == baselines


@pytest.mark.parametrize(
    ("bert", "amlp", "verdict", "tried"),
    [
        ({4: 0.8}, 0.9, "held", [4]),
        ({4: 0.8}, 0.8, "no verdict (power)", [4]),
        ({4: 0.8}, 0.7, "contradicted", [4]),
        ({4: 0.6}, 0.9, "no verdict (gate)", [4]),
        ({4: 0.95, 2: 0.8}, 0.9, "held", [4, 2]),
    ],
)
def test_pairs_are_judged_at_the_difficulty_of_the_pilot(bert, amlp, verdict, tried, tmp_path, monkeypatch):
    def train(folder, task, recipe, flags):
        if task == "mlm":
            return {"eval_loss": 3.0}
        noise = flags["seed"] / 1000 * (-1) ** flags["seed"]
        sentences = int(flags["train_file"].parent.name[0])
        means = {"gMLP": 0.8, "aMLP": amlp + noise, "BERT": bert[sentences]}
        # The search finds 1e-3.
        return {"eval_accuracy": means[folder.parent.name] + (flags["learning_rate"] == 1e-3) / 1e4}

    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "Text {number}."}}\n' for number in range(40)))
    monkeypatch.setattr(experiments, "train", train)
    monkeypatch.setattr(trainings, "train", train)
    monkeypatch.setattr(experiments, "write_passages", lambda *_: None)
    monkeypatch.setattr(experiments, "pair_baselines", lambda _: {"tf-idf": 0.5, "similarity": 0.7})
    experiments.experiment("pairs", tmp_path / "out", [str(tmp_path / "texts.jsonl")], [], jobs=4)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["verdict"].startswith(verdict) and [int(key) for key in result["pilot"]] == tried
    assert result["rates"]["gMLP"] == 1e-3
    assert len((tmp_path / "out" / "train.jsonl").read_text().splitlines()) == 36


@pytest.mark.parametrize(("rows", "message"), [(None, "There is no file"), ('{"a": "b"}', "There is no column 'text'")])
def test_pairs_need_files_with_texts(rows, message, tmp_path):
    path = tmp_path / "texts.jsonl"
    if rows is not None:
        path.write_text(rows)
    with pytest.raises(InputError, match=message):
        experiments.experiment("pairs", tmp_path / "out", [str(path)], [], jobs=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("way", "last"), [("repeated", 1), ("interpolated", 7)])
def test_positions_beyond_training_are_made_up(way, last):
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=8)
    model = BertForMaskedLM(config).eval()
    trained = model.bert.embeddings.position_embeddings.weight.detach().clone()
    ids = torch.arange(18)[None]
    make_positions(model, way, 18)
    table = model.bert.embeddings.position_embeddings.weight
    assert len(table) == 18 and torch.isfinite(model(ids).logits).all()
    torch.testing.assert_close(table[[0, 17]], trained[[0, last]])


def test_what_follows_from_the_rise():
    def seeds(rise):
        return [{str(n): 3.0 + (rise + seed / 1000) * (n > 128) for n in LENGTHS} for seed in range(3)]

    cells = [row[-1].split(": ")[1] for row in rises({"a": seeds(0.0), "b": seeds(0.5), "c": seeds(0.1)})[1:]]
    assert cells == ["without loss", "loses", "open"]


def test_slopes_are_those_of_a_power_law():
    sizes = [1e5, 2e5, 4e5, 8e5]
    results = [(size, [-0.2 * math.log(size), -0.1 * math.log(size)]) for size in sizes]
    assert experiments.slopes_of(results) == pytest.approx([-0.2, -0.1])


def test_verdicts_are_words_of_the_protocol():
    intervals = [(0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1)]
    words = [experiments.verdict(low, high, 0.0) for low, high in intervals]
    assert words == ["held", "contradicted", "no verdict (power)"]
