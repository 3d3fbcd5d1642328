"""The models: equality with other implementations, padding, lengths, heads, losses, and the ways to run them."""

import copy

import numpy as np
import pytest
import timm
import torch
from g_mlp_pytorch import gMLP
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from hf_gmlp import (
    GMLPForCausalLM,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    GMLPForMultipleChoice,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPModel,
    GMLPVisionModel,
)
from hf_gmlp.models import modeling_gmlp, spatial_gating
from hf_gmlp.models.modeling_gmlp import GMLPBlock, drop_path

from ..numerics import assert_close, assert_gradients
from ..peers.annotated import AnnotatedGMLPBlock
from ..samples import CONVOLUTIONAL, GATINGS
from .helpers import (
    ATTENTIONS,
    G_MLP_PYTORCH,
    attention_fields,
    both,
    copy_g_mlp_pytorch,
    copy_parameters,
    per_token,
    train,
)

TEXT_HEADS = [
    GMLPModel,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPForQuestionAnswering,
    GMLPForMultipleChoice,
]
VISION_HEADS = [GMLPVisionModel, GMLPForImageClassification]


# ---------------------------------------------------------------------------------------------------------------------
# Equality with independent implementations


def assert_same_function(tested, reference, inputs, depth=1):
    """Outputs of two functions, and the gradients at the input of a random projection of them."""
    results = []
    for function in (tested, reference):
        x = inputs.clone().requires_grad_()
        output = function(x)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
        results.append((output.detach(), torch.autograd.grad((output * weights).sum(), x)[0]))
    for value, expected_value in zip(*results):
        assert_close(value, expected_value, depth)


def test_logits_and_gradients_are_those_of_timm(vision_config):
    reference = timm.create_model("gmlp_s16_224", pretrained=False, num_classes=10).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            # 30 blocks deep: the noise on W is such that no gate explodes, and far above the initial 1e-6.
            std = 0.2 if name.endswith("gate.proj.weight") else 0.1 if parameter.ndim == 1 or "head" in name else 0.0
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=std)
    config = vision_config(
        hidden_size=256,
        num_hidden_layers=30,
        intermediate_size=1536,
        image_size=224,
        patch_size=16,
        pooling="mean",
        num_labels=10,
    )
    tested = GMLPForImageClassification(config).eval()
    pairs = both(tested.model.embeddings.projection, reference.stem.proj)
    for block, reference_block in zip(tested.model.layers, reference.blocks, strict=True):
        pairs += both(block.norm, reference_block.norm)
        pairs += both(block.proj_in, reference_block.mlp_channels.fc1)
        pairs += both(block.spatial_gating_unit.norm, reference_block.mlp_channels.gate.norm)
        pairs += both(block.spatial_gating_unit.proj, reference_block.mlp_channels.gate.proj)
        pairs += both(block.proj_out, reference_block.mlp_channels.fc2)
    pairs += both(tested.model.norm, reference.norm) + both(tested.classifier, reference.head)
    copy_parameters(pairs)
    assert len(pairs) == len(list(reference.parameters())) == len(list(tested.parameters()))

    assert_same_function(lambda x: tested(x).logits, reference, torch.randn(1, 3, 224, 224), depth=30)


@pytest.mark.parametrize("attention_size", [0, 8])
def test_logits_and_gradients_are_those_of_g_mlp_pytorch(text_config, randomize, attention_size):
    reference = gMLP(num_tokens=40, dim=16, depth=3, seq_len=12, ff_mult=4, attn_dim=attention_size or None)
    randomize(reference)
    tested = GMLPForMaskedLM(text_config(attention_size=attention_size, **G_MLP_PYTORCH)).eval()
    copy_g_mlp_pytorch(tested, reference)
    ids = torch.randint(0, 40, (3, 12))
    assert_close(tested(ids).logits, reference(ids), depth=3)
    embedded = reference.to_embed(ids).detach()
    reference.to_embed = torch.nn.Identity()
    assert_same_function(lambda x: tested(inputs_embeds=x).logits, reference, embedded, depth=3)


@pytest.mark.parametrize("length", [12, 7])
def test_block_is_the_annotated_one(text_config, randomize, length):
    reference = randomize(AnnotatedGMLPBlock(d_model=16, d_ffn=32, seq_len=12))
    tested = GMLPBlock(text_config(toeplitz=False, layer_norm_eps=1e-5), drop_path_rate=0.0).eval()
    unit, pairs = tested.spatial_gating_unit, both(tested.norm, reference.norm)
    pairs += both(tested.proj_in, reference.proj1) + both(tested.proj_out, reference.proj2)
    pairs += both(unit.norm, reference.sgu.norm) + both(unit.proj, reference.sgu)
    copy_parameters(pairs)
    assert len(pairs) == len(list(reference.parameters())) == len(list(tested.parameters()))
    # In the reference, tokens come first and the batch second.
    assert_same_function(tested, lambda x: reference(x.transpose(0, 1)).transpose(0, 1), torch.randn(3, length, 16))


def test_gradients_of_a_model_in_double_precision(text_config, far_model):
    config = text_config(hidden_size=4, intermediate_size=8, attention_size=2, attn_implementation="sdpa")
    model = far_model(GMLPModel, config).double()
    embeds = torch.randn(1, 4, 4, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0]])
    assert torch.autograd.gradcheck(lambda x: model(inputs_embeds=x, attention_mask=mask).pooler_output, embeds)


# ---------------------------------------------------------------------------------------------------------------------
# Padding


