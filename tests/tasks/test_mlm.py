"""run_mlm.py, called as by a user, in a new process only where the test needs one."""

import functools
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from transformers import AutoModelForMaskedLM, AutoTokenizer, EvalPrediction, PreTrainedModel, Trainer, TrainerState

from hf_gmlp import GMLPForMaskedLM
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.language_modeling import LanguageModelMetrics, token_losses
from hf_gmlp.tasks.mlm import MaskingCollator, label_positions, main, mask_once
from hf_gmlp.training.run_folder import is_complete
from hf_gmlp.training.trainer import GMLPTrainer

from ..samples import run_script, write
from ..samples import word_tokenizer as make_word_tokenizer

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "run_mlm.py"
run = functools.partial(run_script, main)
SIZES = "num_hidden_layers=2,hidden_size=32,intermediate_size=64,attention_size=16,max_position_embeddings=64"


def start(*flags, launcher=(sys.executable,)):
    return subprocess.Popen(
        [*launcher, SCRIPT, *map(str, flags), "--use_cpu"],
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder, documents = tmp_path_factory.mktemp("text"), [text for _, text in sorted(topics.items())[:32]]
    text = write(folder / "text.txt", "\n\n".join(documents[:30]))
    held_out = write(folder / "held_out.txt", "\n\n".join(documents[30:]))
    return ["--config_name", "gmlp-18l", "--config_overrides", SIZES, "--vocab_size", 600, "--train_file", text,
            "--validation_file", held_out, "--do_train", "--do_eval", "--max_steps", 30,
            "--learning_rate", 3e-3]  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("streaming", [False, True])
def test_killed_run_resumes_to_the_same_weights(tmp_path, flags, streaming, caplog, monkeypatch):
    flags = [*flags, "--max_steps", 40, "--save_steps", 10, "--eval_strategy", "no", "--max_eval_samples", 5]
    flags += ["--config_overrides", f"{SIZES},hidden_dropout_prob=0.1"]
    flags += ["--streaming"] if streaming else ["--per_device_train_batch_size", 24]  # several epochs
    run(*flags, "--output_dir", tmp_path / "complete")
    cut = tmp_path / "cut"
    process = start(*flags, "--output_dir", cut)
    while process.poll() is None and not is_complete(cut / "checkpoint-20"):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (cut / "all_results.json").exists(), "the run was over before it could be killed"
    # Add an incomplete checkpoint, as a kill during the next save would leave it.
    half = cut / "checkpoint-30"
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(cut / "checkpoint-20", half)
    (half / "trainer_state.json").unlink()

    # pytest sees only what reaches the root logger.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.INFO):
        run(*flags, "--output_dir", cut)
    assert f"Skipping {half}" in caplog.text and f"Resuming from {cut / 'checkpoint-20'}" in caplog.text
    if not streaming:
        expected, actual = (load_file(tmp_path / name / "model.safetensors") for name in ("complete", "cut"))
        assert expected.keys() == actual.keys()
        for name in expected:
            assert torch.equal(expected[name], actual[name]), name


@pytest.mark.parametrize("more", [["--save_steps", "4"], ["--save_strategy", "no"], ["--streaming"]], ids=" ".join)
def test_killed_while_the_final_model_is_saved(tmp_path, flags, more, monkeypatch):
    flags = [*flags, "--max_steps", 4, *more, "--output_dir", tmp_path]

    def half(model, folder, **kwargs):
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    def train(trainer, **kwargs):
        output = Trainer.train(trainer, **kwargs)
        # Break only the final save, not those of checkpoints.
        patch.setattr(PreTrainedModel, "save_pretrained", half)
        return output

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(GMLPTrainer, "train", train)
        run(*flags)
    assert run(*flags)["eval_loss"] > 0
    assert TrainerState.load_from_json(str(tmp_path / "trainer_state.json")).global_step == 4
    AutoTokenizer.from_pretrained(tmp_path)
    AutoModelForMaskedLM.from_pretrained(tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("data", [[], ["--streaming"]], ids=["in memory", "stream"])
def test_sigterm_stops_two_processes_at_one_checkpoint(tmp_path, flags, data):
    """The workers also get the signal, but must not stop."""
    more = ["--max_steps", 100_000, "--save_steps", 20, "--save_total_limit", 2, "--enable_jit_checkpoint", *data]
    more += ["--dataloader_num_workers", 1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = start(*flags, *more, "--output_dir", tmp_path / "out", launcher=launcher)
    while process.poll() is None and not is_complete(tmp_path / "out" / "checkpoint-20"):
        time.sleep(0.01)
    process.terminate()
    _, messages = process.communicate()
    step = int(re.search(r"Stopped by SIGTERM at step (\d+)", messages)[1])
    assert process.returncode != 0 and is_complete(tmp_path / "out" / f"checkpoint-{step}")
    assert not (tmp_path / "out" / "all_results.json").exists()


@pytest.mark.parametrize("more", [(), ("--separate_documents", "true")], ids=["plain", "packed"])
def test_compiled_runs_do_not_compile_again(flags, tmp_path, more):
    """This also holds with sparse prediction, whose number of labels differs between batches."""
    overrides = ("--config_overrides", "toeplitz=true,sparse_prediction=true")
    # The last evaluation batch is full, so all have the same shape.
    more = (*overrides, *more, "--torch_compile_backend", "eager", "--max_eval_samples", 8, "--max_steps", 6)
    torch.compiler.reset()
    counters.clear()
    run(*flags, *more, "--output_dir", tmp_path / "out")
    # One graph for training, and possibly one for evaluation.
    assert counters["stats"]["unique_graphs"] in (1, 2) and not counters["graph_break"]


@pytest.fixture
def sequences():
    random = np.random.default_rng(0)
    rows = [[2, *random.integers(5, 205, length).tolist(), 3] for length in (30, 60, 100) for _ in range(20)]
    return Dataset.from_dict({"input_ids": rows})


def test_evaluation_masks_are_fixed(sequences, word_tokenizer):
    first = mask_once(sequences, MaskingCollator(word_tokenizer, seed=3))
    collator = MaskingCollator(word_tokenizer, seed=3)
    collator.set_epoch(7)
    torch.rand(7), np.random.rand(7)  # other random numbers must not matter
    # Order and batch do not matter either.
    again = mask_once(sequences.select(range(59, -1, -1)), collator)
    other = mask_once(sequences, MaskingCollator(word_tokenizer, seed=4))
    assert len(first) == len(again) == 60
    for i in range(60):
        for key in ("input_ids", "labels"):
            assert (first[i][key] == again[59 - i][key]).all()
    assert any((first[i]["labels"] != other[i]["labels"]).any() for i in range(60))


def test_compiled_models_get_all_labels_at_a_fixed_number_of_positions(sequences, word_tokenizer):
    collator = MaskingCollator(word_tokenizer, fixed_count=True, max_length=128)
    for start in (0, 20, 40):
        batch = collator(sequences.select(range(start, start + 20)).to_list())
        # The mean is 0.15 * 128 = 19.2, and the tolerance five times its square root.
        assert batch["input_ids"].shape == (20, 128) and batch["masked_positions"].shape == (20, 42)
        gathered = batch["labels"].gather(1, batch["masked_positions"])
        assert ((gathered != -100).sum(1) == (batch["labels"] != -100).sum(1)).all()
        assert all(len(set(row)) == 42 for row in batch["masked_positions"].tolist())


@torch.no_grad()
def test_evaluation_at_the_labels_only_changes_no_metric(sequences, word_tokenizer, perturbed_model, text_config):
    """The number of positions depends only on the length of a batch."""
    model = perturbed_model(GMLPForMaskedLM, text_config(vocab_size=210, max_position_embeddings=128))
    results, sizes = [], []
    for sparse_evaluation in (False, True):
        collator = MaskingCollator(word_tokenizer, 0.3, sparse_evaluation=sparse_evaluation)
        dataset, metrics = mask_once(sequences, collator), LanguageModelMetrics()
        for start in (0, 20, 40):
            batch = collator([dataset[i] for i in range(start, start + 20)])
            output = model(**batch)
            sizes.append(output.logits.shape[1])
            predictions = EvalPrediction(token_losses(output.logits, batch["labels"]), batch["labels"])
            result = metrics(predictions, compute_result=start == 40)
        results.append(result | {"loss": output.loss.item()})
    assert sizes == [32, 62, 102, 26, 41, 59]
    assert results[1] == pytest.approx(results[0], rel=1e-5)


def test_no_label_is_lost_where_there_are_too_many():
    labels = torch.full((2, 100), -100)
    labels[0, 10:44] = 7
    assert label_positions(labels, 0.15).shape == (2, 35)
    labels[0, 60:62] = 7
    assert label_positions(labels, 0.15).sort()[0].tolist() == [list(range(100))] * 2


def test_unknown_words_are_masked_and_special_tokens_are_not(word_tokenizer):
    row = {"input_ids": [2, *[1, 3, 0, 4, 9] * 100, 3]}
    labels = MaskingCollator(word_tokenizer, 0.3).mask(row, None)["labels"]
    assert set(labels.tolist()) == {-100, 1, 9}
    # Of 200 words, with a standard deviation of 6.
    assert (labels != -100).sum() == pytest.approx(60, abs=25)


def test_a_tokenizer_without_a_mask_is_refused():
    with pytest.raises(InputError, match=r"\[MASK\]"):
        MaskingCollator(make_word_tokenizer([], mask_token=None))


def test_masks_change_every_epoch_and_are_the_same_in_any_batch_and_process(sequences, word_tokenizer):
    collator, epochs = MaskingCollator(word_tokenizer), []
    workers = {"num_workers": 1, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(sequences, batch_size=10, collate_fn=collator, **workers)
    for epoch in range(2):
        collator.set_epoch(epoch)
        first, *_ = [batch["labels"] for batch in loader]
        one_by_one = [collator([sequences[i]])["labels"][0] for i in range(10)]
        assert torch.equal(first, torch.stack(one_by_one))
        epochs.append(first)
    assert not torch.equal(*epochs)
