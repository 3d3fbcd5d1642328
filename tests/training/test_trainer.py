import filecmp
import json
import math
import pickle
import shutil
import signal
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch.nn.utils import parameters_to_vector
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, BertConfig, TrainerCallback

from hf_gmlp import GMLPForCausalLM, GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.run_folder import is_complete

from .helpers import SIZES, gmlp_config, make_trainer


def test_an_evaluation_has_all_rows_in_their_order(tmp_path):
    rows = [{"input_ids": [2, 5, 3], "labels": i} for i in range(32)]
    sizes = {"per_device_train_batch_size": 5, "per_device_eval_batch_size": 5}
    flags = {"dataloader_drop_last": True, "train_sampling_strategy": "group_by_length"}
    trainer = make_trainer(tmp_path, rows=rows, **sizes, **flags)
    assert len(trainer.get_train_dataloader()) == 6
    for loader in (trainer.get_eval_dataloader(), trainer.get_test_dataloader(trainer.eval_dataset)):
        assert torch.cat([batch["labels"] for batch in loader]).tolist() == list(range(32))
    trainer.args.per_device_train_batch_size = 33
    with pytest.raises(InputError, match="32 .* 33, .*--dataloader_drop_last"):
        trainer.train()


def test_sigterm_ends_the_step_and_leaves_a_checkpoint(tmp_path):
    class Sigterm(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 2:
                signal.raise_signal(signal.SIGTERM)

    def train(name, *callbacks, checkpoint=None):
        torch.manual_seed(0)
        model = GMLPForSequenceClassification(gmlp_config(hidden_dropout_prob=0.5))
        options = {"save_strategy": "no", "enable_jit_checkpoint": True, "dataloader_num_workers": 1}
        trainer = make_trainer(tmp_path / name, model, **options)
        collate = trainer.data_collator

        def collate_in_worker(rows):
            # The signal also reaches the workers, but must not end them.
            assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            return collate(rows)

        trainer.data_collator = collate_in_worker
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train(checkpoint)
        trainer.save_model()
        return load_file(tmp_path / name / "model.safetensors")

    complete = train("complete")
    with pytest.raises(SystemExit) as caught:
        train("stopped", Sigterm)
    assert caught.value.code == 143
    (checkpoint,) = tmp_path.glob("stopped/checkpoint-*")
    assert checkpoint.name == "checkpoint-3" and is_complete(checkpoint)
    resumed = train("stopped", checkpoint=str(checkpoint))
    # Different random numbers for dropout would change all results.
    torch.testing.assert_close(resumed, complete)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_conflicting_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match="metric_for_best_model .*loss, accuracy.* f1"):
        make_trainer(tmp_path, metric_names=["loss", "accuracy"], metric_for_best_model="f1")
    make_trainer(tmp_path, metric_names=["loss", "accuracy"], metric_for_best_model="eval_accuracy")
    for flags, reason in (({"report_to": ["nobody"]}, "nobody"), ({"push_to_hub": True}, "offline")):
        with pytest.raises(InputError, match=f"Cannot start training: .*{reason}"):
            make_trainer(tmp_path, **flags)
    with pytest.raises(InputError, match="--label_smoothing_factor"):
        make_trainer(tmp_path, GMLPForCausalLM(gmlp_config()), label_smoothing_factor=0.1)


def test_a_diverged_run_is_not_finished(tmp_path):
    trainer = make_trainer(tmp_path, max_grad_norm=0, do_train=True)
    trainer.args.learning_rate = 1e30
    with pytest.raises(InputError, match="diverged.* --learning_rate"):
        trainer.train_and_evaluate(None)
    with pytest.raises(InputError, match="diverged"):
        trainer.finish({"eval_loss": math.nan})
    assert not (tmp_path / "all_results.json").exists() and not (tmp_path / "README.md").exists()


def test_results_and_a_card_are_written(tmp_path, capsys):
    trainer = make_trainer(tmp_path, global_batch_size=8, per_device_train_batch_size=4, do_train=True)
    trainer.args.command = "python run_glue.py --do_train"
    metrics = trainer.train().metrics | trainer.evaluate()
    trainer.finish(metrics)
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert results["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=1e-6)
    assert f"{results['eval_loss']:.4f}" in capsys.readouterr().out
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "mit" and f"\n# {tmp_path.name}\n" in card.text
    assert "**Data:** two words" in card.text and "| global_batch_size | 8 |" in card.text
    assert "python run_glue.py --do_train\n" in card.text and f"| loss | {metrics['eval_loss']:.4g} |" in card.text


def test_tokens_are_not_saved(tmp_path):
    assert b"hf_1" not in pickle.dumps(RunArguments(str(tmp_path), use_cpu=True, hub_token="hf_1"))


def bert_config(**fields):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**SIZES, num_attention_heads=1, **rates, **fields)


