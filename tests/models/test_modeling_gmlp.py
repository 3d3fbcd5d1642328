"""Padding, lengths, image sizes, dropout, initial weights, heads, losses and gradient checkpointing of the models."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
from hf_gmlp.models.modeling_gmlp import GMLPBlock, SpatialProjection

from ..numerics import assert_close
from ..samples import CONVOLUTIONAL
from .helpers import (
    ATTENTIONS,
    assert_losses_and_gradients,
    assert_padding_is_hidden,
    attention_fields,
    gradients,
    labeled_batch,
)

HEADS_PER_ROW = [GMLPForMaskedLM, GMLPForSequenceClassification, GMLPForTokenClassification, GMLPForQuestionAnswering]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("model_class", [GMLPModel, GMLPForCausalLM, *HEADS_PER_ROW])
def test_padding_changes_no_output(text_config, perturbed_model, model_class, is_causal, attention):
    config = text_config(is_causal=is_causal, **attention_fields(attention))
    assert_padding_is_hidden(perturbed_model(model_class, config).double())


def test_gradients_of_a_new_model_do_not_explode_at_visible_padding(text_config, random_ids):
    """Without segments, a zero embedding of the padding would stay zero in all blocks, up to every LayerNorm."""
    sizes = {"num_hidden_layers": 24, "type_vocab_size": 0, "mask_padding": False}
    ids = random_ids(2, 8)
    ids[:, 4:] = 0
    gradients = []
    for inputs in (ids, ids.clamp(min=5)):
        torch.manual_seed(0)
        model = GMLPForMaskedLM(text_config(**sizes))
        model(input_ids=inputs, labels=ids.masked_fill(ids == 0, -100)).loss.backward()
        gradients.append(nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]))
    assert gradients[0] < 2 * gradients[1]


@pytest.mark.parametrize(
    "pixels, message",
    [
        ((1, 3, 16, 20), r"3, 16, 16\].*\[1, 3, 16, 20\].*resize_image_size"),
        ((3, 16, 16), r"`pixel_values`.*\[3, 16, 16\]"),
        (None, "pixel_values"),
    ],
)
def test_images_of_the_wrong_shape_are_refused(vision_config, perturbed_model, pixels, message):
    model = perturbed_model(GMLPForImageClassification, vision_config())
    with pytest.raises(ValueError, match=message):
        model(None if pixels is None else torch.randn(pixels))


@torch.no_grad()
def test_images_are_pooled_by_cls_token_or_mean(vision_config, perturbed_model):
    pixels = torch.randn(2, 3, 16, 16)
    output = perturbed_model(GMLPVisionModel, vision_config(pooling="mean"))(pixels)
    assert output.last_hidden_state.shape == (2, 16, 16)
    torch.testing.assert_close(output.pooler_output, output.last_hidden_state.mean(1))
    cls = perturbed_model(GMLPVisionModel, vision_config())
    output = cls(pixels)
    assert output.last_hidden_state.shape == (2, 17, 16)
    assert torch.equal(cls.embeddings(pixels)[:, 0], cls.embeddings.cls_token[0].expand(2, -1))
    expected = torch.tanh(F.linear(output.last_hidden_state[:, 0], cls.pooler.dense.weight, cls.pooler.dense.bias))
    torch.testing.assert_close(output.pooler_output, expected)
    for pooling in ("mean", "cls"):
        bare = perturbed_model(GMLPVisionModel, vision_config(pooling=pooling), add_pooling_layer=False)
        assert bare(pixels).pooler_output is None


@pytest.mark.parametrize(
    "fields", [{"pooling": "cls"}, {"pooling": "mean"}, CONVOLUTIONAL, {"stem": "conv", "num_channels": 1}]
)
@pytest.mark.parametrize("new, grid", [(32, (8, 8)), ((8, 20), (2, 5))])
@torch.no_grad()
def test_a_resized_image_model_can_be_reloaded(vision_config, perturbed_model, tmp_path, new, grid, fields):
    model = perturbed_model(GMLPForImageClassification, vision_config(**fields))
    model.resize_image_size(new)
    assert model.config.grid_size == grid
    pixels = torch.randn(2, model.config.num_channels, 4 * grid[0], 4 * grid[1])
    logits = model(pixels).logits
    assert logits.isfinite().all()
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(GMLPForImageClassification.from_pretrained(tmp_path)(pixels).logits, logits)


def test_drop_path_grows_linearly_with_depth(text_config, vision_config):
    for model_class, config in ((GMLPModel, text_config), (GMLPVisionModel, vision_config)):
        model = model_class(config(num_hidden_layers=5, drop_path_rate=0.5))
        assert [layer.drop_path_rate for layer in model.layers] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_dropped_block_is_an_identity(text_config, randomize):
    block = randomize(GMLPBlock(text_config(), drop_path_rate=0.5)).train()
    x = torch.randn(64, 12, 16)
    output = block(x)
    same = (output == x).all(dim=(1, 2))
    assert 10 < same.sum() < 54
    branch = block.eval()(x) - x
    assert_close(output[~same], (x + 2 * branch)[~same])


@pytest.mark.parametrize(
    "field",
    "hidden_dropout_prob activation_dropout attention_probs_dropout_prob classifier_dropout drop_path_rate".split(),
)
@pytest.mark.parametrize("modality", ["text", "image"])
@torch.no_grad()
def test_dropout_acts_in_training_only(text_config, vision_config, perturbed_model, random_ids, field, modality):
    make_config, model_class, inputs = {
        "text": (text_config, GMLPForSequenceClassification, random_ids(8, 10)),
        "image": (vision_config, GMLPForImageClassification, torch.randn(8, 3, 16, 16)),
    }[modality]
    fields = attention_fields("eager" if modality == "text" else "sdpa")
    plain = perturbed_model(model_class, make_config(**fields))
    model = perturbed_model(model_class, make_config(**{field: 0.5}, **fields))
    expected = plain(inputs).logits
    torch.testing.assert_close(model(inputs).logits, expected)
    # Without any dropout, training mode changes nothing.
    torch.testing.assert_close(plain.train()(inputs).logits, expected)
    model.train()
    assert (model(inputs).logits - expected).abs().max() > 1e-3
    assert not torch.equal(model(inputs).logits, model(inputs).logits)


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("kind", ["text", "image", "convolutional"])
def test_initial_weights(text_config, vision_config, tmp_path, kind, reload):
    """W starts near zero, b at one, and the rest as in BERT, also for weights missing from a checkpoint."""
    sizes = {"hidden_size": 64, "intermediate_size": 256}
    model_class, config = {
        "text": (GMLPForMaskedLM, text_config(**sizes, attention_size=16, vocab_size=500)),
        "image": (GMLPForImageClassification, vision_config(**sizes, patch_size=8)),
        "convolutional": (GMLPForImageClassification, vision_config(**sizes, **CONVOLUTIONAL)),
    }[kind]
    model = model_class(config)
    if reload:
        # Everything but one tensor is missing from the checkpoint.
        model.save_pretrained(tmp_path, state_dict={"model.norm.bias": torch.zeros(64)})
        model = model_class.from_pretrained(tmp_path)
    for module in model.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if isinstance(module, SpatialProjection):
            assert (bias == 1).all() and 0 < weight.abs().max() < 1e-5
            continue
        if bias is not None:
            assert (bias == 0).all()
        if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
            assert (weight == 1).all()
        elif weight is not None:
            is_stem = isinstance(module, nn.Conv2d) and bias is None
            assert weight.std().item() == pytest.approx((2 / weight[0].numel()) ** 0.5 if is_stem else 0.02, rel=0.25)
    for name, buffer in model.named_buffers():
        assert (buffer == ("running_var" in name)).all()
    if kind == "text":
        # The embedding of the padding is not zero, unlike BERT's.
        assert model.model.embeddings.word_embeddings.weight[0].std().item() == pytest.approx(0.02, rel=0.5)
    elif kind == "image":
        assert model.model.embeddings.cls_token.std().item() == pytest.approx(0.02, rel=0.5)


def test_gradient_checkpointing_changes_no_gradient(text_config, vision_config, perturbed_model):
    packed = {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]] * 4)}
    for model_class, config, more in (
        (GMLPForMaskedLM, text_config(attention_size=8), packed),
        (GMLPForCausalLM, text_config(attention_size=8), {"use_cache": True}),
        (GMLPForImageClassification, vision_config(), {}),
    ):
        model, inputs = perturbed_model(model_class, config).train(), labeled_batch(model_class) | more
        expected, calls = gradients(model, model(**inputs).loss), []
        model.gradient_checkpointing_enable()
        model.base_model.layers[0].proj_in.register_forward_pre_hook(lambda *args, calls=calls: calls.append(1))
        assert_close(gradients(model, model(**inputs).loss), expected, depth=2)
        # The block is computed again in the backward pass.
        assert len(calls) == 2


@pytest.mark.parametrize("model_class", [*HEADS_PER_ROW, GMLPForMultipleChoice, GMLPForImageClassification])
def test_losses_and_gradients_of_the_heads(text_config, vision_config, perturbed_model, model_class):
    config = vision_config if model_class is GMLPForImageClassification else text_config
    # A bias added to all logits does not change the softmax.
    vanishing = {
        GMLPForMultipleChoice: ["classifier.bias"],
        GMLPForQuestionAnswering: ["qa_outputs.bias", "model.norm.bias"],
    }
    model = perturbed_model(model_class, config(attention_size=8))
    assert_losses_and_gradients(model, vanishing.get(model_class, ()))


@pytest.mark.parametrize("form", ["labeled positions", "chosen positions", "compiled"])
def test_sparse_prediction_changes_no_loss_or_gradient(text_config, perturbed_model, random_ids, form):
    """The loss and gradients are those of a dense model, at the labeled positions or at a fixed number of positions."""
    dense = perturbed_model(GMLPForMaskedLM, text_config()).train()
    sparse = perturbed_model(GMLPForMaskedLM, text_config(sparse_prediction=True)).train()
    ids = random_ids(3, 10)
    labels = torch.where(torch.rand(3, 10) < 0.3, ids, -100)
    labels[1] = -100
    positions = (labels != -100).long().argsort(dim=1, descending=True)[:, :7]
    expected = dense(ids, labels=labels)
    if form == "labeled positions":
        output = sparse(ids, labels=labels)
        torch.testing.assert_close(output.logits, expected.logits[labels != -100])
    elif form == "chosen positions":
        output = sparse(ids, labels=labels, masked_positions=positions)
        assert output.logits.shape == (3, 7, 40)
    else:
        # A compiled model computes all logits if no positions are passed.
        output = torch.compile(sparse, fullgraph=True, backend="eager")(ids, labels=labels)
        assert output.logits.shape == (3, 10, 40)
    torch.testing.assert_close(output.loss, expected.loss)
    for loss in (output.loss, expected.loss):
        loss.backward()
    assert_close(*([parameter.grad for parameter in model.parameters()] for model in (sparse, dense)), depth=2)
    # All logits are computed without labels and in evaluation.
    assert sparse(ids).logits.shape == sparse.eval()(ids, labels=labels).logits.shape == (3, 10, 40)


def test_chosen_positions_of_all_tokens_must_be_in_order(text_config, perturbed_model, random_ids):
    """Labels of all tokens could otherwise be in the order of the tokens or in that of the positions."""
    model, ids = perturbed_model(GMLPForMaskedLM, text_config()), random_ids(2, 9)
    in_order = torch.arange(9).expand(2, -1)
    assert_close(model(ids, labels=ids, masked_positions=in_order).loss, model(ids, labels=ids).loss)
    with pytest.raises(ValueError, match="in order"):
        model(ids, labels=ids, masked_positions=in_order.flip(1))


def test_answers_outside_the_sequence_are_ignored(text_config, perturbed_model, random_ids):
    model = perturbed_model(GMLPForQuestionAnswering, text_config())
    ids = random_ids(2, 10)
    starts, ends = torch.tensor([3, 10]), torch.tensor([500, 4])
    output = model(ids, start_positions=starts, end_positions=ends)
    expected = F.cross_entropy(output.start_logits[:1], starts[:1]) + F.cross_entropy(output.end_logits[1:], ends[1:])
    torch.testing.assert_close(output.loss, expected / 2)
    assert model(ids, start_positions=starts).loss is None


@torch.no_grad()
def test_multiple_choice_scores_each_choice_separately(text_config, perturbed_model, random_ids):
    model = perturbed_model(GMLPForMultipleChoice, text_config(attention_size=8))
    ids, segments, mask = random_ids(2, 3, 9), torch.randint(0, 2, (2, 3, 9)), torch.ones(2, 3, 9, dtype=torch.long)
    mask[0, 1, 5:] = 0
    logits = model(ids, mask, segments).logits
    assert logits.shape == (2, 3)
    assert torch.equal(model(ids, mask, segments, position_ids=torch.arange(9)[None]).logits, logits)
    for row in range(2):
        for choice in range(3):
            inputs = [tensor[row : row + 1, choice : choice + 1] for tensor in (ids, mask, segments)]
            assert_close(model(*inputs).logits[0, 0], logits[row, choice], depth=2)
