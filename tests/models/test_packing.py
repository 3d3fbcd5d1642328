"""Packed documents: each has the outputs that it has in a row of its own, in every head and implementation.

The references are the same models on single documents, with weights far from the initial ones.
"""

import pytest
import torch
from torch.nn import functional as F
from transformers import DataCollatorWithFlattening, DynamicCache

from hf_gmlp import (
    BertRelposForMaskedLM,
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForMultipleChoice,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPModel,
    TextMixerForMaskedLM,
)
from hf_gmlp.kernels import lean
from hf_gmlp.models.heads import packed_documents
from hf_gmlp.models.modeling_gmlp import drop_path

from ..numerics import assert_close

LENGTHS = (3, 7, 1, 9)
FORMS = [
    {"toeplitz": toeplitz, "gating_implementation": gating} | attention
    for toeplitz in (True, False)
    for gating in ("naive", "lean")
    for attention in (
        {},
        {"attention_size": 8, "attn_implementation": "eager"},
        {"attention_size": 8, "attn_implementation": "sdpa"},
    )
]


@pytest.fixture
def documents(random_ids):
    return [random_ids(length) for length in LENGTHS]


def flattened(documents):
    """All in one row of 20 tokens, which is more than n."""
    return {
        "input_ids": torch.cat(documents)[None],
        "position_ids": torch.cat([torch.arange(len(document)) for document in documents])[None],
    }


def in_rows(documents):
    """Two rows with padding in front, between and behind, described by `seq_idx` and the mask."""
    a, b, c, d = documents
    gap = torch.zeros(2, dtype=torch.long)
    rows = [torch.cat([gap, a, gap, b]), torch.cat([d, c, gap, gap])]
    mask = torch.tensor([[0] * 2 + [1] * 3 + [0] * 2 + [1] * 7, [1] * 10 + [0] * 4])
    seq_idx = torch.tensor([[0] * 6 + [1] * 8, [2] * 9 + [3] * 5])
    return {"input_ids": torch.stack(rows), "attention_mask": mask, "seq_idx": seq_idx}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_tokens(far_model, text_config, documents, form, is_causal):
    """In one row longer than n, and in rows with padding: outputs, pooled outputs and hidden states."""
    model = far_model(GMLPModel, text_config(is_causal=is_causal, max_position_embeddings=9, **form)).double()
    expected = [model(document[None], output_hidden_states=True) for document in documents]
    found = model(**flattened(documents), output_hidden_states=True)
    assert found.last_hidden_state.shape == (1, 20, model.config.hidden_size)
    for i in range(len(found.hidden_states)):
        wanted = torch.cat([output.hidden_states[i] for output in expected], dim=1)
        torch.testing.assert_close(found.hidden_states[i], wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.last_hidden_state, torch.cat([x.last_hidden_state for x in expected], dim=1))
    torch.testing.assert_close(found.pooler_output, torch.cat([x.pooler_output for x in expected]))
    batch = in_rows(documents)
    found = model(**batch)
    a, b, c, d = (output.last_hidden_state[0] for output in expected)
    shown = found.last_hidden_state[batch["attention_mask"] == 1]
    torch.testing.assert_close(shown, torch.cat([a, b, d, c]))
    assert not found.last_hidden_state[batch["attention_mask"] == 0].any()
    a, b, c, d = (output.pooler_output for output in expected)
    torch.testing.assert_close(found.pooler_output, torch.cat([a, b, d, c]))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("form", [FORMS[2], FORMS[5]])
def test_gradients_of_a_classifier(far_model, text_config, documents, form, pooling):
    config = text_config(pooling=pooling, num_labels=3, spatial_gating="split", **form)
    model = far_model(GMLPForSequenceClassification, config).double()
    labels = torch.tensor([0, 2, 1, 1])
    packed = model(**flattened(documents), labels=labels)
    packed.loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    single = [model(document[None]).logits for document in documents]
    torch.testing.assert_close(packed.logits, torch.cat(single))
    F.cross_entropy(torch.cat(single), labels).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("gating", ["split", "multiplicative", "additive", "linear"])
