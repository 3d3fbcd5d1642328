import sys

import pytest
import torch


@pytest.fixture
def call(monkeypatch):
    """call(module, *flags) runs a script as the command line would."""
    threads = torch.get_num_threads()

    def run(module, *flags):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, flags)])
        module.main()

    yield run
    torch.set_num_threads(threads)
