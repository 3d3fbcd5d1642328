"""Tiny baselines, in addition to the fixtures of `tests/conftest.py`."""

import pytest
import torch

from hf_gmlp import BertRelposConfig, TextMixerConfig

from ..conftest import TEXT_SIZES

KINDS = ("relpos", "noattn", "mixer")


@pytest.fixture(scope="session")
def baseline_config():
    """baseline_config("relpos" | "noattn" | "mixer", **fields) makes the config of a tiny model."""

    def make(kind, **fields):
        if kind == "mixer":
            return TextMixerConfig(**(TEXT_SIZES | {"spatial_intermediate_size": 10} | fields))
        # More tokens than single distances, and a range that is cut off: 9 tokens fill six of eight buckets.
        attention = {
            "num_attention_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 6,
        }
        return BertRelposConfig(**(TEXT_SIZES | attention | {"content_attention": kind == "relpos"} | fields))

    return make


@pytest.fixture
def fresh_compiler():
    """No graph of an earlier test is used, and none is left behind."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
