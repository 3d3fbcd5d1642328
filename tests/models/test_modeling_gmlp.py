"""The models: equality with other implementations, padding, lengths, heads, losses and execution modes."""

import copy

import pytest
import timm
import torch
from g_mlp_pytorch import gMLP
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
from hf_gmlp.models.modeling_gmlp import GMLPBlock
from hf_gmlp.tools.conversion.lucidrains import model_from_lucidrains
from hf_gmlp.tools.conversion.timm import model_from_timm

from ..numerics import assert_close
from ..tools.conversion.test_timm import perturb
from .helpers import (
    ATTENTIONS,
    assert_losses_and_gradients,
    assert_padding_is_hidden,
    assert_same_with_checkpointing,
    attention_fields,
    labeled_batch,
)

TEXT_HEADS = [
    GMLPModel,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPForTokenClassification,
    GMLPForQuestionAnswering,
    GMLPForMultipleChoice,
]


def assert_same_function(tested, reference, inputs, depth=1):
    """Compare the outputs of two functions and the input gradients of a random projection of the outputs."""
    results = []
    for function in (tested, reference):
        x = inputs.clone().requires_grad_()
        output = function(x)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
        results.append((output.detach(), torch.autograd.grad((output * weights).sum(), x)[0]))
    for value, expected_value in zip(*results):
        assert_close(value, expected_value, depth)


def test_logits_and_gradients_are_those_of_timm():
    reference = perturb(timm.create_model("gmlp_ti16_224", img_size=64, num_classes=10))
    tested = model_from_timm(reference.state_dict()).eval()
    assert_same_function(lambda x: tested(x).logits, reference, torch.randn(1, 3, 64, 64), depth=30)


@pytest.mark.parametrize("attention_size", [0, 8])
def test_logits_and_gradients_are_those_of_g_mlp_pytorch(randomize, attention_size):
    reference = gMLP(num_tokens=40, dim=16, depth=3, seq_len=12, ff_mult=4, attn_dim=attention_size or None)
    tested = model_from_lucidrains(randomize(reference).state_dict())[0].eval()
    ids = torch.randint(0, 40, (3, 12))
    assert_close(tested(ids).logits, reference(ids), depth=3)
    embedded = reference.to_embed(ids).detach()
    reference.to_embed = torch.nn.Identity()
    assert_same_function(lambda x: tested(inputs_embeds=x).logits, reference, embedded, depth=3)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("model_class", [GMLPModel, GMLPForSequenceClassification, GMLPForTokenClassification])
def test_a_sequence_alone_or_padded(text_config, perturbed_model, model_class, is_causal, attention):
    config = text_config(is_causal=is_causal, **attention_fields(attention))
    assert_padding_is_hidden(perturbed_model(model_class, config).double())


@pytest.mark.parametrize("model_class", [GMLPForMaskedLM, GMLPForCausalLM, GMLPForQuestionAnswering])
def test_heads_do_not_see_padding(text_config, perturbed_model, model_class):
    assert_padding_is_hidden(perturbed_model(model_class, text_config(toeplitz=False, attention_size=8)).double())


@torch.no_grad()
def test_visible_padding(text_config, perturbed_model, random_ids):
    model = perturbed_model(GMLPModel, text_config(mask_padding=False, attention_size=8))
    ids, mask = random_ids(1, 12), torch.ones(1, 12, dtype=torch.long)
    mask[:, 7:] = 0
    ids = ids * mask
    masked = model(ids, mask).last_hidden_state
    assert torch.equal(masked, model(ids).last_hidden_state)
    changed = ids + (1 - mask) * 9
    assert (model(changed, mask).last_hidden_state - masked)[:, :7].abs().max() > 0.01
    assert (model(ids[:, :7]).last_hidden_state - masked[:, :7]).abs().max() > 0.01


def test_too_long_a_sequence_names_the_remedy(text_config, perturbed_model, random_ids):
    model = perturbed_model(GMLPModel, text_config())
    with pytest.raises(ValueError, match=r"resize_position_embeddings\(13\)"):
        model(random_ids(1, 13))


@pytest.mark.parametrize("shape", [(2, 7), (2, 1, 8, 8)])
def test_masks_of_another_shape(text_config, perturbed_model, random_ids, shape):
    model = perturbed_model(GMLPModel, text_config(attention_size=8))
    with pytest.raises(ValueError, match=r"`attention_mask`.*\(2, 8\)"):
        model(random_ids(2, 8), attention_mask=torch.ones(shape))


@pytest.mark.parametrize(
    "pixels, message",
    [
        ((1, 3, 16, 20), r"3, 16, 16\].*\[1, 3, 16, 20\].*resize_image_size"),
        ((3, 16, 16), r"`pixel_values`.*\[3, 16, 16\]"),
        (None, "pixel_values"),
    ],
)
def test_wrong_images(vision_config, perturbed_model, pixels, message):
    model = perturbed_model(GMLPForImageClassification, vision_config())
    with pytest.raises(ValueError, match=message):
        model(None if pixels is None else torch.randn(pixels))


