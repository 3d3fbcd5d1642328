"""Libraries built on transformers compute the same with these models as the test does without the library.

Tests of libraries that are not installed are skipped; `make integrations` installs them all.
"""

import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM

from hf_gmlp import GMLPForCausalLM, GMLPForMaskedLM, GMLPModel

from . import samples
from .conftest import TEXT_SIZES

DOCS = Path(__file__).parents[1] / "docs" / "compatibility.md"
WORDS = samples.WORDS[: TEXT_SIZES["vocab_size"] - len(samples.SPECIAL)]
N = TEXT_SIZES["max_position_embeddings"]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def texts():
    """Return texts of 1, 9, 4, 6 and 3 words."""
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,))) for length in (1, 9, 4, 6, 3)]


@pytest.fixture
def saved(perturbed_model, text_config, tmp_path):
    """saved(model_class, **fields) saves a model and a tokenizer, and returns the folder and both."""

    def save(model_class, padding_side="right", **fields):
        model = perturbed_model(model_class, text_config(**fields))
        ends = model_class is not GMLPForCausalLM
        options = {"padding_side": padding_side, "model_max_length": N, "bos_token": "[CLS]", "eos_token": "[SEP]"}
        options["model_input_names"] = ["input_ids", "attention_mask"] + ["token_type_ids"] * ends
        tokenizer = samples.word_tokenizer(WORDS, ends=ends, **options)
        for part in (model, tokenizer):
            part.save_pretrained(tmp_path / "saved")
        return str(tmp_path / "saved"), model, tokenizer

    return save


def train_and_check(trainer, reduction):
    """Train, check that the loss falls at least to the fraction `reduction`, and return the loss of the first step."""
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < reduction * losses[0]
    return losses[0]


SFT = {
    "padded": {"max_length": N},
    "padding-free": {"padding_free": True, "max_length": None},
    # Two or three texts share a row, which is longer than n.
    "packed": {"packing": True, "max_length": 2 * N},
}


@pytest.mark.parametrize("options", SFT.values(), ids=SFT)
def test_sft(saved, texts, tmp_path, options):
    """
    SFTTrainer computes the loss and the gradients of the texts one by one.

    With `packing` or `padding_free`, TRL passes `position_ids` that restart, which separate the texts with every
    attention implementation. TRL truncates texts to `max_length` before it packs them.
    """
    trl = pytest.importorskip("trl")
    _, model, tokenizer = saved(GMLPForCausalLM, attention_size=8)
    rates = {"per_device_train_batch_size": len(texts), "learning_rate": 3e-3, "max_steps": 12, "logging_steps": 1}
    fixed = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    args, data = trl.SFTConfig(str(tmp_path / "run"), **fixed, **rates, **options), Dataset.from_dict({"text": texts})
    trainer = trl.SFTTrainer(model, args=args, train_dataset=data, processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    packed = len(options) > 1
    assert len(batch["input_ids"]) == (1 if packed else len(texts)) and ("position_ids" in batch) == packed
    loss = trainer.compute_loss(trainer.model.eval(), batch)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    tokens = [tokenizer(text + "[SEP]", return_tensors="pt").input_ids for text in texts]
    scores = [F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="sum") for ids in tokens]
    expected = sum(scores) / sum(ids.shape[1] - 1 for ids in tokens)
    torch.testing.assert_close(loss, expected, **CLOSE)
    expected.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, **CLOSE)
    model.zero_grad()
    assert train_and_check(trainer, 0.8) == pytest.approx(expected.item(), abs=1e-3)


@torch.no_grad()
def test_lm_eval(saved, texts):
    """HFLM computes likelihoods of answers in batches, with one context truncated to n."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    _, model, tokenizer = saved(GMLPForCausalLM, attention_size=8)
    library = HFLM(model, tokenizer=tokenizer, batch_size=3, device="cpu")
    assert library.max_length == N

    def scores(ids, last):
        """Return the log-likelihood of the last tokens, and whether each is the most likely token."""
        ids = torch.tensor(ids)
        predicted = model(ids[None, :-1]).logits[0, -last:].log_softmax(-1)
        return predicted.gather(1, ids[-last:, None]).sum().item(), predicted.argmax(-1).equal(ids[-last:])

    long = " ".join(WORDS[:30])
    greedy = tokenizer.decode(model(**tokenizer(texts[2], return_tensors="pt")).logits[0, -1].argmax())
    requests = [(text, " w3 w4 w5") for text in [*texts, long]] + [(texts[2], " " + greedy)]
    expected = []
    for context, answer in requests:
        ids, last = tokenizer(context + answer).input_ids, len(tokenizer(answer).input_ids)
        expected.append(scores(ids[-N - 1 :], last))
    results = library.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(requests)])
    assert results == [(pytest.approx(score, abs=1e-3), is_greedy) for score, is_greedy in expected]
    assert [is_greedy for _, is_greedy in results] == [False] * 6 + [True]


# Replaces a task that lm-eval would download.
TASK = {
    "task": "answers",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": "answers.jsonl"},
    "test_split": "train",
    "output_type": "multiple_choice",
    "doc_to_text": "question",
    "doc_to_choice": "choices",
    "doc_to_target": "label",
}


def examples():
    """Return the code of docs/compatibility.md by heading (library name)."""
    text = DOCS.read_text(encoding="utf-8")
    return dict(re.findall(r"\n## (\S+)\n.*?```python\n(.*?)```", text, re.DOTALL))


@pytest.mark.parametrize("library", examples())
def test_examples_of_the_docs(saved, texts, tmp_path, monkeypatch, capfd, library):
    pytest.importorskip(library.lower().replace("-", "_"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    code = examples()[library]
    name = "my-causal-gmlp" if "my-causal-gmlp" in code else "my-gmlp"
    folder, *_ = saved(GMLPForCausalLM if name == "my-causal-gmlp" else GMLPModel)
    Path(folder).rename(name)
    Path("answers.jsonl").write_text('{"question": "w1", "choices": ["w2", "w3"], "label": 0}\n')
    code = code.replace('"lambada_openai"', "TASK")
    data = {"questions": texts[:2], "answers": texts[2:4], "TASK": TASK}
    exec(compile(code, library, "exec"), {"__name__": "example", **data})
    printed = {"sentence-transformers": "tensor(", "SetFit": "question", "TRL": "train_runtime", "lm-eval": "acc,none"}
    assert printed[library] in capfd.readouterr().out


@torch.no_grad()
def test_weights_on_disk(saved, random_ids, tmp_path):
    """accelerate loads weights from the disk for each pass, and the decoder shares those of the embeddings."""
    folder, model, _ = saved(GMLPForMaskedLM, attention_size=8)
    places = {"model.embeddings": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "disk"}
    places |= {"head": "disk", "decoder": "cpu"}
    placed = AutoModelForMaskedLM.from_pretrained(folder, device_map=places, offload_folder=str(tmp_path / "disk"))
    assert any(parameter.is_meta for parameter in placed.parameters())
    ids = random_ids(3, 10)
    mask = (torch.arange(10) < torch.tensor([[10], [7], [4]])).long()
    for _ in range(2):
        torch.testing.assert_close(placed(ids, mask).logits, model(ids, mask).logits, **CLOSE)