def padded_batch(model, lengths, width, fill):
    """ids, segments and mask of rows with these lengths, padded on the right to `width`; `fill` goes under padding."""
    choices = (2,) if isinstance(model, GMLPForMultipleChoice) else ()
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(5, 40, (len(lengths), *choices, width), generator=generator)
    segments = torch.randint(0, 2, ids.shape, generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    mask = mask.view(len(lengths), *[1 for _ in choices], width).expand_as(ids)
    if fill == "pad":
        ids, segments = ids * mask, segments * mask
    elif fill == "garbage":
        ids = torch.where(mask == 1, ids, torch.randint(0, 40, ids.shape))
        segments = torch.where(mask == 1, segments, torch.randint(0, 2, ids.shape))
    return ids, segments, mask


def assert_padding_is_hidden(model):
    lengths, width = [11, 6, 1], 12
    alone = []
    for row, length in enumerate(lengths):
        ids, segments, _ = padded_batch(model, lengths, width, "pad")
        ids, segments = ids[row : row + 1, ..., :length], segments[row : row + 1, ..., :length]
        alone.append(per_token(model(ids, token_type_ids=segments), length))
    for fill in ("pad", "garbage"):
        ids, segments, mask = padded_batch(model, lengths, width, fill)
        for batch in ([0, 1, 2], [2, 1], [1]):
            output = model(ids[batch], attention_mask=mask[batch], token_type_ids=segments[batch])
            for place, row in enumerate(batch):
                in_batch = per_token(output, lengths[row])[place]
                assert_close(in_batch, alone[row][0], depth=2)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("toeplitz", [True, False])
@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_a_sequence_alone_padded_or_in_a_batch(text_config, far_model, gating, toeplitz, attention):
    config = text_config(spatial_gating=gating, toeplitz=toeplitz, **attention_fields(attention))
    assert_padding_is_hidden(far_model(GMLPModel, config))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("model_class", TEXT_HEADS[1:])
@torch.no_grad()
def test_heads_do_not_see_padding(text_config, far_model, model_class, attention):
    assert_padding_is_hidden(far_model(model_class, text_config(**attention_fields(attention))))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_no_gradient_flows_from_padding(text_config, far_model, attention):
    model = far_model(GMLPModel, text_config(**attention_fields(attention)))
    embeds = torch.randn(2, 12, 16, requires_grad=True)
    mask = torch.ones(2, 12)
    mask[0, 7:] = 0
    model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state[0, :7].sum().backward()
    assert (embeds.grad[0, :7].abs().amax(-1) > 1e-3).all()
    assert (embeds.grad[0, 7:] == 0).all() and (embeds.grad[1] == 0).all()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
@torch.no_grad()
def test_masks_of_any_dtype(text_config, far_model, random_ids, dtype, attention):
    model = far_model(GMLPModel, text_config(**attention_fields(attention)))
    ids, mask = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 4:] = 0
    expected = model(ids, mask).last_hidden_state
    torch.testing.assert_close(model(ids, mask.to(dtype)).last_hidden_state, expected)


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_a_row_of_padding_alone_stays_finite(text_config, far_model, random_ids, attention):
    model = far_model(GMLPModel, text_config(**attention_fields(attention)))
    ids, mask = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1] = 0
    assert model(ids, mask).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_visible_padding(text_config, far_model, random_ids, attention):
    model = far_model(GMLPModel, text_config(mask_padding=False, **attention_fields(attention)))
    ids, mask = random_ids(1, 12), torch.ones(1, 12, dtype=torch.long)
    mask[:, 7:] = 0
    ids = ids * mask
    masked = model(ids, mask).last_hidden_state
    assert torch.equal(masked, model(ids).last_hidden_state)
    changed = ids + (1 - mask) * 9
    assert (model(changed, mask).last_hidden_state - masked)[:, :7].abs().max() > 0.01
    assert (model(ids[:, :7]).last_hidden_state - masked[:, :7]).abs().max() > 0.01


# ---------------------------------------------------------------------------------------------------------------------
# Lengths and inputs


@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_any_length_up_to_n(text_config, far_model, random_ids, toeplitz):
    n = 6
    model = far_model(GMLPModel, text_config(max_position_embeddings=n, toeplitz=toeplitz))
    for length in range(1, n + 1):
        # A model made for this length, with the leading part of every W and b.
        small = GMLPModel(text_config(max_position_embeddings=length, toeplitz=False)).eval()
        state = model.state_dict()
        for i, projection in enumerate(model.spatial_projections()):
            name = f"layers.{i}.spatial_gating_unit.proj"
            state[f"{name}.weight"] = projection.matrix(length)[0]
            state[f"{name}.bias"] = projection.bias[:length]
        small.load_state_dict(state)
        ids = random_ids(2, length)
        actual, expected = model(ids), small(ids)
        torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state)
        torch.testing.assert_close(actual.pooler_output, expected.pooler_output)


def test_too_long_a_sequence_names_the_remedy(text_config, far_model, random_ids):
    model = far_model(GMLPModel, text_config())
    with pytest.raises(ValueError, match=r"13 tokens.*up to 12.*resize_position_embeddings\(13\)"):
        model(random_ids(1, 13))
    with pytest.raises(ValueError, match="resize_position_embeddings"):
        model(inputs_embeds=torch.randn(1, 13, 16))


@pytest.mark.parametrize("model_class", TEXT_HEADS)
@torch.no_grad()
def test_embeddings_in_place_of_ids(text_config, far_model, random_ids, model_class):
    model = far_model(model_class, text_config(attention_size=8))
    ids = random_ids(2, 3, 8) if model_class is GMLPForMultipleChoice else random_ids(2, 8)
    embeds = model.get_input_embeddings()(ids)
    torch.testing.assert_close(per_token(model(inputs_embeds=embeds), 8), per_token(model(ids), 8))


def test_ids_and_embeddings_exclude_each_other(text_config, far_model, random_ids):
    model = far_model(GMLPModel, text_config())
    for inputs in ({}, {"input_ids": random_ids(1, 4), "inputs_embeds": torch.randn(1, 4, 16)}):
        with pytest.raises(ValueError, match="Pass either `input_ids` or `inputs_embeds`, and not both"):
            model(**inputs)


@pytest.mark.parametrize("shape", [(2, 7), (1, 8), (8,), (2, 8, 8), (2, 1, 8, 8)])
def test_masks_of_another_shape(text_config, far_model, random_ids, shape):
    model = far_model(GMLPModel, text_config(attention_size=8))
    with pytest.raises(ValueError, match=r"`attention_mask` must have one entry per token, shape \(2, 8\)"):
        model(random_ids(2, 8), attention_mask=torch.ones(shape))


@torch.no_grad()
def test_segments(text_config, far_model, random_ids):
    model, ids = far_model(GMLPModel, text_config()), random_ids(2, 8)
    zeros = model(ids).last_hidden_state
    torch.testing.assert_close(model(ids, token_type_ids=torch.zeros_like(ids)).last_hidden_state, zeros)
    assert (model(ids, token_type_ids=torch.ones_like(ids)).last_hidden_state - zeros).abs().max() > 0.01
    without = far_model(GMLPModel, text_config(type_vocab_size=0))
    assert without.embeddings.token_type_embeddings is None
    assert without(ids, token_type_ids=torch.ones_like(ids)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    "pixels, message",
    [
        ((1, 3, 16, 20), r"3, 16, 16\].*got \[1, 3, 16, 20\].*resize_image_size"),
        ((1, 1, 16, 16), r"3, 16, 16\].*got \[1, 1, 16, 16\]"),
        ((3, 16, 16), r"`pixel_values` must be a batch of images.*3, 16, 16\].*got \[3, 16, 16\]"),
        (None, "pixel_values"),
    ],
)
def test_wrong_images(vision_config, far_model, pixels, message):
    model = far_model(GMLPForImageClassification, vision_config())
    with pytest.raises(ValueError, match=message):
        model(None if pixels is None else torch.randn(pixels))


