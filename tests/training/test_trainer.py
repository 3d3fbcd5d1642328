import json
import logging
import shutil

import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    ModernBertConfig,
    Trainer,
    TrainingArguments,
)

from hf_gmlp import GMLPConfig, GMLPForCausalLM, GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.trainer import GMLPTrainer, checkpoint_fault, checkpoint_to_resume, start_run

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}


def make_trainer(folder, model=None, rows=None, **arguments):
    torch.manual_seed(0)
    rows = rows or [{"input_ids": [2, 5 + i % 2, 7, 3], "labels": i % 2} for i in range(32)]
    args = RunArguments(output_dir=str(folder), use_cpu=True, max_steps=6, learning_rate=1e-2, **arguments)
    return GMLPTrainer(
        model=model or GMLPForSequenceClassification(gmlp_config()),
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


def gmlp_config(**fields):
    return GMLPConfig(**SIZES, max_position_embeddings=8, **fields)


def modern_bert_config(**fields):
    return ModernBertConfig(**SIZES, num_attention_heads=1, pad_token_id=0, **fields)


def bert_config(**fields):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**SIZES, num_attention_heads=1, **rates, **fields)


def weights_by_batch_size(folder, make_model, rows):
    """What plain gradient steps (Adam would hide a gradient that is four times too large) make of one model."""
    weights = []
    for size in (8, 2):
        torch.manual_seed(0)
        trainer = make_trainer(folder / str(size), make_model(), rows, optim="sgd", max_grad_norm=0.0,
                               global_batch_size=8, per_device_train_batch_size=size)  # fmt: skip
        start = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        trainer.train()
        weights.append(torch.cat([(p.detach() - q).flatten() for p, q in zip(trainer.model.parameters(), start)]))
    return weights


# BERT ignores the number of labels that Trainer tells it, and so does ModernBERT's loss for regression.
@pytest.mark.parametrize("config", [gmlp_config, bert_config, modern_bert_config])
@pytest.mark.parametrize("regression", [False, True])
def test_accumulated_gradients_are_those_of_one_batch(tmp_path, config, regression):
    rows = [{"input_ids": [2, 5 + i % 2, 7, 3], "labels": i % 3 / 2 if regression else i % 3 // 2} for i in range(32)]

    def make_model():
        return AutoModelForSequenceClassification.from_config(config(num_labels=1 if regression else 2))

    one, accumulated = weights_by_batch_size(tmp_path, make_model, rows)
    assert one.abs().max() > 1e-4
    torch.testing.assert_close(accumulated, one, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("config", [gmlp_config, modern_bert_config])
def test_accumulated_labels_count_alike(tmp_path, config):
    """However many of them each small batch has."""
    rows = [
        {"input_ids": [2, 5 + i % 9, 7, 3], "labels": [-100, 5 + i % 9, *([7, 3] if i % 3 else [-100, -100])]}
        for i in range(32)
    ]
    one, accumulated = weights_by_batch_size(tmp_path, lambda: AutoModelForMaskedLM.from_config(config()), rows)
    assert one.abs().max() > 1e-4
    torch.testing.assert_close(accumulated, one, atol=1e-6, rtol=1e-3)


def test_no_random_numbers_are_drawn_for_the_scale_of_the_loss(tmp_path):
    trainer = make_trainer(tmp_path, GMLPForSequenceClassification(gmlp_config(hidden_dropout_prob=0.5)))
    inputs = {"input_ids": torch.tensor([[2, 5, 3]] * 4), "labels": torch.tensor([0, 1, 0, 1])}
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        losses.append(trainer.compute_loss(trainer.model.train(), inputs, num_items_in_batch=torch.tensor(4)))
    assert losses[0] == losses[1] and trainer.model.training


@pytest.mark.parametrize("size", [4, 1])
def test_label_smoothing_shifts_the_labels_of_causal_models(tmp_path, size):
    torch.manual_seed(0)
    ids = torch.randint(5, 20, (4, 8))
    labels = ids.where(torch.arange(8) < torch.tensor([8, 3, 5, 8])[:, None], -100)
    model = GMLPForCausalLM(gmlp_config())
    loss = F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.1)
    expected = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])
    start = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    rows = [{"input_ids": i, "labels": one} for i, one in zip(ids.tolist(), labels.tolist())]
    trainer = make_trainer(tmp_path, model, rows, label_smoothing_factor=0.1, optim="sgd", max_grad_norm=0.0,
                           global_batch_size=4, per_device_train_batch_size=size)  # fmt: skip
    trainer.args.max_steps = 1
    trainer.train()
    # The learning rate falls to zero in one step, which is the first.
    step = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - start
    torch.testing.assert_close(step, -1e-2 * expected, atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(trainer.evaluate()["eval_loss"], trainer.compute_loss(
        model, {"input_ids": ids, "labels": labels}).item())  # fmt: skip


@pytest.mark.parametrize("smoothing", [0.1, 0.0])
def test_the_plain_trainer_warns_of_label_smoothing(tmp_path, monkeypatch, caplog, smoothing):
    # The library's loggers do not propagate, and say it once per process.
    logger = logging.getLogger("hf_gmlp.models.heads")
    monkeypatch.setattr(logger, "propagate", True)
    type(logger).warning_once.cache_clear()
    rows = [{"input_ids": [2, 5, 7, 3], "labels": [2, 5, 7, 3]}] * 4
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1, label_smoothing_factor=smoothing,
                             report_to=[], save_strategy="no")  # fmt: skip
    Trainer(GMLPForCausalLM(gmlp_config()), args, train_dataset=Dataset.from_list(rows)).train()
    messages = [record.message for record in caplog.records if record.name == "hf_gmlp.models.heads"]
    assert len(messages) == (1 if smoothing else 0)
    assert all("does not shift the labels" in message for message in messages)


def test_other_models_get_the_library_s_card(tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    trainer = make_trainer(tmp_path, AutoModelForSequenceClassification.from_config(config))
    trainer.train()
    trainer.create_model_card()
    assert "generated automatically" in (tmp_path / "README.md").read_text()