@torch.no_grad()
def test_pooling_of_images(vision_config, perturbed_model):
    pixels = torch.randn(2, 3, 16, 16)
    mean = perturbed_model(GMLPVisionModel, vision_config(pooling="mean"))
    output = mean(pixels)
    assert output.last_hidden_state.shape == (2, 16, 16) and mean.pooler is None
    torch.testing.assert_close(output.pooler_output, output.last_hidden_state.mean(1))
    cls = perturbed_model(GMLPVisionModel, vision_config())
    output = cls(pixels)
    assert output.last_hidden_state.shape == (2, 17, 16)
    assert torch.equal(cls.embeddings(pixels)[:, 0], cls.embeddings.cls_token[0].expand(2, -1))
    expected = torch.tanh(F.linear(output.last_hidden_state[:, 0], cls.pooler.dense.weight, cls.pooler.dense.bias))
    torch.testing.assert_close(output.pooler_output, expected)
    for pooling in ("mean", "cls"):
        bare = perturbed_model(GMLPVisionModel, vision_config(pooling=pooling), add_pooling_layer=False)
        assert bare.pooler is None and bare(pixels).pooler_output is None


@pytest.mark.parametrize("new", [20, 5])
@pytest.mark.parametrize("toeplitz", [True, False])
@torch.no_grad()
def test_resize_position_embeddings(text_config, perturbed_model, random_ids, tmp_path, toeplitz, new):
    model = perturbed_model(GMLPForMaskedLM, text_config(toeplitz=toeplitz, attention_size=8))
    kept = min(12, new)
    ids, state = random_ids(2, kept), copy.deepcopy(model.state_dict())
    before, weights = model(ids).logits, [p.weight.clone() for p in model.spatial_projections()]
    model.resize_position_embeddings(new)
    torch.testing.assert_close(model(ids).logits, before)
    assert model.config.max_position_embeddings == model.model.config.max_position_embeddings == new
    with pytest.raises(ValueError, match="resize_position_embeddings"):
        model(random_ids(1, new + 1))
    for projection, weight in zip(model.spatial_projections(), weights, strict=True):
        assert projection.matrix().shape == (1, new, new)
        if toeplitz:
            assert torch.equal(projection.weight, weight[12 - kept : 12 + kept - 1])

    model.save_pretrained(tmp_path)
    loaded = GMLPForMaskedLM.from_pretrained(tmp_path)
    ids = random_ids(2, new)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    if new > 12:
        # Resizing back restores the original weights.
        model.resize_position_embeddings(12)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("new", [32, (8, 20)])
@torch.no_grad()
def test_resize_image_size(vision_config, perturbed_model, tmp_path, new, pooling):
    model = perturbed_model(GMLPForImageClassification, vision_config(pooling=pooling))
    height, width = (new, new) if isinstance(new, int) else new
    model.resize_image_size(new)
    pixels = torch.randn(2, 3, height, width)
    after = model(pixels).logits
    assert after.isfinite().all()
    assert model.config.grid_size == model.model.config.grid_size == (height // 4, width // 4)
    tokens = height // 4 * (width // 4) + (pooling == "cls")
    assert [p.weight.shape for p in model.spatial_projections()] == [(tokens, tokens)] * 2
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(GMLPForImageClassification.from_pretrained(tmp_path)(pixels).logits, after)


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


DROPOUTS = "hidden_dropout_prob activation_dropout attention_probs_dropout_prob classifier_dropout drop_path_rate"


@pytest.mark.parametrize("field", DROPOUTS.split())
@pytest.mark.parametrize("modality", ["text", "image"])
@torch.no_grad()
def test_every_dropout_acts_in_training_only(text_config, vision_config, perturbed_model, random_ids, field, modality):
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
def test_initial_weights(text_config, vision_config, tmp_path, reload):
    """W starts near zero, b at one, and the rest as in BERT, also for weights missing from a checkpoint."""
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


def assert_tied(model):
    embeddings, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    assert decoder.weight is embeddings.weight
    assert decoder.weight.data_ptr() == embeddings.weight.data_ptr()
    assert decoder.weight.shape[0] == decoder.bias.shape[0] == model.config.vocab_size


def test_the_decoder_is_tied_throughout(text_config, perturbed_model, random_ids, tmp_path):
    model = perturbed_model(GMLPForMaskedLM, text_config())
    assert_tied(model)
    model.save_pretrained(tmp_path)
    model = GMLPForMaskedLM.from_pretrained(tmp_path)
    assert_tied(model)
    ids = random_ids(2, 8)
    with torch.no_grad():
        logits = model(ids).logits
    model.resize_token_embeddings(47)
    assert_tied(model)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits[..., :40], logits)
    untied = perturbed_model(GMLPForMaskedLM, text_config(tie_word_embeddings=False))
    assert untied.decoder.weight is not untied.get_input_embeddings().weight