LABELS = {
    "classes": lambda i: i % 3 // 2,
    "numbers": lambda i: i % 3 / 2,
    # The number of labels differs between the small batches, but each has the same weight.
    "tokens": lambda i: [-100, 5 + i % 9, *([7, 3] if i % 3 else [-100, -100])],
}


# BERT ignores the number of labels that Trainer passes.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "kind"), [(gmlp_config, "classes"), (gmlp_config, "tokens"), (bert_config, "numbers")]
)
def test_accumulated_gradients_are_those_of_one_batch(tmp_path, config, kind):
    rows = [{"input_ids": [2, 5 + i % 9, 7, 3], "labels": LABELS[kind](i)} for i in range(32)]
    auto_class = AutoModelForMaskedLM if kind == "tokens" else AutoModelForSequenceClassification
    changes = []
    for size in (8, 2):
        torch.manual_seed(0)
        model = auto_class.from_config(config(num_labels=1 if kind == "numbers" else 2))
        start = parameters_to_vector(model.parameters()).detach()
        # Adam would hide a gradient that is four times too large.
        options = {"optim": "sgd", "max_grad_norm": 0.0, "global_batch_size": 8, "per_device_train_batch_size": size}
        make_trainer(tmp_path / str(size), model, rows, **options).train()
        changes.append(parameters_to_vector(model.parameters()).detach() - start)
    single, accumulated = changes
    assert single.abs().max() > 1e-4
    torch.testing.assert_close(accumulated, single, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("options", [{}, {"muon_learning_rate": 0.1}])
def test_learning_rates_of_groups_are_resumed(tmp_path, options):
    options = options | {"spatial_lr_multiplier": 5.0, "save_steps": 3}
    make_trainer(tmp_path / "a", **options).train()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    make_trainer(tmp_path / "b", **options).train(str(tmp_path / "b" / "checkpoint-3"))
    assert filecmp.cmp(*(tmp_path / name / "checkpoint-6" / "model.safetensors" for name in "ab"), shallow=False)


@pytest.mark.parametrize("length", [{}, {"max_steps": -1, "num_train_epochs": 1.5}], ids=["steps", "epochs"])
def test_a_run_with_all_its_steps_trains_no_further(tmp_path, length):
    complete = make_trainer(tmp_path, lr_scheduler_type="constant", **length)
    complete.train()
    resumed = make_trainer(tmp_path, lr_scheduler_type="constant", **length)
    metrics = resumed.train(str(tmp_path / "checkpoint-6")).metrics
    assert resumed.state.global_step == 6 and "train_loss" not in metrics
    torch.testing.assert_close(resumed.model.state_dict(), complete.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("fp16", "steps"), [(False, 2), (True, 6)])
def test_a_diverging_run_stops_at_its_first_log(tmp_path, fp16, steps):
    trainer = make_trainer(tmp_path, learning_rate=1e30, logging_steps=2)
    trainer.args.fp16 = fp16
    with nullcontext() if fp16 else pytest.raises(InputError, match="diverged"):
        trainer.train()
    assert trainer.state.global_step == steps


def test_a_push_publishes_the_model_alone(tmp_path, monkeypatch):
    upload = Mock()
    monkeypatch.setattr("hf_gmlp.training.trainer.HfApi", upload)
    trainer = make_trainer(tmp_path, do_train=True, max_steps=1)
    trainer.args.push_to_hub, trainer.hub_model_id = True, "me/model"
    monkeypatch.setattr(
        "hf_gmlp.training.trainer.write_card", lambda card, folder, *_: card.save(folder + "/README.md")
    )
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "eval_predictions.csv").write_text("text")
    trainer.finish(trainer.train_and_evaluate(None))
    (((), options),) = upload.return_value.upload_folder.call_args_list
    code = ["configuration_gmlp.py", "modeling_gmlp.py"]
    assert options["allow_patterns"] == ["README.md", "config.json", *code[:1], "model.safetensors", *code[1:]]
    assert (options["repo_id"], options["folder_path"]) == ("me/model", str(tmp_path))
