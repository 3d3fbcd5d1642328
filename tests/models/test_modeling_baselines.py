"""The models: equality with independent code, padding, lengths, heads and losses."""

import numpy as np
import pytest
import torch
from timm.models.mlp_mixer import MixerBlock
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormModel,
    T5Config,
)
from transformers.models.t5.modeling_t5 import T5Attention

import hf_gmlp
from hf_gmlp import BertRelposModel, TextMixerForMaskedLM, TextMixerModel
from hf_gmlp.models.modeling_baselines import (
    BertRelposAttention,
    RelativePositionBias,
    TextMixerLayer,
    relative_position_bucket,
)

from ..numerics import assert_close, assert_gradients
from .conftest import KINDS
from .helpers import both, copy_parameters, per_token, train

HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def class_of(config, name):
    return getattr(hf_gmlp, type(config).__name__.removesuffix("Config") + name)


# ---------------------------------------------------------------------------------------------------------------------
# BERT with relative position biases: against T5, BERT, and the formula


@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (32, 20), (8, 6), (4, 2), (64, 1000)])
def test_buckets_are_those_of_t5(num_buckets, max_distance):
    offsets = torch.arange(-1100, 1101)
    expected = T5Attention._relative_position_bucket(offsets, True, num_buckets, max_distance)
    assert torch.equal(relative_position_bucket(offsets, num_buckets, max_distance), expected)
    assert set(expected.tolist()) <= set(range(num_buckets))


@pytest.mark.parametrize("length", [1, 5, 40, 150])
def test_biases_are_those_of_t5(baseline_config, randomize, length):
    config = baseline_config("relpos", relative_attention_num_buckets=32, relative_attention_max_distance=128)
    reference = T5Attention(T5Config(d_model=16, num_heads=4), has_relative_attention_bias=True)
    tested = randomize(RelativePositionBias(config))
    copy_parameters([(reference.relative_attention_bias.weight, tested.biases.weight)])
    assert torch.equal(tested(length), reference.compute_bias(length, length))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_attention_is_that_of_t5(baseline_config, randomize, attention):
    """With biases and content together. T5's projections have no biases and its scores are not scaled."""
    config = baseline_config("relpos", attn_implementation=attention)
    tested = randomize(BertRelposAttention(config))
    t5_config = T5Config(
        d_model=16,
        d_kv=4,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=6,
        attn_implementation="eager",
    )
    reference = T5Attention(t5_config, has_relative_attention_bias=True).eval()
    names = ("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o")
    for tested_name, reference_name in names:
        getattr(tested, tested_name).bias.zero_()
        copy_parameters([(getattr(reference, reference_name).weight, getattr(tested, tested_name).weight)])
    reference.q.weight *= 0.5  # 4 ** -0.5
    copy_parameters([(reference.relative_attention_bias.weight, tested.position_bias.biases.weight)])
    x = torch.randn(3, 11, 16)
    expected, _, weights = reference(x, output_attentions=True)
    output, tested_weights = tested(x)
    assert_close(output, expected)
    if attention == "eager":
        assert_close(tested_weights, weights)


