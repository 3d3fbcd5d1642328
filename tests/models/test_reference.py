"""Random small text models compared with the paper's equations, computed token by token in double precision.

The reference shares only the weights with the package. It covers gMLP and aMLP (sections 2 and 4, Figures 1 and 6,
Table 3, Appendix C), heads of W, padding, packed documents, positions and caches. Other tests compare random models
with themselves: compiled, with an edited config, resized, and with documents packed in rows.
"""

import math
import random
from typing import get_args

import numpy as np
import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_gmlp import GMLPConfig, GMLPForCausalLM, GMLPForMaskedLM, GMLPModel
from hf_gmlp.models import modeling_gmlp
from hf_gmlp.models.configuration_gmlp import GMLPBaseConfig

from ..numerics import assert_close

MODELS = 80
GATINGS = get_args(GMLPBaseConfig.__annotations__["spatial_gating"])
VOCABULARY = 20
ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


class Reference:
    """A model computed token by token with NumPy, from its config and weights."""

    def __init__(self, model):
        self.config = model.config
        self.weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        self.prefix = "" if isinstance(model, GMLPModel) else "model."

    def get(self, name):
        return self.weights[self.prefix + name]

    def linear(self, name, x):
        return x @ self.get(f"{name}.weight").T + self.get(f"{name}.bias")

    def norm(self, name, x, eps):
        mean, variance = x.mean(), x.var()
        return (x - mean) / math.sqrt(variance + eps) * self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def spatial(self, block, i, j):
        """Return W[i, j] for each channel, which is that of its head: [E]. Appendix C defines a Toeplitz W."""
        weight = self.by_channel(f"layers.{block}.spatial_gating_unit.proj.weight", 1 if self.config.toeplitz else 2)
        if not self.config.toeplitz:
            return weight[:, i, j]
        reach = self.config.spatial_reach or self.config.max_position_embeddings
        return weight[:, reach - 1 + j - i] if abs(j - i) < reach else 0 * weight[:, 0]

    def by_channel(self, name, ndim):
        """Repeat a parameter of each head for its channels: [E, ...]. `ndim` counts its axes without that of the heads,
        which is omitted for one head."""
        value, heads = self.get(name), self.config.spatial_heads
        assert value.ndim == ndim + (heads > 1)
        return np.repeat(value.reshape(heads, *value.shape[-ndim:]), self.config.spatial_size // heads, axis=0)

    def block(self, number, x, sees, positions):
        """Return x[i] + W_out s(gelu(W_in LN(x[i]))) by index, where token i has the position `positions[i]` and sees
        the tokens `sees[i]`."""
        config, name = self.config, f"layers.{number}"
        normed = {i: self.norm(f"{name}.norm", value, config.layer_norm_eps) for i, value in x.items()}
        z = {i: ACTIVATIONS[config.hidden_act](self.linear(f"{name}.proj_in", value)) for i, value in normed.items()}
        size, u, v = config.spatial_size, z, z
        if size < config.intermediate_size:
            u, v = ({i: value[part] for i, value in z.items()} for part in (slice(size), slice(size, None)))
        unit = f"{name}.spatial_gating_unit"
        v = {i: self.norm(f"{unit}.norm", value, config.spatial_layer_norm_eps) for i, value in v.items()}
        if config.attention_size:
            qkv = {i: np.split(self.linear(f"{name}.attention.qkv_proj", value), 3) for i, value in normed.items()}
        result = {}
        for i in x:
            f = self.by_channel(f"{unit}.proj.bias", 1)[:, positions[i]]
            for j in sees[i]:
                f = f + self.spatial(number, positions[i], positions[j]) * v[j]
            if config.attention_size and sees[i]:
                scores = np.array([qkv[i][0] @ qkv[j][1] for j in sees[i]]) / math.sqrt(config.attention_size)
                weights = np.exp(scores - scores.max())
                weights = weights / weights.sum()
                mixed = sum(weight * qkv[j][2] for weight, j in zip(weights, sees[i]))
                f = f + self.linear(f"{name}.attention.out_proj", mixed)
            gated = {"split": u[i] * f, "multiplicative": u[i] * f, "additive": u[i] + f, "linear": f}
            result[i] = x[i] + self.linear(f"{name}.proj_out", gated[config.spatial_gating])
        return result

    def document(self, ids, segments, positions, tokens):
        """Return the final hidden states of a document by index. Its tokens are at the indices `tokens` of a row."""
        config = self.config
        sees = {i: [j for j in tokens if j <= i or not config.is_causal] for i in tokens}
        x = {i: self.get("embeddings.word_embeddings.weight")[ids[i]] for i in tokens}
        if config.type_vocab_size:
            x = {i: value + self.get("embeddings.token_type_embeddings.weight")[segments[i]] for i, value in x.items()}
        for number in range(config.num_hidden_layers):
            x = self.block(number, x, sees, positions)
        return {i: self.norm("norm", value, config.layer_norm_eps) for i, value in x.items()}

    def pool(self, x, tokens):
        """Return the pooled hidden states of the tokens at these indices, which are not padding."""
        values = np.stack([x[i] for i in tokens])
        by_name = {"cls": values[-1 if self.config.is_causal else 0], "mean": values.mean(0), "max": values.max(0)}
        return np.tanh(self.linear("pooler.dense", by_name[self.config.pooling]))

    def head(self, x):
        """Return the logits of a language model."""
        if "head.dense.weight" in self.weights:
            x = self.weights["head.dense.weight"] @ x + self.weights["head.dense.bias"]
            x = ACTIVATIONS[self.config.hidden_act](x)
            x = (x - x.mean()) / math.sqrt(x.var() + self.config.layer_norm_eps)
            x = x * self.weights["head.norm.weight"] + self.weights["head.norm.bias"]
        return self.weights["decoder.weight"] @ x + self.weights["decoder.bias"]


def sample_config(rng):
    n, toeplitz = rng.randint(3, 10), rng.random() < 0.6
    config = GMLPConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=n,
        spatial_reach=rng.choice([None, rng.randint(1, n), 2]) if toeplitz else None,
        hidden_size=rng.randint(3, 6),
        num_hidden_layers=rng.randint(1, 3),
        intermediate_size=2 * rng.randint(2, 5),
        spatial_gating=rng.choice(["split", *GATINGS]),
        toeplitz=toeplitz,
        is_causal=rng.random() < 0.4,
        attention_size=rng.choice([0, 0, 3, 4]),
        mask_padding=rng.random() < 0.7,
        type_vocab_size=rng.choice([0, 2]),
        pooling=rng.choice(["cls", "mean", "max"]),
        hidden_act=rng.choice(list(ACTIVATIONS)),
        layer_norm_eps=rng.choice([1e-6, 1e-3]),
        mlm_transform=rng.random() < 0.5,
        tie_word_embeddings=rng.random() < 0.5,
        attn_implementation=rng.choice(["eager", "sdpa"]),
    )
    divisors = [heads for heads in range(1, config.spatial_size + 1) if config.spatial_size % heads == 0]
    config.spatial_heads = rng.choice(divisors)
    return config


