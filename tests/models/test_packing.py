"""Packed documents: each has the outputs and gradients that it has in a row of its own, in every head and layout."""

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import DataCollatorWithFlattening, DynamicCache, Trainer, TrainingArguments

from hf_gmlp import (
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPModel,
)
from hf_gmlp.models import modeling_gmlp
from hf_gmlp.models.heads import document_numbers
from hf_gmlp.models.modeling_gmlp import drop_path
from hf_gmlp.models.spatial_gating import find_positions

from .helpers import attention_fields, gradients

LENGTHS = (3, 7, 1, 9)
FORMS = [{"toeplitz": False}, {"spatial_heads": 4}, attention_fields("eager"), attention_fields("sdpa")]


@pytest.fixture
def documents(random_ids):
    return [random_ids(length) for length in LENGTHS]


@pytest.fixture
def force_layout(monkeypatch):
    """force_layout(split) takes a row of W per document, or one W per row of the batch."""
    return lambda split: monkeypatch.setattr(
        modeling_gmlp, "find_positions", lambda *args: find_positions(*args[:-1], split)
    )


def counted(documents):
    return torch.cat([torch.arange(len(document)) for document in documents])[None]


def numbered(documents):
    return torch.cat([torch.full((len(document),), i) for i, document in enumerate(documents)])[None]


def flattened(documents):
    """All in one row of 20 tokens, which is more than n."""
    return {"input_ids": torch.cat(documents)[None], "position_ids": counted(documents)}


def in_rows(documents):
    """Two rows with padding in front, between and behind, described by `seq_idx` and the mask."""
    a, b, c, d = documents
    gap = torch.zeros(2, dtype=torch.long)
    rows = [torch.cat([gap, a, gap, b]), torch.cat([d, c, gap, gap])]
    mask = torch.tensor([[0] * 2 + [1] * 3 + [0] * 2 + [1] * 7, [1] * 10 + [0] * 4])
    seq_idx = torch.tensor([[0] * 6 + [1] * 8, [2] * 9 + [3] * 5])
    return {"input_ids": torch.stack(rows), "attention_mask": mask, "seq_idx": seq_idx}


def assert_same_gradients(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10 * max(scale, 1.0), msg=name)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_tokens_and_gradients(perturbed_model, text_config, documents, force_layout, form, is_causal, split):
    """In one row longer than n, and in rows with padding, with a row of W per document or one W per row."""
    force_layout(split)
    model = perturbed_model(GMLPModel, text_config(is_causal=is_causal, max_position_embeddings=9, **form)).double()
    alone = [model(document[None], output_hidden_states=True) for document in documents]
    last, pooled = (
        torch.cat([x[name] for x in alone], i) for i, name in ((1, "last_hidden_state"), (0, "pooler_output"))
    )
    weights, pooled_weights = torch.randn_like(last), torch.randn_like(pooled)
    expected = gradients(model, (last * weights).sum() + (pooled * pooled_weights).sum())
    assert expected["layers.0.spatial_gating_unit.proj.weight"].count_nonzero() >= 9
    batch = in_rows(documents)
    for inputs, order, mask in (
        (flattened(documents), [0, 1, 2, 3], torch.ones(1, 20)),
        (batch, [0, 1, 3, 2], batch["attention_mask"]),
    ):
        found = model(**inputs, output_hidden_states=True)
        assert found.last_hidden_state.shape == (*mask.shape, 16)
        for i, states in enumerate(found.hidden_states):
            wanted = torch.cat([alone[j].hidden_states[i][0] for j in order])
            torch.testing.assert_close(states[mask == 1], wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.pooler_output, pooled[order], rtol=1e-10, atol=1e-10)
        in_order = torch.cat([weights[0].split(LENGTHS)[j] for j in order])
        loss = (found.last_hidden_state[mask == 1] * in_order).sum()
        assert_same_gradients(gradients(model, loss + (found.pooler_output * pooled_weights[order]).sum()), expected)


@torch.no_grad()
def test_what_describes_packing(perturbed_model, text_config, documents):
    model = perturbed_model(GMLPModel, text_config(attention_size=8)).double()
    batch, numbers, starts = flattened(documents), numbered(documents), torch.tensor([0, 3, 10, 11, 20])
    ids, positions = batch["input_ids"], batch["position_ids"]
    expected = torch.cat([model(document[None]).last_hidden_state for document in documents], dim=1)
    for packing in (
        {"position_ids": positions},
        {"position_ids": positions, "attention_mask": torch.ones_like(ids)},
        {"seq_idx": numbers},
        {"seq_idx": numbers.int(), "position_ids": positions},
        {"seq_idx": 5 - numbers % 2},
        {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 9, "max_length_k": 9},
        {"cu_seq_lens_q": starts.int(), "position_ids": positions},
        # `seq_idx` goes first, then `cu_seq_lens_q`.
        {"seq_idx": numbers, "cu_seq_lens_q": torch.tensor([0, 4, 20])},
    ):
        found = model(ids, **packing).last_hidden_state
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    # One row describes all.
    found = model(ids.repeat(2, 1), position_ids=positions).last_hidden_state
    torch.testing.assert_close(found, expected.expand(2, -1, -1), rtol=1e-10, atol=1e-10)


