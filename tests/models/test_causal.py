"""The causal model: nothing looks ahead, caches and padding change nothing, and all modes of generate() work.

Weights are far from their initial ones everywhere (`far_model`), so that the spatial projection is felt.
"""

import copy
import logging
import string

import pytest
import torch
from g_mlp_pytorch import gMLP
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedTokenizerFast,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
    TextStreamer,
    pipeline,
)
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

from hf_gmlp import (
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForMultipleChoice,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPModel,
)
from hf_gmlp.models.modeling_gmlp import GMLPBlock
from hf_gmlp.models.spatial_gating import Positions, SpatialProjection, find_cached_positions
from hf_gmlp.training.checkpointing import enable_selective_checkpointing

from ..numerics import assert_close
from ..peers.annotated import AnnotatedGMLPBlock
from ..samples import GATINGS
from .helpers import ATTENTIONS, G_MLP_PYTORCH, attention_fields, both, copy_g_mlp_pytorch, copy_parameters, train

# No token ends a text, so that all texts have the same length.
ENDLESS = {"eos_token_id": None, "type_vocab_size": 0}


@pytest.fixture
def causal_model(text_config, far_model):
    """causal_model(n=24, **fields) makes a causal language model far from its initial weights."""

    def make(n=24, **fields):
        model = far_model(GMLPForCausalLM, text_config(max_position_embeddings=n, **(ENDLESS | fields)))
        # These biases favor the same token everywhere, and greedy texts would soon repeat it.
        with torch.no_grad():
            model.decoder.bias.zero_()
            model.model.norm.bias.zero_()
        return model

    return make


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# ---------------------------------------------------------------------------------------------------------------------
# No token sees a later one


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@pytest.mark.parametrize("gating", GATINGS)
def test_outputs_depend_on_no_later_token(causal_model, gating, toeplitz, attention):
    model = causal_model(spatial_gating=gating, toeplitz=toeplitz, **attention_fields(attention))
    embeds = torch.randn(2, 7, 16, requires_grad=True)
    logits = model(inputs_embeds=embeds).logits
    for i in range(7):
        (gradient,) = torch.autograd.grad(logits[:, i].square().sum(), embeds, retain_graph=True)
        assert (gradient[:, i + 1 :] == 0).all()
        assert (gradient[:, : i + 1].abs().amax(-1) > 1e-6).all()
    # The weights that look ahead get no gradient, and the others do.
    logits.square().sum().backward()
    for projection in model.spatial_projections():
        gradient = projection.weight.grad
        trained = gradient.abs() > 1e-6 * gradient.abs().max()
        if toeplitz:
            assert (gradient[24:] == 0).all() and trained[24 - 7 : 24].all()
        else:
            assert (gradient.triu(1) == 0).all() and trained[:7, :7].sum() == 28


@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_rows_and_blocks_of_a_causal_matrix(toeplitz):
    projection = SpatialProjection(9, toeplitz)
    torch.nn.init.normal_(projection.weight)
    for length in (1, 5, 9):
        for start in range(length):
            whole = projection.matrix()[:, :length, :length]
            assert torch.equal(projection.matrix(length, start), whole[:, start:])
            assert torch.equal(projection.matrix(length, start, causal=True), whole.tril()[:, start:])


@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_projection_behind_padding(text_config, toeplitz):
    projection, config = SpatialProjection(9, toeplitz), text_config(toeplitz=toeplitz, max_position_embeddings=9)
    for parameter in projection.parameters():
        torch.nn.init.normal_(parameter)
    v = torch.randn(1, 6, 3)
    # Two tokens of padding in front, whose v is zero; the other sequence has none.
    given = torch.cat([torch.cat([torch.zeros(1, 2, 3), v], dim=1), torch.randn(1, 8, 3)])
    mask = torch.tensor([[0] * 2 + [1] * 6, [1] * 8])
    expected = projection(v, Positions(True))[0], projection(given[1:], Positions(True))[0]
    # A static cache of nine tokens has an empty place.
    static, static_mask = torch.cat([given, torch.zeros(2, 1, 3)], dim=1), F.pad(mask, (0, 1))
    for start in (0, 2, 5, 7):
        index = torch.arange(8 - start)
        growing = find_cached_positions(config, index, start, 8, mask)
        fixed = find_cached_positions(config, index, torch.tensor(start), 9, static_mask)
        for output in (projection(given, growing), projection(static, fixed)):
            assert output.shape == (2, 8 - start, 3)
            torch.testing.assert_close(output[0, max(2 - start, 0) :], expected[0][max(start - 2, 0) :])
            torch.testing.assert_close(output[1], expected[1][start:])


# ---------------------------------------------------------------------------------------------------------------------
# Equality with independent implementations


