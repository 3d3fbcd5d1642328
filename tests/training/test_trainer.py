import filecmp
import json
import logging
import math
import pickle
import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
import transformers
from datasets import Dataset
from huggingface_hub import ModelCard
from packaging import version
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    ModernBertConfig,
    Trainer,
    TrainingArguments,
)
from transformers.utils.hub import PushInProgress

from hf_gmlp import BertRelposConfig, GMLPConfig, GMLPForCausalLM, GMLPForSequenceClassification, TextMixerConfig
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.run_folder import read_settings
from hf_gmlp.training.trainer import GMLPTrainer, shown_command

# The tests run on 5.14 and on 5.23.
OLD = version.parse(transformers.__version__) < version.parse("5.23")
SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}


def make_trainer(folder, model=None, rows=None, metric_names=None, **arguments):
    torch.manual_seed(0)
    rows = rows or [{"input_ids": [2, 5 + i % 2, 7, 3], "labels": i % 2} for i in range(32)]
    args = RunArguments(output_dir=str(folder), use_cpu=True, max_steps=6, learning_rate=1e-2, **arguments)
    return GMLPTrainer(
        model=model or GMLPForSequenceClassification(gmlp_config()),
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
        metric_names=metric_names,
        card={"dataset": "two words", "license": "mit"},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainer = make_trainer(folder, save_steps=2)
    trainer.train()
    return folder


def test_evaluation_and_predictions_have_all_rows(tmp_path):
    trainer = make_trainer(tmp_path, dataloader_drop_last=True, per_device_train_batch_size=5,
                           per_device_eval_batch_size=5)  # fmt: skip
    assert len(trainer.get_train_dataloader()) == 6
    assert len(trainer.predict(trainer.eval_dataset).predictions) == 32
    trainer.args.per_device_train_batch_size = 33
    with pytest.raises(InputError, match="32 training samples, not one batch of 33, and --dataloader_drop_last"):
        trainer.train()


def test_a_checkpoint_without_an_optimizer_is_not_complete(run, tmp_path):
    names = {path.name for path in (run / "checkpoint-6").iterdir()}
    assert {"optimizer.pt", "rng_state.pth", "model.safetensors", "trainer_state.json", "settings.json"} <= names
    make_trainer(tmp_path, save_steps=6, save_only_model=True).train()
    assert (tmp_path / "checkpoint-6" / "model.safetensors").is_file()
    assert read_settings(tmp_path / "checkpoint-6") is None


def test_older_checkpoints_go_only_when_a_newer_one_is_whole(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, save_steps=2, save_total_limit=1)
    monkeypatch.setattr("hf_gmlp.training.run_folder.write_json", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    monkeypatch.undo()
    make_trainer(tmp_path / "b", save_steps=2, save_total_limit=1).train()
    assert [path.name for path in (tmp_path / "b").glob("checkpoint-*")] == ["checkpoint-6"]
    assert make_trainer(tmp_path / "b").args.save_total_limit is None


def test_a_checkpoint_is_pushed_when_it_is_whole(tmp_path, monkeypatch):
    seen = []

    def push(trainer, folder):
        # The folder of the run goes to the Hub, and the checkpoint.
        seen.append((read_settings(Path(folder)), len(list(tmp_path.glob("*.py")))))

    monkeypatch.setattr(Trainer, "_push_from_checkpoint", push)
    trainer = make_trainer(tmp_path, save_steps=3)
    trainer.args.push_to_hub, trainer.args.hub_strategy = True, "every_save"
    trainer.train()
    assert seen == [({}, 4)] * 2


def test_a_checkpoint_that_could_not_be_pushed_is_named(tmp_path, caplog):
    lost, pushed = Future(), Future()
    lost.set_exception(OSError("The Hub is tired"))
    pushed.set_result("a commit")
    trainer = make_trainer(tmp_path)
    trainer.push_in_progress = PushInProgress([lost, pushed])
    trainer._finish_current_push()
    assert "could not be pushed: The Hub is tired" in caplog.text


def test_a_command_is_shown_without_tokens():
    command = "run_mlm.py --token hf_1 --train_file /home/me/a.txt --hub-token=hf_2 --hub_token hf_3 --do_train"
    assert shown_command(command.split()) == "python run_mlm.py --train_file a.txt --do_train"


def test_what_is_pushed_with_the_weights_has_no_token(tmp_path):
    args = RunArguments(str(tmp_path), use_cpu=True, hub_token="hf_1")
    assert args.hub_token == "hf_1" and b"hf_1" not in pickle.dumps(args)
    assert pickle.loads(pickle.dumps(args)).output_dir == str(tmp_path)


def test_arguments_that_do_not_go_together(tmp_path):
    with pytest.raises(InputError, match="metric_for_best_model must be one of loss, accuracy, got f1"):
        make_trainer(tmp_path, metric_names=["accuracy"], metric_for_best_model="f1")
    make_trainer(tmp_path, metric_names=["accuracy"], metric_for_best_model="eval_accuracy")
    with pytest.raises(InputError, match="nobody is not supported"):
        make_trainer(tmp_path, report_to=["nobody"])


@pytest.mark.parametrize(
    ("whole", "given", "expected"), [(16, 8, (8, 2)), (256, 100, (64, 4)), (7, 4, (1, 7)), (4, 8, (4, 1))]
)
def test_global_batch_size_gives_the_accumulation(tmp_path, whole, given, expected):
    args = RunArguments(
        output_dir=str(tmp_path), use_cpu=True, global_batch_size=whole, per_device_train_batch_size=given
    )
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == expected


@pytest.mark.parametrize(
    "flags",
    [
        {"lr_scheduler_type": "cosine_with_min_lr"},
        {"lr_scheduler_kwargs": {"foo": 1}},
        {"optim_args": "foo"},
        pytest.param(
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"foo": 1}},
            marks=pytest.mark.skipif(OLD, reason="transformers had no such flag"),
        ),
    ],
)
def test_training_that_cannot_begin_gets_one_sentence(tmp_path, flags):
    with pytest.raises(InputError, match="The training cannot begin: "):
        make_trainer(tmp_path, **flags).train()


