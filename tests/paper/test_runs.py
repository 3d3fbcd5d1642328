import pytest

from hf_gmlp import GMLPConfig, GMLPVisionConfig
from paper.counts import paper_parameters
from paper.models import BertRelposConfig
from paper.runs import best_setting, family, find_runs, pretraining

from ..samples import CONVOLUTIONAL


def test_runs_are_found_with_what_they_noted(tmp_path, write_run):
    write_run("mlm/seed-1", "GMLPForMaskedLM", {"eval_perplexity": 9.5, "eval_accuracy": 0.4}, steps=30)
    write_run("sst2", "GMLPForSequenceClassification", {"eval_accuracy": 0.8}, {"task_name": "sst2", "seed": 3})
    write_run("mnli", "GMLPForSequenceClassification", {"eval_matched_accuracy": 0.7, "eval_mismatched_accuracy": 0.6})
    write_run("own", "GMLPForSequenceClassification", {"eval_accuracy": 0.8})
    write_run("squad1", "GMLPForQuestionAnswering", {"eval_f1": 8.0})
    write_run("squad2", "GMLPForQuestionAnswering", {"eval_f1": 8.0, "eval_HasAns_f1": 3.0})
    # An unfinished run, and an evaluation without a model.
    (write_run("running", "GMLPForMaskedLM", {}) / "all_results.json").unlink()
    (write_run("evaluation", "GMLPForMaskedLM", {}) / "config.json").unlink()
    root = tmp_path / "runs"
    runs = {str(run.folder.relative_to(root)): run for run in find_runs([root, root / "sst2"])}
    assert {name: run.task for name, run in runs.items()} == {
        "mlm/seed-1": "mlm", "sst2": "sst2", "mnli": "mnli", "own": "", "squad1": "squad_v1", "squad2": "squad_v2",
    }  # fmt: skip
    run = runs["mlm/seed-1"]
    assert run.steps == 30 and run.results["eval_perplexity"] == 9.5
    assert run.millions == paper_parameters(run.config) / 1e6
    assert runs["sst2"].settings == {"task_name": "sst2", "seed": 3} and runs["sst2"].steps is None
    assert [runs[name].accuracy for name in ("mnli", "sst2", "squad1")] == [0.7, 0.8, 0.0]


def test_a_fine_tuning_knows_its_pretraining(write_run, tmp_path):
    folder = write_run("gmlp/seed-2", "GMLPForMaskedLM", {"eval_perplexity": 9.0})
    bases = {"exact": folder, "within": folder / "checkpoint-40", "elsewhere": "/elsewhere/gmlp/seed-2", "hub": "a/b"}
    for name, base in bases.items():
        write_run(name, "GMLPForSequenceClassification", {}, {"model_name_or_path": str(base)})
    write_run("scratch", "GMLPForSequenceClassification", {})
    runs = find_runs([tmp_path / "runs"])
    bases = {run.folder.name: (base := pretraining(run, runs)) and base.folder for run in runs if run.task != "mlm"}
    assert bases == {"exact": folder, "within": folder, "elsewhere": None, "hub": None, "scratch": None}


def test_the_best_setting_has_the_best_median(write_run, tmp_path):
    for rate, values in ((0.1, (0.3, 0.4, 0.9)), (0.2, (0.5, 0.6, 0.5))):
        for seed, value in enumerate(values):
            settings = {"learning_rate": rate, "seed": seed, "output_dir": f"{rate}-{seed}"}
            write_run(f"{rate}-{seed}", "GMLPForSequenceClassification", {"eval_accuracy": value}, settings)
    chosen, settings = best_setting(find_runs([tmp_path]), "eval_accuracy")
    assert ([run.accuracy for run in chosen], settings) == ([0.5, 0.6, 0.5], 2)
    chosen, _ = best_setting(find_runs([tmp_path]), "eval_accuracy", min)
    assert [run.accuracy for run in chosen] == [0.3, 0.4, 0.9]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GMLPConfig(attention_size=8, toeplitz=False), "aMLP, toeplitz=False"),
        (GMLPConfig(spatial_gating="additive"), "gMLP, spatial_gating=additive"),
        (BertRelposConfig(content_attention=False), "BERT with relative positions, content_attention=False"),
        (GMLPVisionConfig(**CONVOLUTIONAL), "gMLP, toeplitz=True, spatial_heads=4, stem=conv"),
    ],
)
def test_families(config, name):
    assert family(config) == name