@pytest.mark.parametrize("attention_size", [0, 8])
@pytest.mark.parametrize("length", [12, 7])
def test_logits_and_gradients_are_those_of_g_mlp_pytorch(text_config, randomize, attention_size, length):
    reference = gMLP(num_tokens=40, dim=16, depth=3, seq_len=12, causal=True, attn_dim=attention_size or None)
    randomize(reference)
    tested = GMLPForCausalLM(text_config(attention_size=attention_size, **G_MLP_PYTORCH)).eval()
    copy_g_mlp_pytorch(tested, reference)
    ids = torch.randint(0, 40, (3, length))
    output, expected = tested(ids, labels=ids), reference(ids)
    assert_close(output.logits, expected, depth=3)
    loss = F.cross_entropy(expected[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(output.loss, loss)
    output.loss.backward()
    loss.backward()
    for block, reference_layer in zip(tested.model.layers, reference.layers):
        projection, unit = block.spatial_gating_unit.proj, reference_layer.fn.fn.fn.sgu
        gradients = [projection.weight.grad, projection.bias.grad]
        assert_close(gradients, [unit.weight.grad[0], unit.bias.grad[0]], depth=3)


@pytest.mark.parametrize("length", [12, 7])
@torch.no_grad()
def test_block_is_the_annotated_one_with_a_mask(text_config, randomize, length):
    reference = randomize(AnnotatedGMLPBlock(d_model=16, d_ffn=32, seq_len=12))
    tested = GMLPBlock(text_config(toeplitz=False, layer_norm_eps=1e-5, is_causal=True), drop_path_rate=0.0).eval()
    unit, pairs = tested.spatial_gating_unit, both(tested.norm, reference.norm)
    pairs += both(tested.proj_in, reference.proj1) + both(tested.proj_out, reference.proj2)
    pairs += both(unit.norm, reference.sgu.norm) + both(unit.proj, reference.sgu)
    copy_parameters(pairs)
    reference.sgu.weight *= torch.ones(12, 12).tril()
    x = torch.randn(3, length, 16)
    assert_close(tested(x), reference(x.transpose(0, 1)).transpose(0, 1))


# ---------------------------------------------------------------------------------------------------------------------
# The cache


def in_pieces(model, ids, ends, past_key_values=None, **kwargs):
    """Logits of ids [B, m] that are given in pieces, each ending at one of `ends`, and the cache."""
    logits, start = [], 0
    for end in ends:
        output = model(ids[:, start:end], past_key_values=past_key_values, use_cache=True, **kwargs)
        past_key_values, start = output.past_key_values, end
        logits.append(output.logits)
    return torch.cat(logits, dim=1), past_key_values


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_logits_with_and_without_a_cache(causal_model, random_ids, gating, toeplitz, attention):
    model = causal_model(spatial_gating=gating, toeplitz=toeplitz, **attention_fields(attention))
    ids = random_ids(3, 24)
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        expected = model(ids).logits
        assert expected.std() > 0.1
        for ends in ([7, 8, 9, 14, 15, 24], range(1, 25)):
            logits, cache = in_pieces(model, ids, ends)
            assert_close(logits, expected, depth=2)
        assert cache.get_seq_length() == 24


@pytest.mark.parametrize("attention_size", [0, 8])
@torch.no_grad()
def test_a_new_token_costs_one_row_of_w(causal_model, random_ids, attention_size):
    model = causal_model(n=64, attention_size=attention_size, attn_implementation="eager")
    (ids, config), flops = (random_ids(2, 64), model.config), {}
    _, cache = in_pieces(model, ids, [8])
    for t in range(8, 64):
        with FlopCounterMode(display=False) as counter:
            model(ids[:, t : t + 1], past_key_values=cache)
        flops[t] = counter.get_total_flops()
    per_token = config.num_hidden_layers * (config.spatial_size + 2 * attention_size)
    for t in range(9, 64):
        assert flops[t] - flops[t - 1] == 2 * 2 * per_token


@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
@pytest.mark.parametrize("attention_size", [0, 8])
@torch.no_grad()
def test_layers_of_a_cache(causal_model, random_ids, attention_size, cache_class):
    """v of every block, without values, and in an aMLP a layer of keys and values in front of each."""
    model, ids = causal_model(n=64, attention_size=attention_size), random_ids(2, 64)
    cache = DynamicCache() if cache_class is DynamicCache else StaticCache(config=model.config, max_cache_len=40)
    in_pieces(model, ids, [10, 11], cache)
    room = 11 if cache_class is DynamicCache else 40
    shapes = [((2, 1, room, 16), (2, 1, room, 0))] * 2
    if attention_size:
        tiny = ((2, 1, room, 8), (2, 1, room, 8))
        shapes = [tiny, shapes[0], tiny, shapes[1]]
    assert [(layer.keys.shape, layer.values.shape) for layer in cache.layers] == shapes
    assert cache.get_seq_length() == 11


@pytest.mark.parametrize("make_cache", [lambda config: DynamicCache(), lambda config: DynamicCache(config=config)])
@pytest.mark.parametrize("attention_size", [0, 8])
@torch.no_grad()
def test_caches_of_the_library(causal_model, random_ids, attention_size, make_cache):
    model, ids = causal_model(attention_size=attention_size), random_ids(2, 24)
    logits, cache = in_pieces(model, ids, [5, 6, 7, 24], make_cache(model.config))
    assert_close(logits, model(ids).logits, depth=2)
    assert len(cache.layers) == (4 if attention_size else 2)


@torch.no_grad()
def test_operations_on_a_cache(causal_model, random_ids):
    model, ids = causal_model(attention_size=8), random_ids(2, 20)
    _, cache = in_pieces(model, ids, [9, 10])

    def assert_goes_on(cache, ids, length):
        """From `length` tokens in the cache, to the end, in steps."""
        for t in range(length, 20):
            logits = model(ids[:, t : t + 1], past_key_values=cache).logits
            assert_close(logits[:, 0], model(ids[:, : t + 1]).logits[:, -1], depth=2)

    swapped = copy.deepcopy(cache)
    swapped.reorder_cache(torch.tensor([1, 0]))
    assert_goes_on(swapped, ids.flip(0), 10)
    # A copy has its own storage: changing it has not changed the original.
    cropped = copy.deepcopy(cache)
    cropped.crop(-3)
    other = torch.cat([ids[:, :7], random_ids(2, 13)], dim=1)
    assert_goes_on(cropped, other, 7)
    assert_goes_on(copy.deepcopy(cache), ids, 10)
    repeated = copy.deepcopy(cache)
    repeated.batch_repeat_interleave(2)
    assert_goes_on(repeated, ids.repeat_interleave(2, dim=0), 10)
    chosen = copy.deepcopy(cache)
    chosen.batch_select_indices(torch.tensor([1]))
    assert_goes_on(chosen, ids[1:], 10)
    # A slice shares storage with the original.
    chosen = copy.deepcopy(cache)
    chosen.batch_select_indices(slice(0, 1))
    assert_goes_on(chosen, ids[:1], 10)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert_goes_on(cache, ids, 0)


def test_gradients_through_a_cache(causal_model, random_ids):
    model, ids = causal_model(attention_size=8), random_ids(2, 12)
    gradients = []
    for ends in ([12], [5, 6, 7, 12]):
        model.zero_grad()
        in_pieces(model, ids, ends)[0].square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert_close(gradients[1], gradients[0], depth=2)


def test_a_model_that_looks_both_ways_has_no_cache(text_config, far_model, random_ids):
    model = far_model(GMLPModel, text_config())
    assert "past_key_values" not in model(random_ids(1, 5), use_cache=True)
    with pytest.raises(ValueError, match="`past_key_values` is for causal models"):
        model(random_ids(1, 5), past_key_values=DynamicCache())


def test_no_cache_unless_asked_for(causal_model, random_ids):
    model = causal_model()
    assert model(random_ids(1, 5)).past_key_values is None
    assert model(random_ids(1, 5), use_cache=True).past_key_values.get_seq_length() == 5


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_a_static_cache(causal_model, random_ids, toeplitz, attention):
    model = causal_model(toeplitz=toeplitz, **attention_fields(attention)).double()
    ids, mask = padded([random_ids(12), random_ids(20)], "left")
    for given in (None, mask):
        expected = model(ids, given).logits
        for ends in ([20], [7, 8, 9, 20], range(1, 21)):
            cache, start = StaticCache(config=model.config, max_cache_len=22), 0
            for end in ends:
                seen = None if given is None else given[:, :end]
                logits = model(ids[:, start:end], seen, past_key_values=cache).logits
                shown = slice(None) if given is None else given[:, start:end] == 1
                torch.testing.assert_close(logits[shown], expected[:, start:end][shown], atol=1e-10, rtol=1e-10)
                start = end


def test_a_static_cache_with_more_rows_than_w(causal_model, random_ids):
    model = causal_model()
    with pytest.raises(ValueError, match="25 tokens and the model takes up to 24"):
        model(random_ids(1, 5), past_key_values=StaticCache(config=model.config, max_cache_len=25))


@pytest.mark.parametrize("attention_size", [0, 8])
def test_caches_that_cannot_work_are_refused(causal_model, random_ids, attention_size):
    model, ids = causal_model(attention_size=attention_size), random_ids(1, 5)
    with pytest.raises(ValueError, match="A gMLP takes the dynamic, static and offloaded caches"):
        model(ids, past_key_values=Cache(layers=[DynamicSlidingWindowLayer(sliding_window=8)]))
    # What another model, another kind of gMLP, or prefix tuning has put into it.
    keys, values = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8)
    other = causal_model(attention_size=0 if attention_size else 8)(ids, use_cache=True).past_key_values
    for cache in (DynamicCache([(keys, values)] * 2), DynamicCache([(keys, values)] * 4), other):
        with pytest.raises(ValueError, match="does not hold v of a gMLP"):
            model(ids, past_key_values=cache)
    for implementation in ("quantized", "paged", "offloaded"):
        if implementation != "offloaded" or not torch.accelerator.is_available():
            with pytest.raises((ValueError, RuntimeError, ImportError)):
                model.generate(ids, max_new_tokens=3, cache_implementation=implementation)
    with pytest.raises(ValueError, match="no paged cache"):
        model.generate_batch([[5, 6, 7]])


# What the library and its users do to a cache between two forward passes.


def continued(model, cache, ids, start):
    """The logits of ids [B, t] from `start` on, which is in the cache."""
    return torch.cat([model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(start, ids.shape[1])], 1)


@pytest.fixture
def prefix(causal_model, random_ids):
    """A model, ids [2, 20], their logits, and a function that makes a cache of the first nine in two pieces."""
    model, ids = causal_model(attention_size=8).double(), random_ids(2, 20)
    with torch.no_grad():
        logits = model(ids).logits
    return model, ids, logits, lambda: in_pieces(model, ids, [7, 9])[1]


def test_a_prefix_of_inference_mode(prefix):
    model, ids, logits, make_cache = prefix
    with torch.inference_mode():
        caches = [make_cache() for _ in range(3)]
        torch.testing.assert_close(continued(model, caches[0], ids, 9), logits[:, 9:])
    with torch.no_grad():
        torch.testing.assert_close(continued(model, caches[1], ids, 9), logits[:, 9:])
    trained = continued(model, caches[2], ids, 9)
    torch.testing.assert_close(trained.detach(), logits[:, 9:])
    trained.sum().backward()


def test_training_behind_a_prefix_without_gradients(prefix):
    model, ids, _, make_cache = prefix
    model.model.embeddings.requires_grad_(False)
    gradients = []
    for steps in ([20], range(10, 21)):
        model.zero_grad()
        with torch.no_grad():
            cache, start = make_cache(), 9
        loss = 0
        for end in steps:
            loss = loss + model(ids[:, start:end], past_key_values=cache).logits.square().sum()
            start = end
            with torch.no_grad():
                # A branch that shares tensors looks ahead.
                branch = DynamicCache([(layer.keys, layer.values) for layer in cache.layers])
                model(ids[:, :1], past_key_values=branch)
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("branch", ["copied layers", "shared tensors", "cropped"])
@torch.no_grad()
def test_branches_of_a_cache(prefix, random_ids, branch):
    model, ids, logits, make_cache = prefix
    cache = make_cache()
    held = [layer.keys for layer in cache.layers]
    before = copy.deepcopy(held)
    other = torch.cat([ids[:, :6], random_ids(2, 14)], dim=1)
    if branch == "copied layers":
        twin, start, twin_ids = copy.copy(cache), 9, torch.cat([ids[:, :9], random_ids(2, 11)], dim=1)
        twin.layers = [copy.copy(layer) for layer in cache.layers]
    elif branch == "shared tensors":
        twin, start = DynamicCache([(layer.keys, layer.values) for layer in cache.layers]), 9
        twin_ids = torch.cat([ids[:, :9], random_ids(2, 11)], dim=1)
    else:
        twin, start, twin_ids = copy.copy(cache), 6, other
        twin.layers = [copy.copy(layer) for layer in cache.layers]
        twin.crop(-3)
    expected = model(twin_ids).logits
    # The two take turns.
    for t in range(max(start, 9), 20):
        if t == 9 and start < 9:
            twin_logits = model(twin_ids[:, start:9], past_key_values=twin).logits
            torch.testing.assert_close(twin_logits, expected[:, start:9])
        tested = model(ids[:, t : t + 1], past_key_values=cache).logits[:, 0]
        reference = model(twin_ids[:, t : t + 1], past_key_values=twin).logits[:, 0]
        torch.testing.assert_close(tested, logits[:, t])
        torch.testing.assert_close(reference, expected[:, t])
    # What was handed out has not changed.
    for now, then in zip(held, before):
        assert torch.equal(now, then)


@torch.no_grad()
def test_a_cache_that_was_moved_or_reset(prefix):
    model, ids, logits, make_cache = prefix
    cache = make_cache()
    for layer in cache.layers:
        layer.offload()
        layer.prefetch()
    torch.testing.assert_close(continued(model, cache, ids, 9), logits[:, 9:])
    cache.reset()
    assert cache.get_seq_length() == 0
    torch.testing.assert_close(continued(model, cache, ids, 0), logits)


# ---------------------------------------------------------------------------------------------------------------------
# Padding


def padded(rows, side, pad=0):
    """ids and mask [B, m] of rows of different lengths."""
    width = max(len(row) for row in rows)
    ids, mask = [], []
    for row in rows:
        room, filled = width - len(row), torch.full((width - len(row),), pad)
        ids.append(torch.cat([filled, row] if side == "left" else [row, filled]))
        mask.append([0] * room + [1] * len(row) if side == "left" else [1] * len(row) + [0] * room)
    return torch.stack(ids), torch.tensor(mask)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_sequence_alone_or_padded_on_either_side(causal_model, random_ids, side, toeplitz, attention):
    model = causal_model(toeplitz=toeplitz, **attention_fields(attention)).double()
    rows = [random_ids(length) for length in (11, 24, 1)]
    for pad in (0, 7):
        ids, mask = padded(rows, side, pad)
        for given in (mask, mask.bool(), mask.float()):
            logits = model(ids, given).logits
            assert logits.isfinite().all()
            for row, alone, shown in zip(logits, rows, mask):
                torch.testing.assert_close(row[shown == 1], model(alone[None]).logits[0], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("attention", [None, "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "model_class", [GMLPModel, GMLPForSequenceClassification, GMLPForTokenClassification, GMLPForMaskedLM]
)
@torch.no_grad()
def test_heads_of_a_causal_model(text_config, far_model, random_ids, model_class, side, attention):
    """Outputs are the same padded and alone, and those for a whole sequence depend on all of it."""
    config = text_config(max_position_embeddings=24, is_causal=True, **attention_fields(attention))
    model = far_model(model_class, config).double()
    rows = [random_ids(length) for length in (11, 20)]
    ids, mask = padded(rows, side)
    outputs = model(ids, mask)
    for name, value in outputs.items():
        for i, row in enumerate(rows):
            shown = value[i][mask[i] == 1] if value.ndim == 3 else value[i]
            torch.testing.assert_close(shown, model(row[None])[name][0], atol=1e-10, rtol=1e-10)
            if value.ndim == 2:
                for j in range(len(row)):
                    changed = row.clone()
                    changed[j] = (row[j] - 4) % 35 + 5
                    assert (model(changed[None])[name][0] - shown).abs().max() > 1e-6


@torch.no_grad()
def test_causal_models_always_hide_padding(causal_model, random_ids):
    model = causal_model(mask_padding=False)
    ids, mask = padded([random_ids(5), random_ids(9)], "left")
    torch.testing.assert_close(model(ids, mask).logits[0, 4:], model(ids[:1, 4:]).logits[0])


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_zeros_in_the_middle_of_a_mask(causal_model, random_ids, toeplitz, attention):
    """A batched second turn: texts that ended early were filled up. No row depends on the others in its batch, and all
    ways of computing agree."""
    model = causal_model(toeplitz=toeplitz, **attention_fields(attention)).double()
    ids = random_ids(3, 16)
    mask = torch.ones(3, 16, dtype=torch.long)
    mask[0, 6:9] = 0
    mask[1, :2] = mask[1, 7:9] = 0
    logits = model(ids, mask).logits
    for i in range(3):
        shown = mask[i] == 1
        torch.testing.assert_close(model(ids[i : i + 1], mask[i : i + 1]).logits[0, shown], logits[i, shown])
    for make_cache in (DynamicCache, lambda: StaticCache(config=model.config, max_cache_len=18)):
        cache = make_cache()
        for start, end in ((0, 9), (9, 10), (10, 16)):
            pieces = model(ids[:, start:end], mask[:, :end], past_key_values=cache).logits
            shown = mask[:, start:end] == 1
            torch.testing.assert_close(pieces[shown], logits[:, start:end][shown])
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids, mask).logits[mask == 1], logits[mask == 1])


@torch.no_grad()
def test_position_ids_that_count_the_tokens(causal_model, random_ids):
    model = causal_model()
    ids, mask = padded([random_ids(5), random_ids(9)], "left")
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    expected = model(ids, mask).logits
    assert torch.equal(model(ids, mask, position_ids=positions).logits, expected)
    assert torch.equal(model(ids, position_ids=torch.arange(9)[None]).logits, model(ids).logits)
    cache = DynamicCache()
    model(ids[:, :8], mask[:, :8], past_key_values=cache, position_ids=positions[:, :8])
    last = model(ids[:, 8:], mask, past_key_values=cache, position_ids=positions[:, 8:]).logits
    torch.testing.assert_close(last[:, 0], expected[:, 8])


def test_weights_that_look_ahead_decay_and_are_not_trained(causal_model, random_ids):
    """As the docs say: they take no part, and an optimizer with weight decay shrinks them like any other weight."""
    for weight_decay, kept in ((0.0, 1.0), (0.1, (1 - 1e-3 * 0.1) ** 3)):
        model, ids = causal_model(toeplitz=False).train(), random_ids(2, 9)
        weight = model.spatial_projections()[0].weight
        before = weight.detach().clone()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=weight_decay)
        for _ in range(3):
            optimizer.zero_grad()
            model(ids, labels=ids).loss.backward()
            optimizer.step()
        torch.testing.assert_close(weight.triu(1), kept * before.triu(1))
        assert not torch.allclose(weight.tril()[:9, :9], kept * before.tril()[:9, :9], atol=1e-4)


