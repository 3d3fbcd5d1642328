"""run_clm.py as a user calls it: in this process where one run is enough, else in processes of its own."""

import io
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, BertConfig, GPT2Config, pipeline

import run_clm
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm.arguments import CLMArguments
from hf_gmlp.tokenizer import byte_tokenizer
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.build import load_config
from hf_gmlp.training.recipes import read_recipe
from hf_gmlp.training.run_folder import read_settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "recipes"
SIZES = "num_hidden_layers=2,hidden_size=32,intermediate_size=64,attention_size=16,max_position_embeddings=64"


def start(*flags, launcher=(sys.executable,)):
    return subprocess.Popen(
        [*launcher, ROOT / "run_clm.py", *map(str, flags)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*flags):
    """Runs the script in this process, and gives its results."""
    flags = [str(flag) for flag in flags]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run_clm.py", *flags])
        run_clm.main()
    return json.loads(Path(flags[flags.index("--output_dir") + 1], "all_results.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text, a text held out, and configs of a GPT-2 and of a BERT."""
    folder = tmp_path_factory.mktemp("clm")
    documents = [text for _, text in sorted(topics.items())]
    (folder / "text.txt").write_text("\n\n".join(documents[:30]), encoding="utf-8")
    # Its last characters are neither ASCII nor a line's end, and its lines end in two ways.
    (folder / "held_out.txt").write_bytes(documents[31].encode()[:3000] + "\r\n\n\n\tÄhm, 漢字 😀".encode())
    rows = [json.dumps({"text": document}) for document in documents[:30]]
    (folder / "text.jsonl").write_text("\n".join(rows), encoding="utf-8")
    # "Ä" is two bytes, so that tokens and bytes differ.
    (folder / "held_out.jsonl").write_text(json.dumps({"text": "Ä" * 70 + documents[31][:2000]}) + "\n", "utf-8")
    GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=64).save_pretrained(folder / "gpt2")
    BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64).save_pretrained(
        folder / "bert"
    )
    return folder


@pytest.fixture(scope="module")
def models(folder):
    """Flags that name a model."""
    return {
        "gpt2": ["--config_name", folder / "gpt2"],
        "amlp": ["--config_name", "gmlp-base", "--config_overrides", f"{SIZES},is_causal=true"],
    }


@pytest.fixture(scope="module")
def training():
    return ["--do_train", "--do_eval", "--max_steps", 30, "--learning_rate", 3e-3, "--use_cpu", "--report_to", "none",
            "--save_strategy", "no"]  # fmt: skip


@pytest.fixture(scope="module", params=["gpt2", "amlp"])
def of_bytes(request, folder, models, training):
    """The folder and the results of a run with a token for every byte."""
    out = folder / f"{request.param}-bytes"
    files = ["--train_file", folder / "text.txt", "--validation_file", folder / "held_out.txt"]
    return out, run(*models[request.param], *training, *files, "--byte_level", "--output_dir", out)


def loss_by_hand(model, tokens):
    """Nats of tokens[1:], each from the tokens of its block of 64 alone, blocks overlapping by one."""
    total = 0.0
    for start in range(0, len(tokens) - 1, 63):
        block = torch.tensor(tokens[start : start + 64])
        with torch.no_grad():
            log_probabilities = model(input_ids=block[None]).logits[0].double().log_softmax(-1)
        total -= sum(log_probabilities[i, block[i + 1]].item() for i in range(len(block) - 1))
    return total


def test_bits_per_byte_of_bytes_are_those_of_a_loop_over_the_file(of_bytes, folder):
    out, results = of_bytes
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    data = (folder / "held_out.txt").read_bytes()
    nats = loss_by_hand(model, [1, *(byte + 2 for byte in data)])
    # Every byte of the file is predicted, the first of all from the end-of-text token.
    assert results["eval_predicted_tokens"] == results["eval_predicted_bytes"] == len(data)
    assert results["eval_loss"] == pytest.approx(nats / len(data), rel=1e-5)
    assert results["eval_bits_per_byte"] == pytest.approx(nats / math.log(2) / len(data), rel=1e-5)
    assert results["eval_bits_per_byte"] == pytest.approx(results["eval_loss"] / math.log(2), rel=1e-5)
    assert results["eval_perplexity"] == pytest.approx(math.exp(nats / len(data)), rel=1e-4)
    # Eight bits are a guess.
    assert results["eval_bits_per_byte"] < 6.5


def test_result_generates_text(of_bytes):
    out, _ = of_bytes
    generate = pipeline("text-generation", model=str(out), tokenizer=str(out))
    text = generate("The if statement", max_new_tokens=12, do_sample=False)[0]["generated_text"]
    assert text.startswith("The if statement") and len(text.encode()) > len("The if statement")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert (model.config.vocab_size, model.config.bos_token_id, model.config.eos_token_id) == (258, 1, 1)
    assert tokenizer.decode(tokenizer("Ä [SEP]\r\n")["input_ids"]) == "Ä [SEP]\r\n"


def test_evaluation_of_a_checkpoint_does_not_depend_on_the_batch_size(of_bytes, folder):
    out, results = of_bytes
    # Nothing is trained, so that no training text is named.
    again = run("--model_name_or_path", out, "--byte_level", "--validation_file", folder / "held_out.txt",
                "--do_eval", "--use_cpu", "--per_device_eval_batch_size", 3,
                "--output_dir", folder / f"{out.name}-again")  # fmt: skip
    for name in ("eval_loss", "eval_bits_per_byte", "eval_predicted_bytes"):
        assert again[name] == pytest.approx(results[name], rel=1e-5)
    # Rounding may decide which of two bytes is the most likely one.
    assert again["eval_accuracy"] == pytest.approx(results["eval_accuracy"], abs=3 / results["eval_predicted_bytes"])


def test_bits_per_byte_of_a_trained_tokenizer_count_the_bytes_of_the_text(folder, models, training):
    out = folder / "pieces"
    results = run(*models["gpt2"], *training, "--train_file", folder / "text.jsonl", "--validation_file",
                  folder / "held_out.jsonl", "--vocab_size", 600, "--output_dir", out)  # fmt: skip
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    text = json.loads((folder / "held_out.jsonl").read_text("utf-8"))["text"]
    tokens = [3, *tokenizer(text)["input_ids"]]
    # A prompt is not ended by a [SEP], and begins as the middle of a text does.
    assert not {2, 3} & set(tokens[1:]) and tokenizer.eos_token_id == tokenizer.bos_token_id == 3
    assert results["eval_predicted_tokens"] == len(tokens) - 1 < results["eval_predicted_bytes"] == len(text.encode())
    nats = loss_by_hand(model, tokens)
    assert results["eval_bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)
    generate = pipeline("text-generation", model=str(out), tokenizer=str(out))
    assert generate("The if", max_new_tokens=5)[0]["generated_text"].startswith("The if")


def test_documents_apart(folder, models, training):
    """The loss is that of the pieces between end-of-text tokens, each by itself, its end predicted too."""
    rows = [{"text": text} for text in ("one two", "a b c d e f", "Äh", "and so on and so forth to the end of the row")]
    path = folder / "short.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 9), encoding="utf-8")
    files = ["--train_file", path, "--validation_file", path, "--byte_level", "--separate_documents"]
    results = run(*models["amlp"], *training, *files, "--output_dir", folder / "apart")
    model, tokenizer = (
        auto.from_pretrained(folder / "apart") for auto in (AutoModelForCausalLM, AutoTokenizer)
    )  # fmt: skip
    end = tokenizer.eos_token_id
    tokens = [
        token for row in rows * 9 for token in (end, *tokenizer(row["text"], add_special_tokens=False)["input_ids"])
    ]
    total = 0.0
    for start in range(0, len(tokens) - 1, 63):
        block = tokens[start : start + 64]
        borders = [0, *(place for place, token in enumerate(block) if token == end and place), len(block)]
        for begin, stop in itertools.pairwise(borders):
            with torch.no_grad():
                scores = model(input_ids=torch.tensor([block[begin:stop]])).logits[0].double().log_softmax(-1)
            following = block[begin + 1 : stop + 1]
            total -= sum(scores[place, token].item() for place, token in enumerate(following))
    assert results["eval_loss"] == pytest.approx(total / (len(tokens) - 1), abs=1e-4)
    with pytest.raises(
        InputError, match=r"--separate_documents is only for gMLPs and aMLPs: a GPT2LMHeadModel would mix"
    ):
        run(*models["gpt2"], *training, *files, "--output_dir", folder / "mixed")


def test_card_says_what_was_done(folder, models, training):
    out = folder / "card"
    results = run(*models["amlp"], *training, "--max_steps", 2, "--byte_level", "--train_file", folder / "text.txt",
                  "--validation_split_percentage", 2, "--output_dir", out)  # fmt: skip
    card = (out / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card and "text.txt" in card
    assert f"| bits_per_byte | {results['eval_bits_per_byte']:.4g} |" in card
    # What is held out is the end of the file.
    assert results["eval_predicted_bytes"] == pytest.approx(0.02 * (folder / "text.txt").stat().st_size, abs=1)
    with pytest.raises(InputError, match="holds a finished run"):
        run(*models["amlp"], *training, "--train_file", folder / "text.txt", "--output_dir", out)


@pytest.mark.parametrize("streaming", [False, True])
def test_killed_run_resumes_to_the_same_weights(tmp_path, folder, models, streaming):
    flags = [*models["amlp"], "--do_train", "--max_steps", 40, "--save_steps", 10, "--learning_rate", 3e-3, "--use_cpu",
             "--validation_file", folder / "held_out.jsonl", "--train_file", folder / "text.jsonl", "--byte_level",
             "--report_to", "none"]  # fmt: skip
    flags += ["--config_overrides", f"{SIZES},is_causal=true,hidden_dropout_prob=0.1"]
    # Of what is not streamed, several epochs.
    flags += ["--streaming", "--max_eval_samples", 5] if streaming else ["--max_train_samples", 150]
    run(*flags, "--output_dir", tmp_path / "whole")
    cut = tmp_path / "cut"
    process = start(*flags, "--output_dir", cut)
    while process.poll() is None and read_settings(cut / "checkpoint-20") is None:
        time.sleep(0.01)
    process.kill()
    _, errors = process.communicate()
    assert (cut / "checkpoint-20").is_dir(), errors
    assert not (cut / "all_results.json").exists(), "the run was over before it could be killed"
    run(*flags, "--output_dir", cut)
    expected, actual = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert expected.keys() == actual.keys()
    for name in expected:
        assert torch.equal(expected[name], actual[name]), name


def test_two_processes_train_the_same_model_as_one(tmp_path, folder, models, training):
    flags = [*models["amlp"], *training, "--max_steps", 12, "--global_batch_size", 12, "--byte_level",
             "--per_device_train_batch_size", 4, "--train_file", folder / "text.txt",
             "--validation_file", folder / "held_out.txt"]  # fmt: skip
    one = run(*flags, "--output_dir", tmp_path / "one")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = start(*flags, "--output_dir", tmp_path / "two", launcher=launcher)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "A batch of 12: 2 device(s) x 3 x 2 step(s) of gradient accumulation" in errors
    two = json.loads((tmp_path / "two" / "all_results.json").read_text())
    assert one["eval_predicted_tokens"] == two["eval_predicted_tokens"]
    assert one["eval_bits_per_byte"] == pytest.approx(two["eval_bits_per_byte"], abs=2e-5)
    expected, actual = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=1e-4)


def test_bad_input_gets_one_sentence(tmp_path, folder, models, training):
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_text("A few words.")
    (tmp_path / "one.txt").write_text("A single document.\nWith two lines.")
    (tmp_path / "text.gz").write_bytes(b"\x1f\x8b")
    text = ["--train_file", folder / "text.txt"]
    raw = ["--byte_level", "--train_file"]
    cases = [
        ([*models["gpt2"], *raw, tmp_path / "none"], "There is no file .*none"),
        ([*models["gpt2"], *raw, tmp_path / "empty"], "empty is empty"),
        ([*models["gpt2"], *raw, tmp_path / "text.gz"], "text.gz is compressed.* decompress it first"),
        ([*models["gpt2"], *raw, tmp_path / "short"], "training text does not fill one block of 64 tokens"),
        ([*models["gpt2"], *raw, folder / "text.txt", "--validation_file", folder / "text.jsonl"], "for both"),
        ([*models["gpt2"], *text, "--byte_level", "--validation_split_percentage", 0], "above 0 and below 100"),
        ([*models["gpt2"], "--train_file", tmp_path / "one.txt"], "1 training samples are too few to hold some out"),
        ([*models["gpt2"], "--train_file", tmp_path / "short"], "short is of an unknown kind"),
        ([*models["gpt2"], *text, "--block_size", 65], "--block_size 65 is above the model's n = 64"),
        ([*models["gpt2"], *text, "--block_size", 1], "--block_size must be at least 2"),
        ([*models["gpt2"], *text, "--streaming", "--max_steps", -1], "set the length of the training with --max_steps"),
        ([*models["gpt2"]], "Name the data"),
        (["--config_name", folder / "bert", *text, "--byte_level"], "sees later tokens"),
        (["--config_name", "gmlp-ti16-224", *text, "--byte_level", "--block_size", 64], "no CausalLM of the model"),
    ]
    for flags, message in cases:
        with pytest.raises(InputError, match=message):
            run(*training, *flags, "--output_dir", tmp_path / "out")


def test_checkpoint_of_a_masked_language_model_is_trained_on_and_not_evaluated(
    tmp_path, folder, models, training, caplog
):
    config = load_config(ModelArguments(config_name="gmlp-18l", config_overrides=f"{SIZES},vocab_size=258"))
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "mlm")
    byte_tokenizer().save_pretrained(tmp_path / "mlm")
    flags = ["--model_name_or_path", tmp_path / "mlm", "--train_file", folder / "text.txt", "--byte_level", "--use_cpu",
             "--validation_file", folder / "held_out.txt"]  # fmt: skip
    with pytest.raises(InputError, match="was trained as a GMLPForMaskedLM, not to predict the next token: evaluate"):
        run(*flags, "--do_eval", "--output_dir", tmp_path / "out")
    results = run(*flags, *training, "--output_dir", tmp_path / "out")
    assert "the training starts from its weights" in caplog.text and results["eval_bits_per_byte"] < 8
    again = run("--model_name_or_path", tmp_path / "out", *flags[2:], "--do_eval", "--output_dir", tmp_path / "again")
    assert again["eval_bits_per_byte"] == pytest.approx(results["eval_bits_per_byte"], rel=1e-5)


def test_raw_file_without_an_ending_and_bytes_that_are_not_utf8(tmp_path, models, training):
    """As enwik8 comes: a name without an ending, and cut anywhere."""
    data = np.random.default_rng(0).integers(256, size=3001, dtype=np.uint8).tobytes()
    (tmp_path / "enwik8").write_bytes(data)
    results = run(*models["gpt2"], *training, "--max_steps", 2, "--byte_level", "--train_file", tmp_path / "enwik8",
                  "--validation_file", tmp_path / "enwik8", "--output_dir", tmp_path / "out")  # fmt: skip
    assert results["eval_predicted_bytes"] == results["eval_predicted_tokens"] == 3001


def test_every_recipe_is_flags_that_there_are():
    rows = sorted(RECIPES.glob("clm-*.yaml"))
    assert [path.name for path in rows] == ["clm-enwik8.yaml", "clm-labml.yaml", "clm-small.yaml"]
    for path in rows:
        flags = [str(path), "--use_cpu", "true", "--bf16", "false", "--output_dir", "out"]
        model, data, training = parse_arguments((ModelArguments, CLMArguments, RunArguments), "", flags)
        config = load_config(model)
        assert data.byte_level and training.do_train and training.do_eval
        assert data.sequence_length(config) <= config.max_position_embeddings
    recipe = read_recipe(RECIPES / "clm-enwik8.yaml")
    # The settings of the training example of lucidrains/g-mlp-pytorch.
    expected = {"learning_rate": 2e-4, "global_batch_size": 16, "per_device_train_batch_size": 4, "max_steps": 100_000,
                "max_grad_norm": 0.5, "lr_scheduler_type": "constant", "weight_decay": 0.0}  # fmt: skip
    assert {key: recipe[key] for key in expected} == expected
    config = load_config(
        ModelArguments(config_name=recipe["config_name"], config_overrides=recipe.get("config_overrides"))
    )
    sizes = (config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.max_position_embeddings)
    assert sizes == (8, 512, 2048, 768)


def test_help_starts_with_what_it_does():
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run_clm.py", "--help"])
        patch.setattr(sys, "stdout", text := io.StringIO())
        run_clm.main()
    first_screen = "\n".join(text.getvalue().splitlines()[:24])
    assert "predict the next token" in first_screen and "--config_name gmlp-base" in first_screen
    assert "--block_size" in text.getvalue() and "--byte_level" in text.getvalue()