def bert_pairs(tested, reference):
    """(parameter of BERT, parameter of the tested model) for the two base models without pooler."""
    pairs = [(reference.embeddings.word_embeddings.weight, tested.embeddings.word_embeddings.weight)]
    pairs += [(reference.embeddings.token_type_embeddings.weight, tested.embeddings.token_type_embeddings.weight)]
    pairs += both(reference.embeddings.LayerNorm, tested.embeddings.norm)
    for reference_layer, layer in zip(reference.encoder.layer, tested.layers, strict=True):
        pairs += both(reference_layer.attention.self.query, layer.attention.q_proj)
        pairs += both(reference_layer.attention.self.key, layer.attention.k_proj)
        pairs += both(reference_layer.attention.self.value, layer.attention.v_proj)
        pairs += both(reference_layer.attention.output.dense, layer.attention.out_proj)
        pairs += both(reference_layer.attention.output.LayerNorm, layer.attention_norm)
        pairs += both(reference_layer.intermediate.dense, layer.mlp.proj_in)
        pairs += both(reference_layer.output.dense, layer.mlp.proj_out)
        pairs += both(reference_layer.output.LayerNorm, layer.mlp_norm)
    return pairs


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "name, bert_class",
    [
        ("Model", BertModel),
        ("ForMaskedLM", BertForMaskedLM),
        ("ForSequenceClassification", BertForSequenceClassification),
        ("ForTokenClassification", BertForTokenClassification),
        ("ForQuestionAnswering", BertForQuestionAnswering),
    ],
)
@torch.no_grad()
def test_without_any_positions_it_is_bert(baseline_config, far_model, random_ids, name, bert_class, attention):
    # BERT takes as many answers per token as there are labels.
    config = baseline_config("relpos", num_hidden_layers=3, num_labels=2, attn_implementation=attention)
    tested = far_model(class_of(config, name), config)
    reference = bert_class(
        BertConfig(**{key: value for key, value in config.to_diff_dict().items() if key != "auto_map"})
    )
    reference.eval()
    base, reference_base = tested.base_model, reference.base_model
    pairs = bert_pairs(base, reference_base)
    if base.pooler is not None:
        pairs += both(reference_base.pooler.dense, base.pooler.dense)
    if name == "ForMaskedLM":
        transform = reference.cls.predictions.transform
        pairs += both(transform.dense, tested.head.dense) + both(transform.LayerNorm, tested.head.norm)
        pairs += [(reference.cls.predictions.bias, tested.decoder.bias)]
    for head in ("classifier", "qa_outputs"):
        if hasattr(tested, head):
            pairs += both(getattr(reference, head), getattr(tested, head))
    copy_parameters(pairs)
    # All but the position embeddings there, all but the position biases here.
    assert len(pairs) == len(list(reference.parameters())) - 1 == len(list(tested.parameters())) - 3
    reference_base.embeddings.position_embeddings.weight.zero_()
    for layer in base.layers:
        layer.attention.position_bias.biases.weight.zero_()

    ids, segments, mask = random_ids(3, 9), torch.randint(0, 2, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[0, 5:] = 0
    inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
    expected, actual = reference(**inputs), tested(**inputs)
    assert_close(dict(actual), dict(expected), depth=3)


@torch.no_grad()
def test_with_pre_norm_it_is_roberta_with_pre_norm(baseline_config, far_model, random_ids):
    config = baseline_config("relpos", num_hidden_layers=3, pre_norm=True)
    tested = far_model(BertRelposModel, config)
    fields = {key: value for key, value in config.to_diff_dict().items() if key not in ("auto_map", "model_type")}
    reference = RobertaPreLayerNormModel(RobertaPreLayerNormConfig(**fields)).eval()
    pairs = [(reference.embeddings.word_embeddings.weight, tested.embeddings.word_embeddings.weight)]
    pairs += [(reference.embeddings.token_type_embeddings.weight, tested.embeddings.token_type_embeddings.weight)]
    pairs += both(reference.embeddings.LayerNorm, tested.embeddings.norm) + both(reference.LayerNorm, tested.norm)
    pairs += both(reference.pooler.dense, tested.pooler.dense)
    for reference_layer, layer in zip(reference.encoder.layer, tested.layers, strict=True):
        pairs += both(reference_layer.attention.LayerNorm, layer.attention_norm)
        for reference_name, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            pairs += both(getattr(reference_layer.attention.self, reference_name), getattr(layer.attention, name))
        pairs += both(reference_layer.attention.output.dense, layer.attention.out_proj)
        pairs += both(reference_layer.intermediate.LayerNorm, layer.mlp_norm)
        pairs += both(reference_layer.intermediate.dense, layer.mlp.proj_in)
        pairs += both(reference_layer.output.dense, layer.mlp.proj_out)
    copy_parameters(pairs)
    reference.embeddings.position_embeddings.weight.zero_()
    for layer in tested.layers:
        layer.attention.position_bias.biases.weight.zero_()
    ids, mask = random_ids(3, 9), torch.ones(3, 9, dtype=torch.long)
    mask[0, 5:] = 0
    expected, actual = (model(input_ids=ids, attention_mask=mask) for model in (reference, tested))
    for key in ("last_hidden_state", "pooler_output"):
        assert_close(actual[key], expected[key], depth=3)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_attention_without_content_is_the_formula(baseline_config, far_model, attention):
    """Each head: sum over j of softmax_j(bias of the bucket of j - i) (W_v x_j + b_v), then the output projection."""
    config = baseline_config("noattn", attn_implementation=attention)
    model = far_model(BertRelposModel, config)
    layer = model.layers[0].attention
    assert not [name for name, _ in layer.named_parameters() if name.startswith(("q_", "k_"))]
    x, mask = torch.randn(2, 10, 16), torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    seen = {}
    layer.register_forward_hook(lambda module, args, output: seen.update(x=args[0], output=output))
    model(inputs_embeds=x, attention_mask=mask)

    parameters = {name: parameter.double().numpy() for name, parameter in layer.named_parameters()}
    x = seen["x"].double().numpy()
    expected, expected_weights = np.zeros((2, 10, 16)), np.zeros((2, 4, 10, 10))
    for sample, length in enumerate((10, 6)):
        value = x[sample] @ parameters["v_proj.weight"].T + parameters["v_proj.bias"]
        for head in range(4):
            for i in range(10):
                offsets = torch.arange(length) - i
                buckets = T5Attention._relative_position_bucket(offsets, True, 8, 6).numpy()
                exponentials = np.exp(parameters["position_bias.biases.weight"][buckets, head])
                weights = exponentials / exponentials.sum()
                expected_weights[sample, head, i, :length] = weights
                expected[sample, i, 4 * head : 4 * head + 4] = weights @ value[:length, 4 * head : 4 * head + 4]
    expected = expected @ parameters["out_proj.weight"].T + parameters["out_proj.bias"]
    output, weights = seen["output"]
    assert_close(output, expected)
    assert_close(weights, expected_weights)


@torch.no_grad()
def test_each_layer_and_head_has_its_own_biases(baseline_config, far_model, random_ids):
    config = baseline_config("noattn", attn_implementation="eager")
    model, ids = far_model(BertRelposModel, config), random_ids(2, 9)
    before = model(ids, output_attentions=True).attentions
    model.layers[1].attention.position_bias.biases.weight[:, 2] += torch.randn(8)
    after = model(ids, output_attentions=True).attentions
    changed = [[not torch.equal(b[:, head], a[:, head]) for head in range(4)] for b, a in zip(before, after)]
    assert changed == [[False] * 4, [False, False, True, False]]


@torch.no_grad()
def test_dropout_of_attention_differs_between_samples(baseline_config, far_model, random_ids):
    """Also where the attention weights themselves do not."""
    config = baseline_config("noattn", attention_probs_dropout_prob=0.5)
    model = far_model(BertRelposModel, config)
    ids = random_ids(1, 9).expand(2, -1)
    one, other = model(ids).last_hidden_state
    assert_close(one, other, depth=2)
    one, other = model.train()(ids).last_hidden_state
    assert (one - other).abs().max() > 0.01


@torch.no_grad()
def test_relative_positions_take_any_length(baseline_config, far_model, random_ids):
    config = baseline_config("relpos")
    model = far_model(BertRelposModel, config)
    ids = random_ids(2, 3 * config.max_position_embeddings)
    assert model(ids).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("kind", ["relpos", "noattn"])
def test_implementations_of_attention_agree(baseline_config, far_model, random_ids, kind):
    """Outputs and gradients, with padding and without."""
    ids, mask = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 4:] = 0
    for attention_mask in (None, mask):
        results = []
        for attention in ("eager", "sdpa"):
            model = far_model(BertRelposModel, baseline_config(kind, attn_implementation=attention))
            output = model(ids, attention_mask).pooler_output
            output.sum().backward()
            biases = model.layers[0].attention.position_bias.biases.weight
            assert biases.grad.abs().max() > 1e-4
            results.append((output, biases.grad))
        assert_close(*results, depth=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_mixed_precision(baseline_config, far_model, random_ids, kind, attention):
    config = baseline_config(kind, attn_implementation=attention)
    model = far_model(class_of(config, "ForMaskedLM"), config)
    ids, mask = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 4:] = 0
    exact = model(ids, mask, labels=ids).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, mask, labels=ids).loss
    loss.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=0.1)
    half = model.to(torch.bfloat16)(ids, mask, labels=ids)
    assert half.logits.dtype == torch.bfloat16
    assert half.loss.item() == pytest.approx(exact.item(), rel=0.1)