@torch.no_grad()
def test_pooling_of_images(vision_config, far_model):
    pixels = torch.randn(2, 3, 16, 16)
    mean = far_model(GMLPVisionModel, vision_config(pooling="mean"))
    output = mean(pixels)
    assert output.last_hidden_state.shape == (2, 16, 16) and mean.pooler is None
    torch.testing.assert_close(output.pooler_output, output.last_hidden_state.mean(1))
    cls = far_model(GMLPVisionModel, vision_config())
    output = cls(pixels)
    assert output.last_hidden_state.shape == (2, 17, 16)
    expected = torch.tanh(F.linear(output.last_hidden_state[:, 0], cls.pooler.dense.weight, cls.pooler.dense.bias))
    torch.testing.assert_close(output.pooler_output, expected)
    for pooling in ("mean", "cls"):
        bare = far_model(GMLPVisionModel, vision_config(pooling=pooling), add_pooling_layer=False)
        assert bare.pooler is None and bare(pixels).pooler_output is None


@torch.no_grad()
def test_patches_are_read_row_by_row(vision_config, far_model):
    model = far_model(GMLPVisionModel, vision_config(image_size=(8, 12), pooling="mean"))
    pixels = torch.randn(1, 3, 8, 12)
    projection = model.embeddings.projection
    expected = [
        (projection.weight * pixels[0, :, row : row + 4, column : column + 4]).sum((1, 2, 3)) + projection.bias
        for row in (0, 4)
        for column in (0, 4, 8)
    ]
    assert_close(model.embeddings(pixels)[0], torch.stack(expected))


@torch.no_grad()
def test_the_cls_token_stands_in_front_of_the_patches(vision_config, far_model):
    embeddings = far_model(GMLPVisionModel, vision_config()).embeddings
    embedded = embeddings(torch.randn(2, 3, 16, 16))
    assert torch.equal(embedded[:, 0], embeddings.cls_token[0].expand(2, -1))


# ---------------------------------------------------------------------------------------------------------------------
# Growing and shrinking


@pytest.mark.parametrize("new", [20, 13, 12, 5])
@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_resize_position_embeddings(text_config, far_model, random_ids, tmp_path, toeplitz, new):
    model = far_model(GMLPForMaskedLM, text_config(toeplitz=toeplitz, attention_size=8))
    kept = min(12, new)
    ids = random_ids(2, kept)
    before, weights = model(ids).logits, [p.weight.clone() for p in model.spatial_projections()]
    model.resize_position_embeddings(new)
    torch.testing.assert_close(model(ids).logits, before)
    assert model.config.max_position_embeddings == model.model.config.max_position_embeddings == new
    with pytest.raises(ValueError, match="resize_position_embeddings"):
        model(random_ids(1, new + 1))
    for projection, weight in zip(model.spatial_projections(), weights, strict=True):
        assert projection.matrix().shape == (1, new, new)
        if toeplitz:
            assert torch.equal(projection.weight[new - kept : new + kept - 1], weight[12 - kept : 12 + kept - 1])

    model.save_pretrained(tmp_path)
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path)
    ids = random_ids(2, new)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)


@torch.no_grad()
def test_growing_and_shrinking_back_changes_nothing(text_config, far_model):
    model = far_model(GMLPModel, text_config())
    before = copy.deepcopy(model.state_dict())
    model.resize_position_embeddings(30)
    model.resize_position_embeddings(12)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("new", [0, -3, 8.5, "9"])
