"""Tokens of causal models do not depend on later ones, and caches and padding do not change generated texts."""

import copy
import inspect
from itertools import pairwise

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, StaticCache, Trainer, TrainingArguments
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer
from transformers.testing_utils import torch_device

from hf_gmlp import GMLPForCausalLM, GMLPForMaskedLM, GMLPModel
from hf_gmlp.models import modeling_gmlp
from hf_gmlp.training.checkpointing import enable_selective_checkpointing

from .helpers import KINDS_OF_GMLP, padded

# Without an end token, all texts have the same length.
ENDLESS = {"eos_token_id": None, "type_vocab_size": 0}


@pytest.fixture
def causal_model(text_config, perturbed_model):
    """causal_model(n=24, **fields) makes a causal language model with perturbed weights."""

    def make(n=24, **fields):
        model = perturbed_model(GMLPForCausalLM, text_config(max_position_embeddings=n, **(ENDLESS | fields)))
        # Nonzero biases would favor the same token everywhere, and greedy texts would soon repeat it.
        with torch.no_grad():
            model.decoder.bias.zero_()
            model.model.norm.bias.zero_()
        return model

    return make


@torch.no_grad()
def test_a_new_token_costs_one_row_of_w(causal_model, random_ids):
    model = causal_model(attention_size=8, attn_implementation="eager")
    (ids, config), flops = (random_ids(2, 24), model.config), []
    cache = model(ids[:, :8], use_cache=True).past_key_values
    for t in range(8, 24):
        with FlopCounterMode(display=False) as counter:
            model(ids[:, t : t + 1], past_key_values=cache)
        flops.append(counter.get_total_flops())
    per_token = config.num_hidden_layers * (config.spatial_size + 2 * 8)
    assert {after - before for before, after in pairwise(flops)} == {2 * 2 * per_token}


def test_unusable_caches_are_refused(causal_model, text_config, random_ids):
    model, ids, bidirectional = causal_model(), random_ids(1, 5), GMLPModel(text_config())
    assert "past_key_values" not in bidirectional(ids, use_cache=True)
    with pytest.raises(ValueError, match="`past_key_values`"):
        bidirectional(ids, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="offloaded"):
        model(ids, past_key_values=Cache(layers=[DynamicSlidingWindowLayer(sliding_window=8)]))
    # These caches were filled by an aMLP and by prefix tuning, with keys of the width of v.
    prefix = DynamicCache([(torch.randn(1, 1, 3, 16), torch.randn(1, 1, 3, 16))] * 2)
    for cache in (prefix, causal_model(attention_size=8)(ids, use_cache=True).past_key_values):
        with pytest.raises(ValueError, match="holds v"):
            model(ids, past_key_values=cache)


@KINDS_OF_GMLP
@torch.no_grad()
def test_greedy_texts_equal_those_of_a_loop(causal_model, random_ids, fields):
    model = causal_model(**fields).double()
    ids = expected = random_ids(3, 5)
    for _ in range(19):
        expected = torch.cat([expected, model(expected).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    chunked = {"prefill_chunk_size": 4, "cache_implementation": "static", "disable_compile": True}
    for options in ({}, {"use_cache": False}, {"prefill_chunk_size": 2}, chunked):
        assert torch.equal(model.generate(ids, max_new_tokens=19, do_sample=False, **options), expected)
    # Mistakes would go unnoticed if the texts repeated one token.
    assert len(expected[:, 5:].unique()) > 6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3},
        {"do_sample": True, "num_return_sequences": 3, "top_k": 10},
    ],
    ids=["greedy", "beams", "samples"],
)
def test_padded_prompts_give_the_texts_of_single_prompts(causal_model, random_ids, options):
    """Texts are the same with and without a cache; greedy texts and beams also equal those of the prompt alone."""
    model, rows, texts = causal_model(attention_size=8).double(), [random_ids(length) for length in (9, 4, 1)], []
    ids, mask = padded(rows)
    for use_cache in (True, False):
        torch.manual_seed(0)
        texts.append(model.generate(ids, attention_mask=mask, max_new_tokens=12, use_cache=use_cache, **options))
    assert torch.equal(texts[0], texts[1])
    assert texts[0].shape == (3 * options.get("num_return_sequences", 1), 21)
    if options in ({}, {"num_beams": 3}):
        for row, text in zip(rows, texts[0]):
            alone = model.generate(row[None], max_new_tokens=12, **options)[0]
            assert torch.equal(text[-len(alone) :], alone)


@KINDS_OF_GMLP
def test_assisted_generation_gives_the_same_text(causal_model, random_ids, fields):
    """Assisted generation removes tokens from the cache. The assistant differs, so some of its guesses are wrong."""
    model, ids = causal_model(**fields).double(), random_ids(1, 6)
    expected = model.generate(ids, max_new_tokens=14, do_sample=False)
    assistant = copy.deepcopy(model)
    with torch.no_grad():
        assistant.decoder.bias.add_(torch.randn(40))
    layers = model.config.num_hidden_layers
    for options in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 2}, {"assistant_early_exit": 1}):
        assert torch.equal(model.generate(ids, max_new_tokens=14, do_sample=False, **options), expected)
        assert model.config.num_hidden_layers == layers