# ---------------------------------------------------------------------------------------------------------------------
# MLP-Mixer: against timm


def mixer_pairs(reference, tested, length):
    """(parameter of timm's block, parameter of the tested block), with the leading part of what acts on the tokens."""
    pairs = both(reference.norm1, tested.token_norm) + both(reference.norm2, tested.channel_norm)
    pairs += both(reference.mlp_channels.fc1, tested.channel_mlp.proj_in)
    pairs += both(reference.mlp_channels.fc2, tested.channel_mlp.proj_out)
    pairs += [(reference.mlp_tokens.fc1.weight, tested.token_mlp.proj_in.weight[:, :length])]
    pairs += [(reference.mlp_tokens.fc1.bias, tested.token_mlp.proj_in.bias)]
    pairs += [(reference.mlp_tokens.fc2.weight, tested.token_mlp.proj_out.weight[:length])]
    return [*pairs, (reference.mlp_tokens.fc2.bias, tested.token_mlp.proj_out.bias[:length])]


@pytest.mark.parametrize("length", [12, 7, 1])
def test_layer_is_that_of_timm(baseline_config, randomize, length):
    """On all n tokens, and on fewer with the leading part of both matrices."""
    tested = randomize(TextMixerLayer(baseline_config("mixer")))
    reference = MixerBlock(dim=16, seq_len=length, mlp_ratio=(10 / 16, 32 / 16)).eval()
    pairs = mixer_pairs(reference, tested, length)
    copy_parameters(pairs)
    assert len(pairs) == len(list(reference.parameters())) == len(list(tested.parameters()))
    inputs = torch.randn(3, length, 16, requires_grad=True)
    results = []
    for layer in (tested, reference):
        output = layer(inputs)
        results.append((output.detach(), torch.autograd.grad((output**2).sum(), inputs)[0]))
    assert_close(*results)


