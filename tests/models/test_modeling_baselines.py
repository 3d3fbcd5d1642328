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
from hf_gmlp import BertRelposModel, TextMixerModel
from hf_gmlp.models.modeling_baselines import (
    BertRelposAttention,
    TextMixerLayer,
    relative_position_bucket,
)

from ..numerics import assert_close
from .conftest import KINDS
from .helpers import (
    assert_losses_and_gradients,
    assert_padding_is_hidden,
    assert_same_with_checkpointing,
    both,
    copy_parameters,
    labeled_batch,
)

HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def class_of(config, name):
    return getattr(hf_gmlp, type(config).__name__.removesuffix("Config") + name)


@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (8, 6)])
def test_buckets_are_those_of_t5(num_buckets, max_distance):
    offsets = torch.arange(-1100, 1101)
    expected = T5Attention._relative_position_bucket(offsets, True, num_buckets, max_distance)
    assert torch.equal(relative_position_bucket(offsets, num_buckets, max_distance), expected)
    assert set(expected.tolist()) <= set(range(num_buckets))


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


def encoder_pairs(tested, reference):
    """(parameter of BERT or RoBERTa, parameter of the tested model), without the norms in the layers."""
    pairs = [(reference.embeddings.word_embeddings.weight, tested.embeddings.word_embeddings.weight)]
    pairs += [(reference.embeddings.token_type_embeddings.weight, tested.embeddings.token_type_embeddings.weight)]
    pairs += both(reference.embeddings.LayerNorm, tested.embeddings.norm)
    for reference_layer, layer in zip(reference.encoder.layer, tested.layers, strict=True):
        pairs += both(reference_layer.attention.self.query, layer.attention.q_proj)
        pairs += both(reference_layer.attention.self.key, layer.attention.k_proj)
        pairs += both(reference_layer.attention.self.value, layer.attention.v_proj)
        pairs += both(reference_layer.attention.output.dense, layer.attention.out_proj)
        pairs += both(reference_layer.intermediate.dense, layer.mlp.proj_in)
        pairs += both(reference_layer.output.dense, layer.mlp.proj_out)
    if tested.pooler is not None:
        pairs += both(reference.pooler.dense, tested.pooler.dense)
    return pairs


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
def test_without_any_positions_it_is_bert(baseline_config, perturbed_model, random_ids, name, bert_class):
    # BERT takes as many answers per token as there are labels.
    config = baseline_config("relpos", num_hidden_layers=3, num_labels=2)
    tested = perturbed_model(class_of(config, name), config)
    reference = bert_class(
        BertConfig(**{key: value for key, value in config.to_diff_dict().items() if key != "auto_map"})
    )
    reference.eval()
    base, reference_base = tested.base_model, reference.base_model
    pairs = encoder_pairs(base, reference_base)
    for reference_layer, layer in zip(reference_base.encoder.layer, base.layers):
        pairs += both(reference_layer.attention.output.LayerNorm, layer.attention_norm)
        pairs += both(reference_layer.output.LayerNorm, layer.mlp_norm)
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
def test_with_pre_norm_it_is_roberta_with_pre_norm(baseline_config, perturbed_model, random_ids):
    config = baseline_config("relpos", num_hidden_layers=3, pre_norm=True)
    tested = perturbed_model(BertRelposModel, config)
    fields = {key: value for key, value in config.to_diff_dict().items() if key not in ("auto_map", "model_type")}
    reference = RobertaPreLayerNormModel(RobertaPreLayerNormConfig(**fields)).eval()
    pairs = encoder_pairs(tested, reference) + both(reference.LayerNorm, tested.norm)
    for reference_layer, layer in zip(reference.encoder.layer, tested.layers):
        pairs += both(reference_layer.attention.LayerNorm, layer.attention_norm)
        pairs += both(reference_layer.intermediate.LayerNorm, layer.mlp_norm)
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
def test_attention_without_content_is_the_formula(baseline_config, perturbed_model, attention):
    """Each head: sum over j of softmax_j(bias of the bucket of j - i) (W_v x_j + b_v), then the output projection."""
    config = baseline_config("noattn", attn_implementation=attention)
    model = perturbed_model(BertRelposModel, config)
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


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision(baseline_config, perturbed_model, random_ids, kind):
    config = baseline_config(kind)
    model = perturbed_model(class_of(config, "ForMaskedLM"), config)
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


