"""run_mlm.py as a user calls it; in a new process only where the process matters."""

import io
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

import run_mlm as run_mlm_script
from hf_gmlp import errors
from hf_gmlp.errors import InputError
from hf_gmlp.tokenizer import byte_tokenizer
from hf_gmlp.training.run_folder import read_settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def start_mlm(*flags, launcher=(sys.executable,)):
    return subprocess.Popen(
        [*launcher, ROOT / "run_mlm.py", *map(str, flags)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_mlm(*flags):
    """Runs the script in this process, which saves the imports; returns what a new process would return."""
    code, output, messages, root = 0, io.StringIO(), io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(messages), root.level
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(messages):
        patch.setattr(sys, "argv", ["run_mlm.py", *map(str, flags)])
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            errors.run(run_mlm_script.main)
        except SystemExit as end:
            code = end.code
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
    return subprocess.CompletedProcess(flags, code, output.getvalue(), messages.getvalue())


def finish(process):
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(text for _, text in sorted(topics.items())[:30]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def flags(text):
    sizes = "num_hidden_layers=2,hidden_size=32,intermediate_size=64,attention_size=16,max_position_embeddings=64"
    return ["--config_name", "gmlp-18l", "--config_overrides", sizes, "--train_file", text, "--vocab_size", 600,
            "--do_train", "--do_eval", "--max_steps", 30, "--learning_rate", 3e-3, "--use_cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory, flags):
    folder = tmp_path_factory.mktemp("run") / "out"
    process = run_mlm(*flags, "--output_dir", folder)
    assert process.returncode == 0, process.stderr
    return folder, process.stdout


def test_trains_reports_and_leaves_a_model_that_opens(finished):
    folder, output = finished
    results = json.loads((folder / "all_results.json").read_text())
    # A uniform guess among 600 tokens has perplexity 600.
    assert results["eval_perplexity"] < 400 and f"{results['eval_perplexity']:.4f}" in output
    assert results["eval_predicted_tokens"] > 300
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["config_name"], settings["max_steps"], settings["global_batch_size"]) == ("gmlp-18l", 30, 8)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer) == 600
    answers = pipeline("fill-mask", model=model, tokenizer=tokenizer)("The [MASK] statement is used for functions.")
    assert len(answers) == 5
    AutoModelForSequenceClassification.from_pretrained(folder)


def test_card_says_what_was_done(finished):
    folder, _ = finished
    card = ModelCard.load(folder / "README.md")
    results = json.loads((folder / "all_results.json").read_text())
    assert card.data.pipeline_tag == "fill-mask" and card.data.license is None
    for words in ("text.txt", "--config_name gmlp-18l", "| learning_rate | 0.003 |", "| max_steps | 30 |", "aMLP"):
        assert words in card.text
    assert f"| perplexity | {results['eval_perplexity']:.4g} |" in card.text


def test_evaluation_does_not_depend_on_the_batch_size(finished, text):
    folder, _ = finished
    losses = []
    for batch_size in (3, 16):
        out = folder.parent / f"eval{batch_size}"
        process = run_mlm("--model_name_or_path", folder, "--train_file", text, "--do_eval", "--use_cpu",
                          "--per_device_eval_batch_size", batch_size, "--output_dir", out)  # fmt: skip
        assert process.returncode == 0, process.stderr
        losses.append(json.loads((out / "all_results.json").read_text())["eval_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] == pytest.approx(json.loads((folder / "all_results.json").read_text())["eval_loss"], rel=1e-5)


def test_finished_run_is_not_written_over(finished, flags):
    folder, _ = finished
    before = (folder / "model.safetensors").stat().st_mtime_ns
    process = run_mlm(*flags, "--output_dir", folder)
    assert process.returncode == 2 and "holds a finished run" in process.stderr
    assert "Traceback" not in process.stderr and (folder / "model.safetensors").stat().st_mtime_ns == before


def test_documents_apart(finished, tmp_path, flags):
    """A document does not see its neighbors, so that the result is another one, and streams do the same."""
    results = []
    for more in ([], ["--streaming"]):
        process = run_mlm(*flags, "--separate_documents", *more, "--output_dir", tmp_path / f"out{len(more)}")
        assert process.returncode == 0, process.stderr
        results.append(json.loads((tmp_path / f"out{len(more)}" / "all_results.json").read_text()))
    before = json.loads((finished[0] / "all_results.json").read_text())
    assert results[0]["eval_predicted_tokens"] == before["eval_predicted_tokens"]
    assert results[0]["eval_perplexity"] != before["eval_perplexity"]


def test_streaming_and_lines(tmp_path, flags):
    process = run_mlm(*flags, "--max_steps", 2, "--streaming", "--line_by_line", "--max_eval_samples", 20,
                      "--output_dir", tmp_path / "out")  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "eval_perplexity" in json.loads((tmp_path / "out" / "all_results.json").read_text())


@pytest.mark.parametrize("streaming", [False, True])
def test_killed_run_resumes_to_the_same_weights(tmp_path, flags, streaming):
    flags = [*flags, "--max_steps", 40, "--save_steps", 10, "--eval_strategy", "no", "--max_eval_samples", 5]
    flags += ["--config_overrides", f"{flags[flags.index('--config_overrides') + 1]},hidden_dropout_prob=0.1"]
    flags += ["--streaming"] if streaming else ["--per_device_train_batch_size", 24]  # several epochs
    whole = run_mlm(*flags, "--output_dir", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr

    cut = tmp_path / "cut"
    process = start_mlm(*flags, "--output_dir", cut)
    while process.poll() is None and read_settings(cut / "checkpoint-20") is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (cut / "all_results.json").exists(), "the run was over before it could be killed"
    # What a kill in the midst of the next save would leave.
    half = cut / "checkpoint-30"
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(cut / "checkpoint-20", half)
    (half / "settings.json").unlink()

    resumed = run_mlm(*flags, "--output_dir", cut)
    assert resumed.returncode == 0, resumed.stderr
    assert f"Skipping {half}" in resumed.stderr
    assert f"Resuming from {cut / 'checkpoint-20'}" in resumed.stderr
    expected, actual = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "cut"))
    assert expected.keys() == actual.keys()
    for name in expected:
        assert torch.equal(expected[name], actual[name]), name


def test_two_processes_train_the_same_model_as_one(tmp_path, flags):
    flags = [*flags, "--max_steps", 12, "--global_batch_size", 12, "--per_device_train_batch_size", 4]
    one = run_mlm(*flags, "--output_dir", tmp_path / "one")
    assert one.returncode == 0, one.stderr
    assert "A batch of 12: 1 device(s) x 4 x 3 step(s) of gradient accumulation" in one.stderr
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    two = finish(start_mlm(*flags, "--output_dir", tmp_path / "two", launcher=launcher))
    assert two.returncode == 0, two.stderr
    assert "A batch of 12: 2 device(s) x 3 x 2 step(s) of gradient accumulation" in two.stderr
    losses = [json.loads((tmp_path / run / "all_results.json").read_text())["eval_loss"] for run in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    expected, actual = (load_file(tmp_path / run / "model.safetensors") for run in ("one", "two"))
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=1e-4)


def test_bad_input_gets_one_sentence(tmp_path, flags, monkeypatch):
    byte_tokenizer().save_pretrained(tmp_path / "bytes")
    (tmp_path / "blank.jsonl").write_text('{"text": " "}\n{"text": null}\n')
    (tmp_path / "text.jsonl").write_text('{"text": "a few words"}\n')
    cases = [
        (["--tokenizer_name", tmp_path / "bytes"], r"no \[CLS\] and no \[SEP\] and no \[MASK\], which masked"),
        (["--validation_file", tmp_path / "blank.jsonl"], "The validation text is blank"),
        (["--validation_file", tmp_path / "text.jsonl", "--mlm_probability", 1e-9], "leave nothing .* to predict"),
    ]
    for more, message in cases:
        words = [str(word) for word in ["run_mlm.py", *flags, *more, "--output_dir", tmp_path / "out"]]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(InputError, match=message):
            run_mlm_script.main()


def test_batch_that_cannot_be_divided(tmp_path, flags):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = finish(start_mlm(*flags, "--global_batch_size", 5, "--output_dir", tmp_path, launcher=launcher))
    assert process.returncode != 0 and "--global_batch_size 5 is not a multiple of the 2 devices" in process.stderr


def test_help_starts_with_what_it_does():
    process = finish(start_mlm("--help"))
    first_screen = "\n".join(process.stdout.splitlines()[:24])
    assert "masked language modeling" in first_screen and "--config_name gmlp-base" in first_screen
    assert "--train_file" in first_screen