def sample_row(rng, n, packed):
    """Return the documents of a row as lists of indices, the indices that the mask hides, and the length of the row."""
    documents, hidden, end = [], set(), 0
    for _ in range(rng.randint(1, 3) if packed else 1):
        end += rng.choice([0, 0, 1, 2]) if packed else 0
        length = rng.randint(1, min(n, 6) if packed else n)
        documents.append(list(range(end, end + length)))
        if length > 2 and rng.random() < 0.15:
            hidden.add(rng.choice(documents[-1][1:-1]))
        end += length
    return documents, hidden, end


def sample_positions(rng, n, documents):
    """Return increasing positions for the tokens of each document. The first is at most the last of the previous
    document, so that a new document begins. In every second row, positions differ as indices do."""
    rows, last, has_gaps = [], n, rng.random() < 0.5
    for document in documents:
        row = sorted(rng.sample(range(n), len(document)))
        if not has_gaps:
            start = rng.randint(0, min(last, n - 1 - (document[-1] - document[0])))
            row = [start + i - document[0] for i in document]
        row[0] = min(row[0], last)
        rows.append(row)
        last = row[-1]
    return rows


def sample_batch(rng, config):
    """Return the arguments of the forward pass, and the documents, the positions and the mask of all rows."""
    n, packed = config.max_position_embeddings, rng.random() < 0.45
    rows = [sample_row(rng, n, packed) for _ in range(rng.choice([1, 1, 2, 3]))]
    width = max(end for _, _, end in rows)
    width += rng.choice([0, 0, 1]) if packed or width < n else 0
    all_documents, mask = [], np.zeros((len(rows), width), int)
    for row, (documents, hidden, end) in enumerate(rows):
        # Padding may be on either side or on both.
        shift = rng.choice([0, width - end, rng.randint(0, width - end)])
        documents = [[i + shift for i in document if i not in hidden] for document in documents]
        all_documents.append(documents)
        for document in documents:
            mask[row, document] = 1
    ids = np.array([[rng.randrange(VOCABULARY) for _ in range(width)] for _ in rows])
    segments = np.array([[rng.randrange(2) for _ in range(width)] for _ in rows])
    arguments = {"input_ids": ids, "token_type_ids": segments}
    if (mask == 0).any() or rng.random() < 0.5:
        arguments["attention_mask"] = mask

    has_positions = packed or rng.random() < 0.4
    # The positions of padding are arbitrary.
    positions = np.full((len(rows), width), rng.choice([0, 1, n - 1]))
    for row, documents in enumerate(all_documents):
        counted = [[i - documents[0][0] for i in document] for document in documents]
        for document, values in zip(documents, sample_positions(rng, n, documents) if has_positions else counted):
            positions[row, document] = values
    if not (config.mask_padding or config.is_causal):
        # Padding is visible, as in the paper, except in rows with several documents.
        for row, documents in enumerate(all_documents):
            if len(documents) == 1:
                all_documents[row] = [list(range(width))]
                positions[row] = positions[row] if has_positions else np.arange(width)
    if has_positions:
        arguments["position_ids"] = positions
    return {name: torch.tensor(value) for name, value in arguments.items()}, all_documents, positions, mask