def test_a_failed_resize_leaves_a_text_model_unchanged(text_config, far_model, new):
    model = far_model(GMLPModel, text_config())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises((ValueError, TypeError)):
        model.resize_position_embeddings(new)
    assert model.config.max_position_embeddings == 12
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("new", [16, 32, 8, (8, 20), [24, 12]])
@torch.no_grad()
def test_resize_image_size(vision_config, far_model, tmp_path, new, pooling):
    model = far_model(GMLPForImageClassification, vision_config(pooling=pooling))
    height, width = (new, new) if isinstance(new, int) else new
    pixels = torch.randn(2, 3, 16, 16)
    before = model(pixels).logits
    model.resize_image_size(new)
    pixels = torch.randn(2, 3, height, width) if new != 16 else pixels
    after = model(pixels).logits
    assert after.isfinite().all()
    if new == 16:
        assert torch.equal(after, before)
    assert model.config.grid_size == model.model.config.grid_size == (height // 4, width // 4)
    tokens = height // 4 * (width // 4) + (pooling == "cls")
    assert [p.weight.shape for p in model.spatial_projections()] == [(tokens, tokens)] * 2
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(GMLPForImageClassification.from_pretrained(tmp_path)(pixels).logits, after)


@torch.no_grad()
def test_a_smooth_model_is_independent_of_the_resolution(vision_config, far_model):
    # W and b that do not depend on the place, and an image of one color: the number of patches does not matter.
    model = far_model(GMLPForImageClassification, vision_config(pooling="mean"))
    for projection in model.spatial_projections():
        projection.weight.fill_(0.7 / 16)
        projection.bias.fill_(0.3)
    color = torch.randn(1, 3, 1, 1)
    before = model(color.expand(-1, -1, 16, 16)).logits
    for size in (32, (8, 20)):
        resized = copy.deepcopy(model)
        resized.resize_image_size(size)
        after = resized(color.expand(-1, -1, *((size, size) if size == 32 else size))).logits
        assert_close(after, before, depth=2)


@pytest.mark.parametrize("new", [18, (16, 18), 0, -16, (16, 16, 16), "big", None])
def test_a_failed_resize_leaves_an_image_model_unchanged(vision_config, far_model, new):
    model = far_model(GMLPVisionModel, vision_config())
    before, config = copy.deepcopy(model.state_dict()), model.config.to_json_string()
    with pytest.raises((StrictDataclassError, TypeError)):
        model.resize_image_size(new)
    assert model.config.to_json_string() == config
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_image_models_name_the_right_resize(vision_config, far_model):
    with pytest.raises(ValueError, match=r"resize_image_size"):
        far_model(GMLPVisionModel, vision_config()).resize_position_embeddings(20)


@pytest.mark.parametrize("toeplitz", [True, False])
def test_a_grown_model_trains(text_config, far_model, random_ids, toeplitz):
    model = far_model(GMLPForMaskedLM, text_config(toeplitz=toeplitz)).train()
    model.resize_position_embeddings(16)
    ids = random_ids(2, 16)
    model(ids, labels=ids).loss.backward()
    for projection in model.spatial_projections():
        assert all((p.grad.abs() > 1e-6 * p.grad.abs().max()).all() for p in projection.parameters())


# ---------------------------------------------------------------------------------------------------------------------
# Stochastic depth, dropout, initialization


def test_drop_path_is_per_sample_and_keeps_the_mean():
    branch = torch.randn(4000, 3, 5)
    dropped = drop_path(branch, 0.25, training=True)
    gone = (dropped == 0).all(dim=(1, 2))
    torch.testing.assert_close(dropped[~gone], branch[~gone] / 0.75)
    assert abs(gone.float().mean() - 0.25) < 0.03
    # E[output] = input: the weight of every sample is 1 in the mean.
    assert abs((dropped / branch).mean() - 1) < 0.03


@pytest.mark.parametrize("rate, training", [(0.5, False), (0.0, True)])
def test_drop_path_does_nothing(rate, training):
    branch = torch.randn(6, 3, 5)
    assert drop_path(branch, rate, training) is branch


def test_drop_path_grows_linearly_with_depth(text_config, vision_config):
    for model in (
        GMLPModel(text_config(num_hidden_layers=5, drop_path_rate=0.5)),
        GMLPVisionModel(vision_config(num_hidden_layers=5, drop_path_rate=0.5)),
    ):
        rates = [layer.drop_path_rate for layer in model.layers]
        np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_dropped_block_is_an_identity(text_config, randomize):
    block = randomize(GMLPBlock(text_config(), drop_path_rate=0.5)).train()
    x = torch.randn(64, 12, 16)
    output = block(x)
    same = (output == x).all(dim=(1, 2))
    assert 10 < same.sum() < 54
    branch = block.eval()(x) - x
    assert_close(output[~same], (x + 2 * branch)[~same])


@pytest.mark.parametrize(
    "field, modality",
    [
        ("hidden_dropout_prob", "text"),
        ("activation_dropout", "text"),
        ("attention_probs_dropout_prob", "text"),
        ("classifier_dropout", "text"),
        ("drop_path_rate", "text"),
        ("hidden_dropout_prob", "image"),
        ("activation_dropout", "image"),
        ("drop_path_rate", "image"),
        ("classifier_dropout", "image"),
    ],
)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_every_dropout_acts_in_training_only(
    text_config, vision_config, far_model, random_ids, field, modality, attention
):
    make_config, model_class, inputs = {
        "text": (text_config, GMLPForSequenceClassification, random_ids(8, 10)),
        "image": (vision_config, GMLPForImageClassification, torch.randn(8, 3, 16, 16)),
    }[modality]
    plain = far_model(model_class, make_config(**attention_fields(attention)))
    model = far_model(model_class, make_config(**{field: 0.5}, **attention_fields(attention)))
    expected = plain(inputs).logits
    torch.testing.assert_close(model(inputs).logits, expected)
    # Without any dropout, training mode changes nothing.
    torch.testing.assert_close(plain.train()(inputs).logits, expected)
    model.train()
    assert (model(inputs).logits - expected).abs().max() > 1e-3
    assert not torch.equal(model(inputs).logits, model(inputs).logits)


@torch.no_grad()
def test_hidden_dropout_is_on_the_embeddings_and_on_every_block(text_config, vision_config, far_model, random_ids):
    for model, inputs in (
        (far_model(GMLPModel, text_config(hidden_dropout_prob=0.5)), random_ids(8, 12)),
        (far_model(GMLPVisionModel, vision_config(hidden_dropout_prob=0.5)), torch.randn(8, 3, 16, 16)),
    ):
        embedded = model.embeddings(inputs)
        parts = [(embedded, model.train().embeddings(inputs))]
        for layer in model.layers:
            parts.append((layer.eval()(embedded) - embedded, layer.train()(embedded) - embedded))
        for whole, dropped in parts:
            # Adding the shortcut and taking it away again leaves rounding errors.
            gone = dropped.abs() < 1e-5
            assert 0.4 < gone.float().mean() < 0.6
            assert_close(dropped[~gone], 2 * whole[~gone])


def test_classifier_dropout_is_hidden_dropout_by_default(text_config):
    assert GMLPForSequenceClassification(text_config(hidden_dropout_prob=0.3)).dropout.p == 0.3
    config = text_config(hidden_dropout_prob=0.3, classifier_dropout=0.0)
    assert GMLPForTokenClassification(config).dropout.p == 0.0


@pytest.mark.parametrize("reload", [False, True])
def test_initial_weights(text_config, vision_config, tmp_path, reload):
    """Near-zero W, b of one, the rest as in BERT: also for what a checkpoint lacks."""
    text = GMLPForMaskedLM(text_config(hidden_size=64, intermediate_size=256, attention_size=16, vocab_size=500))
    image = GMLPForImageClassification(vision_config(hidden_size=64, intermediate_size=256, patch_size=8))
    if reload:
        # Everything but one tensor is missing from the checkpoint.
        text.save_pretrained(tmp_path / "text", state_dict={"model.norm.bias": torch.zeros(64)})
        image.save_pretrained(tmp_path / "image", state_dict={"model.norm.bias": torch.zeros(64)})
        text = GMLPForMaskedLM.from_pretrained(tmp_path / "text")
        image = GMLPForImageClassification.from_pretrained(tmp_path / "image")
    for model in (text, image):
        for projection in model.spatial_projections():
            assert (projection.bias == 1).all()
            assert 0 < projection.weight.abs().max() < 1e-5
        for name, parameter in model.named_parameters():
            if "spatial_gating_unit.proj" in name:
                continue
            elif "norm" in name.split(".")[-2]:
                assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
            elif name.endswith("bias"):
                assert (parameter == 0).all(), name
            else:
                assert 0.01 < parameter.std() < 0.03, name
    assert (text.model.embeddings.word_embeddings.weight[0] == 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# Tied weights and vocabularies


def assert_tied(model):
    embeddings, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    assert decoder.weight is embeddings.weight
    assert decoder.weight.data_ptr() == embeddings.weight.data_ptr()
    assert decoder.weight.shape[0] == decoder.bias.shape[0] == model.config.vocab_size


def test_the_decoder_is_tied_throughout(text_config, far_model, random_ids, tmp_path):
    model = far_model(GMLPForMaskedLM, text_config())
    assert_tied(model)
    model.save_pretrained(tmp_path)
    model = GMLPForMaskedLM.from_pretrained(tmp_path)
    assert_tied(model)
    ids = random_ids(2, 8)
    with torch.no_grad():
        logits = model(ids).logits
    bias = model.decoder.bias.detach().clone()
    model.resize_token_embeddings(47)
    assert_tied(model)
    assert torch.equal(model.decoder.bias[:40], bias)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits[..., :40], logits)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.decoder.weight.detach().clone()
    new_ids = torch.full((2, 8), 46)
    model(new_ids, labels=new_ids).loss.backward()
    optimizer.step()
    assert_tied(model)
    assert not torch.equal(model.decoder.weight, before)
    model.resize_token_embeddings(40)
    assert_tied(model)
    model.save_pretrained(tmp_path / "again")
    again = GMLPForMaskedLM.from_pretrained(tmp_path / "again")
    assert_tied(again)
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_an_untied_decoder(text_config, far_model, tmp_path):
    model = far_model(GMLPForMaskedLM, text_config(tie_word_embeddings=False))
    assert model.decoder.weight is not model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.decoder.weight, model.decoder.weight)
    assert not torch.equal(loaded.decoder.weight, loaded.get_input_embeddings().weight)


