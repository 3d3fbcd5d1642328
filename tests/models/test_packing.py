"""Packed documents have the same outputs and gradients as in separate rows, or are refused."""

import pytest
import torch
from transformers import DataCollatorWithFlattening

from hf_gmlp import (
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForMultipleChoice,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPModel,
)

from ..numerics import assert_close
from .helpers import attention_fields, gradients, padded

LENGTHS = (3, 7, 1, 9)
FORMS = [
    {"toeplitz": False},
    {"spatial_heads": 4, "spatial_reach": 5},
    attention_fields("eager"),
    attention_fields("sdpa"),
]


@pytest.fixture
def documents(random_ids):
    return [random_ids(length) for length in LENGTHS]


def flattened(documents):
    """Pack all documents into one row of 20 tokens, which is more than n."""
    positions = torch.cat([torch.arange(len(document)) for document in documents])
    return {"input_ids": torch.cat(documents)[None], "position_ids": positions[None]}


def in_rows(documents):
    """Pack the documents into two rows with padding before, between and after them."""
    a, b, c, d = documents
    gap = torch.zeros(2, dtype=torch.long)
    rows = [torch.cat([gap, a, gap, b]), torch.cat([d, c, gap, gap])]
    mask = torch.tensor([[0] * 2 + [1] * 3 + [0] * 2 + [1] * 7, [1] * 10 + [0] * 4])
    positions = torch.tensor([[5, 5, 0, 1, 2, 9, -1, *range(7)], [*range(9), 0, 3, 0, 7, 7]])
    return {"input_ids": torch.stack(rows), "attention_mask": mask, "position_ids": positions}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_packed_documents_equal_separate_ones(perturbed_model, text_config, documents, form, is_causal):
    """Compare documents in one row longer than n, in rows with padding, and in padded rows of their own, with each
    document alone. Hidden states of all blocks stay at the indices of their tokens, where hooks expect them."""
    config = text_config(is_causal=is_causal, max_position_embeddings=9, **form)
    model = perturbed_model(GMLPModel, config, add_pooling_layer=False).double()
    alone = [model(document[None], output_hidden_states=True) for document in documents]
    last = torch.cat([x.last_hidden_state for x in alone], 1)
    weights = torch.randn_like(last)
    expected = gradients(model, (last * weights).sum())
    assert expected["layers.0.spatial_gating_unit.proj.weight"].count_nonzero() >= 9
    one_row, rows, separate = flattened(documents), in_rows(documents), padded(documents)
    for inputs, order, mask in (
        (one_row, [0, 1, 2, 3], torch.ones(1, 20)),
        (rows, [0, 1, 3, 2], rows["attention_mask"]),
        ({"input_ids": separate[0], "attention_mask": separate[1]}, [0, 1, 2, 3], separate[1]),
    ):
        output = model(**inputs, output_hidden_states=True)
        assert output.last_hidden_state.shape == (*mask.shape, 16)
        for i, states in enumerate(output.hidden_states):
            reference = torch.cat([alone[j].hidden_states[i][0] for j in order])
            torch.testing.assert_close(states[mask == 1], reference, rtol=1e-10, atol=1e-10)
        in_order = torch.cat([weights[0].split(LENGTHS)[j] for j in order])
        loss = (output.last_hidden_state[mask == 1] * in_order).sum()
        assert_close(gradients(model, loss), expected, depth=2)


@torch.no_grad()
def test_other_descriptions_of_packed_rows_need_position_ids(perturbed_model, text_config, documents):
    """transformers' collator passes all of these arguments, in which one row describes all rows."""
    model, batch = perturbed_model(GMLPForMaskedLM, text_config(attention_size=8)).double(), flattened(documents)
    expected, starts = model(**batch).logits, torch.tensor([0, 3, 10, 11, 20])
    others = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 9, "max_length_k": 9}
    assert torch.equal(model(**batch, **others, seq_idx=torch.zeros(1, 20)).logits, expected)
    repeated = model(batch["input_ids"].repeat(2, 1), position_ids=batch["position_ids"]).logits
    torch.testing.assert_close(repeated, expected.expand(2, -1, -1), rtol=1e-10, atol=1e-10)
    for packing in (others, {"seq_idx": torch.zeros(1, 9)}):
        with pytest.raises(ValueError, match="`position_ids`"):
            model(documents[3][None], **packing)


@pytest.mark.parametrize(
    "model_class", [GMLPForSequenceClassification, GMLPForMultipleChoice, GMLPForQuestionAnswering]
)
def test_heads_with_one_answer_per_row_refuse_several_documents(perturbed_model, text_config, documents, model_class):
    model, batch = perturbed_model(model_class, text_config()), flattened(documents)
    single = {"input_ids": documents[3][None], "position_ids": torch.arange(9)[None]}
    if model_class is GMLPForMultipleChoice:
        batch, single = ({name: x[None] for name, x in inputs.items()} for inputs in (batch, single))
    with pytest.raises(ValueError, match="one answer per row"):
        model(**batch)
    model(**single)
    # The base model returns the tokens, but no pooled output.
    assert model.model(**flattened(documents)).get("pooler_output") is None


def test_causal_loss_does_not_cross_documents(perturbed_model, text_config, documents):
    """Labels are the tokens themselves, or those of transformers' collator, which excludes first tokens."""
    model = perturbed_model(GMLPForCausalLM, text_config()).double()
    batch = DataCollatorWithFlattening(return_tensors="pt", return_seq_idx=True, return_flash_attn_kwargs=True)(
        [{"input_ids": document.tolist()} for document in documents]
    )
    sums = [model(x[None], labels=x[None]).loss * (len(x) - 1) for x in documents if len(x) > 1]
    expected = sum(sums) / 16
    torch.testing.assert_close(model(**batch).loss, expected)
    ids, positions = batch["input_ids"], batch["position_ids"]
    torch.testing.assert_close(model(ids, position_ids=positions, labels=ids).loss, expected)
    # Accumulated gradients equal those of one batch, whatever count Trainer passes.
    loss = model(ids, position_ids=positions, labels=ids, num_items_in_batch=torch.tensor(38)).loss
    torch.testing.assert_close(loss, sum(sums) / 38)
