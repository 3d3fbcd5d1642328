import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from hf_gmlp import GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.attention import largest_attention, load_attentive_model, plot_attention
from hf_gmlp.tools.analysis.pictures import plt
from hf_gmlp.tools.cli import main

from ...numerics import assert_close
from ...samples import word_tokenizer

pytestmark = pytest.mark.slow

WORDS = "the man woman plays sleeps $ 5 a_b".split()


@pytest.fixture
def checkpoint(tmp_path, text_config, far_model):
    """checkpoint(**fields) saves a tiny aMLP with its tokenizer."""

    def save(**fields):
        config = text_config(**({"attention_size": 8, "num_hidden_layers": 5} | fields))
        far_model(GMLPForSequenceClassification, config).save_pretrained(tmp_path / "model")
        word_tokenizer(WORDS).save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def attention_by_hand(model, input_ids, segments):
    """Each block's attention from its own input, with numpy and no attention code of ours or transformers'."""
    inputs = []
    hooks = [layer.norm.register_forward_hook(lambda m, i, out: inputs.append(out[0])) for layer in model.layers]
    with torch.no_grad():
        model(torch.tensor([input_ids]), token_type_ids=torch.tensor([segments]))
    for hook in hooks:
        hook.remove()
    maps = []
    for layer, x in zip(model.layers, inputs):
        qkv = layer.attention.qkv_proj
        projected = x.double().numpy() @ qkv.weight.detach().double().numpy().T + qkv.bias.detach().double().numpy()
        size = projected.shape[1] // 3
        scores = projected[:, :size] @ projected[:, size : 2 * size].T / np.sqrt(size)
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        maps.append(exponentials / exponentials.sum(axis=1, keepdims=True))
    return maps


@pytest.mark.parametrize(("layers", "half"), [(1, 1), (5, 2)])
@pytest.mark.parametrize("mask_padding", [True, False])
def test_largest_weights_of_the_first_half(checkpoint, layers, half, mask_padding):
    model, words = load_attentive_model(checkpoint(num_hidden_layers=layers, mask_padding=mask_padding))
    tokens, segments, weights = largest_attention(model, words, "the man plays", "the woman")
    assert tokens == "[CLS] the man plays [SEP] the woman [SEP]".split()
    assert segments == [0] * 5 + [1] * 3
    ids = words.convert_tokens_to_ids(tokens)
    # A model that sees padding is given it, up to n = 12.
    padding = 0 if mask_padding else 4
    maps = attention_by_hand(model, ids + [0] * padding, segments + [0] * padding)
    expected = np.max(maps[:half], axis=0)[:8, :8]
    assert_close(weights, expected, depth=layers)
    if layers > 1:
        assert not np.allclose(np.max(maps, axis=0)[:8, :8], expected, atol=1e-3)


@pytest.mark.parametrize("sentences", [["the man sleeps"], ["the man plays $ 5 $", "a_b sleeps"]])
def test_picture(checkpoint, tmp_path, sentences, capsys):
    """A dollar sign and an underscore would be a formula."""
    output = str(tmp_path / "a.png")
    main(["plot", "attention", checkpoint(type_vocab_size=0), "--sentences", *sentences, "--output", output])
    assert "a.png" in capsys.readouterr().out
    with Image.open(tmp_path / "a.png") as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(maxcolors=1 << 24)}
    # The darkest of the scale, which the largest weight has.
    assert (8, 48, 107) in colors


@pytest.mark.parametrize(("words", "named"), [(46, 48), (47, 25)])
def test_names_can_be_read_on_a_page(checkpoint, monkeypatch, words, named):
    model, splitter = load_attentive_model(checkpoint(max_position_embeddings=100))
    splitter.add_tokens(["\u2581woman"])
    model.resize_token_embeddings(len(splitter))
    figures = []
    monkeypatch.setattr("hf_gmlp.tools.analysis.attention.save_picture", lambda figure, path: figures.append(figure))
    plot_attention(model, splitter, "\u2581woman " * words, None, "a.png")
    names = figures[0].axes[0].get_xticklabels()
    assert len(names) == named and {name.get_text() for name in names[1:-1]} == {"woman"}
    figures[0].canvas.draw()
    boxes = [name.get_window_extent() for name in names]
    assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))
    # The line on the scale of colors is where all tokens would be looked at alike.
    (line,) = figures[0].axes[1].lines
    assert line.get_xdata()[0] == pytest.approx(1 / (words + 2))
    plt.close(figures[0])


def test_bad_input(checkpoint, tmp_path, text_config, far_model):
    model, words = load_attentive_model(checkpoint())
    with pytest.raises(InputError, match="13 tokens"):
        largest_attention(model, words, "the " * 6, "the " * 4)
    with pytest.raises(InputError, match="attention"):
        load_attentive_model(checkpoint(attention_size=0))
    with pytest.raises(InputError, match="nothing"):
        load_attentive_model(tmp_path / "nothing")
    far_model(GMLPForSequenceClassification, text_config(attention_size=8)).save_pretrained(tmp_path / "bare")
    with pytest.raises(InputError, match="bare"):
        load_attentive_model(tmp_path / "bare")
