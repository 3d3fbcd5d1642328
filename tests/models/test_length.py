"""The reach of a Toeplitz W: sequences longer than those of training, a product by blocks, convolutions over tokens."""

import copy

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import random_unstructured
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, pipeline

from hf_gmlp import GMLPForCausalLM, GMLPForMaskedLM, GMLPModel, extend_context
from hf_gmlp.models import modeling_gmlp
from hf_gmlp.models.modeling_gmlp import Positions, SpatialProjection

from ..numerics import assert_close
from .helpers import make_projection


def banded_matrix(weight, length):
    """Build W[i, j] = weight[k - 1 + j - i], with zeros beyond the weights."""
    reach, matrix = (len(weight) + 1) // 2, weight.new_zeros(length, length)
    for i in range(length):
        for j in range(max(0, i - reach + 1), min(length, i + reach)):
            matrix[i, j] = weight[reach - 1 + j - i]
    return matrix


@pytest.fixture(params=["banded_loop", "banded_batch"])
def small_blocks(monkeypatch, request):
    """Multiply by blocks even for short texts, in the forms for CPUs and for GPUs."""
    monkeypatch.setattr(modeling_gmlp, "BLOCK_SIZE", 1)
    monkeypatch.setattr(modeling_gmlp, "banded_loop", getattr(modeling_gmlp, request.param))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("reach, length", [(1, 9), (3, 13), (3, 24), (5, 40), (12, 40)])
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_the_product_by_blocks_is_that_of_a_banded_matrix(small_blocks, reach, length, heads, is_causal, packed):
    """Outputs and gradients agree, and documents of a row do not see each other. With as many heads as channels, the
    product is a convolution. The last length is too short for blocks."""
    projection = make_projection(48, heads, toeplitz=True, reach=reach, dtype=torch.double)
    v = torch.randn(2, length, 6, dtype=torch.double, requires_grad=True)
    weight, bias = projection.weight.view(heads, -1), projection.bias.view(heads, -1)[:, :length]
    matrices = torch.stack([banded_matrix(w, length) for w in weight])
    matrices = matrices.tril() if is_causal else matrices
    documents = None
    masks = torch.ones(2, 1, length, length, dtype=torch.double)
    if packed:
        documents = (torch.rand(2, length) < 0.3).long().cumsum(-1)
        masks = (documents[:, None, :, None] == documents[:, None, None]).double()
    expected = torch.einsum("bhij,bjhc->bihc", matrices * masks, v.unflatten(2, (heads, -1))) + bias.T[:, :, None]
    actual = projection(v, Positions(is_causal, documents=documents))
    weights = torch.randn(2, length, 6, dtype=torch.double)
    torch.testing.assert_close(actual, expected.flatten(2), rtol=1e-10, atol=1e-10)
    parameters = [*projection.parameters(), v]
    gradients = [torch.autograd.grad((x * weights).sum(), parameters) for x in (actual, expected.flatten(2))]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
    assert torch.equal(projection.matrix(length, is_causal=is_causal), matrices)


@pytest.mark.parametrize("model_class", [GMLPForMaskedLM, GMLPForCausalLM])
@torch.no_grad()
def test_a_resized_model_accepts_longer_texts(
    small_blocks, perturbed_model, text_config, random_ids, tmp_path, model_class
):
    model = perturbed_model(model_class, text_config(attention_size=8)).double()
    ids, state = random_ids(2, 12), {name: x.clone() for name, x in model.state_dict().items()}
    expected = model(ids).logits
    model.resize_position_embeddings(200)
    assert (model.config.max_position_embeddings, model.config.spatial_reach) == (200, 12)
    torch.testing.assert_close(model(ids).logits, expected)
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x[..., :12], state[name][..., :12])}
    assert not changed and model.spatial_projections()[0].weight.shape == (23,)
    # The product by blocks is exact: all logits equal those of a model with a weight for every offset.
    ids = random_ids(2, 150)
    mask = torch.ones_like(ids)
    mask[1, :40] = 0
    logits = model(ids, mask).logits
    model.resize_position_embeddings(200, 200)
    assert model.config.spatial_reach is None and model.spatial_projections()[0].weight.shape == (399,)
    torch.testing.assert_close(logits[mask == 1], model(ids, mask).logits[mask == 1])
    model.resize_position_embeddings(np.int64(200), np.int64(12))
    model.save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path, dtype=torch.double)
    torch.testing.assert_close(loaded(ids, mask).logits, logits)
    assert loaded.spatial_projections()[0].reach == 12
    if model_class is GMLPForCausalLM:
        cache, pieces = DynamicCache(), []
        for start, end in ((0, 100), (100, 101), (101, 150)):
            pieces.append(model(ids[:, start:end], mask[:, :end], past_key_values=cache).logits)
        torch.testing.assert_close(torch.cat(pieces, 1)[mask == 1], logits[mask == 1])


@pytest.mark.parametrize("toeplitz", [True, False])
@pytest.mark.parametrize("arguments", [(0,), (20.0,), ("20",), (True,), (20, 21), (20, 0), (20, 2.5), (20, True)])
def test_invalid_lengths_change_nothing(perturbed_model, text_config, random_ids, toeplitz, arguments):
    model = perturbed_model(GMLPModel, text_config(toeplitz=toeplitz))
    config, ids = model.config.to_dict(), random_ids(1, 12)
    expected = model(ids).last_hidden_state
    with pytest.raises((TypeError, ValueError)):
        model.resize_position_embeddings(*arguments)
    assert model.config.to_dict() == config and torch.equal(model(ids).last_hidden_state, expected)
    if not toeplitz:
        with pytest.raises(ValueError, match="dense W"):
            model.resize_position_embeddings(20, 12)
    model.resize_position_embeddings(20)
    torch.testing.assert_close(model(ids).last_hidden_state, expected)