def test_the_transform_can_be_left_out(text_config, far_model, random_ids):
    model = far_model(GMLPForMaskedLM, text_config(mlm_transform=False))
    output = model(random_ids(2, 8), output_hidden_states=True)
    expected = F.linear(output.hidden_states[-1], model.decoder.weight, model.decoder.bias)
    torch.testing.assert_close(output.logits, expected)


# ---------------------------------------------------------------------------------------------------------------------
# Outputs of the models


@pytest.mark.parametrize("modality", ["text", "image"])
@torch.no_grad()
def test_hidden_states(text_config, vision_config, far_model, random_ids, modality):
    if modality == "text":
        model, inputs = far_model(GMLPModel, text_config(num_hidden_layers=3)), random_ids(2, 8)
    else:
        model, inputs = far_model(GMLPVisionModel, vision_config(num_hidden_layers=3)), torch.randn(2, 3, 16, 16)
    output = model(inputs, output_hidden_states=True)
    assert len(output.hidden_states) == 4
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    hidden_states = model.embeddings(inputs)
    for layer, handed_out in zip(model.layers, output.hidden_states):
        torch.testing.assert_close(hidden_states, handed_out)
        hidden_states = layer(hidden_states)
    torch.testing.assert_close(model.norm(hidden_states), output.last_hidden_state)
    assert model(inputs).hidden_states is None


@torch.no_grad()
def test_attentions_are_the_weights_used(text_config, far_model, random_ids):
    model = far_model(GMLPModel, text_config(**attention_fields("eager")))
    ids, mask = random_ids(2, 8), torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    output = model(ids, mask, output_attentions=True, output_hidden_states=True)
    assert len(output.attentions) == 2
    for layer, hidden_states, weights in zip(model.layers, output.hidden_states, output.attentions):
        assert weights.shape == (2, 1, 8, 8)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 8))
        assert (weights[1, :, :, 5:] == 0).all()
        query, key = layer.attention.qkv_proj(layer.norm(hidden_states)).chunk(3, dim=-1)[:2]
        scores = (query @ key.transpose(1, 2)) / 8**0.5
        scores = scores.masked_fill(mask[:, None] == 0, float("-inf"))
        assert_close(weights[:, 0], scores.softmax(-1))
    assert model(ids, mask).attentions is None
    assert far_model(GMLPModel, text_config())(ids, mask, output_attentions=True).attentions == ()


@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_sdpa_equals_eager(text_config, vision_config, far_model, random_ids, gating):
    fields = {"spatial_gating": gating, "attention_size": 8}
    ids, mask = random_ids(3, 10), torch.ones(3, 10, dtype=torch.long)
    mask[1, 4:] = 0
    text, image = far_model(GMLPModel, text_config(**fields)), far_model(GMLPVisionModel, vision_config(**fields))
    pixels = torch.randn(2, 3, 16, 16)
    results = []
    for implementation in ("eager", "sdpa"):
        text.set_attn_implementation(implementation)
        image.set_attn_implementation(implementation)
        results.append((text(ids, mask).last_hidden_state, image(pixels).last_hidden_state))
    assert_close(results[0], results[1], depth=2)


@pytest.mark.parametrize("model_class", TEXT_HEADS + VISION_HEADS)
def test_tuples_in_place_of_outputs(text_config, vision_config, far_model, random_ids, model_class):
    if model_class in VISION_HEADS:
        model, inputs = far_model(model_class, vision_config()), torch.randn(2, 3, 16, 16)
    else:
        model = far_model(model_class, text_config())
        inputs = random_ids(2, 2, 8) if model_class is GMLPForMultipleChoice else random_ids(2, 8)
    for one, other in zip(model(inputs).to_tuple(), model(inputs, return_dict=False), strict=True):
        torch.testing.assert_close(one, other)


def test_gradient_checkpointing_changes_no_gradient(text_config, vision_config, far_model, random_ids):
    ids, mask = random_ids(2, 8), torch.ones(2, 8, dtype=torch.long)
    mask[1, 4:] = 0
    for model, inputs in (
        (
            far_model(GMLPForMaskedLM, text_config(attention_size=8)),
            {"input_ids": ids, "attention_mask": mask, "labels": ids},
        ),
        (
            far_model(GMLPForImageClassification, vision_config()),
            {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])},
        ),
    ):
        model.train()
        gradients = []
        for checkpointing in (False, True):
            if checkpointing:
                model.gradient_checkpointing_enable()
                assert all(layer.gradient_checkpointing for layer in model.model.layers)
            model.zero_grad()
            model(**inputs).loss.backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        torch.testing.assert_close(gradients[0], gradients[1])


# ---------------------------------------------------------------------------------------------------------------------
# Losses


def loss_case(name, text_config, vision_config, random_ids):
    """(model class, config, inputs and labels of 6 samples, how many labels count)"""
    ids = random_ids(6, 10)
    sparse = torch.where(torch.rand(6, 10) < 0.4, random_ids(6, 10), -100)
    tokens = torch.where(torch.rand(6, 10) < 0.7, torch.randint(0, 3, (6, 10)), -100)
    classes = torch.tensor([0, 2, 1, 1, 0, 2])
    pixels = torch.randn(6, 3, 16, 16)
    cases = {
        "masked language model": (GMLPForMaskedLM, text_config, {}, {"input_ids": ids, "labels": sparse}),
        "sparse masked language model": (
            GMLPForMaskedLM,
            text_config,
            {"sparse_prediction": True},
            {"input_ids": ids, "labels": sparse},
        ),
        "tokens": (GMLPForTokenClassification, text_config, {}, {"input_ids": ids, "labels": tokens}),
        "single label": (GMLPForSequenceClassification, text_config, {}, {"input_ids": ids, "labels": classes}),
        "several labels": (
            GMLPForSequenceClassification,
            text_config,
            {"problem_type": "multi_label_classification"},
            {"input_ids": ids, "labels": torch.randint(0, 2, (6, 3)).float()},
        ),
        "regression": (
            GMLPForSequenceClassification,
            text_config,
            {"num_labels": 1},
            {"input_ids": ids, "labels": torch.randn(6)},
        ),
        "regression of several values": (
            GMLPForSequenceClassification,
            text_config,
            {"problem_type": "regression"},
            {"input_ids": ids, "labels": torch.randn(6, 3)},
        ),
        "choices": (
            GMLPForMultipleChoice,
            text_config,
            {},
            {"input_ids": random_ids(6, 3, 10), "labels": classes},
        ),
        "questions": (
            GMLPForQuestionAnswering,
            text_config,
            {},
            {
                "input_ids": ids,
                "start_positions": torch.tensor([0, 3, 9, 2, 5, 1]),
                "end_positions": torch.tensor([1, 3, 9, 8, 6, 4]),
            },
        ),
        "image": (
            GMLPForImageClassification,
            vision_config,
            {},
            {"pixel_values": pixels, "labels": classes},
        ),
        "image with several labels": (
            GMLPForImageClassification,
            vision_config,
            {"problem_type": "multi_label_classification"},
            {"pixel_values": pixels, "labels": torch.randint(0, 2, (6, 3)).float()},
        ),
        "image regression": (
            GMLPForImageClassification,
            vision_config,
            {"num_labels": 1},
            {"pixel_values": pixels, "labels": torch.randn(6)},
        ),
    }
    model_class, make_config, fields, inputs = cases[name]
    # As Trainer counts: every label that is not -100.
    num_items = (inputs["labels"] != -100).sum() if "labels" in inputs else torch.tensor(6)
    return model_class, make_config(**fields), inputs, num_items


