import pytest
import timm
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

from hf_gmlp import GMLPForImageClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.image_classification.arguments import ImageModelArguments as Arguments
from hf_gmlp.tasks.image_classification.models import image_size, load_image_config, load_image_model, load_processor


def test_a_new_model_has_the_size_of_the_flag():
    config = load_image_config(Arguments(config_name="gmlp-s16-224"), (288, 320))
    assert image_size(config) == (288, 320) and config.grid_size == (18, 20)
    # The patch size does not divide the 224 of the preset.
    small = Arguments(config_name="gmlp-ti16-224", config_overrides="patch_size=5")
    assert load_image_config(small, (40, 40)).grid_size == (8, 8)
    assert image_size(load_image_config(Arguments(config_name="deit-ti16-224"), (32, 32))) == (32, 32)
    with pytest.raises(InputError, match="225"):
        load_image_config(Arguments(config_name="gmlp-s16-224"), (225, 224))


def test_models_of_timm_are_built_with_overrides():
    config = load_image_config(Arguments(config_name="timm/gmlp_ti16_224"), (64, 64))
    assert config.architecture == "gmlp_ti16_224" and image_size(config) == (64, 64)
    # A convolutional network has no argument for the size.
    assert load_image_config(Arguments(config_name="timm/resnet10t"), (64, 64)).model_args is None
    assert image_size(load_image_config(Arguments(config_name="timm/efficientnet_b3"), None)) == (288, 288)
    overrides = "img_size=32,patch_size=4,depth=2,embed_dim=24,num_heads=3,drop_path_rate=0.1"
    arguments = Arguments(config_name="timm/vit_tiny_patch16_224", config_overrides=overrides)
    config = load_image_config(arguments, None)
    config.id2label = dict(enumerate("abc"))
    model = load_image_model(arguments, config, None, train=True)
    assert model(torch.randn(2, 3, 32, 32)).logits.shape == (2, 3)
    with pytest.raises(InputError, match="gmlp_xxl"):
        load_image_config(Arguments(config_name="timm/gmlp_xxl"), None)
    with pytest.raises(InputError, match="depht"):
        load_image_config(Arguments(config_name="timm/resnet10t", config_overrides="depht=3"), None)


def test_models_of_timm_have_timm_s_initial_weights():
    arguments = Arguments(config_name="timm/gmlp_ti16_224")
    config = load_image_config(arguments, (32, 32))
    gate = load_image_model(arguments, config, None, train=True).timm_model.blocks[3].mlp_channels.gate
    reference = timm.create_model("gmlp_ti16_224", img_size=32).blocks[3].mlp_channels.gate
    for projection in (gate.proj, reference.proj):
        assert projection.weight.abs().max() < 1e-4 and (projection.bias == 1).all()


def test_a_new_model_gets_a_processor_of_its_size():
    config = load_image_config(Arguments(config_name="gmlp-s16-224"), None)
    processor = load_processor(Arguments(config_name="gmlp-s16-224"), config, None, None)
    # transformers' own scripts use "shortest_edge" as the size of the model's input.
    assert processor.size == {"shortest_edge": 224} and processor.crop_pct == 0.875
    assert processor.resample == 3 and processor.image_mean == processor.image_std == (0.5, 0.5, 0.5)
    resized = load_processor(Arguments(config_name="gmlp-s16-224"), config, (288, 320), 1.0)
    assert resized.size == {"height": 288, "width": 320}


def test_the_processor_of_a_checkpoint_is_kept(tmp_path, vision_config, perturbed_model):
    perturbed_model(GMLPForImageClassification, vision_config()).save_pretrained(tmp_path)
    arguments = Arguments(model_name_or_path=str(tmp_path))
    config = load_image_config(arguments, None)
    with pytest.raises(InputError, match="no preprocessor_config.json"):
        load_processor(arguments, config, None, None)
    ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    kept = load_processor(arguments, config, None, None)
    assert kept.image_mean == (0.1, 0.2, 0.3) and kept.resample == 2
    other = load_processor(arguments, config, (20, 20), None)
    assert other.image_mean == (0.1, 0.2, 0.3) and other.size == {"shortest_edge": 20} and other.crop_pct == 0.875


def test_only_gmlps_are_resized(tmp_path, vision_config, perturbed_model):
    def load(name, size):
        arguments = Arguments(model_name_or_path=str(tmp_path / name))
        return load_image_model(arguments, load_image_config(arguments, size), size, train=False)

    perturbed_model(GMLPForImageClassification, vision_config()).save_pretrained(tmp_path / "gmlp")
    model = load("gmlp", (24, 20))
    assert model.config.grid_size == (6, 5) and model(torch.randn(1, 3, 24, 20)).logits.shape == (1, 3)
    with pytest.raises(InputError, match="--image_size 25 20"):
        load("gmlp", (25, 20))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **sizes)).save_pretrained(tmp_path / "vit")
    with pytest.raises(InputError, match="--image_size 24 24: only gMLPs"):
        load("vit", (24, 24))
