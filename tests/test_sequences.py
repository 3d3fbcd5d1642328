"""The code on the page about sequences that are not text runs, and is compared with a small CNN."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

PAGE = Path(__file__).parents[1] / "docs" / "sequences.md"


@pytest.mark.slow
def test_the_page_trains_a_classifier_of_series(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {"__name__": "page"}
    # The page would also use a tracker or GPU, which must not affect the test.
    exec(code.replace('save_strategy="no"', 'save_strategy="no", report_to="none", use_cpu=True'), names)
    accuracies = re.findall(r"^(\d+) ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert [length for length, _ in accuracies] == ["100", "1000"]
    assert all(float(accuracy) > 0.9 for _, accuracy in accuracies)
    rows = names["make_series"](1600, 100, seed=1)
    values, labels = (torch.stack([row[name] for row in rows]) for name in ("values", "labels"))
    assert cnn_accuracy(values, labels, names["make_series"](500, 1000, seed=2)) > 0.9


def cnn_accuracy(values, labels, rows):
    """Train a small CNN on the batches of the page, and return its accuracy."""
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 32, 15, padding=7), nn.ReLU(), nn.Conv1d(32, 32, 15, padding=7), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(6):
        for batch in torch.randperm(len(values)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(values[batch].mT), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        predicted = model(torch.stack([row["values"] for row in rows]).mT).argmax(-1)
    return (predicted == torch.stack([row["labels"] for row in rows])).float().mean().item()