LOSSES = [
    "masked language model",
    "sparse masked language model",
    "tokens",
    "single label",
    "several labels",
    "regression",
    "regression of several values",
    "choices",
    "questions",
    "image",
    "image with several labels",
    "image regression",
]


def torch_loss(name, output, inputs):
    labels = inputs.get("labels")
    if name in ("masked language model", "sparse masked language model", "tokens"):
        return F.cross_entropy(output.logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
    if name in ("single label", "choices", "image"):
        return F.cross_entropy(output.logits, labels)
    if "several labels" in name:
        return F.binary_cross_entropy_with_logits(output.logits, labels)
    if "regression" in name:
        return ((output.logits.view(labels.shape) - labels) ** 2).mean()
    start = F.cross_entropy(output.start_logits, inputs["start_positions"])
    return (start + F.cross_entropy(output.end_logits, inputs["end_positions"])) / 2


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_those_of_torch(text_config, vision_config, far_model, random_ids, name):
    model_class, config, inputs, num_items = loss_case(name, text_config, vision_config, random_ids)
    model = far_model(model_class, config)
    output = model(**inputs)
    torch.testing.assert_close(output.loss, torch_loss(name, output, inputs))
    # A mean over a given number of labels: that of this batch makes no difference.
    for count in (num_items, int(num_items)):
        torch.testing.assert_close(model(**inputs, num_items_in_batch=count).loss, output.loss)


@pytest.mark.parametrize("name", LOSSES)
def test_accumulated_losses_and_gradients_are_those_of_one_batch(
    text_config, vision_config, far_model, random_ids, name
):
    model_class, config, inputs, num_items = loss_case(name, text_config, vision_config, random_ids)
    model = far_model(model_class, config).train()

    def gradients():
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        return found

    whole = model(**inputs).loss
    whole.backward()
    expected = gradients()
    total = 0.0
    for rows in (slice(0, 1), slice(1, 3), slice(3, 6)):
        loss = model(**{key: value[rows] for key, value in inputs.items()}, num_items_in_batch=num_items).loss
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole.item(), rel=1e-5)
    assert_close(gradients(), expected, depth=2)


@pytest.mark.parametrize("name", LOSSES)
def test_every_parameter_gets_a_gradient(text_config, vision_config, far_model, random_ids, name):
    model_class, config, inputs, _ = loss_case(name, text_config, vision_config, random_ids)
    model = far_model(model_class, type(config)(**config.to_diff_dict() | {"attention_size": 8})).train()
    model(**inputs).loss.backward()
    # One number added to all logits of a softmax changes nothing.
    vanishing = {"choices": ["classifier.bias"], "questions": ["qa_outputs.bias", "model.norm.bias"]}
    assert_gradients(model, vanishing.get(name, ()))


@pytest.mark.parametrize(
    "num_labels, labels, expected",
    [
        (1, torch.zeros(2), "regression"),
        (3, torch.tensor([0, 1]), "single_label_classification"),
        (3, torch.zeros(2, 3), "multi_label_classification"),
    ],
)
def test_problem_type_is_found_from_the_labels(text_config, far_model, random_ids, num_labels, labels, expected):
    model = far_model(GMLPForSequenceClassification, text_config(num_labels=num_labels))
    model(random_ids(2, 5), labels=labels)
    assert model.config.problem_type == expected


def test_one_label_of_integers_is_a_regression(text_config, far_model, random_ids):
    # As in the library: num_labels = 1 is a regression whatever the dtype, and the labels may be a column.
    model = far_model(GMLPForSequenceClassification, text_config(num_labels=1))
    ids = random_ids(2, 5)
    logits = model(ids).logits.detach()
    for labels in (torch.tensor([1, 3]), torch.tensor([[1.0], [3.0]])):
        expected = F.mse_loss(logits.flatten(), labels.flatten().float())
        torch.testing.assert_close(model(ids, labels=labels).loss, expected)


def test_unknown_problem_type(text_config, far_model, random_ids):
    model = far_model(GMLPForSequenceClassification, text_config())
    vars(model.config)["problem_type"] = "ranking"
    with pytest.raises(KeyError, match="ranking"):
        model(random_ids(2, 5), labels=torch.tensor([0, 1]))


def test_sparse_prediction(text_config, far_model, random_ids):
    dense = far_model(GMLPForMaskedLM, text_config()).train()
    sparse = far_model(GMLPForMaskedLM, text_config(sparse_prediction=True)).train()
    ids = random_ids(3, 10)
    labels = torch.where(torch.rand(3, 10) < 0.3, ids, -100)
    outputs = [model(ids, labels=labels) for model in (dense, sparse)]
    torch.testing.assert_close(outputs[1].logits, outputs[0].logits[labels != -100])
    torch.testing.assert_close(outputs[1].loss, outputs[0].loss)
    for output in outputs:
        output.loss.backward()
    assert_close(*([parameter.grad for parameter in model.parameters()] for model in (sparse, dense)), depth=2)
    # All logits are needed without labels, and outside training.
    assert sparse(ids).logits.shape == (3, 10, 40)
    assert sparse.eval()(ids, labels=labels).logits.shape == (3, 10, 40)


@pytest.mark.parametrize("position", [10, 11, 500])
def test_answers_outside_the_sequence_are_left_out(text_config, far_model, random_ids, position):
    model = far_model(GMLPForQuestionAnswering, text_config())
    ids = random_ids(2, 10)
    starts, ends = torch.tensor([3, position]), torch.tensor([position, 4])
    output = model(ids, start_positions=starts, end_positions=ends)
    expected = F.cross_entropy(output.start_logits[:1], starts[:1]) + F.cross_entropy(output.end_logits[1:], ends[1:])
    torch.testing.assert_close(output.loss, expected / 2)
    assert model(ids, start_positions=starts).loss is None