@torch.no_grad()
def test_mixer_is_embeddings_layers_and_norm(baseline_config, far_model, random_ids):
    model = far_model(TextMixerModel, baseline_config("mixer"))
    ids, segments = random_ids(2, 12), torch.randint(0, 2, (2, 12))
    x = model.embeddings.word_embeddings.weight[ids] + model.embeddings.token_type_embeddings.weight[segments]
    for layer in model.layers:
        reference = MixerBlock(dim=16, seq_len=12, mlp_ratio=(10 / 16, 32 / 16)).eval()
        copy_parameters(mixer_pairs(reference, layer, 12))
        x = reference(x)
    expected = F.layer_norm(x, (16,), model.norm.weight, model.norm.bias, 1e-6)
    assert_close(model(ids, None, segments).last_hidden_state, expected, depth=2)


def test_mixer_refuses_long_sequences_and_other_masks(baseline_config, far_model, random_ids):
    model = far_model(TextMixerModel, baseline_config("mixer"))
    with pytest.raises(ValueError, match="13 tokens and the model takes up to 12"):
        model(random_ids(1, 13))
    for shape in ((2, 7), (1, 8), (2, 1, 8, 8)):
        with pytest.raises(ValueError, match=r"`attention_mask` must have one entry per token, shape \(2, 8\)"):
            model(random_ids(2, 8), attention_mask=torch.ones(shape))