def test_a_run_that_diverged_says_so(tmp_path, caplog):
    trainer = make_trainer(tmp_path, max_grad_norm=0, do_train=True)
    trainer.args.learning_rate = 1e30
    trainer.in_series = True
    assert math.isnan(trainer.train_and_evaluate(None)["train_loss"]) and "diverged" in caplog.text
    # A single run is not finished by it.
    trainer.in_series = False
    with pytest.raises(InputError, match=r"The training diverged.* Lower --learning_rate, and give --overwrite"):
        trainer.train_and_evaluate(None)
    with pytest.raises(InputError, match="diverged"):
        trainer.finish({"eval_loss": math.nan})
    assert not (tmp_path / "all_results.json").exists() and not (tmp_path / "README.md").exists()


def test_report_card_and_results(tmp_path, capsys):
    trainer = make_trainer(tmp_path, global_batch_size=8, per_device_train_batch_size=4, do_train=True)
    metrics = trainer.train().metrics
    metrics |= trainer.evaluate()
    trainer.finish(metrics)
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert results["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=1e-6)
    assert f"{results['eval_loss']:.4f}" in capsys.readouterr().out
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "mit"
    assert "**Data:** two words" in card.text and "| global_batch_size | 8 |" in card.text
    assert f"| loss | {metrics['eval_loss']:.4g} |" in card.text


@pytest.mark.parametrize("folder, title", [("runs/out", "runs/out"), ("../out", "out"), ("{}/out", "out")])
def test_a_card_names_only_what_is_below_this_folder(folder, title, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = Path(folder.format(tmp_path))
    folder.mkdir(parents=True)
    make_trainer(folder).create_model_card()
    card = ModelCard.load(folder / "README.md")
    assert f"\n# {title}\n" in card.text and f'from_pretrained("{title}"' in card.text


def gmlp_config(**fields):
    return GMLPConfig(**SIZES, max_position_embeddings=8, **fields)


def modern_bert_config(**fields):
    return ModernBertConfig(**SIZES, num_attention_heads=1, pad_token_id=0, **fields)


MODERN_BERT = pytest.param(
    modern_bert_config, marks=pytest.mark.skipif(OLD, reason="transformers refused its own defaults")
)


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
@pytest.mark.slow
@pytest.mark.parametrize("config", [gmlp_config, bert_config, MODERN_BERT])
@pytest.mark.parametrize("regression", [False, True])
def test_accumulated_gradients_are_those_of_one_batch(tmp_path, config, regression):
    rows = [{"input_ids": [2, 5 + i % 2, 7, 3], "labels": i % 3 / 2 if regression else i % 3 // 2} for i in range(32)]

    def make_model():
        return AutoModelForSequenceClassification.from_config(config(num_labels=1 if regression else 2))

    one, accumulated = weights_by_batch_size(tmp_path, make_model, rows)
    assert one.abs().max() > 1e-4
    torch.testing.assert_close(accumulated, one, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("config", [gmlp_config, MODERN_BERT])
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


@pytest.mark.skipif(not OLD, reason="transformers passes the number of labels to its smoother")
def test_label_smoothing_of_causal_models_needs_a_newer_transformers(tmp_path):
    with pytest.raises(InputError, match="a causal model needs a newer transformers"):
        make_trainer(tmp_path, GMLPForCausalLM(gmlp_config()), label_smoothing_factor=0.1)


@pytest.mark.skipif(OLD, reason="refused, as the test above shows")
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


POSITIONAL = {
    "gmlp": (lambda: gmlp_config(spatial_initializer_range=0.1), "gating_unit.proj.weight"),
    "relpos": (
        lambda: BertRelposConfig(**SIZES, num_attention_heads=2, max_position_embeddings=8),
        "bias.biases.weight",
    ),
    "bert": (bert_config, "position_embeddings.weight"),
    "mixer": (
        lambda: TextMixerConfig(**SIZES, max_position_embeddings=8),
        ("token_mlp.proj_in.weight", "token_mlp.proj_out.weight"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", POSITIONAL)
def test_learning_rate_of_positions(tmp_path, kind):
    """A step of plain gradient descent is that many times longer for W, and of the same length for all else."""
    make, ending = POSITIONAL[kind]
    config = make()
    steps = []
    for multiplier in (1.0, 5.0):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(config)
        start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        trainer = make_trainer(tmp_path / str(multiplier), model, optim="sgd", max_grad_norm=0.0, weight_decay=0.01,
                               spatial_lr_multiplier=multiplier, lr_scheduler_type="constant")  # fmt: skip
        trainer.args.max_steps = 1
        trainer.train()
        steps.append({name: weight.detach() - start[name] for name, weight in model.named_parameters()})
        rates = {group["lr"] for group in trainer.optimizer.param_groups}
        assert rates == {1e-2, multiplier * 1e-2}
    positional = [name for name in steps[0] if name.endswith(ending)]
    assert positional and all(steps[0][name].abs().max() > 0 for name in positional)
    for name, step in steps[0].items():
        torch.testing.assert_close(steps[1][name], (5 if name in positional else 1) * step, atol=3e-7, rtol=1e-4)


@pytest.mark.skipif(OLD, reason="transformers refused its own defaults")
def test_learning_rate_of_positions_needs_positions(tmp_path):
    rotary = ModernBertConfig(**SIZES, num_attention_heads=1, pad_token_id=0, cls_token_id=2, sep_token_id=3)
    model = AutoModelForSequenceClassification.from_config(rotary)
    with pytest.raises(
        InputError, match="a ModernBertForSequenceClassification has no positional weights; leave it out"
    ):
        make_trainer(tmp_path, model, spatial_lr_multiplier=5.0).train()


def test_learning_rate_of_positions_is_resumed(tmp_path):
    options = {"spatial_lr_multiplier": 5.0, "save_steps": 3}
    make_trainer(tmp_path / "a", **options).train()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    trainer = make_trainer(tmp_path / "b", **options)
    trainer.train(str(tmp_path / "b" / "checkpoint-3"))
    for name in ("a", "b"):
        assert (tmp_path / name / "checkpoint-6" / "model.safetensors").is_file()
    assert filecmp.cmp(*(tmp_path / name / "checkpoint-6" / "model.safetensors" for name in "ab"), shallow=False)
