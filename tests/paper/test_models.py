"""The baseline models: equality with T5, BERT, RoBERTa and timm; padding, training, checkpoints and presets."""

from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from timm.models.mlp_mixer import MixerBlock
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    T5Config,
)
from transformers.models.t5.modeling_t5 import T5Attention

from hf_gmlp import param_groups
from hf_gmlp.tasks.mlm import label_positions
from paper import models
from paper.__main__ import main
from paper.counts import paper_flops
from paper.models import BertRelposConfig, TextMixerConfig

from ..conftest import TEXT_SIZES
from ..models.helpers import assert_padding_is_hidden
from ..numerics import assert_close, assert_gradients
from ..samples import run_script

ROOT = Path(__file__).parents[2]

# Distances exceed both the single-distance buckets and the maximum: 9 tokens fill six of eight buckets.
BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FIELDS = {
    "relpos": {},
    "noattn": {"content_attention": False},
    "prenorm": {"pre_norm": True},
    "mixer": {"spatial_intermediate_size": 10},
}


def tiny_config(kind, **fields):
    fields = TEXT_SIZES | NO_DROPOUT | FIELDS[kind] | fields
    return TextMixerConfig(**fields) if kind == "mixer" else BertRelposConfig(num_attention_heads=4, **BUCKETS | fields)


@pytest.fixture
def tiny_model(randomize):
    """tiny_model(kind, auto_class, **fields) returns a model with perturbed weights, in eval mode."""
    return lambda kind, auto_class=AutoModel, **fields: randomize(auto_class.from_config(tiny_config(kind, **fields)))


def test_sparse_prediction_has_the_same_loss_and_gradients(tiny_model):
    model = tiny_model("relpos", AutoModelForMaskedLM).train()
    ids = torch.randint(model.config.vocab_size, (3, 9))
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.7, -100)
    labels[:, 0] = ids[:, 0]
    positions = label_positions(labels, 0.5)
    results = []
    for sparse, inputs in ((False, {}), (True, {}), (True, {"masked_positions": positions})):
        model.config.sparse_prediction = sparse
        model.zero_grad()
        output = model(ids, labels=labels, **inputs)
        output.loss.backward()
        results.append((output.loss.detach(), model.bert.embeddings.word_embeddings.weight.grad.clone()))
    for result in results[1:]:
        for value, expected in zip(result, results[0]):
            assert_close(value, expected)
    assert len(model(ids, labels=labels).logits) == (labels != -100).sum()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["relpos", "noattn"])
@torch.no_grad()
def test_attention_is_that_of_t5(randomize, kind, attention):
    """T5's projections have no biases and its scores are not scaled; without content its queries are zero."""
    tested = randomize(models.RelativeSelfAttention(tiny_config(kind, attn_implementation=attention)))
    sizes = {"d_model": 16, "d_kv": 4, "num_heads": 4, "attn_implementation": "eager"}
    reference = T5Attention(T5Config(**sizes, **BUCKETS), has_relative_attention_bias=True).eval()
    reference.relative_attention_bias.load_state_dict(tested.relative_attention_bias.state_dict())
    for name, projection in (("query", reference.q), ("key", reference.k), ("value", reference.v)):
        if hasattr(tested, name):
            getattr(tested, name).bias.zero_()
            projection.load_state_dict({"weight": getattr(tested, name).weight})
    assert hasattr(tested, "query") == hasattr(tested, "key") == (kind == "relpos")
    reference.q.weight *= 0.5 if kind == "relpos" else 0.0  # 4 ** -0.5
    reference.o.weight.copy_(torch.eye(16))
    x = torch.randn(3, 11, 16)
    expected, _, weights = reference(x, output_attentions=True)
    output, tested_weights = tested(x)
    assert_close(output, expected)
    if tested_weights is not None:
        assert_close(tested_weights, weights)


