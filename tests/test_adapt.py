"""Adapters of PEFT, prompt tuning and quantized weights: each lowers a loss and can be saved and loaded."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
from peft.utils import constants
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    TorchAoConfig,
    Trainer,
    TrainingArguments,
)

import hf_gmlp
from hf_gmlp import (
    BertRelposConfig,
    BertRelposModel,
    GMLPForCausalLM,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPModel,
    GMLPVisionConfig,
    TextMixerConfig,
    TextMixerModel,
    adapters,
    cards,
)

from .conftest import TEXT_SIZES, VISION_SIZES
from .numerics import assert_close

pytestmark = pytest.mark.slow

# tests/conftest.py imports the package before PEFT.
adapters.register()

DOCS = Path(__file__).parents[1] / "docs" / "adapt.md"
# Where PEFT looks up its default layers.
TABLES = [name for name in vars(constants) if re.fullmatch("TRANSFORMERS_MODELS_TO_.*_MODULES_MAPPING", name)]
BASELINES = {
    "bert_relpos": BertRelposConfig(**TEXT_SIZES, num_attention_heads=4),
    "text_mixer": TextMixerConfig(**TEXT_SIZES, spatial_intermediate_size=10),
}
METHODS = {
    "LoRA": peft.LoraConfig(),
    "LoRA on all-linear": peft.LoraConfig(target_modules="all-linear"),
    "DoRA": peft.LoraConfig(use_dora=True),
    "AdaLoRA": peft.AdaLoraConfig(total_step=10),
    "IA3": peft.IA3Config(),
    "IA3 on named layers": peft.IA3Config(target_modules=["proj_in", "proj_out"], feedforward_modules=["proj_out"]),
    "VeRA": peft.VeraConfig(r=8),
    "LoHa": peft.LoHaConfig(),
    "LoKr": peft.LoKrConfig(),
    "OFT": peft.OFTConfig(oft_block_size=8),
    "BOFT": peft.BOFTConfig(),
    "HRA": peft.HRAConfig(),
    "FourierFT": peft.FourierFTConfig(n_frequency=50),
    "LN tuning": peft.LNTuningConfig(),
}
HEADS = {
    "SEQ_CLS": GMLPForSequenceClassification,
    "TOKEN_CLS": GMLPForTokenClassification,
    "QUESTION_ANS": GMLPForQuestionAnswering,
    "CAUSAL_LM": GMLPForCausalLM,
    "FEATURE_EXTRACTION": GMLPModel,
}
VIRTUAL = 3
# PEFT asks for heads, and reads them only in prefix tuning.
PROMPT = {"num_virtual_tokens": VIRTUAL, "num_attention_heads": 1}


@pytest.fixture
def masked_lm(text_config, far_model, tmp_path):
    """masked_lm(**fields) saves a masked language model, without pooler and classifier, and returns its folder."""

    def save(**fields):
        far_model(GMLPForMaskedLM, text_config(**fields)).save_pretrained(tmp_path / "base")
        return tmp_path / "base"

    return save


@pytest.fixture
def batch(random_ids):
    """Texts of several lengths, with padding on both sides, and segments."""
    ids, mask = random_ids(4, 8), torch.ones(4, 8, dtype=torch.long)
    mask[1, 5:] = mask[2, :3] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (torch.arange(8) > 3).long().expand(4, -1)}


def train(model, inputs, steps=6, learning_rate=3e-2):
    """Returns the loss before and after some steps. A model without a loss is trained towards zero."""

    def loss():
        outputs = model(**inputs)
        return outputs.last_hidden_state.square().mean() if outputs.get("loss") is None else outputs.loss

    model.train()
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=learning_rate)
    losses = []
    for _ in range(steps):
        losses.append(loss())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    return losses[0].item(), losses[-1].item()


@torch.no_grad()
def output(model, inputs):
    return model.eval()(**inputs)[0]


@pytest.mark.parametrize("first", ["hf_gmlp", "peft"])
def test_targets_are_known_if_peft_is_imported_first(first):
    script = f"""