def sample_model(rng, config, seed):
    model_class = rng.choice([GMLPModel, GMLPForCausalLM if config.is_causal else GMLPForMaskedLM])
    torch.manual_seed(seed)
    model = model_class(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model


def assert_same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12 * max(1.0, np.abs(expected).max()))


def compare(seed):
    """Compare a random model, and a causal one also with a cache, with the reference."""
    rng = random.Random(seed)
    config = sample_config(rng)
    model = sample_model(rng, config, seed)
    arguments, documents, positions, mask = sample_batch(rng, config)
    with torch.no_grad():
        output = model(**arguments)
    reference, pooled = Reference(model), []
    actual = (output[0] if isinstance(model, GMLPModel) else output.logits).numpy()
    ids, segments = arguments["input_ids"].numpy(), arguments["token_type_ids"].numpy()
    expected = {}
    for row, row_documents in enumerate(documents):
        for document in row_documents:
            states = reference.document(ids[row], segments[row], positions[row], document)
            tokens = [i for i in document if mask[row, i]]
            for i in tokens:
                expected[row, i] = states[i] if isinstance(model, GMLPModel) else reference.head(states[i])
                assert_same(actual[row, i], expected[row, i])
            if isinstance(model, GMLPModel):
                pooled.append(reference.pool(states, tokens))
    if pooled and len(pooled) == len(documents):
        assert_same(output.pooler_output.numpy(), np.stack(pooled))
    elif pooled:
        assert output.pooler_output is None
    if not isinstance(model, GMLPForCausalLM) or "position_ids" in arguments:
        return
    # With a cache, tokens can be passed in several parts.
    width, attention_mask = ids.shape[1], arguments.get("attention_mask")
    size = rng.randint(width, config.max_position_embeddings + 5)
    cache = rng.choice([DynamicCache(), StaticCache(config=config, max_cache_len=size)])
    ends = sorted({width, *(rng.randint(1, width) for _ in range(3))})
    for start, end in zip([0, *ends], ends):
        inputs = {name: arguments[name][:, start:end] for name in ("input_ids", "token_type_ids")}
        inputs["attention_mask"] = None if attention_mask is None else attention_mask[:, :end]
        with torch.no_grad():
            logits = model(**inputs, past_key_values=cache).logits.numpy()
        for (row, i), value in expected.items():
            if start <= i < end:
                assert_same(logits[row, i - start], value)


def failures_of(check, seeds):
    """Return the errors of a check by seed, so that a failure lists the seeds of all wrong models."""
    failures = {}
    for seed in seeds:
        try:
            check(seed)
        except Exception as error:
            failures[seed] = f"{type(error).__name__}: {str(error).strip()[:200]}"
    return failures


@pytest.mark.parametrize("part", range(4))
def test_random_models(monkeypatch, part):
    """`compare(seed)` reproduces a failure."""
    # In every other part, a Toeplitz W of short reach is multiplied by blocks, even for these short texts.
    monkeypatch.setattr(modeling_gmlp, "BLOCK_SIZE", 1 if part % 2 else 64)
    if part == 3:
        # The form for GPUs.
        monkeypatch.setattr(modeling_gmlp, "banded_loop", modeling_gmlp.banded_batch)
    assert not failures_of(compare, range(part, MODELS, 4))


def sample_inputs(seed):
    """Return a random model, and the arguments and the mask of a batch."""
    rng = random.Random(seed)
    config = sample_config(rng)
    model = sample_model(rng, config, seed)
    arguments, *_, mask = sample_batch(rng, config)
    return rng, model, arguments, torch.tensor(mask) == 1


