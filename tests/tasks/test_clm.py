"""run_clm.py, called as by a user, in this process."""

import functools
import itertools
import json
import math
from pydoc_data.topics import topics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm import main
from hf_gmlp.tokenizer import train_tokenizer

from ..samples import run_script, write_rows

pytestmark = pytest.mark.slow

run = functools.partial(run_script, main)
SIZES = "num_hidden_layers=2,hidden_size=32,intermediate_size=64,attention_size=16,max_position_embeddings=64"
TRAINING = ["--do_train", "--do_eval", "--max_steps", 30, "--learning_rate", 3e-3, "--save_strategy", "no"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text, a held-out text, a tokenizer, and the config of a GPT-2."""
    folder = tmp_path_factory.mktemp("clm")
    documents = [text for _, text in sorted(topics.items())]
    write_rows(folder / "text.jsonl", [{"text": document} for document in documents[:30]])
    # "Ä" is two bytes, so that tokens and bytes differ.
    write_rows(folder / "held_out.jsonl", [{"text": "Ä" * 70 + documents[31][:2000]}])
    train_tokenizer(documents[:30], vocab_size=600).save_pretrained(folder / "tokenizer")
    GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=64).save_pretrained(folder / "gpt2")
    return folder


@pytest.fixture(scope="module")
def models(folder):
    """Flags that select a model."""
    return {
        "gpt2": ["--config_name", folder / "gpt2"],
        "amlp": ["--config_name", "gmlp-base", "--config_overrides", f"{SIZES},is_causal=true"],
    }


@pytest.fixture(scope="module", params=["gpt2", "amlp"])
def trained(request, folder, models):
    """The folder and the results of a run that trains a tokenizer."""
    out = folder / request.param / "out"
    files = ["--train_file", folder / "text.jsonl", "--validation_file", folder / "held_out.jsonl"]
    return out, run(*models[request.param], *TRAINING, *files, "--vocab_size", 600, "--output_dir", out)


def metrics_by_hand(model, tokens, end=None):
    """Return the loss of tokens[1:] in nats and the number of correct predictions, each from the tokens of its block
    of 64 alone, or with `end` from those of its document in the block; consecutive blocks share one token."""
    total, correct = 0.0, 0
    for start in range(0, len(tokens) - 1, 63):
        block = tokens[start : start + 64]
        boundaries = [0, *(index for index, token in enumerate(block) if token == end and index), len(block)]
        for begin, stop in itertools.pairwise(boundaries):
            with torch.no_grad():
                scores = model(input_ids=torch.tensor([block[begin:stop]])).logits[0].double().log_softmax(-1)
            following = block[begin + 1 : stop + 1]
            total -= sum(scores[index, token].item() for index, token in enumerate(following))
            correct += sum(int(scores[index].argmax()) == token for index, token in enumerate(following))
    return total, correct


def test_metrics_match_a_loop_over_blocks(trained, folder):
    out, results = trained
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    text = json.loads((folder / "held_out.jsonl").read_text("utf-8"))["text"]
    # Every token is predicted, and the first one is predicted from the end-of-text token.
    tokens = [3, *tokenizer(text)["input_ids"]]
    assert not {2, 3} & set(tokens[1:])
    (nats, correct), count, size = metrics_by_hand(model, tokens), len(tokens) - 1, len(text.encode())
    assert (results["eval_predicted_tokens"], results["eval_predicted_bytes"]) == (count, size) and count < size
    assert results["eval_loss"] == pytest.approx(nats / count, rel=1e-5)
    assert results["eval_bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert results["eval_accuracy"] == pytest.approx(correct / count, rel=1e-5)
    assert (model.config.vocab_size, model.config.bos_token_id, tokenizer.eos_token_id) == (600, 3, 3)
    # A uniform guess has a loss of log(600).
    assert results["eval_loss"] < math.log(600) - 0.5


def test_separate_documents_have_the_loss_of_each_by_itself(folder, models):
    """The end of each document is predicted too."""
    texts = ("one two", "a b c d e f", "Äh", "and so on and so forth to the end of the row") * 9
    path = write_rows(folder / "short.jsonl", [{"text": text} for text in texts])
    files = ["--train_file", path, "--validation_file", path, "--separate_documents"]
    files += ["--tokenizer_name", folder / "tokenizer"]
    results = run(*models["amlp"], *TRAINING, *files, "--output_dir", folder / "apart")
    model = AutoModelForCausalLM.from_pretrained(folder / "apart")
    tokenizer = AutoTokenizer.from_pretrained(folder / "apart")
    end = tokenizer.eos_token_id
    tokens = [token for text in texts for token in (end, *tokenizer(text)["input_ids"])]
    nats, correct = metrics_by_hand(model, tokens, end)
    assert results["eval_loss"] == pytest.approx(nats / (len(tokens) - 1), abs=1e-4)
    assert results["eval_accuracy"] == pytest.approx(correct / (len(tokens) - 1), rel=1e-5)
    with pytest.raises(InputError, match="--separate_documents"):
        run(*models["gpt2"], *TRAINING, *files, "--output_dir", folder / "mixed")
