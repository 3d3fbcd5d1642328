import pytest

from hf_gmlp import BertRelposConfig, GMLPConfig, GMLPVisionConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.counts import paper_parameters
from paper.runs import best_setting, family, find_runs, pretraining

from ..samples import CONVOLUTIONAL
from .conftest import finished_run


@pytest.fixture
def write_run(tmp_path, text_config):
    """write_run(name, head, results, settings=None, steps=None, **fields) writes a run of a tiny model."""

    def write(name, head, results, settings=None, steps=None, **fields):
        return finished_run(tmp_path / "runs" / name, text_config(**fields), head, results, settings, steps)

    return write


def test_runs_are_found_with_what_they_noted(tmp_path, write_run):
    write_run("mlm/seed-1", "GMLPForMaskedLM", {"eval_perplexity": 9.5, "eval_accuracy": 0.4}, steps=30)
    write_run("sst2", "GMLPForSequenceClassification", {"eval_accuracy": 0.8}, {"task_name": "sst2", "seed": 3})
    write_run("mnli", "GMLPForSequenceClassification", {"eval_matched_accuracy": 0.7, "eval_mismatched_accuracy": 0.6})
    write_run("own", "GMLPForSequenceClassification", {"eval_accuracy": 0.8})
    write_run("squad1", "GMLPForQuestionAnswering", {"eval_f1": 8.0})
    write_run("squad2", "GMLPForQuestionAnswering", {"eval_f1": 8.0, "eval_HasAns_f1": 3.0})
    # A run that goes on, and an evaluation without a model.
    (write_run("running", "GMLPForMaskedLM", {}) / "all_results.json").unlink()
    (write_run("evaluation", "GMLPForMaskedLM", {}) / "config.json").unlink()
    root = tmp_path / "runs"
    found = {run.name: run for run in find_runs([root, root / "sst2"])}
    assert {name: run.task for name, run in found.items()} == {
        "mlm/seed-1": "mlm", "sst2": "sst2", "mnli": "mnli", "own": None, "squad1": "squad_v1", "squad2": "squad_v2",
    }  # fmt: skip
    run = found["mlm/seed-1"]
    assert run.steps == 30 and run.results["eval_perplexity"] == 9.5 and run.folder == root / "mlm/seed-1"
    assert run.size == ("gMLP", paper_parameters(run.config) / 1e6)
    assert found["sst2"].settings == {"task_name": "sst2", "seed": 3} and found["sst2"].steps is None
    assert found["mnli"].accuracy == 0.7 and found["sst2"].accuracy == 0.8 and found["squad1"].accuracy is None
    assert find_runs([root / "sst2"])[0].name == "sst2"


def test_a_fine_tuning_knows_its_pretraining(write_run, tmp_path):
    folder = write_run("gmlp/seed-2", "GMLPForMaskedLM", {"eval_perplexity": 9.0})
    bases = {"exact": folder, "within": folder / "checkpoint-40", "elsewhere": "/elsewhere/gmlp/seed-2", "hub": "a/b"}
    for name, base in bases.items():
        write_run(name, "GMLPForSequenceClassification", {}, {"model_name_or_path": str(base)})
    write_run("scratch", "GMLPForSequenceClassification", {})
    runs = find_runs([tmp_path / "runs"])
    found = {run.name: (base := pretraining(run, runs)) and base.name for run in runs if run.task != "mlm"}
    expected = {"exact": "gmlp/seed-2", "within": "gmlp/seed-2", "elsewhere": None, "hub": None, "scratch": None}
    assert found == expected


def test_the_best_setting_has_the_best_median(write_run, tmp_path):
    for rate, values in ((0.1, (0.3, 0.4, 0.9)), (0.2, (0.5, 0.6, 0.5))):
        for seed, value in enumerate(values):
            settings = {"learning_rate": rate, "seed": seed, "output_dir": f"{rate}-{seed}", "bf16": seed == 2}
            write_run(f"{rate}-{seed}", "GMLPForSequenceClassification", {"eval_accuracy": value}, settings)
    runs = find_runs([tmp_path])
    chosen, settings = best_setting(runs, lambda run: run.accuracy, names=["learning_rate"])
    assert ([run.accuracy for run in chosen], settings) == ([0.5, 0.6, 0.5], 2)
    # All settings but the seed and the folder count.
    chosen, settings = best_setting(runs, lambda run: run.accuracy)
    assert ([run.accuracy for run in chosen], settings) == ([0.9], 4)


def test_bad_input(tmp_path, write_run):
    with pytest.raises(InputError, match="There is no folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="no finished run in"):
        find_runs([tmp_path])
    folder = write_run("broken", "GMLPForMaskedLM", {})
    (folder / "all_results.json").write_text('{"eval')
    with pytest.raises(InputError, match=r"broken/all_results\.json cannot be read"):
        find_runs([tmp_path])
    (folder / "all_results.json").write_text("{}")
    (folder / "config.json").write_text('{"model_type": "nothing known"}')
    with pytest.raises(InputError, match=r"broken/config\.json cannot be read"):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GMLPConfig(attention_size=8, toeplitz=False), "aMLP, without Toeplitz prior"),
        (GMLPConfig(spatial_gating="additive"), "Additive gMLP"),
        (BertRelposConfig(content_attention=False), "BERT with relative positions, without attention"),
        # The paper's text models have the prior, and its image models have not.
        (GMLPConfig(), "gMLP"),
        (GMLPVisionConfig(), "gMLP"),
        (GMLPVisionConfig(**CONVOLUTIONAL), "gMLP, with Toeplitz prior, 4 spatial heads, convolutional stem"),
    ],
)
def test_families(config, name):
    assert family(config) == name