def test_a_causal_model_stays_causal(causal_model, random_ids):
    model = causal_model()
    model.config.is_causal = False
    with pytest.raises(ValueError, match="`config.is_causal` must stay on"):
        model(random_ids(1, 5))


def test_a_mask_covers_what_is_in_the_cache(causal_model, random_ids):
    model, ids = causal_model(), random_ids(2, 9)
    cache = model(ids[:, :8], use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"one entry per token, shape \(2, 9\), got \(2, 1\)"):
        model(ids[:, 8:], torch.ones(2, 1), past_key_values=cache)


# ---------------------------------------------------------------------------------------------------------------------
# generate()


def greedy_by_hand(model, ids, new_tokens):
    for _ in range(new_tokens):
        ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_greedy_texts_are_those_of_a_loop(causal_model, random_ids, toeplitz, attention):
    model = causal_model(toeplitz=toeplitz, **attention_fields(attention)).double()
    ids = random_ids(3, 5)
    expected = greedy_by_hand(model, ids, 19)
    chunked = {"prefill_chunk_size": 4, "cache_implementation": "static", "disable_compile": True}
    for options in ({}, {"use_cache": False}, {"prefill_chunk_size": 2}, chunked):
        assert torch.equal(model.generate(ids, max_new_tokens=19, do_sample=False, **options), expected)
    # A single repeated token would hide mistakes.
    assert len(expected[:, 5:].unique()) > 6