def test_gradient_checkpointing_changes_no_gradient(text_config, vision_config, perturbed_model):
    packed = {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]] * 4)}
    for model_class, config, more in (
        (GMLPForMaskedLM, text_config(attention_size=8), {}),
        (GMLPForMaskedLM, text_config(attention_size=8), packed),
        (GMLPForImageClassification, vision_config(), {}),
    ):
        assert_same_with_checkpointing(perturbed_model(model_class, config), labeled_batch(model_class) | more)


@pytest.mark.parametrize("model_class", [*TEXT_HEADS[1:], GMLPForImageClassification])
def test_losses_and_gradients_of_the_heads(text_config, vision_config, perturbed_model, model_class):
    config = vision_config if model_class is GMLPForImageClassification else text_config
    # A bias added to all logits does not change the softmax.
    vanishing = {
        GMLPForMultipleChoice: ["classifier.bias"],
        GMLPForQuestionAnswering: ["qa_outputs.bias", "model.norm.bias"],
    }
    model = perturbed_model(model_class, config(attention_size=8))
    assert_losses_and_gradients(model, vanishing.get(model_class, ()))


def test_sparse_prediction(text_config, perturbed_model, random_ids):
    dense = perturbed_model(GMLPForMaskedLM, text_config()).train()
    sparse = perturbed_model(GMLPForMaskedLM, text_config(sparse_prediction=True)).train()
    ids = random_ids(3, 10)
    labels = torch.where(torch.rand(3, 10) < 0.3, ids, -100)
    outputs = [model(ids, labels=labels) for model in (dense, sparse)]
    torch.testing.assert_close(outputs[1].logits, outputs[0].logits[labels != -100])
    torch.testing.assert_close(outputs[1].loss, outputs[0].loss)
    for output in outputs:
        output.loss.backward()
    assert_close(*([parameter.grad for parameter in model.parameters()] for model in (sparse, dense)), depth=2)
    # All logits are computed without labels and in evaluation.
    assert sparse(ids).logits.shape == (3, 10, 40)
    assert sparse.eval()(ids, labels=labels).logits.shape == (3, 10, 40)


def test_sparse_prediction_at_a_fixed_number_of_positions(text_config, perturbed_model, random_ids):
    """Compiled models need a fixed number of positions; those without a label are ignored."""
    model = perturbed_model(GMLPForMaskedLM, text_config(sparse_prediction=True)).train()
    ids = random_ids(3, 10)
    labels = torch.where(torch.rand(3, 10) < 0.3, ids, -100)
    labels[1] = -100
    positions = (labels != -100).long().argsort(dim=1, descending=True)[:, :7]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected = model(ids, labels=labels)
    expected.loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    # A compiled model computes all logits if no positions are passed.
    for forward, options, width in ((model, {"masked_positions": positions}, 7), (compiled, {}, 10)):
        model.zero_grad()
        output = forward(ids, labels=labels, **options)
        output.loss.backward()
        assert output.logits.shape == (3, width, 40)
        torch.testing.assert_close(output.loss, expected.loss)
        assert_close({name: weight.grad for name, weight in model.named_parameters()}, gradients, depth=2)


def test_answers_outside_the_sequence_are_left_out(text_config, perturbed_model, random_ids):
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
    for row in range(2):
        for choice in range(3):
            inputs = [tensor[row : row + 1, choice : choice + 1] for tensor in (ids, mask, segments)]
            assert_close(model(*inputs).logits[0, 0], logits[row, choice], depth=2)


@pytest.mark.slow
@torch.no_grad()
def test_exported_for_any_batch_and_length(text_config, perturbed_model, random_ids):
    model = perturbed_model(GMLPForMaskedLM, text_config(spatial_heads=4, attention_size=8))
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=12)

    def inputs(rows, tokens):
        mask = torch.ones(rows, tokens, dtype=torch.long)
        mask[0, tokens // 2 :] = 0
        return {"input_ids": random_ids(rows, tokens), "attention_mask": mask}

    shape = {0: batch, 1: length}
    program = torch.export.export(
        model, (), inputs(2, 8), dynamic_shapes={"input_ids": shape, "attention_mask": shape}, strict=False
    )
    for rows, tokens in ((3, 12), (4, 2)):
        case = inputs(rows, tokens)
        shown = case["attention_mask"] == 1
        exported = program.module()(**case).logits[shown]
        assert_close(exported, model(**case).logits[shown], depth=2)
