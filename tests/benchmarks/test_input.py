"""benchmarks/input.py at its smallest."""

import csv

import pytest

from benchmarks import input as benchmark


@pytest.mark.slow
def test_workers_follow_from_the_rates(call, tmp_path):
    call(benchmark, "--quick", "--images_per_second", 1e6, "--sequences_per_second", 1e-3, "--out", tmp_path)
    (table,) = tmp_path.glob("input-*.csv")
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    for row in rows:
        rate, step, workers = (
            float(row[key]) for key in ("samples_per_second", "training_samples_per_second", "workers")
        )
        assert rate > 1
        assert (workers - 1) * rate < step <= workers * rate * 1.001
        assert (workers == 1) == ("sequences" in row["what"])
