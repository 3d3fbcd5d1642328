import pytest
from PIL import Image
from transformers import BertConfig, ViTConfig, ViTMAEConfig

from hf_gmlp import BertRelposConfig, GMLPConfig, TextMixerConfig
from hf_gmlp.analysis.pictures import check_picture, family, legend_below, plt, save_picture
from hf_gmlp.errors import InputError

from ..samples import CONVOLUTIONAL


def test_picture_is_written_and_freed(tmp_path):
    figure, axis = plt.subplots()
    axis.plot([0, 1], [0, 1])
    check_picture(tmp_path / "line.PNG")
    save_picture(figure, tmp_path / "line.png")
    with Image.open(tmp_path / "line.png") as picture:
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24)) > 10
    assert figure.number not in plt.get_fignums()


def test_places_where_no_picture_can_be(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        check_picture(tmp_path / "nowhere" / "a.png")
    for name in ("a.mp3", "a"):
        with pytest.raises(InputError, match="not have the ending of a picture: choose one of"):
            check_picture(tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        save_picture(plt.figure(), tmp_path / "folder.png")


def test_families(vision_config):
    configs = {
        "gMLP": GMLPConfig(),
        "aMLP": GMLPConfig(attention_size=8),
        "aMLP, without Toeplitz prior": GMLPConfig(attention_size=8, toeplitz=False),
        "Additive gMLP": GMLPConfig(spatial_gating="additive"),
        "BERT with relative positions": BertRelposConfig(),
        "BERT with relative positions, without attention": BertRelposConfig(content_attention=False),
        "MLP-Mixer": TextMixerConfig(),
        "BERT": BertConfig(),
        "ViT": ViTConfig(),
        "vit mae": ViTMAEConfig(),
    }
    assert all(family(config) == name for name, config in configs.items())
    # The paper's text models have the prior, and its image models have not.
    assert family(vision_config()) == "gMLP"
    name = "gMLP, with Toeplitz prior, 4 spatial heads, convolutional stem"
    assert family(vision_config(**CONVOLUTIONAL)) == name


def test_legend_lies_below_the_panels_and_names_each_once():
    figure, axes = plt.subplots(1, 2, layout="constrained")
    for axis in axes:
        axis.plot([0, 1], label="gMLP")
    height = figure.get_figheight()
    legend_below(figure, {"gMLP": ": 1 size"})
    figure.canvas.draw()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["gMLP: 1 size"]
    assert figure.legends[0].get_window_extent().y1 < axes[0].get_tightbbox().y0 and figure.get_figheight() > height
    plt.close(figure)
