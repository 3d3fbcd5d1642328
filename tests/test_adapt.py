"""Adapters of PEFT, prompt tuning and quantized weights: each lowers the loss, and can be saved and loaded."""

import copy
import re
from functools import partial
from pathlib import Path

import peft
import pytest
import torch
import transformers
from packaging.version import Version
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, BitsAndBytesConfig

from hf_gmlp import (
    GMLPForCausalLM,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
)

from .numerics import assert_close

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[1] / "docs" / "adapt.md"
PROJECTIONS = ["proj_in", "proj_out", "qkv_proj"]
METHODS = {
    "LoRA": peft.LoraConfig(target_modules=PROJECTIONS),
    "DoRA": peft.LoraConfig(target_modules="all-linear", use_dora=True),
    "IA3": peft.IA3Config(target_modules=["proj_in", "proj_out"], feedforward_modules=["proj_out"]),
    "LN tuning": peft.LNTuningConfig(target_modules=["norm"]),
}
HEADS = {
    "SEQ_CLS": GMLPForSequenceClassification,
    "TOKEN_CLS": GMLPForTokenClassification,
    "CAUSAL_LM": GMLPForCausalLM,
}
CLASSES = torch.tensor([0, 1, 2, 0])
VIRTUAL = 3
NEEDS_RECENT_PEFT = pytest.mark.skipif(
    Version(transformers.__version__) >= Version("5.24") and Version(peft.__version__) < Version("0.22"),
    reason="transformers 5.24 renamed the cache and asks for PEFT 0.22",
)
# PEFT requires the number of heads, but uses it only for prefix tuning.
PROMPT = {"num_virtual_tokens": VIRTUAL, "num_attention_heads": 1}


@pytest.fixture
def masked_lm(text_config, perturbed_model, tmp_path):
    """masked_lm(**fields) saves a masked language model, which has no pooler, and returns its folder."""

    def save(**fields):
        perturbed_model(GMLPForMaskedLM, text_config(**fields)).save_pretrained(tmp_path / "base")
        return tmp_path / "base"

    return save


@pytest.fixture
def batch(random_ids):
    """Texts of several lengths, with padding on both sides, and segments."""
    ids, mask = random_ids(4, 8), torch.ones(4, 8, dtype=torch.long)
    mask[1, 5:] = mask[2, :3] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (torch.arange(8) > 3).long().expand(4, -1)}


def train(model, inputs, steps=6, learning_rate=3e-2):
    """Return the loss before and after some steps."""
    model.train()
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=learning_rate)
    losses = []
    for _ in range(steps):
        losses.append(model(**inputs).loss)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    return losses[0].item(), losses[-1].item()


@torch.no_grad()
def output(model, inputs):
    return model.eval()(**inputs)[0]


def adapt(load_base, config, inputs, labels, folder, reduction=0.95, learning_rate=3e-2):
    """Train an adapter, save it, and load it for a new base. Training must lower the loss at least to the fraction
    `reduction`. Return the loaded model and its outputs, which must be those of the trained one."""
    model = peft.get_peft_model(load_base(), config)
    before, after = train(model, inputs | {"labels": labels}, learning_rate=learning_rate)
    assert after < reduction * before
    model.save_pretrained(folder)
    # New random weights must not replace the saved ones.
    torch.manual_seed(5)
    loaded, trained = peft.PeftModel.from_pretrained(load_base(), folder), output(model, inputs)
    assert_close(output(loaded, inputs), trained, depth=2)
    return loaded, trained


@pytest.mark.parametrize("method", METHODS)
def test_adapters_of_a_new_classifier_can_be_saved_and_merged(masked_lm, batch, tmp_path, method):
    """The base has no pooler or classifier."""
    folder, config = masked_lm(attention_size=4), copy.deepcopy(METHODS[method])
    config.task_type, config.modules_to_save = "SEQ_CLS", ["pooler.dense"]
    load_base = partial(AutoModelForSequenceClassification.from_pretrained, folder, num_labels=3)
    loaded, trained = adapt(load_base, config, batch, CLASSES, tmp_path / "adapter")
    merged = loaded.merge_and_unload()
    assert type(merged) is GMLPForSequenceClassification
    assert_close(output(merged, batch), trained, depth=2)
    if method == "LN tuning":
        # PEFT merges adapted layers, but leaves fully trained ones wrapped.
        return
    merged.save_pretrained(tmp_path / "merged")
    saved = GMLPForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert_close(output(saved, batch), trained, depth=2)


@NEEDS_RECENT_PEFT
def test_adapters_of_transformers_can_be_saved(masked_lm, batch, tmp_path):
    load_base = partial(AutoModelForSequenceClassification.from_pretrained, masked_lm(), num_labels=3)
    model, loaded = load_base(), load_base()
    model.add_adapter(peft.LoraConfig(target_modules=PROJECTIONS, modules_to_save=["pooler.dense", "classifier"]))
    before, after = train(model, batch | {"labels": CLASSES})
    assert after < 0.9 * before
    model.save_pretrained(tmp_path / "adapter")
    loaded.load_adapter(str(tmp_path / "adapter"))
    assert_close(output(loaded, batch), output(model, batch), depth=2)