def offload(model):
    cpu_offload(model)


def adapt(model):
    inject_adapter_in_model(LoraConfig(target_modules=[], target_parameters=["spatial_gating_unit.proj.weight"]), model)


def parametrize(model):
    weight_norm(model.spatial_projections()[1])


def prune(model):
    random_unstructured(model.spatial_projections()[1], "bias", 0.5)


def shard(model):
    """FSDP keeps a part of each parameter, flattened, outside of the forward pass."""
    projection = model.spatial_projections()[0]
    projection.weight = torch.nn.Parameter(projection.weight.detach().flatten()[:5])


@pytest.mark.parametrize("wrap", [offload, adapt, parametrize, prune, shard])
def test_a_model_that_cannot_be_resized_stays_unchanged(perturbed_model, text_config, wrap):
    model = perturbed_model(GMLPModel, text_config(toeplitz=False))
    wrap(model)
    config, shapes = model.config.to_dict(), {name: x.shape for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match="Cannot resize W"):
        model.resize_position_embeddings(20)
    assert model.config.to_dict() == config and {name: x.shape for name, x in model.state_dict().items()} == shapes


def test_a_trained_copy_of_w_is_resized_too(perturbed_model, text_config, random_ids):
    model = perturbed_model(GMLPModel, text_config())
    config = LoraConfig(target_modules=["proj_in"], modules_to_save=["spatial_gating_unit.proj"])
    adapted, ids = get_peft_model(model, config), random_ids(2, 9)
    expected = adapted(input_ids=ids).last_hidden_state
    adapted.resize_position_embeddings(20)
    assert_close(adapted(input_ids=ids).last_hidden_state, expected)
    assert adapted(input_ids=random_ids(1, 20)).last_hidden_state.shape[1] == 20


@pytest.mark.parametrize("heads", [1, 6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_no_other_form_of_output(heads, dtype, monkeypatch):
    """Under autocast, all forms return half precision. On a CPU, oneDNN may hang in a convolution of float16."""
    projection, v = make_projection(300, heads, toeplitz=True, reach=4), torch.randn(2, 280, 6)
    expected = projection(v)
    if dtype == torch.float16:
        monkeypatch.setattr(F, "conv1d", None)
    with torch.autocast("cpu", dtype):
        actual = projection(v)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.float(), expected, rtol=0.05, atol=0.1)


def test_the_cost_of_a_token_does_not_grow_with_the_length():
    counts = []
    with torch.device("meta"):
        projection = SpatialProjection(16384, True, reach=128)
        for length in (4096, 16384):
            with FlopCounterMode(display=False) as counter:
                projection(torch.empty(1, length, 8))
            counts.append(counter.get_total_flops() / length)
    assert counts[1] < 1.05 * counts[0]


class LargestTensor(TorchDispatchMode):
    """The largest number of elements of any tensor that an operator returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(output) if torch.is_tensor(x)]
        self.size = max([self.size, *(x.untyped_storage().size() // x.element_size() for x in tensors)])
        return output


@pytest.mark.parametrize("is_causal", [False, True])
@torch.no_grad()
def test_packed_rows_have_no_tensor_of_all_pairs(small_blocks, perturbed_model, text_config, random_ids, is_causal):
    """For texts of 600 tokens, whether documents have 7 tokens each or all belong to one."""
    config = text_config(max_position_embeddings=600, spatial_reach=5, is_causal=is_causal)
    model, ids = perturbed_model(GMLPModel, config), random_ids(2, 600)
    for position_ids in (torch.arange(600)[None], (torch.arange(600) % 7).expand(2, -1)):
        with LargestTensor() as largest:
            model(ids, position_ids=position_ids)
        assert largest.size < 600 * 600 / 4


def test_extend_context_lets_a_pipeline_accept_longer_texts(perturbed_model, text_config, word_tokenizer):
    model = perturbed_model(GMLPForMaskedLM, text_config(vocab_size=len(word_tokenizer)))
    word_tokenizer = copy.deepcopy(word_tokenizer)
    fill_mask = pipeline("fill-mask", model=model, tokenizer=word_tokenizer)
    extend_context(fill_mask.model, fill_mask.tokenizer, 300)
    assert len(fill_mask(" ".join(["w1"] * 250 + ["[MASK]"]), top_k=2)) == 2
    dense = perturbed_model(GMLPForMaskedLM, text_config(toeplitz=False))
    with pytest.raises(ValueError, match="must be trained"):
        extend_context(dense, word_tokenizer, 300)
    assert word_tokenizer.model_max_length == 300
    # A shorter length leaves the model as it is, and a dense W accepts up to n tokens.
    for model, n in ((fill_mask.model, 300), (dense, 12)):
        extend_context(model, word_tokenizer, 6)
        assert word_tokenizer.model_max_length == 6 and model.config.max_position_embeddings == n
    assert fill_mask.model.spatial_projections()[0].reach == 12
