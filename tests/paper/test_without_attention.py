"""The comparison of BERT with and without attention: recorded trainings are not repeated, and how it is judged."""

import json

import pytest

from paper import trainings, without_attention

FINISHED = {"eval_loss": 3.0}
LOSSES = {"bert-relpos": 3.0, "bert-noattn": 3.2, "gmlp": 3.02, "amlp": 3.0}
NOISE = (0.0, 0.001, -0.002)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """runs(trainings=None) starts the experiment and returns the trainings made and its results."""
    made = []

    def pretrain(system, folder, setting, seed, steps):
        name = next(name for name, (preset, _) in without_attention.SIZES.items() if preset == system.preset)
        if len(made) == pretrain.limit:
            raise KeyboardInterrupt
        made.append((folder.name, name, setting, seed, steps))
        # The best setting is half of the start's learning rate.
        return tmp_path / name / str(seed), LOSSES[name] + (setting != (1e-3, 25.0))

    def train(folder, task, recipe, flags):
        name, seed = flags["model_name_or_path"].parts[-2:]
        return {"eval_loss": LOSSES[name] + NOISE[int(seed) - 1] * (name != "gmlp")}

    monkeypatch.setattr(trainings.System, "pretrain", pretrain)
    monkeypatch.setattr(without_attention, "train", train)
    monkeypatch.setattr(without_attention, "token_losses", lambda *_: {"unigram": 6.0, "bigram_context": 4.0})
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "Text {number}."}}\n' for number in range(40)))

    def start(limit=-1):
        made.clear()
        pretrain.limit = limit
        file = [str(tmp_path / "texts.jsonl")]
        without_attention.compare(file, file, tmp_path / "out", tmp_path / "results.json")
        return made, json.loads((tmp_path / "results.json").read_text())

    return start


def test_recorded_trainings_are_not_repeated(runs, capsys):
    with pytest.raises(KeyboardInterrupt):
        runs(limit=5)
    made, results = runs()
    # The search tries 2e-3 and its neighbors, then those of 1e-3.
    searched = [run for run in made if run[0] == "search"]
    assert len(searched) == 4 * 8 - 5
    reported = [run[1:] for run in made if run[0] == "reported"]
    assert {run[1:] for run in reported} == {((1e-3, 25.0), seed, without_attention.STEPS) for seed in (1, 2, 3)}
    assert [run[0] for run in reported] == ["bert-relpos", "bert-noattn", "gmlp"] * 3 + ["amlp"] * 3
    assert results["runs"].keys() >= {"reported gmlp 0.001 x25 seed 3"} and len(results["runs"]) == 32 + 12
    assert all({"date", "machine", "torch"} <= run.keys() for run in results["runs"].values())
    capsys.readouterr()
    assert runs()[0] == []


def test_each_claim_is_judged(runs, capsys):
    runs()
    printed = capsys.readouterr().out.split("}\n{")[-1]
    verdicts = {name: verdict for name, (_, _, verdict) in json.loads("{" + printed).items()}
    assert verdicts == {
        "Attention helps BERT": "held",
        "gMLP is near BERT: within half of what attention gives BERT": "held",
        "gMLP far ahead of BERT without attention": "held",
        "aMLP is ahead of gMLP in perplexity": "held",
    }
