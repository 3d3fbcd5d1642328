import csv

import pytest

pytest.importorskip("g_mlp_pytorch")
from benchmarks import clm


def test_gpt2_is_of_the_size_of_gmlp():
    sizes = {name: clm.parameters_of(clm.build(name, 6, 128, 256)) for name in ("gMLP", "GPT-2")}
    assert sizes["GPT-2"] == pytest.approx(sizes["gMLP"], rel=0.1)


def test_every_system_is_timed(call, tmp_path):
    call(clm, "--layers", 1, "--dim", 16, "--n", 32, "--batch_size", 2, "--repeats", 1, "--tokens", 2,
         "--output", tmp_path / "out.csv")  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert {row["system"] for row in rows} == set(clm.SYSTEMS)
    assert {row["measure"] for row in rows} == {"token 10", "token 30", "training"}
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)