@torch.no_grad()
def test_multiple_choice_scores_each_choice_separately(text_config, far_model, random_ids):
    model = far_model(GMLPForMultipleChoice, text_config(attention_size=8))
    ids, segments, mask = random_ids(2, 3, 9), torch.randint(0, 2, (2, 3, 9)), torch.ones(2, 3, 9, dtype=torch.long)
    mask[0, 1, 5:] = 0
    logits = model(ids, mask, segments).logits
    assert logits.shape == (2, 3)
    for row in range(2):
        for choice in range(3):
            inputs = [tensor[row : row + 1, choice : choice + 1] for tensor in (ids, mask, segments)]
            assert_close(model(*inputs).logits[0, 0], logits[row, choice], depth=2)


# ---------------------------------------------------------------------------------------------------------------------
# Compilation, export, precision


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compile_cases(text_config, vision_config, far_model, random_ids):
    ids, mask = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 4:] = 0
    text = {"input_ids": ids, "attention_mask": mask}
    image = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}
    return {
        "Toeplitz": lambda: (
            far_model(GMLPForMaskedLM, text_config()),
            text | {"labels": ids.masked_fill(mask == 0, -100)},
        ),
        "dense": lambda: (
            far_model(GMLPForMaskedLM, text_config(toeplitz=False)),
            text | {"labels": ids.masked_fill(mask == 0, -100)},
        ),
        "aMLP": lambda: (
            far_model(GMLPForSequenceClassification, text_config(**attention_fields("sdpa"), drop_path_rate=0.0)),
            text | {"labels": torch.tensor([0, 2])},
        ),
        "image": lambda: (far_model(GMLPForImageClassification, vision_config()), image),
        "image aMLP": lambda: (far_model(GMLPForImageClassification, vision_config(attention_size=8)), image),
        "image with all": lambda: (far_model(GMLPForImageClassification, vision_config(**CONVOLUTIONAL)), image),
    }


def assert_compiled_equals_plain(model, inputs, backend):
    model.train()
    results = []
    for forward in (model, torch.compile(model, fullgraph=True, backend=backend)):
        model.zero_grad()
        output = forward(**inputs)
        output.loss.backward()
        logits = output.logits.detach()
        if logits.dim() == 3:
            logits = logits[inputs["attention_mask"] == 1]
        results.append([output.loss.detach(), logits, *(p.grad.clone() for p in model.parameters())])
    assert_close(results[0], results[1], depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Toeplitz", "dense", "aMLP", "image", "image aMLP", "image with all"])
def test_compiles_into_one_graph(text_config, vision_config, far_model, random_ids, fresh_compiler, name):
    model, inputs = compile_cases(text_config, vision_config, far_model, random_ids)[name]()
    assert_compiled_equals_plain(model, inputs, "aot_eager")


@pytest.mark.slow
def test_compiles_with_inductor(text_config, vision_config, far_model, random_ids, fresh_compiler):
    model, inputs = compile_cases(text_config, vision_config, far_model, random_ids)["aMLP"]()
    assert_compiled_equals_plain(model, inputs, "inductor")


@pytest.mark.slow
@torch.no_grad()
def test_compiled_for_any_length(text_config, far_model, random_ids, fresh_compiler):
    model = far_model(GMLPModel, text_config(attention_size=8))
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for batch, length in ((2, 9), (3, 5), (1, 12)):
        ids = random_ids(batch, length)
        assert_close(compiled(ids).last_hidden_state, model(ids).last_hidden_state, depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("attention, heads", [(None, 1), (None, 4), ("eager", 1), ("sdpa", 1)])
@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_exported_for_any_batch_and_length(text_config, far_model, random_ids, toeplitz, attention, heads):
    fields = {"toeplitz": toeplitz, "spatial_heads": heads, **attention_fields(attention)}
    model = far_model(GMLPForMaskedLM, text_config(**fields))
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=12)

    def inputs(rows, tokens):
        mask = torch.ones(rows, tokens, dtype=torch.long)
        mask[0, tokens // 2 :] = 0
        return {"input_ids": random_ids(rows, tokens), "attention_mask": mask}

    shape = {0: batch, 1: length}
    program = torch.export.export(
        model, (), inputs(2, 8), dynamic_shapes={"input_ids": shape, "attention_mask": shape}, strict=False
    )
    for rows, tokens in ((2, 8), (3, 12), (5, 3), (4, 2)):
        case = inputs(rows, tokens)
        shown = case["attention_mask"] == 1
        exported = program.module()(**case).logits[shown]
        assert_close(exported, model(**case).logits[shown], depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"pooling": "cls"}, {"pooling": "mean"}, CONVOLUTIONAL], ids=["cls", "mean", "all"])
@torch.no_grad()
def test_images_exported_for_any_batch(vision_config, far_model, fields):
    model = far_model(GMLPForImageClassification, vision_config(attention_size=8, **fields))
    shapes = {"pixel_values": {0: torch.export.Dim("batch")}}
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16)}
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False)
    for rows in (2, 3, 7):
        pixels = torch.randn(rows, 3, 16, 16)
        torch.testing.assert_close(program.module()(pixel_values=pixels).logits, model(pixels).logits)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_is_finite_and_close(text_config, vision_config, far_model, random_ids, dtype, attention):
    fields = attention_fields(attention)
    ids, mask = random_ids(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[1, 5:] = 0
    for model, inputs in (
        (far_model(GMLPModel, text_config(**fields)), {"input_ids": ids, "attention_mask": mask}),
        (far_model(GMLPVisionModel, vision_config(**fields)), {"pixel_values": torch.randn(2, 3, 16, 16)}),
    ):
        expected = model(**inputs).last_hidden_state
        output = model.to(dtype)(**inputs).last_hidden_state
        assert output.dtype == dtype and output.isfinite().all()
        # A LayerNorm's output has values around one; 8 bits of mantissa after two blocks.
        error = (output.float() - expected).abs()
        assert error.mean() < (0.03 if dtype == torch.bfloat16 else 0.004)
        assert error.max() < (0.4 if dtype == torch.bfloat16 else 0.05)


@pytest.mark.parametrize("name", LOSSES)
def test_training_under_autocast(text_config, vision_config, far_model, random_ids, name):
    model_class, config, inputs, _ = loss_case(name, text_config, vision_config, random_ids)
    config.attention_size = 8
    config.drop_path_rate = 0.2
    config.hidden_dropout_prob = 0.1
    model = far_model(model_class, config).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs).loss
    assert loss.dtype == torch.float32
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all()


# ---------------------------------------------------------------------------------------------------------------------
# Trainer and the Auto classes


