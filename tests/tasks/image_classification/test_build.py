"""The loss against torch's own, the metrics against scikit-learn, and how configs, processors and models are found."""

import numpy as np
import pytest
import timm
import torch
from sklearn.metrics import top_k_accuracy_score
from torch.nn import functional as F
from transformers import (
    AutoModelForImageClassification,
    EvalPrediction,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)
from transformers.modeling_outputs import ImageClassifierOutput

from hf_gmlp import GMLPForImageClassification, GMLPVisionModel
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.image_classification.arguments import ImageModelArguments
from hf_gmlp.tasks.image_classification.build import (
    accuracy_metrics,
    classification_loss,
    image_size,
    load_image_config,
    load_image_model,
    load_processor,
    ranked_classes,
)
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.trainer import GMLPTrainer


def test_the_loss_is_cross_entropy_with_smoothing_in_training_only():
    logits, classes = torch.randn(6, 4, requires_grad=True), torch.randint(4, (6,))
    shares = torch.rand(6, 4).softmax(-1)
    outputs, loss = ImageClassifierOutput(logits=logits), classification_loss(0.1)

    def by_hand(shares, smoothing):
        return -((1 - smoothing) * shares + smoothing / 4).mul(logits.log_softmax(-1)).sum(-1).mean()

    hard = F.one_hot(classes, 4).float()
    torch.testing.assert_close(loss(outputs, classes), by_hand(hard, 0.1))
    torch.testing.assert_close(loss(outputs, shares), by_hand(shares, 0.1))
    with torch.no_grad():
        torch.testing.assert_close(loss(outputs, classes), by_hand(hard, 0.0))
    # As Trainer counts: what is not -100, in two batches of six.
    torch.testing.assert_close(loss(outputs, classes, 12), by_hand(hard, 0.1) / 2)
    torch.testing.assert_close(loss(outputs, shares, torch.tensor(48)), by_hand(shares, 0.1) / 2)


@pytest.mark.parametrize("classes", [8, 5, 3])
def test_metrics_are_those_of_scikit_learn(classes):
    logits, labels = torch.randn(200, classes), torch.randint(classes, (200,))
    metrics = accuracy_metrics()(EvalPrediction(ranked_classes((logits,), labels).numpy(), labels.numpy()))
    options = {"y_true": labels.numpy(), "y_score": logits.numpy(), "labels": np.arange(classes)}
    assert metrics["accuracy"] == pytest.approx(top_k_accuracy_score(**options, k=1))
    if classes < 5:
        assert "top5_accuracy" not in metrics
    else:
        assert metrics["top5_accuracy"] == pytest.approx(top_k_accuracy_score(**options, k=5) if classes > 5 else 1.0)


def arguments(**fields):
    return ImageModelArguments(**fields)


def test_a_new_model_takes_the_size_that_was_asked_for():
    config = load_image_config(arguments(config_name="gmlp-s16-224"), (288, 320))
    assert image_size(config) == (288, 320) and config.grid_size == (18, 20)
    # The size comes before the overrides, so that a patch which does not divide 224 is no obstacle.
    small = arguments(config_name="gmlp-ti16-224", config_overrides="patch_size=5")
    assert load_image_config(small, (40, 40)).grid_size == (8, 8)
    assert image_size(load_image_config(arguments(config_name="deit-ti16-224"), (32, 32))) == (32, 32)
    with pytest.raises(InputError, match="225"):
        load_image_config(arguments(config_name="gmlp-s16-224"), (225, 224))


def test_models_of_timm_go_by_their_name():
    config = load_image_config(arguments(config_name="timm/gmlp_ti16_224"), (64, 64))
    assert config.architecture == "gmlp_ti16_224" and image_size(config) == (64, 64)
    # A network that does not care about the size has no argument for it.
    config = load_image_config(arguments(config_name="timm/resnet10t"), (64, 64))
    assert config.model_args is None
    overrides = "img_size=32,patch_size=4,depth=2,embed_dim=24,num_heads=3,drop_path_rate=0.1"
    config = load_image_config(arguments(config_name="timm/vit_tiny_patch16_224", config_overrides=overrides), None)
    config.id2label = dict(enumerate("abc"))
    model = load_image_model(arguments(config_name="timm/vit_tiny_patch16_224"), config, None, train=True)
    assert model(torch.randn(2, 3, 32, 32)).logits.shape == (2, 3)
    assert image_size(load_image_config(arguments(config_name="timm/efficientnet_b3"), None)) == (288, 288)
    with pytest.raises(InputError, match="timm .* has no model 'gmlp_xxl'"):
        load_image_config(arguments(config_name="timm/gmlp_xxl"), None)
    with pytest.raises(InputError, match="vit_tiny_patch16_224 cannot be made with {.depht.: 3}: .*unexpected keyword"):
        load_image_config(arguments(config_name="timm/vit_tiny_patch16_224", config_overrides="depht=3"), None)