@pytest.mark.parametrize("attention", [None, "sdpa"])
@pytest.mark.parametrize("toeplitz", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4, "num_return_sequences": 3},
        {"do_sample": True, "num_return_sequences": 3, "top_k": 10},
        {"do_sample": True, "num_beams": 3, "temperature": 1.5},
        {"num_beams": 3, "repetition_penalty": 2.0, "no_repeat_ngram_size": 2, "length_penalty": 0.5},
    ],
    ids=["beams", "samples", "beam samples", "processors"],
)
def test_texts_with_and_without_a_cache(causal_model, random_ids, options, toeplitz, attention):
    model = causal_model(toeplitz=toeplitz, **attention_fields(attention)).double()
    ids, mask = padded([random_ids(length) for length in (3, 7)], "left")
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        texts.append(model.generate(ids, attention_mask=mask, max_new_tokens=12, use_cache=use_cache, **options))
    assert torch.equal(texts[0], texts[1])
    assert texts[0].shape == (2 * options.get("num_return_sequences", 1), 19)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("attention", [None, "sdpa"])
@pytest.mark.parametrize("toeplitz", [True, False])
def test_a_prompt_alone_or_padded(causal_model, random_ids, toeplitz, attention, options):
    model = causal_model(toeplitz=toeplitz, **attention_fields(attention)).double()
    rows = [random_ids(length) for length in (9, 4, 1)]
    ids, mask = padded(rows, "left")
    texts = model.generate(ids, attention_mask=mask, max_new_tokens=15, **options)
    for row, text, shown in zip(rows, texts, mask):
        alone = model.generate(row[None], max_new_tokens=15, **options)[0]
        assert torch.equal(text[int((shown == 0).sum()) :], alone)


