import pytest
import torch
from PIL import Image

from hf_gmlp import GMLPConfig, GMLPForMaskedLM, GMLPModel, GMLPVisionConfig, GMLPVisionModel
from hf_gmlp.analysis.filters import load_spatial_model, middle_filters, plot_filters
from hf_gmlp.errors import InputError


def text_model(layers, toeplitz=True):
    torch.manual_seed(0)
    config = GMLPConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=layers, intermediate_size=16, max_position_embeddings=10,
        toeplitz=toeplitz, spatial_initializer_range=0.3,
    )  # fmt: skip
    return GMLPForMaskedLM(config)


def test_filters_are_the_middle_rows():
    model = text_model(3, toeplitz=False)
    filters = middle_filters(model)
    assert filters.shape == (3, 10)
    for row, block in zip(filters, model.model.layers):
        assert torch.equal(row, block.spatial_gating_unit.proj.weight[5])
    model = text_model(2)
    weight = model.model.layers[1].spatial_gating_unit.proj.weight
    assert torch.equal(middle_filters(model)[1], weight[10 - 1 - 5 : 2 * 10 - 1 - 5])


@pytest.mark.parametrize("layers", [1, 6, 40])
def test_picture(tmp_path, layers):
    text_model(layers).save_pretrained(tmp_path / "model")
    plot_filters(load_spatial_model(tmp_path / "model"), tmp_path / "filters.png")
    with Image.open(tmp_path / "filters.png") as picture:
        colors = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    # matplotlib's blue: the curves are there.
    assert any(color == (31, 119, 180) for _, color in colors)


def test_what_cannot_be_drawn(tmp_path):
    images = GMLPVisionModel(GMLPVisionConfig(hidden_size=8, num_hidden_layers=1, intermediate_size=16, image_size=32))
    with pytest.raises(InputError, match="this one is for images"):
        plot_filters(images, tmp_path / "filters.png")
    text = GMLPModel(text_model(1).config)
    with pytest.raises(InputError, match="no folder"):
        plot_filters(text, tmp_path / "nowhere" / "filters.png")
    with pytest.raises(InputError, match="no model to open"):
        load_spatial_model(tmp_path)
