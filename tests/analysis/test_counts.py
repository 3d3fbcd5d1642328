import pytest

from hf_gmlp import GMLPConfig, GMLPVisionConfig
from hf_gmlp.analysis.counts import paper_flops, paper_parameters
from hf_gmlp.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_counts_are_those_of_the_paper(name):
    preset = PRESETS[name]
    if name.endswith("-224"):
        config, digits = GMLPVisionConfig.from_preset(name, num_labels=1000), 1
    else:
        config, digits = GMLPConfig.from_preset(name), 0
    assert round(paper_parameters(config) / 1e6, digits) == preset.parameters
    if preset.flops is not None:
        assert paper_flops(config) / 1e9 == pytest.approx(preset.flops, rel=0.01)


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
