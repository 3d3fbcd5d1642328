"""Positions, masks and lengths that do not fit the model are refused, and in compiled models asserted not to occur;
test_reference.py tests the outputs."""

import pytest
import torch
from torch.export import Dim, export
from transformers import DynamicCache, StaticCache

from hf_gmlp import GMLPForMaskedLM, GMLPForQuestionAnswering, GMLPForSequenceClassification, GMLPModel
from hf_gmlp.models.modeling_gmlp import STRICT_EXPORT

from ..numerics import assert_close


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"position_ids": torch.tensor([[0, 1, 2, 3, 4, 12]])}, "`position_ids`.* 11"),
        ({"position_ids": torch.tensor([[-2, 1, 2, 3, 4, 5]])}, "`position_ids`.* 11"),
        ({"position_ids": torch.arange(7)[None]}, r"`position_ids`.*\(1, 6\)"),
        # With a cache, a row holds one document, whose positions count its tokens.
        ({"position_ids": torch.arange(6)[None] + 1, "use_cache": True}, "use_cache=False"),
        ({"position_ids": torch.arange(6)[None] - 20, "use_cache": True}, "use_cache=False"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]), "past_key_values": DynamicCache()}, "use_cache=False"),
        ({"attention_mask": torch.ones(1, 5)}, r"`attention_mask`.*\(1, 6\)"),
        ({"attention_mask": torch.ones(1, 1, 6, 6)}, r"`attention_mask`.*\(1, 6\)"),
        ({"input_ids": torch.arange(6)}, r"\[batch, tokens\].*\(6,\)"),
        ({"input_ids": torch.ones(1, 0, dtype=torch.long)}, "at least one token"),
    ],
)
def test_inputs_of_the_wrong_shape_are_refused(perturbed_model, text_config, random_ids, inputs, message):
    with pytest.raises(ValueError, match=message):
        perturbed_model(GMLPModel, text_config(is_causal=True))(**{"input_ids": random_ids(1, 6)} | inputs)


PACKED = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_class, inputs, message",
    [
        (GMLPModel, {"position_ids": torch.tensor([[0, 1, 2, 3, 4, 12]])}, "from 0 to 11"),
        (GMLPModel, {"position_ids": torch.tensor([[-1, 0, 1, 2, 3, 4]])}, "from 0 to 11"),
        (GMLPModel, {"position_ids": torch.tensor([[0, 1, 2, 4, 5, 6]])}, "increase by one"),
        (GMLPModel, PACKED | {"use_cache": True}, "use_cache=False"),
        (GMLPForSequenceClassification, PACKED, "one answer per row"),
        (GMLPForQuestionAnswering, PACKED, "one answer per row"),
        (GMLPForMaskedLM, {"masked_positions": torch.tensor([[1, 0, 2, 3, 4, 5]]), "labels": 1}, "in order"),
    ],
)
@torch.no_grad()
def test_compiled_models_assert_what_eager_ones_refuse(
    perturbed_model, text_config, random_ids, fresh_compiler, model_class, inputs, message
):
    model, ids = perturbed_model(model_class, text_config(is_causal="use_cache" in inputs)), random_ids(1, 6)
    inputs = {name: ids if name == "labels" else value for name, value in inputs.items()}
    if message != "increase by one":  # an eager model gathers W
        with pytest.raises(ValueError, match=message):
            model(ids, **inputs)
    with pytest.raises(RuntimeError, match=message):
        torch.compile(model, fullgraph=True, backend="eager")(ids, **inputs)


@torch.no_grad()
def test_the_pooled_output_of_packed_rows_is_nan_in_a_compiled_model(
    perturbed_model, text_config, random_ids, fresh_compiler
):
    model, ids = perturbed_model(GMLPModel, text_config()), random_ids(2, 6)
    inputs = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2], [*range(6)]])}
    actual, expected = torch.compile(model, fullgraph=True, backend="eager")(ids, **inputs), model(ids, **inputs)
    assert expected.pooler_output is None and actual.pooler_output.isnan().all(1).tolist() == [True, False]
    assert_close(actual.last_hidden_state, expected.last_hidden_state)
    assert torch.equal(actual.documents, expected.documents)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("packing", ["", "gaps", "longer than n"])
@torch.no_grad()
def test_an_exported_model_serves_every_batch_and_length(perturbed_model, text_config, random_ids, packing, strict):
    """Lengths have explicit bounds, which `torch.export` then holds the model to."""
    if strict and not STRICT_EXPORT:
        pytest.skip("Before torch 2.10, a strict export cannot be told from compiling.")
    model = perturbed_model(GMLPModel, text_config(max_position_embeddings=300, spatial_reach=5)).double()
    longest = 400 if packing == "longer than n" else 300

    def inputs(batch, length):
        ids, positions = random_ids(batch, length), torch.arange(length).expand(batch, -1)
        if packing == "longer than n":
            positions = positions % 290
        elif packing:
            positions = positions + (positions > length // 2) * (300 - length)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | (
            {"position_ids": positions} if packing else {}
        )

    sample, shape = inputs(2, 290), {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=longest)}
    program = export(model, (), sample, dynamic_shapes={name: shape for name in sample}, strict=strict).module()
    for batch, length in ((1, 2), (3, 9), (3, 256), (1, longest)):
        batch = inputs(batch, length)
        assert_close(program(**batch).last_hidden_state, model(**batch).last_hidden_state)


def test_a_model_on_the_meta_device_has_shapes_only(perturbed_model, text_config, random_ids):
    model, ids = perturbed_model(GMLPModel, text_config(is_causal=True)).to("meta"), random_ids(2, 6).to("meta")
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]], device="meta")
    for inputs in ({"position_ids": positions}, {"past_key_values": StaticCache(model.config, 9)}):
        assert model(ids, torch.ones_like(ids), **inputs).last_hidden_state.shape == (2, 6, 16)