@pytest.mark.parametrize("heads, low_rank", [(1, False), (1, True), (4, True)])
def test_spatial_weights_can_be_adapted(masked_lm, batch, tmp_path, heads, low_rank):
    """A dense W supports low-rank updates, and can be trained and saved in full."""
    complete = {"target_modules": ["proj_in"], "modules_to_save": ["spatial_gating_unit.proj"]}
    fields = {"target_modules": [], "target_parameters": ["spatial_gating_unit.proj.weight"]} if low_rank else complete
    load_base = partial(GMLPForMaskedLM.from_pretrained, masked_lm(toeplitz=False, spatial_heads=heads))
    config = peft.LoraConfig(**fields)
    loaded, trained = adapt(load_base, config, batch, batch["input_ids"], tmp_path / "adapter")
    merged = loaded.merge_and_unload()
    assert_close(output(merged, batch), trained, depth=2)
    assert not torch.equal(merged.spatial_projections()[0].weight, load_base().spatial_projections()[0].weight)


@pytest.mark.parametrize(
    "task, config_class",
    [
        ("SEQ_CLS", peft.PromptEncoderConfig),
        ("TOKEN_CLS", peft.PromptTuningConfig),
        ("CAUSAL_LM", peft.PromptTuningConfig),
    ],
)
def test_tuned_prompts_can_be_saved(masked_lm, batch, tmp_path, task, config_class):
    ids, config = batch["input_ids"], config_class(task_type=task, **PROMPT)
    labels = {"SEQ_CLS": CLASSES, "TOKEN_CLS": F.pad(ids % 3, (VIRTUAL, 0), value=-100), "CAUSAL_LM": ids}[task]
    if task == "SEQ_CLS":
        config.modules_to_save = ["pooler.dense"]
    HEADS[task].from_pretrained(masked_lm(attention_size=4), num_labels=3).save_pretrained(tmp_path / "head")
    load_base = partial(HEADS[task].from_pretrained, tmp_path / "head")
    loaded, _ = adapt(load_base, config, batch, labels, tmp_path / "prompt", reduction=1.0)
    with pytest.raises(ValueError, match="13 tokens"):
        loaded(input_ids=torch.ones(1, 10, dtype=torch.long))


@NEEDS_RECENT_PEFT
def test_a_tuned_prompt_goes_before_generated_text(masked_lm, random_ids):
    """Generation with a cache gives the same tokens as the complete text without a cache."""
    model = GMLPForCausalLM.from_pretrained(masked_lm(attention_size=4))
    tuned = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", **PROMPT)).eval()
    text = random_ids(1, 5)
    with torch.no_grad():
        tuned.double().prompt_encoder.default.embedding.weight.normal_()
        generated = tuned.generate(input_ids=text, max_new_tokens=4, do_sample=False, eos_token_id=None)
        for _ in range(4):
            text = torch.cat([text, tuned(input_ids=text).logits[:, -1:].argmax(-1)], dim=1)
    torch.testing.assert_close(generated, text)


def test_qlora_trains_adapters_of_quantized_projections(masked_lm, batch, tmp_path):
    """With bitsandbytes in 4 bits, channel projections are quantized and W is not; adapters can be trained."""
    pytest.importorskip("bitsandbytes")
    folder = masked_lm(attention_size=64, hidden_size=64, intermediate_size=128)
    # New layers of a classifier are trained, so they are not quantized.
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=["pooler.dense", "classifier"]
    )
    options = {"num_labels": 3, "quantization_config": quantization, "dtype": torch.float32, "device_map": "cpu"}

    def load_base():
        base = AutoModelForSequenceClassification.from_pretrained(folder, **options)
        assert base.spatial_projections()[0].weight.dtype == torch.float32
        assert base.model.layers[0].proj_in.weight.dtype == torch.uint8
        return peft.prepare_model_for_kbit_training(base)

    lora = peft.LoraConfig(task_type="SEQ_CLS", target_modules=PROJECTIONS, modules_to_save=["pooler.dense"])
    adapt(load_base, lora, batch, CLASSES, tmp_path / "adapter", reduction=0.8, learning_rate=1e-2)


def examples():
    """Return the runnable examples of docs/adapt.md by heading."""
    text = DOCS.read_text(encoding="utf-8")
    return {
        section.partition("\n")[0]: re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
        for section in text.split("\n## ")[1:]
        if "```python" in section
    }


@pytest.mark.parametrize("code", examples().values(), ids=examples())
def test_examples_of_the_docs_run(masked_lm, perturbed_model, vision_config, tmp_path, monkeypatch, code):
    if "BitsAndBytesConfig" in code:
        pytest.importorskip("bitsandbytes")
    monkeypatch.chdir(tmp_path)
    masked_lm(hidden_size=64, intermediate_size=128, num_labels=2).rename("my-gmlp")
    image = perturbed_model(GMLPForImageClassification, vision_config(num_hidden_layers=8))
    image.save_pretrained("my-vision-gmlp")
    dataset = [{"input_ids": torch.arange(5, 11), "labels": i % 2} for i in range(8)]
    exec(code, {"__name__": "example", "dataset": dataset})