def test_a_document_is_no_longer_than_n(text_config, documents):
    model = GMLPModel(text_config(max_position_embeddings=8))
    with pytest.raises(ValueError, match="9 tokens"):
        model(**flattened(documents))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_gradients_of_a_classifier(perturbed_model, text_config, documents, pooling):
    model = perturbed_model(GMLPForSequenceClassification, text_config(pooling=pooling, attention_size=8)).double()
    labels = torch.tensor([0, 2, 1, 1])
    packed = model(**flattened(documents), labels=labels)
    single = torch.cat([model(document[None]).logits for document in documents])
    torch.testing.assert_close(packed.logits, single)
    assert_same_gradients(gradients(model, packed.loss), gradients(model, F.cross_entropy(single, labels)))


@torch.no_grad()
def test_question_answering(perturbed_model, text_config, documents):
    model = perturbed_model(GMLPForQuestionAnswering, text_config()).double()
    start, end = torch.tensor([1, 0, 0, 8]), torch.tensor([2, 5, 0, 8])
    found = model(**flattened(documents), start_positions=start, end_positions=end)
    rows = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(document) for document in documents], batch_first=True)
    expected = model(rows, mask)
    for a, b in ((found.start_logits, expected.start_logits), (found.end_logits, expected.end_logits)):
        torch.testing.assert_close(a[mask == 1], b[mask == 1])
        assert (a[mask == 0] == torch.finfo(a.dtype).min).all()
    losses = [F.cross_entropy(found.start_logits, start), F.cross_entropy(found.end_logits, end)]
    torch.testing.assert_close(found.loss, sum(losses) / 2)


def test_causal_loss_does_not_cross_documents(perturbed_model, text_config, documents):
    """Labels that are the tokens themselves, and those of transformers' collator, which leaves first tokens out."""
    model = perturbed_model(GMLPForCausalLM, text_config()).double()
    batch = DataCollatorWithFlattening(return_tensors="pt", return_seq_idx=True, return_flash_attn_kwargs=True)(
        [{"input_ids": document.tolist()} for document in documents]
    )
    losses = [model(document[None], labels=document[None]).loss * (len(document) - 1) for document in documents[:2]]
    losses.append(model(documents[3][None], labels=documents[3][None]).loss * 8)
    expected = sum(losses) / 16
    torch.testing.assert_close(model(**batch).loss, expected)
    ids = batch["input_ids"]
    torch.testing.assert_close(model(ids, position_ids=batch["position_ids"], labels=ids).loss, expected)
    for packing in ({"cu_seq_lens_q": batch["cu_seq_lens_q"], "max_length_q": 9}, {"seq_idx": batch["seq_idx"]}):
        torch.testing.assert_close(model(ids, labels=ids, **packing).loss, expected)


def test_stochastic_depth_drops_documents(documents):
    numbers = document_numbers((1, 20), position_ids=counted(documents))
    kept = torch.cat([drop_path(torch.ones(1, 20, 2), 0.5, True, numbers) for _ in range(20)])
    parts = [part.unique().tolist() for row in kept for part in row.split(LENGTHS)]
    assert all(part in ([0.0], [2.0]) for part in parts)
    assert [0.0] in parts and [2.0] in parts


@pytest.mark.parametrize("column", ["position_ids", "seq_idx"])
def test_a_plain_trainer_keeps_the_columns(perturbed_model, text_config, documents, tmp_path, column):
    """Trainer keeps the columns that `forward` names, and drops all others."""
    model = perturbed_model(GMLPForMaskedLM, text_config(attention_size=8))
    ids = torch.cat(documents).tolist()
    packing = {"position_ids": counted(documents), "seq_idx": numbered(documents)}[column][0].tolist()
    data = Dataset.from_list([{"input_ids": ids, "labels": ids, column: packing, "source": 1}] * 2)
    args = TrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=2, report_to=[])
    trainer = Trainer(model=model, args=args, train_dataset=data)
    (batch,) = trainer.get_train_dataloader()
    assert set(batch) == {"input_ids", "labels", column}
    losses = [model(document[None], labels=document[None]).loss * len(document) for document in documents]
    expected = sum(losses).item() / 20
    assert trainer.compute_loss(model, dict(batch)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_compiled(perturbed_model, text_config, documents):
    """Any positions, in one graph without a look at values."""
    model = perturbed_model(GMLPForMaskedLM, text_config(num_hidden_layers=1, attention_size=8)).double()
    batch = flattened(documents)
    ids, starts = batch["input_ids"], torch.tensor([0, 3, 10, 11, 20])
    padded = in_rows(documents)
    cases = [padded, {"input_ids": ids, "cu_seq_lens_q": starts, "max_length_q": 9}]
    for case in cases:
        torch.compiler.reset()
        found = torch.compile(model, fullgraph=True, backend="eager")(**case).logits
        shown = case.get("attention_mask", torch.ones_like(case["input_ids"])) == 1
        torch.testing.assert_close(found[shown], model(**case).logits[shown], rtol=1e-10, atol=1e-10)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        ({"position_ids": torch.arange(8)[None]}, "`position_ids`"),
        ({"seq_idx": torch.zeros(2, 7)}, "`seq_idx`"),
        ({"cu_seq_lens_q": torch.tensor([1, 3, 7])}, "`cu_seq_lens_q`"),
    ],
)
def test_packing_of_another_shape_is_refused(text_config, random_ids, packing, message):
    with pytest.raises(ValueError, match=message):
        GMLPModel(text_config())(random_ids(1, 7), **packing)


def test_no_packing_with_a_cache(text_config, documents):
    batch = flattened(documents)
    model = GMLPForCausalLM(text_config(max_position_embeddings=24)).eval()
    for cache in ({"use_cache": True}, {"past_key_values": DynamicCache()}):
        with pytest.raises(ValueError, match="use_cache=False"):
            model(**batch, **cache)