@pytest.mark.slow
def test_trainer_learns_a_rule(text_config, tmp_path):
    """Whether token 7 comes before token 8, which no model can tell without mixing tokens."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for _ in range(256):
        ids = torch.randint(9, 40, (8,), generator=generator)
        first, second = torch.randperm(7, generator=generator)[:2] + 1
        ids[0], ids[first], ids[second] = 2, 7, 8
        samples.append({"input_ids": ids, "labels": int(first < second)})
    config = text_config(num_labels=2, hidden_size=32, intermediate_size=128, attention_size=8)
    model = AutoModelForSequenceClassification.from_config(config)
    assert type(model) is GMLPForSequenceClassification
    _, losses = train(model, samples, tmp_path, max_steps=80, logging_steps=10, gradient_accumulation_steps=2)
    # ln 2 at the start: also a check that accumulation does not multiply the loss.
    assert 0.5 < losses[0] < 0.9
    assert losses[-1] < 0.5 * losses[0]


def test_trainer_learns_images(vision_config, tmp_path):
    generator = torch.Generator().manual_seed(0)
    samples = [{"pixel_values": 0.3 * torch.randn(3, 16, 16, generator=generator), "labels": i % 2} for i in range(64)]
    for sample in samples:
        sample["pixel_values"][0, :8, :8] += sample["labels"]
    model = AutoModelForImageClassification.from_config(vision_config(num_labels=2))
    assert type(model) is GMLPForImageClassification
    _, losses = train(model, samples, tmp_path, max_steps=30, logging_steps=5)
    assert losses[-1] < 0.5 * losses[0]


# ---------------------------------------------------------------------------------------------------------------------
# Changes of the config after a model was built, and other mistakes that must not pass silently


@torch.no_grad()
def test_is_causal_may_change_after_building(text_config, far_model, random_ids):
    for attention in ("eager", "sdpa"):
        config = text_config(attention_size=8, attn_implementation=attention)
        model, ids = far_model(GMLPModel, config), random_ids(2, 9)
        causal = far_model(GMLPModel, text_config(attention_size=8, attn_implementation=attention, is_causal=True))
        both_ways = model(ids).last_hidden_state
        model.config.is_causal = True
        assert torch.equal(model(ids).last_hidden_state, causal(ids).last_hidden_state)
        model.config.is_causal = False
        assert torch.equal(model(ids).last_hidden_state, both_ways)


def test_a_length_in_the_config_that_differs_from_w(text_config, vision_config, far_model, random_ids):
    model = far_model(GMLPModel, text_config())
    model.config.max_position_embeddings = 20
    with pytest.raises(ValueError, match="weights for 12 tokens, not for the 20.*resize_position_embeddings"):
        model(random_ids(1, 5))
    vision = far_model(GMLPVisionModel, vision_config())
    vision.config.image_size = 12
    with pytest.raises(ValueError, match="weights for 17 tokens, not for the 10.*resize_image_size"):
        vision(torch.zeros(1, 3, 12, 12))


def test_lengths_of_other_integer_types(text_config, vision_config, far_model, random_ids):
    model, ids = far_model(GMLPModel, text_config()), random_ids(1, 12)
    before = model(ids).last_hidden_state
    for length in (np.int64(24), torch.tensor(30)):
        model.resize_position_embeddings(length)
        assert model.config.max_position_embeddings == int(length)
        torch.testing.assert_close(model(ids).last_hidden_state, before)
    for bad in (0, -3, 2.5, "20", None):
        with pytest.raises((ValueError, TypeError)):
            model.resize_position_embeddings(bad)
        assert model.config.max_position_embeddings == model.spatial_projections()[0].length == 30
    vision = far_model(GMLPVisionModel, vision_config())
    vision.resize_image_size((np.int64(24), np.int64(16)))
    assert vision(torch.zeros(1, 3, 24, 16)).last_hidden_state.shape == (1, 25, 16)


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_mask_between_pairs_without_attention(text_config, far_model, random_ids, monkeypatch, is_causal):
    calls = []
    create = modeling_gmlp.create_causal_mask
    monkeypatch.setattr(modeling_gmlp, "create_causal_mask", lambda **kwargs: calls.append(1) or create(**kwargs))
    ids = random_ids(2, 9)
    for attention_size, expected in ((0, 0), (8, 1)):
        model = far_model(GMLPModel, text_config(is_causal=is_causal, attention_size=attention_size))
        model(ids, torch.ones_like(ids))
        assert len(calls) == expected


@pytest.mark.parametrize("splits", [True, False])
def test_a_fifth_gating(text_config, far_model, random_ids, splits):
    """A gating that is registered with one line works in every model."""
    fifth = spatial_gating.SpatialGating(splits, lambda u, f: u * torch.tanh(f))
    spatial_gating.SPATIAL_GATINGS["fifth"] = fifth
    try:
        ids = random_ids(2, 9)
        fields = {"spatial_gating": "fifth", "attention_size": 8}
        model = far_model(GMLPForMaskedLM, text_config(**fields)).double()
        model(ids, labels=ids).loss.backward()
        unit, z = model.model.layers[0].spatial_gating_unit, torch.randn(2, 9, 32, dtype=torch.double)
        u, v = z.chunk(2, -1) if splits else (z, z)
        torch.testing.assert_close(unit(z), u * torch.tanh(unit.proj(unit.norm(v))))
        causal = far_model(GMLPForCausalLM, text_config(**fields)).double()
        cache = causal(ids[:, :5], use_cache=True).past_key_values
        rest = causal(ids[:, 5:], past_key_values=cache).logits
        torch.testing.assert_close(rest, causal(ids).logits[:, 5:])
    finally:
        del spatial_gating.SPATIAL_GATINGS["fifth"]
    with pytest.raises(StrictDataclassError, match="`spatial_gating`.*fifth"):
        text_config(spatial_gating="fifth")


def test_an_unknown_gating(text_config, far_model, tmp_path):
    far_model(GMLPModel, text_config()).save_pretrained(tmp_path)
    with pytest.raises((ValueError, StrictDataclassError), match="`spatial_gating`.*nope"):
        GMLPModel.from_pretrained(tmp_path, spatial_gating="nope")
    config = text_config()
    with pytest.raises((ValueError, StrictDataclassError), match="`spatial_gating`.*nope"):
        config.spatial_gating = "nope"
        GMLPModel(config)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_no_tokens(text_config, far_model, random_ids, attention, is_causal):
    """No rows, no tokens, or a mask of none."""
    model = far_model(GMLPModel, text_config(is_causal=is_causal, **attention_fields(attention)))
    for inputs in (
        {"input_ids": random_ids(0, 5)},
        {"input_ids": random_ids(2, 0)},
        {"input_ids": random_ids(0, 5), "attention_mask": torch.ones(0, 5), "seq_idx": torch.zeros(0, 5)},
        {"inputs_embeds": torch.randn(2, 0, 16), "attention_mask": torch.ones(2, 0)},
        {"input_ids": random_ids(2, 5), "attention_mask": torch.ones(2, 0)},
        {"input_ids": random_ids(2, 5), "position_ids": torch.zeros(2, 0)},
    ):
        with pytest.raises(ValueError, match=r"There are no tokens|one entry per token|the shape of the tokens"):
            model(**inputs)