def test_prompts_of_embeddings_and_the_cache_of_a_prompt(causal_model, random_ids):
    model, ids = causal_model(attention_size=8).double(), random_ids(2, 6)
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, max_new_tokens=8, do_sample=False), expected[:, 6:])
    # One cache serves several continuations.
    with torch.no_grad():
        cache = model(ids[:, :4], use_cache=True).past_key_values
    for _ in range(2):
        text = model.generate(ids, past_key_values=copy.deepcopy(cache), max_new_tokens=8, do_sample=False)
        assert torch.equal(text, expected)


def test_segments_continue(causal_model, random_ids):
    model, ids = causal_model(type_vocab_size=2).double(), random_ids(2, 6)
    segments = torch.ones_like(ids)
    options = {"token_type_ids": segments, "max_new_tokens": 8, "do_sample": False}
    text = model.generate(ids, **options)
    assert torch.equal(text, model.generate(ids, use_cache=False, **options))
    assert not torch.equal(text, model.generate(ids, max_new_tokens=8, do_sample=False))


@pytest.mark.parametrize("fields", [{}, {"toeplitz": False, "attention_size": 8}], ids=["gMLP", "aMLP"])
def test_assisted_generation(causal_model, random_ids, fields):
    """This removes tokens from the cache. The assistant is another model, so that some of its guesses are wrong."""
    model, ids = causal_model(**fields).double(), random_ids(1, 6)
    expected = model.generate(ids, max_new_tokens=14, do_sample=False)
    assistant = copy.deepcopy(model)
    with torch.no_grad():
        assistant.decoder.bias.add_(torch.randn(40))
    # One takes just as many tokens as the text has in the end, and one fewer.
    short, shorter = copy.deepcopy(assistant), copy.deepcopy(assistant)
    short.resize_position_embeddings(20)
    shorter.resize_position_embeddings(19)
    layers = model.config.num_hidden_layers
    for options in (
        {"assistant_model": assistant},
        {"assistant_model": short},
        {"prompt_lookup_num_tokens": 2},
        {"assistant_early_exit": 1},
    ):
        assert torch.equal(model.generate(ids, max_new_tokens=14, do_sample=False, **options), expected), options
        assert model.config.num_hidden_layers == layers
    with pytest.raises(ValueError, match="20 tokens, and the assistant takes up to 19"):
        model.generate(ids, max_new_tokens=14, assistant_model=shorter)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("fields", [{}, {"toeplitz": False, "attention_size": 8}], ids=["gMLP", "aMLP"])
