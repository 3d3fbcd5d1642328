import pytest
import torch
from runs import best_setting, family, find_runs, pretraining
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTMAEConfig

from hf_gmlp import BertRelposConfig, GMLPConfig, GMLPForMaskedLM, TextMixerConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.counts import paper_parameters

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


@pytest.mark.parametrize("program", ["python run_glue.py", "hf-gmlp run glue"])
def test_a_card_tells_the_flags_where_there_are_no_settings(write_run, tmp_path, program):
    command = f"{program} --model_name_or_path 'my base' --task_name rte --do_train --output_dir out"
    folder = write_run("rte", "GMLPForSequenceClassification", {"eval_accuracy": 0.5})
    (folder / "README.md").write_text(f"# Out\n\n{command}\n")
    run = find_runs([tmp_path])[0]
    assert run.task == "rte" and run.settings["model_name_or_path"] == "my base"


def test_a_fine_tuning_knows_its_pretraining(write_run, tmp_path):
    root = tmp_path / "runs"
    for name, fields in (("gmlp", {}), ("amlp", {"attention_size": 4})):
        for seed in (1, 2):
            write_run(f"{name}/seed-{seed}", "GMLPForMaskedLM", {"eval_perplexity": 9.0}, **fields)

    def finetuned(name, base, **fields):
        write_run(name, "GMLPForSequenceClassification", {}, {"model_name_or_path": str(base)}, **fields)

    finetuned("exact", root / "gmlp/seed-2")
    finetuned("within", root / "gmlp/seed-2/checkpoint-40")
    finetuned("moved", "/elsewhere/gmlp/seed-1")
    finetuned("relative", "amlp/seed-1", attention_size=4)
    # Not the seed of another model, and not the same name with other sizes.
    finetuned("unknown", "/elsewhere/bmlp/seed-1")
    finetuned("other", "/elsewhere/gmlp/seed-1", hidden_size=32)
    finetuned("hub", "someone/gmlp")
    found = find_runs([root])
    base = {run.name: (one := pretraining(run, found)) and one.name for run in found if run.task != "mlm"}
    assert base == {
        "exact": "gmlp/seed-2", "within": "gmlp/seed-2", "moved": "gmlp/seed-1", "relative": "amlp/seed-1",
        "unknown": None, "other": None, "hub": None,
    }  # fmt: skip
    # Looked for from below, "seed-1" is gMLP's and no aMLP's.
    found = find_runs([root / "gmlp", root / "relative"])
    assert pretraining(next(run for run in found if run.name == "relative"), found) is None


def test_the_best_setting_has_the_best_median(write_run, tmp_path):
    for rate, values in ((0.1, (0.3, 0.4, 0.9)), (0.2, (0.5, 0.6, 0.5))):
        for seed, value in enumerate(values):
            settings = {"learning_rate": rate, "seed": seed, "output_dir": f"{rate}-{seed}", "bf16": seed == 2}
            write_run(f"{rate}-{seed}", "GMLPForSequenceClassification", {"eval_accuracy": value}, settings)
    runs = find_runs([tmp_path])
    chosen, settings = best_setting(runs, lambda run: run.accuracy, names=["learning_rate"])
    assert ([run.accuracy for run in chosen], settings) == ([0.5, 0.6, 0.5], 2)
    chosen, settings = best_setting(runs, lambda run: run.accuracy, min, names=["learning_rate"])
    assert [run.accuracy for run in chosen] == [0.3, 0.4, 0.9]
    # All settings but the seed and the folder count.
    chosen, settings = best_setting(runs, lambda run: run.accuracy)
    assert ([run.accuracy for run in chosen], settings) == ([0.9], 4)


def test_bert_saved_by_transformers_is_found(tmp_path):
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    (tmp_path / "all_results.json").write_text('{"eval_matched_accuracy": 0.4}')
    run = find_runs([tmp_path])[0]
    assert (run.task, run.size[0], run.name) == ("mnli", "BERT", tmp_path.name)


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


def test_a_saved_model_is_counted_as_the_paper_counts(tmp_path, text_config):
    torch.manual_seed(0)
    model = GMLPForMaskedLM(text_config())
    model.save_pretrained(tmp_path)
    (tmp_path / "all_results.json").write_text("{}")
    counted = sum(p.numel() for name, p in model.named_parameters() if name.startswith("model."))
    assert find_runs([tmp_path])[0].millions == counted / 1e6


def test_families(vision_config):
    configs = {
        "gMLP": GMLPConfig(),
        "aMLP": GMLPConfig(attention_size=8),
        "aMLP, without Toeplitz prior": GMLPConfig(attention_size=8, toeplitz=False),
        "Additive gMLP": GMLPConfig(spatial_gating="additive"),
        "BERT with relative positions": BertRelposConfig(),
        "BERT with relative positions, without attention": BertRelposConfig(content_attention=False),
        "MLP-Mixer": TextMixerConfig(),
        "BERT": BertConfig(),
        "ViT": ViTConfig(),
        "vit mae": ViTMAEConfig(),
    }
    assert all(family(config) == name for name, config in configs.items())
    # The paper's text models have the prior, and its image models have not.
    assert family(vision_config()) == "gMLP"
    name = "gMLP, with Toeplitz prior, 4 spatial heads, convolutional stem"
    assert family(vision_config(**CONVOLUTIONAL)) == name
