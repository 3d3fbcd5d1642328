import csv

import pytest

from hf_gmlp.errors import InputError

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
    assert {row["measure"] for row in rows} == {"token 10", "token 30", "mean token", "training"}
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)


def test_a_wrong_cache_is_refused():
    model = clm.build("gMLP", 1, 16, 32)
    assert clm.cache_difference(model, 16) < 1e-12

    class Forgetful(type(model)):
        def forward(self, *args, past_key_values=None, **kwargs):
            return super().forward(*args, **kwargs)

    model.__class__ = Forgetful
    with pytest.raises(InputError, match="cache"):
        clm.cache_difference(model, 16)
