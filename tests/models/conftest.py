"""Fixtures of the tests of the models, in addition to those of `tests/conftest.py`."""

import pytest
import torch


@pytest.fixture
def fresh_compiler():
    """Clear compiled graphs before and after a test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
