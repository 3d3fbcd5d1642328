"""Tiny models for all tests. Their weights are perturbed, since W is initialized so near zero that tests would hardly
notice errors in the spatial projection."""

import gc
import os

# No test may need a network. This must be set before the first import of transformers.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_gmlp import GMLPConfig, GMLPVisionConfig

from . import samples

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "num_labels": 3}
TEXT_SIZES = SIZES | {"vocab_size": 40, "max_position_embeddings": 12}
VISION_SIZES = SIZES | {"image_size": 16, "patch_size": 4}


def pytest_collection_modifyitems(items):
    # Run files with slow tests first, so that all workers finish at about the same time.
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("heavy")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    # Each training run collects garbage. Without freezing, that takes half a second for the objects that tests import.
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def torchrun_logs(tmp_path_factory):
    """Set the log folder of torchrun, which otherwise leaves an empty folder in /tmp."""
    os.environ["PET_LOG_DIR"] = str(tmp_path_factory.mktemp("torchrun"))


@pytest.fixture(autouse=True)
def seeded():
    """Seed every test, so that its random numbers do not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def single_precision(monkeypatch):
    """Let --dtype auto mean float32 on every processor."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)


@pytest.fixture
def fresh_compiler():
    """Clear compiled graphs before and after a test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(scope="session")
def text_config():
    """text_config(**fields) returns the config of a tiny text model."""
    return lambda **fields: GMLPConfig(**(TEXT_SIZES | fields))


@pytest.fixture(scope="session")
def vision_config():
    """vision_config(**fields) returns the config of a tiny image model with 4 x 4 patches."""
    return lambda **fields: GMLPVisionConfig(**(VISION_SIZES | fields))


@pytest.fixture(scope="session")
def randomize():
    """randomize(module, std=0.3) adds noise to every parameter, biases and norms included, and sets eval mode."""

    @torch.no_grad()
    def add_noise(module: torch.nn.Module, std: float = 0.3) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=std)
        return module.eval()

    return add_noise


@pytest.fixture(scope="session")
def perturbed_model(randomize):
    """perturbed_model(model_class, config) returns a model in eval mode with perturbed weights."""

    def make(model_class: type, config: PreTrainedConfig, **kwargs) -> PreTrainedModel:
        # The same shapes get the same weights, whatever was sampled before.
        with torch.random.fork_rng():
            torch.manual_seed(2)
            return randomize(model_class(config, **kwargs))

    return make


@pytest.fixture(scope="session")
def random_ids():
    """random_ids(*shape) samples token ids of the tiny vocabulary without special tokens."""
    return lambda *shape: torch.randint(5, TEXT_SIZES["vocab_size"], shape)


@pytest.fixture(scope="session")
def word_tokenizer():
    """A tokenizer with one token per word."""
    return samples.word_tokenizer(samples.WORDS)


@pytest.fixture(scope="session")
def squad_tokenizer():
    """A trained tokenizer that encodes unseen characters as bytes."""
    from hf_gmlp.tokenizer import train_tokenizer

    return train_tokenizer(
        [row["context"] + " " + row["question"] for row in samples.flat(samples.squad(40))], vocab_size=380
    )