def test_a_second_turn(causal_model, random_ids, fields, cache):
    """A batch of padded prompts goes on from the cache of the first text, with a mask that has holes."""
    model = causal_model(**fields).double()
    ids, mask = padded([random_ids(3), random_ids(6)], "left")
    options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    if cache == "static":
        options["past_key_values"] = StaticCache(config=model.config, max_cache_len=20)
    first = model.generate(ids, attention_mask=mask, **options)
    options["past_key_values"] = first.past_key_values
    mask = torch.cat([mask, torch.ones(2, 7, dtype=torch.long)], dim=1)
    mask[1, 8:10] = 0
    text = torch.cat([first.sequences, random_ids(2, 3)], dim=1)
    second = model.generate(text, attention_mask=mask, disable_compile=True, **options).sequences
    assert torch.equal(
        second, model.generate(text, attention_mask=mask, use_cache=False, max_new_tokens=4, do_sample=False)
    )


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"attention_size": 8}, {"spatial_heads": 4}], ids=["gMLP", "aMLP", "heads"])
@pytest.mark.parametrize("toeplitz", [True, False])
def test_generating_with_a_static_cache(causal_model, random_ids, fresh_compiler, toeplitz, fields):
    """The same texts, and one compiled graph for all tokens."""
    model = causal_model(toeplitz=toeplitz, **fields).double()
    ids, mask = padded([random_ids(3), random_ids(6)], "left")
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    for beams in (1, 2):
        texts = model.generate(ids, num_beams=beams, **options)
        assert torch.equal(model.generate(ids, num_beams=beams, cache_implementation="static", **options), texts)
    text = model.generate(ids, **options)
    mask = torch.cat([mask, torch.ones(2, 12, dtype=torch.long)], dim=1)
    counter = CompileCounter()
    compiled, cache = torch.compile(model, fullgraph=True, backend=counter), StaticCache(model.config, 20)
    with torch.no_grad():
        expected = model(text, mask).logits
        model(text[:, :6], mask[:, :6], past_key_values=cache)
        for t in range(6, 18):
            seen = F.pad(mask[:, : t + 1], (0, 19 - t))
            logits = compiled(text[:, t : t + 1], seen, past_key_values=cache).logits
            torch.testing.assert_close(logits[:, 0], expected[:, t])
    assert counter.frame_count == 1


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """40 tokens: padding, unknown, end of text, letters, digits and the space."""
    tokens = ["<pad>", "<unk>", "<end>", *string.ascii_lowercase, *string.digits, "Ġ"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<end>")


def test_streaming(causal_model, random_ids, capsys):
    model, tokenizer, ids = causal_model(attention_size=8).double(), letter_tokenizer(), random_ids(1, 5)
    text = model.generate(ids, max_new_tokens=10, do_sample=False, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == tokenizer.decode(text[0, 5:]) + "\n"


def test_stopping(causal_model, random_ids):
    model, tokenizer, ids = causal_model().double(), letter_tokenizer(), random_ids(2, 5)
    free = model.generate(ids, max_new_tokens=12, do_sample=False)

    class AfterThree(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] >= 8)

    stopped = model.generate(
        ids, max_new_tokens=12, do_sample=False, stopping_criteria=StoppingCriteriaList([AfterThree()])
    )
    assert torch.equal(stopped, free[:, :8])
    # A row that has ended waits for the others and is filled up with padding.
    eos = free[0, 8].item()
    end = 5 + free[0, 5:].tolist().index(eos)
    text = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=eos, pad_token_id=0)
    assert torch.equal(text[0, : end + 1], free[0, : end + 1]) and (text[0, end + 1 :] == 0).all()
    if eos not in free[1, 5:]:
        assert torch.equal(text[1], free[1])
    written = tokenizer.decode(free[0, 5:])
    letters = model.generate(
        ids[:1], max_new_tokens=12, do_sample=False, stop_strings=[written[2:4]], tokenizer=tokenizer
    )
    assert tokenizer.decode(letters[0, 5:]) == written[: written.index(written[2:4]) + 2]