@pytest.mark.parametrize("padding", [slice(3, 5), slice(7, 9)], ids=["gap", "padding on the right"])
@pytest.mark.parametrize("fields", [{}, {"toeplitz": False}, {"attention_size": 8}])
def test_generate_counts_positions_as_forward_does(causal_model, random_ids, fields, padding):
    model, ids = causal_model(**fields).double(), random_ids(3, 9)
    mask = torch.ones_like(ids)
    mask[:, padding] = 0
    options = {"attention_mask": mask, "max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True}
    for more in ({}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}):
        output = model.generate(ids, output_logits=True, **options, **more)
        full = torch.cat([mask, torch.ones(3, 3, dtype=torch.long)], 1)
        with torch.no_grad():
            expected = model(output.sequences, full).logits[:, 8:11]
        # `generate` casts the logits to float32.
        torch.testing.assert_close(torch.stack(output.logits, 1).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_static_cache_needs_one_compiled_graph(causal_model, random_ids, fresh_compiler):
    """On a GPU, `generate` compiles a model that has a static cache."""
    model = causal_model(spatial_heads=4, attention_size=8).double().to(torch_device)
    ids, mask = (x.to(torch_device) for x in padded([random_ids(3), random_ids(6)], "left"))
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    text = model.generate(ids, **options)
    assert torch.equal(model.generate(ids, cache_implementation="static", **options), text)
    mask = F.pad(mask, (0, 12), value=1)
    counter = CompileCounter()
    compiled, cache = torch.compile(model, fullgraph=True, backend=counter), StaticCache(model.config, 20)
    with torch.no_grad():
        expected = model(text, mask).logits
        model(text[:, :6], mask[:, :6], past_key_values=cache)
        for t in range(6, 18):
            logits = compiled(text[:, t : t + 1], F.pad(mask[:, : t + 1], (0, 19 - t)), past_key_values=cache).logits
            torch.testing.assert_close(logits[:, 0], expected[:, t])
    assert counter.frame_count == 1


def test_a_text_ends_at_n(causal_model, random_ids, monkeypatch):
    model, ids, warnings = causal_model(n=12).double(), random_ids(2, 5), []
    monkeypatch.setattr(modeling_gmlp.logger, "warning", warnings.append)
    text = model.generate(ids, max_new_tokens=7, do_sample=False)
    assert text.shape == (2, 12) and not warnings
    assert torch.equal(model.generate(ids, max_new_tokens=9, do_sample=False), text)
    assert len(warnings) == 1 and "12 tokens" in warnings[0]
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, max_new_tokens=9, do_sample=False), text[:, 5:])
    with pytest.raises(ValueError, match=r"resize_position_embeddings\(13\)"):
        model.generate(random_ids(1, 12), max_new_tokens=3)
    # A static cache may be larger than n.
    for cache in (DynamicCache(), StaticCache(model.config, 64)):
        model(random_ids(1, 12), past_key_values=cache)
        with pytest.raises(ValueError, match=r"resize_position_embeddings\(13\)"):
            model(random_ids(1, 1), past_key_values=cache)
    # An extended model generates the same tokens and then more.
    model.resize_position_embeddings(20)
    grown = model.generate(ids, max_new_tokens=15, do_sample=False)
    assert grown.shape == (2, 20) and torch.equal(grown[:, :12], text)
    assert torch.equal(grown, model.generate(ids, max_new_tokens=15, do_sample=False, use_cache=False))


def test_overrides_of_the_library_exist_there():
    """Private methods and attributes of transformers may be renamed: an override would then be ignored in silence."""
    for name in modeling_gmlp.__all__:
        model_class = getattr(modeling_gmlp, name)
        bases = [base for base in model_class.__mro__ if base.__module__ != modeling_gmlp.__name__]
        source = inspect.getsource(model_class)
        for attribute in vars(model_class):
            if attribute.startswith("_") and not attribute.startswith("__") and attribute in source:
                assert any(hasattr(base, attribute) for base in bases), f"{name}.{attribute}"


def test_the_caller_s_config_stays_unchanged(text_config):
    config = text_config()
    assert GMLPForCausalLM(config).config.is_causal and not config.is_causal
    causal = text_config(is_causal=True)
    assert GMLPForCausalLM(causal).config is causal


def test_loss_is_the_cross_entropy_of_the_next_token(causal_model, random_ids):
    model, ids = causal_model(), random_ids(3, 10)
    labels = ids.masked_fill(torch.rand(3, 10) < 0.3, -100)
    output = model(ids, labels=labels)
    expected = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(output.loss, expected)


@torch.no_grad()
def test_logits_to_keep_selects_tokens(causal_model, random_ids):
    model, ids = causal_model(), random_ids(2, 10)
    logits = model(ids).logits
    assert torch.equal(model(ids, logits_to_keep=0).logits, logits)
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, logits[:, -3:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([1, 5])).logits, logits[:, [1, 5]])


@pytest.mark.parametrize("checkpointing", ["plain", "reentrant", "selective"])
def test_is_causal_applies_to_one_forward_pass(text_config, perturbed_model, random_ids, checkpointing):
    """transformers resets the config before a checkpointed block is recomputed."""
    model = perturbed_model(GMLPForMaskedLM, text_config(attention_size=8)).train().double()
    causal = perturbed_model(GMLPForMaskedLM, text_config(is_causal=True, attention_size=8)).train().double()
    ids = random_ids(2, 10)
    causal(ids, labels=ids).loss.backward()
    if checkpointing == "selective":
        enable_selective_checkpointing(model)
    else:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    model(ids, labels=ids, is_causal=True).loss.backward()
    assert not model.config.is_causal
    for tested, expected in zip(model.parameters(), causal.parameters(), strict=True):
        torch.testing.assert_close(tested.grad, expected.grad, atol=1e-10, rtol=1e-10)


def test_predictions_of_a_trainer_have_no_cache(causal_model, random_ids, tmp_path):
    samples = [{"input_ids": ids, "labels": ids} for ids in random_ids(4, 8)]
    trainer = Trainer(causal_model(), TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True))
    assert trainer.predict(samples).predictions.shape == (4, 8, 40)
