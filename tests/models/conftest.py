"""Fixtures of the tests of the models, in addition to those of `tests/conftest.py`."""

import pytest
import torch


@pytest.fixture
def fresh_compiler():
    """No graph of an earlier test is used, and none is left behind."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
