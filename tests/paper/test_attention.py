import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from PIL import Image

from hf_gmlp import GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from paper.__main__ import main
from paper.attention import largest_attention, load_attentive_model

from ..numerics import assert_close
from ..samples import word_tokenizer

pytestmark = pytest.mark.slow

WORDS = "the man woman plays sleeps $ 5 a_b".split()


@pytest.fixture
def checkpoint(tmp_path, text_config, perturbed_model):
    """checkpoint(**fields) saves a tiny aMLP with its tokenizer, and returns the folder."""

    def save(**fields):
        config = text_config(**({"attention_size": 8, "num_hidden_layers": 5} | fields))
        perturbed_model(GMLPForSequenceClassification, config).save_pretrained(tmp_path / "model")
        word_tokenizer(WORDS).save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def attention_by_hand(model, input_ids, segments):
    """Return the attention weights of each block, computed with numpy from the block's input."""
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
def test_weights_are_the_largest_of_the_first_half_of_the_blocks(checkpoint, layers, half, mask_padding):
    model, tokenizer = load_attentive_model(checkpoint(num_hidden_layers=layers, mask_padding=mask_padding))
    tokens, segments, weights = largest_attention(model, tokenizer, "the man plays", "the woman")
    assert tokens == "[CLS] the man plays [SEP] the woman [SEP]".split()
    assert segments == [0] * 5 + [1] * 3
    ids = tokenizer.convert_tokens_to_ids(tokens)
    # A model with visible padding gets padded inputs, up to n = 12.
    padding = 0 if mask_padding else 4
    maps = attention_by_hand(model, ids + [0] * padding, segments + [0] * padding)
    expected = np.max(maps[:half], axis=0)[:8, :8]
    assert_close(weights, expected, depth=layers)
    if layers > 1:
        assert not np.allclose(np.max(maps, axis=0)[:8, :8], expected, atol=1e-3)


def test_tokens_are_plotted_without_being_parsed_as_formulas(checkpoint, tmp_path, capsys):
    command = ["plot", "attention", checkpoint(type_vocab_size=0), "--sentences", "the man plays $ 5 $", "a_b sleeps"]
    main([*command, "--output", str(tmp_path / "a.PNG")])
    assert "a.PNG" in capsys.readouterr().out and not plt.get_fignums()
    with pytest.raises(SystemExit):
        main([*command, "--output", str(tmp_path / "a.xyz")])
    assert "a.xyz cannot be written" in capsys.readouterr().err
    with Image.open(tmp_path / "a.PNG") as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(maxcolors=1 << 24)}
    # The largest weight has the darkest color of the scale.
    assert (8, 48, 107) in colors


def test_long_pairs_and_models_without_attention_are_refused(checkpoint):
    model, tokenizer = load_attentive_model(checkpoint())
    with pytest.raises(InputError, match="13 tokens"):
        largest_attention(model, tokenizer, "the " * 6, "the " * 4)
    with pytest.raises(InputError, match="attention"):
        load_attentive_model(checkpoint(attention_size=0))