def test_models_of_timm_start_as_timm_starts_them():
    config = load_image_config(arguments(config_name="timm/gmlp_ti16_224"), (32, 32))
    config.id2label = dict(enumerate("abc"))
    model = load_image_model(arguments(config_name="timm/gmlp_ti16_224"), config, None, train=True)
    gate = model.timm_model.blocks[3].mlp_channels
    reference = timm.create_model("gmlp_ti16_224", img_size=32).blocks[3].mlp_channels
    for model in (gate, reference):
        assert model.gate.proj.weight.abs().max() < 1e-4 and (model.gate.proj.bias == 1).all()


def test_the_processor_of_a_new_model_keeps_an_eighth_out():
    config = load_image_config(arguments(config_name="gmlp-s16-224"), None)
    processor = load_processor(arguments(config_name="gmlp-s16-224"), config, None, None)
    # transformers' own scripts take "shortest_edge" for the size that the model wants.
    assert processor.size == {"shortest_edge": 224} and processor.crop_pct == 0.875
    assert processor.resample == 3 and processor.image_mean == processor.image_std == (0.5, 0.5, 0.5)
    whole = load_processor(arguments(config_name="gmlp-s16-224"), config, (288, 320), 1.0)
    assert whole.size == {"height": 288, "width": 320}


def test_the_processor_of_a_checkpoint_is_kept(tmp_path, vision_config, far_model):
    far_model(GMLPForImageClassification, vision_config()).save_pretrained(tmp_path)
    given = arguments(model_name_or_path=str(tmp_path))
    config = load_image_config(given, None)
    with pytest.raises(
        InputError,
        match="image processor of .*: the folder has no preprocessor_config.json. Name one with --image_processor_name",
    ):
        load_processor(given, config, None, None)
    ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    kept = load_processor(given, config, None, None)
    assert kept.image_mean == (0.1, 0.2, 0.3) and kept.resample == 2
    other = load_processor(given, config, (20, 20), None)
    assert other.image_mean == (0.1, 0.2, 0.3) and other.size == {"shortest_edge": 20} and other.crop_pct == 0.875


def test_a_new_classifier_on_an_old_body(tmp_path, vision_config, far_model):
    model = far_model(GMLPForImageClassification, vision_config())
    model.save_pretrained(tmp_path)
    given = arguments(model_name_or_path=str(tmp_path), ignore_mismatched_sizes=True)
    pixels = torch.randn(2, 3, 16, 16)
    # With as many classes as before, it is new too.
    for classes in ("abcde", "xyz"):
        config = load_image_config(given, None)
        config.id2label = dict(enumerate(classes))
        loaded = load_image_model(given, config, None, train=True, new_classifier=True)
        assert loaded.classifier.weight.shape == (len(classes), 16) and not loaded.classifier.bias.any()
        with torch.no_grad():
            expected = GMLPVisionModel.from_pretrained(tmp_path)(pixels).last_hidden_state
            torch.testing.assert_close(loaded.eval().model(pixels).last_hidden_state, expected)
    kept = load_image_model(given, load_image_config(given, None), None, train=True)
    assert torch.equal(kept.classifier.weight, model.classifier.weight)


def test_only_gmlps_are_resized(tmp_path, vision_config, far_model):
    far_model(GMLPForImageClassification, vision_config()).save_pretrained(tmp_path / "gmlp")
    given = arguments(model_name_or_path=str(tmp_path / "gmlp"))
    model = load_image_model(given, load_image_config(given, (24, 20)), (24, 20), train=False)
    assert model.config.grid_size == (6, 5) and model(torch.randn(1, 3, 24, 20)).logits.shape == (1, 3)
    with pytest.raises(InputError, match="--image_size 25 20: .*patch"):
        load_image_config(given, (25, 20))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **sizes)).save_pretrained(tmp_path / "vit")
    given = arguments(model_name_or_path=str(tmp_path / "vit"))
    with pytest.raises(InputError, match="only gMLPs are resized"):
        load_image_config(given, (24, 24))


def test_norms_and_biases_are_not_decayed(tmp_path, vision_config):
    def decayed(model):
        args = RunArguments(tmp_path, report_to="none", use_cpu=True)
        return set(GMLPTrainer(model, args, card={"dataset": ""}).get_decay_parameter_names(model))

    gmlp = AutoModelForImageClassification.from_config(vision_config())
    names = {name for name, _ in gmlp.named_parameters()}
    assert decayed(gmlp) == {name for name in names if not name.endswith("bias") and "norm" not in name}
    assert any(name.endswith("sgu.proj.weight") or "proj.weight" in name for name in decayed(gmlp))
    # Batch norms of a residual network are told by their type: this one's are called "normalization".
    resnet = ResNetForImageClassification(ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1]))
    expected = {name for name, parameter in resnet.named_parameters() if parameter.ndim > 1}
    assert decayed(resnet) == expected
