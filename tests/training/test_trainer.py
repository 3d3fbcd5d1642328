import json
import shutil

import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification, BertConfig

from hf_gmlp import GMLPConfig, GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.trainer import GMLPTrainer, checkpoint_fault, checkpoint_to_resume, start_run


def make_trainer(folder, model=None, **arguments):
    torch.manual_seed(0)
    config = GMLPConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, intermediate_size=32,
                        max_position_embeddings=8)  # fmt: skip
    rows = [{"input_ids": [2, 5 + i % 2, 7, 3], "labels": i % 2} for i in range(32)]
    args = RunArguments(output_dir=str(folder), use_cpu=True, max_steps=6, learning_rate=1e-2, **arguments)
    return GMLPTrainer(
        model=model or GMLPForSequenceClassification(config),
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
        dataset="two words",
        license="mit",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainer = make_trainer(folder, save_steps=2)
    trainer.train()
    return folder


def test_complete_and_half_written_checkpoints(run, tmp_path):
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"):
        copy = tmp_path / name / "checkpoint-6"
        shutil.copytree(run / "checkpoint-6", copy)
        assert checkpoint_fault(copy) is None
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[:-10])
        assert checkpoint_fault(copy) == f"{name} is cut off"
        args = RunArguments(output_dir=str(tmp_path / name), use_cpu=True)
        assert checkpoint_to_resume(args) is None
        shutil.copytree(run / "checkpoint-4", tmp_path / name / "checkpoint-4")
        assert checkpoint_to_resume(args) == str(tmp_path / name / "checkpoint-4")
    (copy / "trainer_state.json").unlink()
    assert checkpoint_fault(copy) == "trainer_state.json is missing"


def test_output_folder_is_looked_after(run, tmp_path):
    def resume(folder, **options):
        return checkpoint_to_resume(RunArguments(output_dir=str(folder), use_cpu=True, **options))

    assert resume(tmp_path / "new") is None
    assert resume(run) == str(run / "checkpoint-6")
    assert resume(run, resume_from_checkpoint=str(run / "checkpoint-2")) == str(run / "checkpoint-2")
    with pytest.raises(InputError, match="no complete checkpoint: trainer_state.json is missing"):
        resume(run, resume_from_checkpoint=str(tmp_path))
    (tmp_path / "all_results.json").write_text("{}")
    # A finished run is not written over by an evaluation either.
    for what in ("do_train", "do_eval", "do_predict"):
        with pytest.raises(InputError, match="holds a finished run"):
            start_run(RunArguments(output_dir=str(tmp_path), use_cpu=True, **{what: True}))
    with pytest.raises(InputError, match="Say what to do"):
        start_run(RunArguments(output_dir=str(tmp_path), use_cpu=True))


@pytest.mark.parametrize(
    ("whole", "given", "expected"), [(16, 8, (8, 2)), (256, 100, (64, 4)), (7, 4, (1, 7)), (4, 8, (4, 1))]
)
def test_global_batch_size_gives_the_accumulation(tmp_path, whole, given, expected):
    args = RunArguments(
        output_dir=str(tmp_path), use_cpu=True, global_batch_size=whole, per_device_train_batch_size=given
    )
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == expected


def test_report_card_and_results(tmp_path, capsys):
    trainer = make_trainer(tmp_path, global_batch_size=8, per_device_train_batch_size=4)
    metrics = trainer.train().metrics
    metrics |= trainer.evaluate()
    trainer.finish(metrics)
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert results["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=1e-6)
    assert f"{results['eval_loss']:.4f}" in capsys.readouterr().out
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "mit"
    assert "**Data.** two words" in card.text and "| global batch size | 8 |" in card.text
    assert f"| loss | {metrics['eval_loss']:.4g} |" in card.text


@pytest.mark.parametrize("gmlp", [True, False])
def test_accumulated_gradients_are_those_of_one_batch(tmp_path, gmlp):
    """Also of transformers' own BERT, which does not look at the number of labels that Trainer tells it."""
    weights = []
    for size in (8, 2):
        torch.manual_seed(0)
        if gmlp:
            model = None
        else:
            sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
            config = BertConfig(vocab_size=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
            model = AutoModelForSequenceClassification.from_config(config)
        # Plain gradient steps: Adam would hide a gradient that is four times too large.
        trainer = make_trainer(tmp_path / str(size), model, optim="sgd", global_batch_size=8,
                               per_device_train_batch_size=size)  # fmt: skip
        trainer.train()
        weights.append(trainer.model.classifier.weight.detach())
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=1e-5)


def test_other_models_get_the_library_s_card(tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    trainer = make_trainer(tmp_path, AutoModelForSequenceClassification.from_config(config))
    trainer.train()
    trainer.create_model_card()
    assert "generated automatically" in (tmp_path / "README.md").read_text()
