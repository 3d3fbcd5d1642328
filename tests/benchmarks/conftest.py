import csv
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


def read(folder):
    """Return the rows of the table in a folder."""
    (table,) = folder.glob("*.csv")
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
