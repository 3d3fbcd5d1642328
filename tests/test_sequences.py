"""The code on the page about sequences that are not text runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "sequences.md"


@pytest.mark.slow
def test_the_page_trains_a_classifier_of_series(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    # The page would also use a tracker or GPU, which must not affect the test.
    exec(code.replace('save_strategy="no"', 'save_strategy="no", report_to="none", use_cpu=True'), {"__name__": "page"})
    accuracies = re.findall(r"^(\d+) ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert [length for length, _ in accuracies] == ["100", "1000"]
    assert all(float(accuracy) > 0.9 for _, accuracy in accuracies)