def test_lean_gradients(far_model, text_config, documents, gating, monkeypatch):
    """The lean form runs and has the first and second derivatives of the naive form."""
    calls, branch = [], lean.lean_branch
    monkeypatch.setattr(lean, "lean_branch", lambda *args: calls.append(1) or branch(*args))
    found = []
    for implementation in ("naive", "lean"):
        attention = {"attention_size": 8, "attn_implementation": "eager"}
        config = text_config(spatial_gating=gating, gating_implementation=implementation, **attention)
        model = far_model(GMLPForTokenClassification, config).double()
        embeddings = model.get_input_embeddings()(torch.cat(documents)[None]).detach().requires_grad_()
        batch = {"inputs_embeds": embeddings, "position_ids": flattened(documents)["position_ids"]}
        inputs = [embeddings, *model.model.layers.parameters()]
        loss = model(**batch).logits.pow(2).sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = torch.autograd.grad(first[0].pow(2).sum(), inputs)
        found.append([loss, *first, *second])
    assert len(calls) == config.num_hidden_layers
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * b.abs().max().item())


@pytest.mark.parametrize("short", [False, True])
@torch.no_grad()
def test_fft(far_model, text_config, documents, short, monkeypatch):
    """The FFT sees each document alone, too."""
    monkeypatch.setattr("hf_gmlp.kernels.fft.FFT_LENGTH", 1 if short else 1024)
    model = far_model(GMLPModel, text_config(gating_implementation="lean")).double()
    found = model(**flattened(documents)).last_hidden_state
    expected = torch.cat([model(document[None]).last_hidden_state for document in documents], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_hidden_tokens_inside_a_document(far_model, text_config, documents):
    """Hidden tokens keep their places, as in a row of their own; padding at either end has no place."""
    model = far_model(GMLPForTokenClassification, text_config(attention_size=8)).double()
    long = documents[3]
    hidden = torch.tensor([0, 1, 1, 0, 1, 1, 1, 0, 0])
    expected = model(long[None], hidden[None]).logits[0]
    batch = {
        "input_ids": torch.cat([documents[1], long])[None],
        "attention_mask": torch.cat([torch.ones(7, dtype=torch.long), hidden])[None],
        "seq_idx": torch.tensor([[0] * 7 + [1] * 9]),
    }
    found = model(**batch).logits[0]
    torch.testing.assert_close(found[:7], model(documents[1][None]).logits[0])
    torch.testing.assert_close(found[7:][hidden == 1], expected[hidden == 1])


@torch.no_grad()
def test_visible_padding(far_model, text_config, documents):
    """With `mask_padding=False`, as in the paper, documents are still separate."""
    model = far_model(GMLPForMaskedLM, text_config(mask_padding=False, attention_size=8)).double()
    found = model(**flattened(documents)).logits
    torch.testing.assert_close(found, torch.cat([model(document[None]).logits for document in documents], dim=1))


@torch.no_grad()
def test_question_answering(far_model, text_config, documents):
    model = far_model(GMLPForQuestionAnswering, text_config()).double()
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


def test_causal_loss_does_not_cross_documents(far_model, text_config, documents):
    """Labels that are the tokens themselves, and those of transformers' collator, which leaves first tokens out."""
    model = far_model(GMLPForCausalLM, text_config()).double()
    batch = DataCollatorWithFlattening(return_tensors="pt", return_seq_idx=True, return_flash_attn_kwargs=True)(
        [{"input_ids": document.tolist()} for document in documents]
    )
    losses = [model(document[None], labels=document[None]).loss * (len(document) - 1) for document in documents[:2]]
    losses.append(model(documents[3][None], labels=documents[3][None]).loss * 8)
    expected = sum(losses) / 16
    torch.testing.assert_close(model(**batch).loss, expected)
    ids = batch["input_ids"]
    torch.testing.assert_close(model(ids, position_ids=batch["position_ids"], labels=ids).loss, expected)
    for given in ({"cu_seq_lens_q": batch["cu_seq_lens_q"], "max_length_q": 9}, {"seq_idx": batch["seq_idx"]}):
        torch.testing.assert_close(model(ids, labels=ids, **given).loss, expected)


@torch.no_grad()
def test_attentions_have_a_row_for_each_document(far_model, text_config, documents):
    model = far_model(GMLPModel, text_config(attention_size=8, attn_implementation="eager"))
    found = model(**flattened(documents), output_attentions=True).attentions
    assert [x.shape for x in found] == [(4, 1, 9, 9)] * model.config.num_hidden_layers
    expected = model(documents[1][None], output_attentions=True).attentions
    torch.testing.assert_close(found[0][1, :, :7, :7], expected[0][0])


def test_stochastic_depth_drops_documents(documents):
    packing = packed_documents({"position_ids": flattened(documents)["position_ids"]}, (1, 20), None, "cpu")
    torch.manual_seed(0)
    kept = torch.cat([drop_path(torch.ones(1, 20, 2), 0.5, True, packing) for _ in range(20)])
    parts = [part.unique().tolist() for row in kept for part in row.split(LENGTHS)]
    assert all(part in ([0.0], [2.0]) for part in parts)
    assert [0.0] in parts and [2.0] in parts


def test_gradient_checkpointing(far_model, text_config, documents):
    model = far_model(GMLPForMaskedLM, text_config(attention_size=8)).train()
    batch, gradients = flattened(documents), []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@torch.no_grad()
def test_compiled(far_model, text_config, documents):
    model = far_model(GMLPForMaskedLM, text_config(attention_size=8))
    batch = flattened(documents)
    expected = model(**batch).logits
    torch.compiler.reset()
    assert_close(torch.compile(model, backend="aot_eager")(**batch).logits, expected, depth=2)


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        ({"position_ids": torch.arange(3, 10)[None]}, "must count the tokens of each document from 0"),
        ({"position_ids": torch.tensor([[0, 1, 2, 2, 3, 4, 5]])}, "must count the tokens of each document from 0"),
        ({"position_ids": torch.arange(8)[None]}, r"shape of the tokens, \(1, 7\), got \(1, 8\)"),
        ({"seq_idx": torch.zeros(2, 7)}, r"shape of the tokens, \(1, 7\), got \(2, 7\)"),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 8])}, r"up from 0 to the number of tokens .* got \[0, 3, 8\]"),
        (
            {"position_ids": torch.arange(7)[None], "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 1]])},
            "must agree about where documents begin",
        ),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_contradictory_packing_is_refused(text_config, random_ids, is_causal, packing, message):
    for model_class in (GMLPModel, GMLPForMaskedLM, GMLPForTokenClassification, GMLPForCausalLM):
        model = model_class(text_config(is_causal=is_causal))
        with pytest.raises(ValueError, match=message):
            model(random_ids(1, 7), **packing)


def test_a_document_is_no_longer_than_n(text_config, documents):
    model = GMLPModel(text_config(max_position_embeddings=8))
    with pytest.raises(ValueError, match="have 9 tokens and the model takes up to 8"):
        model(**flattened(documents))


def test_no_packing_with_a_cache_or_choices(text_config, documents):
    batch = flattened(documents)
    model = GMLPForCausalLM(text_config(max_position_embeddings=24))
    for cache in ({"use_cache": True}, {"past_key_values": DynamicCache()}):
        with pytest.raises(ValueError, match=r"With a cache, each row is one text.*use_cache=False"):
            model(**batch, **cache)
        with pytest.raises(ValueError, match="With a cache, each row is one text"):
            model(batch["input_ids"], seq_idx=torch.zeros(1, 20), **cache)
    model = GMLPForMultipleChoice(text_config(max_position_embeddings=24))
    with pytest.raises(ValueError, match="Give each choice a row of its own"):
        model(batch["input_ids"][None], position_ids=batch["position_ids"])


@pytest.mark.parametrize(("kind", "model_class"), [("relpos", BertRelposForMaskedLM), ("mixer", TextMixerForMaskedLM)])
def test_baselines_refuse_packing(baseline_config, documents, kind, model_class):
    model = model_class(baseline_config(kind, max_position_embeddings=24))
    with pytest.raises(ValueError, match="reads a row as one document"):
        model(**flattened(documents))
    ids = documents[3][None]
    torch.testing.assert_close(model.eval()(ids, position_ids=torch.arange(9)[None]).logits, model(ids).logits)