@pytest.fixture
def warned(monkeypatch, caplog):
    """Messages of the library's loggers, which do not propagate by default."""
    monkeypatch.setattr(logging.getLogger("hf_gmlp.models.modeling_gmlp"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="hf_gmlp.models.modeling_gmlp")
    return caplog


@pytest.mark.parametrize("toeplitz", [True, False])
def test_a_text_ends_at_n(causal_model, random_ids, warned, toeplitz):
    model, ids = causal_model(n=12, toeplitz=toeplitz).double(), random_ids(2, 5)
    text = model.generate(ids, max_new_tokens=7, do_sample=False)
    assert text.shape == (2, 12) and not warned.records
    longer = model.generate(ids, max_new_tokens=9, do_sample=False)
    assert torch.equal(longer, text)
    (record,) = warned.records
    assert "12 tokens" in record.message
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, max_new_tokens=9, do_sample=False), text[:, 5:])
    for length in (12, 13):
        with pytest.raises(ValueError, match=rf"up to 12.*resize_position_embeddings\({length + 1}\)"):
            model.generate(random_ids(1, length), max_new_tokens=3)
    with pytest.raises(ValueError, match=r"13 tokens.*up to 12.*resize_position_embeddings\(13\)"):
        model(random_ids(1, 1), past_key_values=model(random_ids(1, 12), use_cache=True).past_key_values)
    # The grown model generates the same tokens and then more.
    model.resize_position_embeddings(20)
    grown = model.generate(ids, max_new_tokens=15, do_sample=False)
    assert grown.shape == (2, 20) and torch.equal(grown[:, :12], text)
    assert torch.equal(grown, model.generate(ids, max_new_tokens=15, do_sample=False, use_cache=False))


def test_a_grown_toeplitz_model_keeps_all_distances(causal_model):
    model = causal_model(n=6)
    before = [projection.matrix(causal=True)[0] for projection in model.spatial_projections()]
    model.resize_position_embeddings(10)
    for old, projection in zip(before, model.spatial_projections()):
        (matrix,) = projection.matrix(causal=True)
        for distance in range(10):
            expected = old[distance, 0] if distance < 6 else 0.0
            assert (matrix.diagonal(-distance) == expected).all()
        assert (matrix.triu(1) == 0).all()


def test_pipeline(causal_model, tmp_path):
    model, tokenizer = causal_model(attention_size=8).double(), letter_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    generate = pipeline("text-generation", model=str(tmp_path), dtype=torch.float64)
    assert type(generate.model) is GMLPForCausalLM
    prompts = ["what is", "a", "no 7"]
    options = {"do_sample": False, "max_new_tokens": 10, "eos_token_id": None}
    alone = [generate(prompt, **options)[0]["generated_text"] for prompt in prompts]
    batched = [answers[0]["generated_text"] for answers in generate(prompts, batch_size=3, **options)]
    assert batched == alone
    for prompt, text in zip(prompts, alone):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        assert text == tokenizer.decode(greedy_by_hand(model, ids, 10)[0], skip_special_tokens=True)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