import sys
import {first}
import peft, hf_gmlp
targets = peft.tuners.lora.LoraModel.target_module_mapping
assert targets.get("gmlp") == (["proj_in", "proj_out", "qkv_proj"] if "{first}" == "peft" else None)
assert targets["bert"] == ["query", "value"]
"""
    environment = os.environ | {"PYTHONPATH": str(DOCS.parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_and_saving_change_nothing_else(tmp_path):
    """Other software in the process stays as it was: the library's classes, PEFT's classes, the import system."""
    script = """
import sys
import peft, transformers
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, Trainer

def state():
    classes = [Trainer, PreTrainedModel, PreTrainedConfig, GenerationMixin]
    classes += [value for value in vars(peft).values() if isinstance(value, type)]
    found = {kind: dict(vars(kind)) for kind in classes}
    # Python counts them up and caches them here.
    internal = {"__weakref__", "_abc_impl", "__annotate__", "__annotations_cache__"}
    found = {kind: {k: v for k, v in values.items() if k not in internal} for kind, values in found.items()}
    return found | {"meta_path": list(sys.meta_path), "hooks": list(sys.path_hooks), "excepthook": sys.excepthook}

before = state()
import hf_gmlp
own = dict(vars(hf_gmlp.GMLPPreTrainedModel))
assert state() == before
from hf_gmlp import GMLPConfig, GMLPForMaskedLM
model = GMLPForMaskedLM(GMLPConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, intermediate_size=8))
model.save_pretrained("model")
try:
    model.push_to_hub("nobody/nothing")
    raise SystemExit("There is no Hub.")
except OSError:
    pass