def mixer_pairs(reference, tested, length):
    """(parameter of timm's block, parameter of the tested block), with the leading part of what acts on the tokens."""
    pairs = both(reference.norm1, tested.token_norm) + both(reference.norm2, tested.channel_norm)
    pairs += both(reference.mlp_channels.fc1, tested.channel_mlp.proj_in)
    pairs += both(reference.mlp_channels.fc2, tested.channel_mlp.proj_out)
    pairs += [(reference.mlp_tokens.fc1.weight, tested.token_mlp.proj_in.weight[:, :length])]
    pairs += [(reference.mlp_tokens.fc1.bias, tested.token_mlp.proj_in.bias)]
    pairs += [(reference.mlp_tokens.fc2.weight, tested.token_mlp.proj_out.weight[:length])]
    return [*pairs, (reference.mlp_tokens.fc2.bias, tested.token_mlp.proj_out.bias[:length])]


@pytest.mark.parametrize("length", [12, 7])
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
def test_mixer_is_embeddings_layers_and_norm(baseline_config, perturbed_model, random_ids):
    model = perturbed_model(TextMixerModel, baseline_config("mixer"))
    ids, segments = random_ids(2, 12), torch.randint(0, 2, (2, 12))
    x = model.embeddings.word_embeddings.weight[ids] + model.embeddings.token_type_embeddings.weight[segments]
    for layer in model.layers:
        reference = MixerBlock(dim=16, seq_len=12, mlp_ratio=(10 / 16, 32 / 16)).eval()
        copy_parameters(mixer_pairs(reference, layer, 12))
        x = reference(x)
    expected = F.layer_norm(x, (16,), model.norm.weight, model.norm.bias, 1e-6)
    assert_close(model(ids, None, segments).last_hidden_state, expected, depth=2)


@pytest.mark.parametrize("head", ("Model", *HEADS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_alone_or_padded(baseline_config, perturbed_model, kind, head):
    config = baseline_config(kind)
    assert_padding_is_hidden(perturbed_model(class_of(config, head), config).double())


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_of_the_heads(baseline_config, perturbed_model, kind, name):
    config = baseline_config(kind)
    # One vector added to all keys, or one number to all logits of a softmax, changes nothing, and neither does a number
    # added to all channels before a norm.
    vanishing = {"relpos": ["k_proj.bias"], "noattn": [], "mixer": ["token_mlp.proj_out.bias"]}[kind]
    if name == "ForQuestionAnswering":
        vanishing += ["qa_outputs.bias", "model.norm.bias" if kind == "mixer" else "layers.1.mlp_norm.bias"]
    assert_losses_and_gradients(perturbed_model(class_of(config, name), config), vanishing)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_no_gradient(baseline_config, perturbed_model, kind):
    config = baseline_config(kind)
    model = perturbed_model(class_of(config, "ForMaskedLM"), config)
    assert_same_with_checkpointing(model, labeled_batch(type(model)))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_dropout_acts_in_training_only(baseline_config, perturbed_model, random_ids, kind):
    config = baseline_config(kind, hidden_dropout_prob=0.3)
    model, ids = perturbed_model(class_of(config, "Model"), config), random_ids(2, 9)
    assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    # Embeddings, and both parts of each of the two layers.
    dropped = []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda module, args, output: dropped.append((output == 0).float().mean()))
    model.train()(ids)
    assert len(dropped) == 5 and all(0.1 < fraction < 0.5 for fraction in dropped)


@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights(baseline_config, tmp_path, kind):
    """Also of what a checkpoint lacks, where the modules were made without memory."""
    config = baseline_config(kind, hidden_size=64, initializer_range=0.05)
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