def test_saved_and_loaded(causal_model, random_ids, tmp_path):
    model, ids = causal_model(attention_size=8), random_ids(2, 9)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is GMLPForCausalLM and loaded.config.is_causal
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.decoder.weight is loaded.get_input_embeddings().weight
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    # The encoder only looks back, too.
    encoder = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(encoder(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_a_masked_language_model_opens_as_a_causal_one(text_config, far_model, random_ids, tmp_path):
    config = text_config(type_vocab_size=0)
    masked = far_model(GMLPForMaskedLM, config)
    masked.save_pretrained(tmp_path)
    causal = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert causal.config.is_causal
    # All weights are there, including those that look ahead, which are hidden.
    for tested, reference in zip(causal.model.parameters(), masked.model.parameters(), strict=True):
        assert torch.equal(tested, reference)
    ids = random_ids(1, 9)
    changed = ids.clone()
    changed[:, 6:] = 5
    assert_close(causal(ids).logits[:, :6], causal(changed).logits[:, :6], depth=2)
    assert (masked(ids).logits[:, :6] - masked(changed).logits[:, :6]).abs().max() > 1e-2


def test_the_config_given_is_not_changed(text_config):
    config = text_config()
    assert GMLPForCausalLM(config).config.is_causal and not config.is_causal
    causal = text_config(is_causal=True)
    assert GMLPForCausalLM(causal).config is causal


# ---------------------------------------------------------------------------------------------------------------------
# Training


def test_loss_of_the_next_token(causal_model, random_ids):
    model, ids = causal_model(), random_ids(3, 10)
    labels = ids.masked_fill(torch.rand(3, 10) < 0.3, -100)
    output = model(ids, labels=labels)
    expected = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(output.loss, expected)
    # In two halves, as Trainer accumulates: a mean over the labels of both.
    count = (labels[:, 1:] != -100).sum()
    halves = [model(ids[i], labels=labels[i], num_items_in_batch=count).loss for i in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(sum(halves), expected)


@torch.no_grad()
def test_logits_to_keep(causal_model, random_ids):
    model, ids = causal_model(), random_ids(2, 10)
    logits = model(ids).logits
    assert torch.equal(model(ids, logits_to_keep=0).logits, logits)
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, logits[:, -3:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([1, 5])).logits, logits[:, [1, 5]])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(causal_model, random_ids, use_reentrant):
    model, ids = causal_model(attention_size=8).train().double(), random_ids(2, 10)
    gradients = []
    for use_cache in (False, True):
        model.zero_grad()
        output = model(ids, labels=ids, use_cache=use_cache)
        output.loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("checkpointing", ["plain", "reentrant", "selective"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_is_causal_for_one_forward_pass(text_config, far_model, random_ids, attention, checkpointing):
    """transformers takes the keyword out of the config again before a checkpointed block is computed anew."""
    model = far_model(GMLPForMaskedLM, text_config(**attention_fields(attention))).train().double()
    causal = far_model(GMLPForMaskedLM, text_config(is_causal=True, **attention_fields(attention))).train().double()
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


@pytest.mark.parametrize("attention", [None, "sdpa"])
def test_training_under_autocast(causal_model, random_ids, attention):
    model = causal_model(drop_path_rate=0.2, hidden_dropout_prob=0.1, **attention_fields(attention)).train()
    ids, mask = padded([random_ids(7), random_ids(10)], "left")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, mask, labels=ids.masked_fill(mask == 0, -100)).loss
    assert loss.dtype == torch.float32
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_generates(causal_model, random_ids, dtype):
    model = causal_model(attention_size=8).to(dtype)
    ids, mask = padded([random_ids(7), random_ids(10)], "left")
    assert model.generate(ids, attention_mask=mask, max_new_tokens=10, num_beams=2).shape == (2, 20)


def test_trainer_learns_to_count(text_config, tmp_path):
    generator = torch.Generator().manual_seed(0)
    samples = []
    for first in torch.randint(5, 30, (128,), generator=generator).tolist():
        ids = torch.arange(first, first + 8)
        samples.append({"input_ids": ids, "labels": ids})
    model = AutoModelForCausalLM.from_config(text_config(hidden_size=32, intermediate_size=64))
    assert type(model) is GMLPForCausalLM
    trainer, losses = train(
        model,
        samples,
        tmp_path,
        max_steps=32,
        logging_steps=8,
        gradient_accumulation_steps=2,
        eval_dataset=samples[:32],
    )
    # ln 40 = 3.7 at the start: also a check that accumulation does not multiply the loss.
    assert 2.0 < losses[0] < 4.0 and losses[-1] < 0.5 * losses[0]
    assert trainer.evaluate()["eval_loss"] < 0.5 * losses[0]
    # Evaluation gathers logits and no caches.
    assert trainer.predict(samples[:4]).predictions.shape == (4, 8, 40)


# ---------------------------------------------------------------------------------------------------------------------
# Compilation and export


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"toeplitz": False}, {"attention_size": 8}], ids=["Toeplitz", "dense", "aMLP"])
def test_compiles_into_one_graph(causal_model, random_ids, fresh_compiler, fields):
    model = causal_model(**fields).train()
    ids, mask = padded([random_ids(7), random_ids(10)], "left")
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    results = []
    for forward in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        output = forward(**inputs)
        output.loss.backward()
        results.append([output.loss.detach(), output.logits.detach(), *(p.grad.clone() for p in model.parameters())])
    assert_close(results[0], results[1], depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_exported_for_any_batch_and_length(causal_model, random_ids, toeplitz, attention):
    model = causal_model(n=12, toeplitz=toeplitz, **attention_fields(attention))
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=12)}

    def inputs(rows, tokens):
        mask = torch.ones(rows, tokens, dtype=torch.long)
        mask[0, : tokens // 2] = 0
        return {"input_ids": random_ids(rows, tokens), "attention_mask": mask}

    program = torch.export.export(
        model, (), inputs(2, 8), dynamic_shapes={"input_ids": shape, "attention_mask": shape}, strict=False
    )
    for rows, tokens in ((2, 8), (3, 12), (5, 3), (4, 2)):
        case = inputs(rows, tokens)
        exported = program.module()(**case).logits
        assert_close(exported, model(**case).logits, depth=2)


@torch.no_grad()
def test_multiple_choice_reads_the_last_token(text_config, far_model, random_ids):
    model = far_model(GMLPForMultipleChoice, text_config(is_causal=True))
    ids = random_ids(2, 3, 9)
    changed = ids.clone()
    changed[..., -1] = (ids[..., -1] - 4) % 35 + 5
    assert ((model(ids).logits - model(changed).logits).abs() > 1e-5).all()