@torch.no_grad()
def test_without_any_positions_it_is_bert(tiny_model, random_ids):
    tested, reference = tiny_model("relpos"), BertModel(BertConfig(**TEXT_SIZES, num_attention_heads=4)).eval()
    loaded = reference.load_state_dict(tested.state_dict(), strict=False)
    assert loaded.missing_keys == ["embeddings.position_embeddings.weight"]
    reference.embeddings.position_embeddings.weight.zero_()
    assert len(loaded.unexpected_keys) == 2
    for name in loaded.unexpected_keys:
        assert name.endswith("relative_attention_bias.weight")
        tested.get_parameter(name).zero_()
    inputs = padded_inputs(random_ids)
    assert_close(dict(tested(**inputs)), dict(reference(**inputs)), depth=2)


@torch.no_grad()
def test_pre_norm_layers_are_those_of_torch(tiny_model, random_ids):
    model, ids = tiny_model("relpos", pre_norm=True), random_ids(2, 9)
    segments = torch.randint(0, 2, ids.shape)
    x = model.embeddings.word_embeddings.weight[ids] + model.embeddings.token_type_embeddings.weight[segments]
    for layer in model.encoder.layer:
        reference = nn.TransformerEncoderLayer(16, 4, 32, 0.0, F.gelu, 1e-12, batch_first=True, norm_first=True).eval()
        own, output = layer.attention.self, layer.attention.output.dense
        names = ("query", "key", "value")
        state = {f"self_attn.in_proj_{kind}": torch.cat([getattr(getattr(own, name), kind) for name in names])
                 for kind in ("weight", "bias")}  # fmt: skip
        modules = {
            "self_attn.out_proj": output,
            "norm1": layer.attention.LayerNorm,
            "linear1": layer.intermediate.dense,
        }
        modules |= {"norm2": layer.intermediate.LayerNorm, "linear2": layer.output.dense}
        state |= {
            f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()
        }
        reference.load_state_dict(state)
        # Without gradients, torch's fused path ignores a mask of floats for each head.
        with torch.enable_grad():
            x = reference(x, src_mask=own.position_bias(9).expand(2, 4, 9, 9).flatten(0, 1)).detach()
    expected = F.layer_norm(x, (16,), model.encoder.LayerNorm.weight, model.encoder.LayerNorm.bias, 1e-12)
    assert_close(model(ids, token_type_ids=segments).last_hidden_state, expected, depth=2)


def padded_inputs(random_ids):
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 5:] = 0
    return {"input_ids": random_ids(3, 9), "token_type_ids": torch.randint(0, 2, (3, 9)), "attention_mask": mask}


@pytest.mark.parametrize("length", [12, 7])
@torch.no_grad()
def test_the_mixer_is_embeddings_layers_of_timm_and_a_norm(tiny_model, random_ids, length):
    """Equality holds on n tokens, and on fewer with the leading part of both matrices."""
    model, ids, segments = tiny_model("mixer"), random_ids(2, length), torch.randint(0, 2, (2, length))
    x = model.embeddings.word_embeddings.weight[ids] + model.embeddings.token_type_embeddings.weight[segments]
    for layer in model.encoder.layer:
        block = MixerBlock(dim=16, seq_len=length, mlp_ratio=(10 / 16, 32 / 16)).eval()
        first, _, second = layer.mlp_tokens
        state = {"mlp_tokens.fc1.weight": first.weight[:, :length], "mlp_tokens.fc1.bias": first.bias}
        state |= {"mlp_tokens.fc2.weight": second.weight[:length], "mlp_tokens.fc2.bias": second.bias[:length]}
        modules = {"norm1": layer.LayerNorm, "norm2": layer.intermediate.LayerNorm}
        modules |= {"mlp_channels.fc1": layer.intermediate.dense, "mlp_channels.fc2": layer.output.dense}
        for name, module in modules.items():
            state |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
        block.load_state_dict(state)
        assert len(state) == len(list(layer.parameters()))
        x = block(x)
    expected = F.layer_norm(x, (16,), *model.encoder.LayerNorm.parameters(), model.config.layer_norm_eps)
    assert_close(model(ids, None, segments).last_hidden_state, expected, depth=2)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", FIELDS)
