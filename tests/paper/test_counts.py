import pytest
import timm
import torch
from transformers import AutoConfig

from hf_gmlp import GMLPConfig, GMLPVisionConfig
from hf_gmlp.presets import preset_path
from paper.counts import paper_flops, paper_parameters


def test_flops_by_hand():
    config = GMLPConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=3, intermediate_size=12, max_position_embeddings=20,
        attention_size=4,
    )  # fmt: skip
    channels = 20 * (8 * 12 + 6 * 8)
    spatial = 20 * 20 * 6
    attention = 20 * (8 * 12 + 4 * 6) + 2 * 20 * 20 * 4
    head = 3 * (8 * 8 + 8 * 50)  # 15 % of 20 tokens
    assert paper_flops(config) == 2 * (3 * (channels + spatial + attention) + head)


def test_flops_of_images_with_heads_and_a_convolutional_stem_by_hand():
    config = GMLPVisionConfig(
        hidden_size=8, num_hidden_layers=3, intermediate_size=12, image_size=(8, 12), patch_size=4, pooling="mean",
        toeplitz=True, spatial_heads=3, stem="conv", num_labels=5,
    )  # fmt: skip
    # 2 channels at full size, 4 at half of it, 8 at a quarter of it, and the projection of 6 patches.
    stem = 9 * (96 * 3 * 2 + 24 * 2 * 4 + 6 * 4 * 8) + 6 * 8 * 8
    block = 6 * (8 * 12 + 6 * 8) + 6 * 6 * 6
    assert paper_flops(config) == 2 * (stem + 3 * block + 8 * 5)
    convolutions = 9 * (3 * 2 + 2 * 4 + 4 * 8) + 2 * (2 + 4 + 8) + 8 * 8 + 8
    # Both norms, both projections, W [3, 3, 5] and b [3, 6].
    block = 2 * 8 + 8 * 12 + 12 + 2 * 6 + 6 * 8 + 8 + 3 * 3 * 5 + 3 * 6
    assert paper_parameters(config) == convolutions + 3 * block + 2 * 8 + 8 * 5 + 5


def test_a_vision_transformer_of_table_2():
    config = AutoConfig.from_pretrained(preset_path("deit-s16-224"), num_labels=1000)
    with torch.device("meta"):
        reference = timm.create_model("deit_small_patch16_224", num_classes=1000)
    assert paper_parameters(config) == sum(parameter.numel() for parameter in reference.parameters())
    assert config.num_attention_heads == reference.blocks[0].attn.num_heads
    assert paper_flops(config) / 2e9 == pytest.approx(4.6, rel=0.01)