@torch.no_grad()
def tokens_of(model, arguments, mask):
    """Return the outputs of all tokens that are not padding."""
    return model(**arguments)[0][mask]


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_models_equal_eager_ones_or_assert():
    """A compiled model raises an error only for positions with gaps, for which a Toeplitz W is gathered."""
    asserted = []

    def check(seed):
        _, model, arguments, mask = sample_inputs(seed)
        expected = tokens_of(model, arguments, mask)
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        try:
            actual = tokens_of(compiled, arguments, mask)
        except RuntimeError as error:
            assert "must increase by one" in str(error) and model.config.toeplitz, error
            gathered = model.base_model.find_positions(arguments["input_ids"], mask, arguments["position_ids"], None)
            assert gathered.columns is not None
            asserted.append(seed)
        else:
            assert_close(actual, expected)

    # Five of these batches have positions, one of them with gaps.
    assert not failures_of(check, range(12, 20))
    assert len(asserted) == 1


def test_an_edited_config_changes_no_output(tmp_path):
    """The modules own the sizes of W: an edit is refused or has no effect, with a cache too, and is not saved."""

    def check(seed):
        rng, model, arguments, mask = sample_inputs(seed)
        n, config = model.config.max_position_embeddings, model.config
        tokens = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(min(n, 5))]])

        @torch.no_grad()
        def outputs():
            values = [tokens_of(model, arguments, mask)]
            for cache in (DynamicCache(), StaticCache(config=config, max_cache_len=n)) if config.is_causal else ():
                for start, end in ((0, 2), (2, tokens.shape[1])):
                    values.append(model(tokens[:, start:end], past_key_values=cache)[0])
            return values

        expected = outputs()
        edits = {
            "max_position_embeddings": rng.choice([1, n - 1, n + 7]),
            "spatial_reach": rng.choice([1, n + 3, None]),
        }
        edits |= {"toeplitz": not config.toeplitz, "attention_size": 0 if config.attention_size else 4}
        field = rng.choice(list(edits))
        setattr(config, field, edits[field])
        assert_close(outputs(), expected)
        if field != "attention_size":
            model.save_pretrained(tmp_path / str(seed))
            loaded = type(model).from_pretrained(tmp_path / str(seed))
            assert_close(tokens_of(loaded.eval(), arguments, mask), expected[0])

    assert not failures_of(check, range(30))


def test_resized_models_equal_reloaded_ones(tmp_path):
    def check(seed):
        rng, model, arguments, mask = sample_inputs(seed)
        length = model.config.max_position_embeddings + rng.randint(0, 8)
        reach = rng.choice([None, rng.randint(1, length)]) if model.config.toeplitz else None
        if reach is None:
            before = tokens_of(model, arguments, mask)
            model.resize_position_embeddings(length)
            assert_close(tokens_of(model, arguments, mask), before)
        model.resize_position_embeddings(length, reach)
        model.save_pretrained(tmp_path / str(seed))
        loaded = type(model).from_pretrained(tmp_path / str(seed)).eval()
        assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
        ids = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(length)]])
        for inputs, is_token in ((arguments, mask), ({"input_ids": ids}, torch.ones_like(ids) == 1)):
            # The implementation of attention is not saved, so outputs may be rounded otherwise.
            assert_close(tokens_of(loaded, inputs, is_token), tokens_of(model, inputs, is_token))

    assert not failures_of(check, range(25))


@pytest.mark.parametrize("block_size", [1, 64])
def test_packed_documents_equal_documents_alone(monkeypatch, block_size):
    """Rows are longer than n, and some have padding between documents. In every third model, each channel has a W."""
    monkeypatch.setattr(modeling_gmlp, "BLOCK_SIZE", block_size)

    def check(seed):
        rng = random.Random(seed)
        config = sample_config(rng)
        if seed % 3 == 0:
            config.spatial_heads = config.spatial_size
        model, n = sample_model(rng, config, seed), config.max_position_embeddings
        lengths = [rng.randint(1, n) for _ in range(rng.randint(1, 9))]
        documents = [torch.tensor([[rng.randrange(VOCABULARY) for _ in range(length)]]) for length in lengths]
        expected = [model(document)[0][0] for document in documents]
        pieces, mask, positions = [], [], []
        for document in documents:
            padding = rng.choice([0, 0, 2]) if seed % 2 else 0
            pieces += [document[0], torch.zeros(padding, dtype=torch.long)]
            mask += [1] * document.shape[1] + [0] * padding
            positions += [*range(document.shape[1]), *[rng.randrange(n) for _ in range(padding)]]
        mask = torch.tensor([mask])
        inputs = {"input_ids": torch.cat(pieces)[None], "position_ids": torch.tensor([positions])}
        if not mask.all():
            inputs["attention_mask"] = mask
            if len(documents) == 1 and not (config.mask_padding or config.is_causal):
                return  # padding is visible to a single document
        assert_close(tokens_of(model, inputs, mask == 1), torch.cat(expected))

    with torch.no_grad():
        assert not failures_of(check, range(30))