def test_padding_on_either_side_is_hidden(tiny_model, kind, attention):
    assert_padding_is_hidden(tiny_model(kind, AutoModelForMaskedLM, attn_implementation=attention).double())


@pytest.mark.parametrize("kind", FIELDS)
def test_training(tiny_model, random_ids, kind):
    """Every parameter gets a gradient, also where layers are computed again; outputs are recorded."""
    model = tiny_model(kind, AutoModelForMaskedLM, attn_implementation="eager").train()
    inputs = padded_inputs(random_ids)
    inputs["labels"] = inputs["input_ids"]
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == 3 and len(output.attentions) == (0 if kind == "mixer" else 2)
    output.loss.backward()
    # One vector added to all keys, or a number added to all channels before a norm, changes nothing.
    vanishing = {"noattn": [], "mixer": ["mlp_tokens.2.bias"]}.get(kind, ["key.bias"])
    assert_gradients(model, vanishing)
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**inputs).loss.backward()
    assert_close({name: parameter.grad for name, parameter in model.named_parameters()}, expected, depth=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs).loss
    assert loss.item() == pytest.approx(output.loss.item(), rel=0.1)


@pytest.mark.parametrize("kind", FIELDS)
@torch.no_grad()
def test_a_checkpoint_opens_as_every_head(tiny_model, random_ids, tmp_path, kind):
    tested, ids = tiny_model(kind, AutoModelForMaskedLM), random_ids(2, 9)
    tested.save_pretrained(tmp_path)
    for auto_class in (AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification):
        opened = auto_class.from_pretrained(tmp_path)
        assert type(opened.base_model) is type(tested.bert)
        assert_close(opened.base_model(ids).last_hidden_state, tested.bert(ids).last_hidden_state)


def test_bad_inputs_and_sizes_are_refused(tiny_model, random_ids):
    model, ids = tiny_model("mixer"), random_ids(1, 12)
    for name in ("position_ids", "seq_idx"):
        with pytest.raises(ValueError, match=f"one document.*{name}"):
            model(ids, **{name: torch.arange(12)[None] % 6})
    with pytest.raises(ValueError, match="13 tokens.*12"):
        model(random_ids(1, 13))


def test_token_matrices_of_the_mixer_have_a_learning_rate_of_their_own(tiny_model):
    model = tiny_model("mixer", AutoModelForSequenceClassification)
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = param_groups(model, 1e-3, weight_decay=0.1, spatial_lr_multiplier=5.0)
    moved = {names[id(weight)] for group in groups if group["lr"] > 1e-3 for weight in group["params"]}
    assert moved == {name for name in names.values() if name.endswith(("tokens.0.weight", "tokens.2.weight"))} != set()


def test_flops_of_the_mixer_by_hand():
    config = TextMixerConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=3, intermediate_size=12, max_position_embeddings=20,
        spatial_intermediate_size=6,
    )  # fmt: skip
    head = 3 * (8 * 8 + 8 * 50)
    assert paper_flops(config) == 2 * (3 * (8 * 2 * 20 * 6 + 20 * 2 * 8 * 12) + head)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table3/mixer-mlm", "table4/bert-6l-relpos"])
def test_a_recipe_runs_small(tmp_path, name):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(text for _, text in sorted(topics.items())[:20]), encoding="utf-8")
    recipes = [ROOT / "paper" / "recipes" / f"{name}.yaml", ROOT / "recipes" / "smoke.yaml"]
    flags = ["--train_file", corpus, "--cache_dir", tmp_path, "--output_dir", tmp_path / "out"]
    words = [str(word) for word in (*recipes, *flags, "--use_cpu", "--disable_tqdm", "true")]
    results = run_script(lambda _: main(["run", "mlm", *words]), *flags)
    # Fewer than there are tokens.
    assert results["eval_perplexity"] < 590
