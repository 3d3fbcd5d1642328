import pytest

from .conftest import read

pytest.importorskip("g_mlp_pytorch")
from benchmarks import clm


def test_gpt2_is_of_the_size_of_gmlp():
    sizes = {name: clm.parameters_of(clm.build(name, 6, 128, 256)) for name in ("gMLP", "GPT-2")}
    assert sizes["GPT-2"] == pytest.approx(sizes["gMLP"], rel=0.1)


def test_every_system_is_timed(call, tmp_path):
    call(clm, "--quick", "--out", tmp_path)
    rows = read(tmp_path)
    assert {row["system"] for row in rows} == set(clm.SYSTEMS)
    assert {row["measure"] for row in rows} == {"after 10 tokens", "after 20 tokens", "training"}
    assert all(float(row["value"]) > 0 for row in rows)
