"""benchmarks/clm.py in tiny: that it runs, and that its numbers are what they say."""

import csv
import math

import pytest
import torch

from hf_gmlp.errors import InputError

pytest.importorskip("g_mlp_pytorch")
SYSTEMS = ("gMLP", "gMLP, dense W", "aMLP", "g-mlp-pytorch", "GPT-2")


@pytest.fixture(scope="module")
def clm(load):
    threads = torch.get_num_threads()
    yield load("clm")
    torch.set_num_threads(threads)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"the same words again and again, " * 40)
    return path


def test_quality_trains_every_system_on_the_same_batches(clm, call, tmp_path, text, capsys):
    call(clm, "quality", "--train_file", text, "--validation_file", text, "--steps", 12, "--layers", 2, "--dim", 32,
         "--n", 16, "--batch_size", 4, "--output", tmp_path / "out.csv")  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["system"] for row in rows] == list(SYSTEMS) == list(clm.SYSTEMS)
    # Eight bits are a guess, and this is a text of 32 bytes over and over.
    assert all(2 < float(row["bits_per_byte"]) < 7.5 for row in rows) and all(row["torch"] for row in rows)
    assert f"| GPT-2 | 0 | 0.002 | {rows[-1]['parameters']} |" in capsys.readouterr().out


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_model_that_knows_nothing_needs_the_bits_of_its_vocabulary(clm, text, system):
    model = clm.build(system, 1, 16, 16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    # 1,280 bytes in blocks of 15, the last of which is shorter.
    blocks = clm.blocks(text, 15, keep_remainder=True)
    assert clm.bits_per_byte(model, blocks, 8) == pytest.approx(math.log2(258), rel=1e-6)


def test_gpt2_is_of_the_size_of_gmlp(clm):
    sizes = {name: clm.parameters_of(clm.build(name, 6, 128, 256)) for name in ("gMLP", "GPT-2")}
    assert sizes["GPT-2"] == pytest.approx(sizes["gMLP"], rel=0.1)


def test_speed_times_every_system(clm, call, tmp_path, capsys):
    call(clm, "speed", "--layers", 1, "--dim", 16, "--n", 32, "--batch_size", 2, "--repeats", 1, "--tokens", 2,
         "--output", tmp_path / "out.csv")  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert {row["system"] for row in rows} == set(SYSTEMS)
    assert {row["measure"] for row in rows} == {"token 10", "token 30", "mean token", "training"}
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)
    assert "GPT-2: with and without its cache" in capsys.readouterr().out


def test_speed_of_a_wrong_cache_is_not_measured(clm):
    model = clm.build("gMLP", 1, 16, 32)
    assert clm.cache_difference(model, 16) < 1e-12

    class Forgetful(type(model)):
        def forward(self, *args, past_key_values=None, **kwargs):
            return super().forward(*args, **kwargs)

    model.__class__ = Forgetful
    with pytest.raises(InputError, match="computes something else"):
        clm.cache_difference(model, 16)