# ---------------------------------------------------------------------------------------------------------------------
# All of them


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["Model", *HEADS])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_sequence_alone_padded_or_in_a_batch(baseline_config, far_model, random_ids, kind, name, attention):
    config = baseline_config(kind, attn_implementation=attention)
    model = far_model(class_of(config, name), config)
    lengths, width = torch.tensor([11, 6, 1]), 12
    ids, segments = random_ids(3, width), torch.randint(0, 2, (3, width))
    mask = (torch.arange(width) < lengths[:, None]).long()
    batches = {
        "padding": (ids * mask, segments * mask),
        "anything": (torch.where(mask == 1, ids, random_ids(3, width)), torch.where(mask == 1, segments, 1)),
    }
    for row, length in enumerate(lengths):
        alone = per_token(model(ids[row : row + 1, :length], token_type_ids=segments[row : row + 1, :length]), length)
        for batch_ids, batch_segments in batches.values():
            for rows in ([0, 1, 2], [row]):
                output = model(batch_ids[rows], attention_mask=mask[rows], token_type_ids=batch_segments[rows])
                in_batch = per_token(output, length)[rows.index(row)]
                assert_close(in_batch, alone[0], depth=2)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_masks_of_any_dtype_and_rows_of_padding_alone(baseline_config, far_model, random_ids, kind, attention):
    config = baseline_config(kind, attn_implementation=attention)
    model = far_model(class_of(config, "Model"), config)
    ids, mask = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 4:] = 0
    expected = model(ids, mask).last_hidden_state
    for dtype in (torch.bool, torch.float32):
        torch.testing.assert_close(model(ids, mask.to(dtype)).last_hidden_state, expected)
    mask[1] = 0
    assert model(ids, mask).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_embeddings_exclude_each_other(baseline_config, far_model, random_ids, kind):
    config = baseline_config(kind)
    model, ids = far_model(class_of(config, "Model"), config), random_ids(2, 9)
    for inputs in ({}, {"input_ids": ids, "inputs_embeds": torch.randn(2, 9, 16)}):
        with pytest.raises(ValueError, match="Pass either `input_ids` or `inputs_embeds`, and not both"):
            model(**inputs)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embeds).pooler_output, model(ids).pooler_output)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_order_of_the_tokens_matters(baseline_config, far_model, random_ids, kind):
    """There are no position embeddings: the mixing of tokens knows their order."""
    config = baseline_config(kind)
    model, ids = far_model(class_of(config, "Model"), config), random_ids(1, 9)
    there, back = model(ids).last_hidden_state, model(ids.flip(1)).last_hidden_state.flip(1)
    assert (there - back).abs().max() > 0.01


def loss_case(name, config_of, random_ids):
    """config, class, inputs with labels, the number of items that Trainer counts."""
    ids, mask = random_ids(4, 9), torch.ones(4, 9, dtype=torch.long)
    mask[1, 5:] = 0
    some = torch.where((torch.arange(36) % 3 == 0).view(4, 9), ids, -100)
    head, fields, inputs = {
        "masked": ("ForMaskedLM", {}, {"labels": some}),
        "sparse": ("ForMaskedLM", {"sparse_prediction": True}, {"labels": some}),
        "single": ("ForSequenceClassification", {}, {"labels": torch.tensor([0, 2, 1, 1])}),
        "several": ("ForSequenceClassification", {}, {"labels": torch.eye(4)[:, :3]}),
        "regression": ("ForSequenceClassification", {"num_labels": 1}, {"labels": torch.randn(4)}),
        "tokens": ("ForTokenClassification", {}, {"labels": torch.where(some < 0, some, some % 3)}),
        "questions": (
            "ForQuestionAnswering",
            {},
            {"start_positions": torch.tensor([1, 0, 8, 2]), "end_positions": torch.tensor([2, 4, 8, 3])},
        ),
    }[name]
    config = config_of(**fields)
    num_items = (inputs["labels"] != -100).sum() if "labels" in inputs else torch.tensor(4)
    return config, class_of(config, head), {"input_ids": ids, "attention_mask": mask, **inputs}, num_items