assert state() == before and dict(vars(hf_gmlp.GMLPPreTrainedModel)) == own
"""
    environment = os.environ | {"PYTHONPATH": str(DOCS.parents[1]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("table", TABLES)
def test_every_table_names_layers(table, text_config):
    models = [
        GMLPForSequenceClassification(text_config(attention_size=4)),
        GMLPForImageClassification(GMLPVisionConfig(**VISION_SIZES, attention_size=4)),
        BertRelposModel(BASELINES["bert_relpos"]),
        TextMixerModel(BASELINES["text_mixer"]),
    ]
    kind = torch.nn.LayerNorm if "LNTUNING" in table else torch.nn.Linear
    for model in models:
        targets = getattr(constants, table)[model.config.model_type]
        for target in targets:
            found = [layer for name, layer in model.named_modules() if name.endswith(f".{target}")]
            assert found and all(isinstance(layer, kind) for layer in found), (model.config.model_type, target)
            # Only blocks are adapted.
            assert not any(name.endswith(f"pooler.{target}") for name, _ in model.named_modules())


@pytest.mark.parametrize("method", METHODS)
def test_adapters_of_a_new_classifier(masked_lm, batch, assert_same, tmp_path, method):
    """The base has neither pooler nor classifier: new random ones must not replace those that were trained."""
    folder, config = masked_lm(attention_size=4), copy.deepcopy(METHODS[method])
    config.task_type, config.modules_to_save = "SEQ_CLS", ["pooler.dense"]
    model = peft.get_peft_model(AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3), config)
    first, last = train(model, batch | {"labels": torch.tensor([0, 1, 2, 0])})
    assert last < 0.95 * first
    trained = output(model, batch)
    model.save_pretrained(tmp_path / "adapter")
    torch.manual_seed(5)
    again = peft.AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter", num_labels=3)
    assert_same(output(again, batch), trained)
    merged = again.merge_and_unload()
    assert type(merged) is GMLPForSequenceClassification
    assert_same(output(merged, batch), trained)
    if method == "LN tuning":
        # PEFT merges adapted layers, but fully saved ones stay wrapped.
        return
    merged.save_pretrained(tmp_path / "merged")
    assert_same(output(GMLPForSequenceClassification.from_pretrained(tmp_path / "merged"), batch), trained)


@pytest.fixture
def assert_same():
    return lambda a, b: assert_close(a, b, depth=2)


OTHERS = {f"image, {name}": config for name, config in METHODS.items()}
OTHERS |= dict.fromkeys(BASELINES, METHODS["LoRA"])


@pytest.mark.parametrize("name", OTHERS)
def test_adapters_of_the_other_model_types(far_model, batch, assert_same, tmp_path, name):
    config = copy.deepcopy(OTHERS[name])
    if name.startswith("image"):
        far_model(GMLPForImageClassification, GMLPVisionConfig(**VISION_SIZES)).save_pretrained(tmp_path / "base")
        inputs, opens = {"pixel_values": torch.randn(4, 3, 16, 16)}, GMLPForImageClassification.from_pretrained
        config.modules_to_save = ["classifier"]
    else:
        masked = far_model(type(AutoModelForMaskedLM.from_config(BASELINES[name])), BASELINES[name])
        masked.save_pretrained(tmp_path / "base")
        inputs, opens = batch, AutoModelForSequenceClassification.from_pretrained
        config.task_type, config.modules_to_save = "SEQ_CLS", ["pooler.dense"]
    model = peft.get_peft_model(opens(tmp_path / "base", num_labels=3), config)
    first, last = train(model, inputs | {"labels": torch.tensor([0, 1, 2, 0])})
    assert last < 0.9 * first
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(opens(tmp_path / "base", num_labels=3), tmp_path / "adapter")
    assert_same(output(again, inputs), output(model, inputs))


def test_a_causal_model_generates_with_lora(masked_lm, batch, tmp_path):
    model = GMLPForCausalLM.from_pretrained(masked_lm())
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    first, last = train(model, batch | {"labels": batch["input_ids"]})
    assert last < 0.9 * first
    prompt = {"input_ids": batch["input_ids"][:1, :4], "do_sample": False, "max_new_tokens": 4, "eos_token_id": None}
    # In double precision, rounding does not decide between two words.
    words = model.eval().double().generate(**prompt)
    torch.testing.assert_close(model.merge_and_unload().generate(**prompt), words)


def test_transformers_own_adapters(masked_lm, batch, assert_same, tmp_path):
    folder = masked_lm()
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    model.add_adapter(peft.LoraConfig(modules_to_save=["pooler.dense", "classifier"]))
    first, last = train(model, batch | {"labels": torch.tensor([0, 1, 2, 0])})
    assert last < 0.9 * first
    trained = output(model, batch)
    model.save_pretrained(tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").glob("adapter*")} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    again = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    again.load_adapter(str(tmp_path / "adapter"))
    assert_same(output(again, batch), trained)


def test_a_frozen_pooler_is_warned_about(masked_lm, caplog):
    from transformers.utils import logging

    logging.get_logger().warning_once.cache_clear()
    model = AutoModelForSequenceClassification.from_pretrained(masked_lm())
    model.train()
    model.add_adapter(peft.LoraConfig(modules_to_save=["pooler.dense", "classifier"]))
    model.train()
    assert "pooler that it reads is frozen" not in caplog.text
    model = AutoModelForSequenceClassification.from_pretrained(masked_lm())
    model.add_adapter(peft.LoraConfig(modules_to_save=["classifier"]))
    model.train()
    assert "pooler that it reads is frozen" in caplog.text


@pytest.mark.parametrize("toeplitz, heads", [(False, 1), (False, 4), (True, 1)])
def test_spatial_weights(masked_lm, batch, assert_same, tmp_path, toeplitz, heads):
    """A dense W allows low-rank changes. A Toeplitz W has fewer weights than such a change, and is saved as a whole."""
    low_rank = {"target_modules": [], "target_parameters": ["spatial_gating_unit.proj.weight"]}
    whole = {"target_modules": ["proj_in"], "modules_to_save": ["spatial_gating_unit.proj"]}
    folder = masked_lm(toeplitz=toeplitz, spatial_heads=heads)
    if toeplitz:
        with pytest.raises(ValueError, match="1 dimensional Parameter, but only 2d and 3d are supported"):
            peft.get_peft_model(GMLPForMaskedLM.from_pretrained(folder), peft.LoraConfig(**low_rank))
    for number, fields in enumerate([whole] if toeplitz else [whole, low_rank]):
        model = peft.get_peft_model(GMLPForMaskedLM.from_pretrained(folder), peft.LoraConfig(**fields))
        before = output(model, batch)
        first, last = train(model, batch | {"labels": batch["input_ids"]})
        assert last < 0.95 * first
        trained = output(model, batch)
        assert not torch.allclose(trained, before, atol=0.1)
        model.save_pretrained(tmp_path / f"adapter{number}")
        again = peft.PeftModel.from_pretrained(GMLPForMaskedLM.from_pretrained(folder), tmp_path / f"adapter{number}")
        assert_same(output(again, batch), trained)
        merged = again.merge_and_unload()
        assert_same(output(merged, batch), trained)
        assert not torch.equal(
            merged.spatial_projections()[0].weight,
            GMLPForMaskedLM.from_pretrained(folder).spatial_projections()[0].weight,
        )
    with pytest.raises(ValueError, match="Target module SpatialProjection.* is not supported"):
        peft.get_peft_model(GMLPForMaskedLM.from_pretrained(folder), peft.LoraConfig(target_modules=["proj"]))


def labels_of(task, ids):
    places = torch.arange(len(ids)) + VIRTUAL
    return {
        "SEQ_CLS": {"labels": torch.tensor([0, 1, 2, 0])},
        "TOKEN_CLS": {"labels": F.pad(ids % 3, (VIRTUAL, 0), value=-100)},
        "QUESTION_ANS": {"start_positions": places, "end_positions": places + 1},
        "CAUSAL_LM": {"labels": ids},
        "FEATURE_EXTRACTION": {},
    }[task]


@pytest.mark.parametrize("config_class", [peft.PromptTuningConfig, peft.PromptEncoderConfig])
@pytest.mark.parametrize("task", HEADS)
def test_prompt_tuning(masked_lm, batch, assert_same, tmp_path, task, config_class):
    folder = masked_lm(attention_size=4)
    model = HEADS[task].from_pretrained(folder)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    config = config_class(task_type=task, **PROMPT)
    if task == "SEQ_CLS":
        config.modules_to_save = ["pooler.dense"]
        model = HEADS[task].from_pretrained(folder, num_labels=3)
    tuned = peft.get_peft_model(model, config)
    first, last = train(tuned, batch | labels_of(task, batch["input_ids"]))
    assert last < first
    trained = output(tuned, batch)
    tuned.save_pretrained(tmp_path / "prompt")
    torch.manual_seed(5)
    fields = {"num_labels": 3} if task == "SEQ_CLS" else {}
    again = peft.PeftModel.from_pretrained(HEADS[task].from_pretrained(folder, **fields), tmp_path / "prompt")
    assert_same(output(again, batch), trained)
    torch.testing.assert_close(again.base_model.get_input_embeddings().weight, before[embeddings_name(before)])
    with pytest.raises(ValueError, match="have 13 tokens and the model takes up to 12"):
        tuned(input_ids=torch.ones(1, 10, dtype=torch.long))


def embeddings_name(weights):
    return next(name for name in weights if name.endswith("word_embeddings.weight"))


def test_a_tuned_prompt_goes_before_generated_text(masked_lm, batch, random_ids):
    """Generation with a cache gives the same tokens as the whole text without a cache."""
    model = GMLPForCausalLM.from_pretrained(masked_lm(attention_size=4))
    tuned = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", **PROMPT)).eval()
    text = random_ids(1, 5)
    with torch.no_grad():
        tuned.double().prompt_encoder.default.embedding.weight.normal_()
        words = tuned.generate(input_ids=text, max_new_tokens=4, do_sample=False, eos_token_id=None)
        for _ in range(4):
            text = torch.cat([text, tuned(input_ids=text).logits[:, -1:].argmax(-1)], dim=1)
    torch.testing.assert_close(words, text)


def test_labels_without_virtual_tokens(masked_lm, batch):
    model = GMLPForTokenClassification.from_pretrained(masked_lm())
    tuned = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="TOKEN_CLS", **PROMPT))
    with pytest.raises(ValueError, match="batch_size"):
        tuned(**batch, labels=batch["input_ids"] % 3)


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_prefix_tuning_is_refused(text_config, batch, task, is_causal):
    # These keys have the width of v, so no shape would be wrong.
    model = HEADS[task](text_config(is_causal=is_causal, intermediate_size=2 * TEXT_SIZES["hidden_size"]))
    tuned = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type=task, **PROMPT))
    with pytest.raises(ValueError, match="In place of prefix tuning, use prompt tuning or LoRA"):
        tuned(**batch)


@pytest.mark.parametrize("name", BASELINES)
def test_prefix_tuning_of_the_baselines_is_refused(batch, name):
    model = {"bert_relpos": BertRelposModel, "text_mixer": TextMixerModel}[name](BASELINES[name])
    config = peft.PrefixTuningConfig(
        task_type="FEATURE_EXTRACTION", num_virtual_tokens=VIRTUAL, num_attention_heads=4, num_layers=2
    )
    with pytest.raises(ValueError, match="`past_key_values`: in place of prefix tuning"):
        peft.get_peft_model(model, config)(input_ids=batch["input_ids"])


def test_cards_of_adapters(masked_lm, tmp_path):
    """PEFT and transformers write the cards of adapters, which are not models."""
    folder = masked_lm()
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.add_adapter(peft.LoraConfig(modules_to_save=["pooler.dense", "classifier"]))
    cards.write_model_card(model, tmp_path, "me/adapter")
    assert not (tmp_path / "README.md").exists()

    wrapped = peft.get_peft_model(GMLPForMaskedLM.from_pretrained(folder), peft.LoraConfig())
    samples = [{"input_ids": torch.arange(5, 11), "labels": torch.arange(5, 11)}] * 4
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(model=wrapped, args=arguments, train_dataset=samples)
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "library_name: peft" in card and "## Architecture" not in card

    merged = wrapped.merge_and_unload()
    cards.write_model_card(merged, tmp_path, "me/merged")
    assert "were not recorded" in (tmp_path / "README.md").read_text(encoding="utf-8")


@torch.no_grad()
def dequantized(model, folder):
    """Returns the same model with dequantized weights."""
    import bitsandbytes

    plain = GMLPForSequenceClassification.from_pretrained(folder, num_labels=3)
    plain.load_state_dict(
        {
            name: weight
            for name, weight in model.state_dict().items()
            if name in plain.state_dict() and weight.dtype != torch.uint8
        },
        strict=False,
    )
    quantized = 0
    for name, layer in model.named_modules():
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            weight = bitsandbytes.functional.dequantize_4bit(layer.weight, layer.weight.quant_state)
            plain.get_submodule(name).weight.copy_(weight)
            quantized += 1
    assert quantized == 2 * (2 + 2)
    return plain


def test_qlora(masked_lm, batch, tmp_path):
    """With bitsandbytes in 4 bits, channel projections are quantized and W is not; adapters can be trained."""
    pytest.importorskip("bitsandbytes")
    folder = masked_lm(attention_size=64, hidden_size=64, intermediate_size=128)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=["pooler.dense", "classifier"]
    )

    def load():
        return AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=3, quantization_config=quantization, dtype=torch.float32, device_map="cpu"
        )

    base = load()
    # On a CPU, bitsandbytes computes in half precision unless a layer is in training mode.
    with torch.no_grad():
        logits = base.train()(**batch).logits
    assert_close(logits, output(dequantized(base, folder), batch), depth=2)
    assert base.spatial_projections()[0].weight.dtype == torch.float32
    model = peft.get_peft_model(
        peft.prepare_model_for_kbit_training(base),
        peft.LoraConfig(task_type="SEQ_CLS", modules_to_save=["pooler.dense"]),
    )
    first, last = train(model, batch | {"labels": torch.tensor([0, 1, 2, 0])}, learning_rate=1e-2)
    assert last < 0.8 * first
    model.save_pretrained(tmp_path / "adapter")
    torch.manual_seed(5)
    again = peft.PeftModel.from_pretrained(load(), tmp_path / "adapter")
    torch.testing.assert_close(output(again, batch), output(model, batch))


def test_int8_of_torchao(masked_lm, batch, tmp_path):
    torchao = pytest.importorskip("torchao.quantization")
    folder = masked_lm(attention_size=4)
    quantization = TorchAoConfig(torchao.Int8WeightOnlyConfig(), modules_to_not_convert=["pooler.dense", "classifier"])

    def load():
        return AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=3, quantization_config=quantization, dtype=torch.float32
        )

    plain, base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3), load()
    weights = base.model.layers[0].proj_in.weight, plain.model.layers[0].proj_in.weight
    assert type(weights[0]) is not type(weights[1])
    difference = (weights[0].dequantize() - weights[1]).abs().max() / weights[1].abs().max()
    assert 0 < difference < 1 / 127
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", modules_to_save=["pooler.dense"]))
    first, last = train(model, batch | {"labels": torch.tensor([0, 1, 2, 0])})
    assert last < 0.8 * first
    model.save_pretrained(tmp_path / "adapter")
    torch.manual_seed(5)
    again = peft.PeftModel.from_pretrained(load(), tmp_path / "adapter")
    torch.testing.assert_close(output(again, batch), output(model, batch))


def test_layers_outside_a_model(text_config):
    """Public layers work like any layer. W starts near zero and b at one, so a block starts as a feed-forward layer."""
    block = hf_gmlp.GMLPBlock(text_config())
    x = torch.randn(2, 9, TEXT_SIZES["hidden_size"])
    feed_forward = block.activation(block.proj_in(block.norm(x)))[..., : TEXT_SIZES["intermediate_size"] // 2]
    torch.testing.assert_close(block(x), x + block.proj_out(feed_forward))
    block(x).square().sum().backward()
    assert block.spatial_gating_unit.proj.weight.grad.abs().max() > 1e-3
    attentive = hf_gmlp.GMLPBlock(text_config(attention_size=4))
    assert attentive(x).shape == x.shape
    unit = hf_gmlp.SpatialGatingUnit(text_config())
    z = torch.randn(2, 9, TEXT_SIZES["intermediate_size"])
    torch.testing.assert_close(unit(z), z[..., : TEXT_SIZES["intermediate_size"] // 2])
    projection = hf_gmlp.SpatialProjection(9, toeplitz=False)
    with torch.no_grad():
        projection.weight.normal_()
        projection.bias.normal_()
    expected = torch.einsum("ij,bje->bie", projection.weight, x) + projection.bias[:, None]
    torch.testing.assert_close(projection(x), expected)


def examples():
    """Returns the runnable examples of docs/adapt.md by their headings."""
    text = DOCS.read_text(encoding="utf-8")
    return {
        section.partition("\n")[0]: re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
        for section in text.split("\n## ")[1:]
        if "```python" in section
    }


@pytest.mark.parametrize("title", examples())
def test_examples_of_the_docs(masked_lm, far_model, tmp_path, monkeypatch, title):
    code = examples()[title]
    if "BitsAndBytesConfig" in code:
        pytest.importorskip("bitsandbytes")
    monkeypatch.chdir(tmp_path)
    masked_lm(hidden_size=64, intermediate_size=128, num_labels=2).rename("my-gmlp")
    image = far_model(GMLPForImageClassification, GMLPVisionConfig(**VISION_SIZES | {"num_hidden_layers": 8}))
    image.save_pretrained("my-vision-gmlp")
    dataset = [{"input_ids": torch.arange(5, 11), "labels": i % 2} for i in range(8)]
    exec(compile(code, title, "exec"), {"__name__": "example", "dataset": dataset})