LOSSES = ("masked", "sparse", "single", "several", "regression", "tokens", "questions")


def torch_loss(name, output, inputs):
    labels = inputs.get("labels")
    if name in ("masked", "sparse", "tokens"):
        labels = labels[labels != -100] if name == "sparse" else labels
        return F.cross_entropy(output.logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
    if name == "single":
        return F.cross_entropy(output.logits, labels)
    if name == "several":
        return F.binary_cross_entropy_with_logits(output.logits, labels)
    if name == "regression":
        return ((output.logits[:, 0] - labels) ** 2).mean()
    start = F.cross_entropy(output.start_logits, inputs["start_positions"])
    return (start + F.cross_entropy(output.end_logits, inputs["end_positions"])) / 2


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_their_gradients(baseline_config, far_model, random_ids, kind, name):
    """Losses are torch's, every parameter gets a gradient, and accumulated gradients are those of one batch."""

    def config_of(**fields):
        return baseline_config(kind, **fields)

    config, model_class, inputs, num_items = loss_case(name, config_of, random_ids)
    model = far_model(model_class, config).train()
    output = model(**inputs)
    torch.testing.assert_close(output.loss, torch_loss(name, output, inputs))
    output.loss.backward()
    # One vector added to all keys, or one number to all logits of a softmax, changes nothing, and neither does a number
    # added to all channels before a norm.
    vanishing = {"relpos": ["k_proj.bias"], "noattn": [], "mixer": ["token_mlp.proj_out.bias"]}[kind]
    if name == "questions":
        vanishing += ["qa_outputs.bias", "model.norm.bias" if kind == "mixer" else "layers.1.mlp_norm.bias"]
    assert_gradients(model, vanishing)
    expected = {}
    for parameter_name, parameter in model.named_parameters():
        expected[parameter_name] = parameter.grad
        parameter.grad = None

    total = 0.0
    for rows in (slice(0, 1), slice(1, 4)):
        part = {key: value[rows] for key, value in inputs.items()}
        loss = model(**part, num_items_in_batch=num_items).loss
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(output.loss.item(), rel=1e-5)
    actual = {parameter_name: parameter.grad for parameter_name, parameter in model.named_parameters()}
    assert_close(actual, expected, depth=2)


@pytest.mark.parametrize("head", ("Model", *HEADS))
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_on_either_side(baseline_config, far_model, random_ids, kind, head):
    config = baseline_config(kind)
    model = far_model(class_of(config, head), config).double()
    rows = [random_ids(length) for length in (5, 9, 1)]
    for side in ("left", "right"):
        pads = [torch.zeros(9 - len(row), dtype=torch.long) for row in rows]
        ids = torch.stack([torch.cat([pad, row] if side == "left" else [row, pad]) for pad, row in zip(pads, rows)])
        mask = (ids != 0).long()
        for given in (mask, mask.bool()):
            output = model(ids, given)
            for i, row in enumerate(rows):
                for name, value in model(row[None]).items():
                    per_token = output[name].shape[1] == 9
                    found = output[name][i][mask[i] == 1] if per_token else output[name][i]
                    torch.testing.assert_close(found, value[0], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_no_gradient(baseline_config, far_model, random_ids, kind):
    config = baseline_config(kind, hidden_dropout_prob=0.2)
    model, ids = far_model(class_of(config, "ForMaskedLM"), config).train(), random_ids(2, 9)

    def gradients():
        torch.manual_seed(3)
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    calls = []
    linear = next(module for module in model.base_model.layers[0].modules() if isinstance(module, torch.nn.Linear))
    linear.register_forward_pre_hook(lambda module, args: calls.append(1))
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(gradients(), expected)
    # Computed once more on the way back.
    assert len(calls) == 2


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_dropout_acts_in_training_only(baseline_config, far_model, random_ids, kind):
    config = baseline_config(kind, hidden_dropout_prob=0.3)
    model, ids = far_model(class_of(config, "Model"), config), random_ids(2, 9)
    assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    # Embeddings, and both parts of each of the two layers.
    dropped = []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda module, args, output: dropped.append((output == 0).float().mean()))
    model.train()(ids)
    assert len(dropped) == 5 and all(0.1 < share < 0.5 for share in dropped)


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights(baseline_config, tmp_path, kind, reload):
    config = baseline_config(kind, hidden_size=64, initializer_range=0.05)
    model = class_of(config, "ForSequenceClassification")(config)
    if reload:
        # What a checkpoint lacks is initialized on the way in, where the modules were made without memory.
        class_of(config, "ForMaskedLM")(config).save_pretrained(tmp_path)
        model = class_of(config, "ForSequenceClassification").from_pretrained(tmp_path)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.numel() > 500:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.15), name
        else:
            assert parameter.abs().max() > 0.01, name
    assert (model.get_input_embeddings().weight[0] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_is_tied_and_resized(baseline_config, far_model, tmp_path, kind):
    config = baseline_config(kind)
    model = far_model(class_of(config, "ForMaskedLM"), config)
    model.save_pretrained(tmp_path)
    for found in (model, type(model).from_pretrained(tmp_path)):
        assert found.decoder.weight is found.get_input_embeddings().weight
        found.resize_token_embeddings(50)
        assert found.decoder.weight is found.get_input_embeddings().weight
        assert found(torch.tensor([[49, 5, 6]])).logits.shape == (1, 3, 50)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_hidden_states_and_attentions(baseline_config, far_model, random_ids, kind):
    config = baseline_config(kind, attn_implementation="eager")
    model, ids = far_model(class_of(config, "ForMaskedLM"), config), random_ids(2, 9)
    output = model(ids, output_hidden_states=True, output_attentions=True)
    assert [state.shape for state in output.hidden_states] == [(2, 9, 16)] * 3
    torch.testing.assert_close(model.decoder(model.head(output.hidden_states[-1])), output.logits)
    if kind == "mixer":
        assert not output.attentions
    else:
        assert [weights.shape for weights in output.attentions] == [(2, 4, 9, 9)] * 2
        torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(2, 4, 9))


def test_sparse_prediction(baseline_config, far_model, random_ids):
    model = far_model(TextMixerForMaskedLM, baseline_config("mixer", sparse_prediction=True))
    ids = random_ids(2, 9)
    labels = torch.where(torch.arange(9) < 2, ids, -100)
    assert model(ids, labels=labels).logits.shape == (2, 9, 40)
    assert model.train()(ids, labels=labels).logits.shape == (4, 40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_trainer_learns(baseline_config, tmp_path, kind):
    """Which of two tokens comes first; with accumulation, which must not multiply the loss."""
    config = baseline_config(kind, num_labels=2)
    generator = torch.Generator().manual_seed(0)
    samples = []
    for i in range(64):
        ids = torch.randint(7, 40, (8,), generator=generator)
        ids[2], ids[5] = (5, 6) if i % 2 else (6, 5)
        samples.append({"input_ids": ids, "labels": i % 2})
    torch.manual_seed(0)
    model = class_of(config, "ForSequenceClassification")(config)
    _, losses = train(model, samples, tmp_path, max_steps=60, logging_steps=5, gradient_accumulation_steps=2)
    # ln 2 at the start.
    assert 0.5 < losses[0] < 0.9
    assert losses[-1] < 0.5 * losses[0]
