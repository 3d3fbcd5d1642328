"""The benchmarks of causal language models in tiny: that they run, and that their numbers are what they say."""

import csv
import math
import sys
from pathlib import Path

import pytest
import torch

from hf_gmlp.errors import InputError

pytest.importorskip("g_mlp_pytorch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import clm_quality
import clm_speed
import clm_systems


def run(main, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, flags)])
    threads = torch.get_num_threads()
    main()
    torch.set_num_threads(threads)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"the same words again and again, " * 40)
    return path


def test_quality_trains_every_system_on_the_same_batches(tmp_path, text, monkeypatch, capsys):
    flags = ["--train_file", text, "--validation_file", text, "--steps", 12, "--layers", 2, "--dim", 32, "--n", 16,
             "--batch_size", 4, "--output", tmp_path / "out.csv"]  # fmt: skip
    run(clm_quality.main, monkeypatch, *flags)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["system"] for row in rows] == list(clm_systems.SYSTEMS)
    # Eight bits are a guess, and this is a text of 32 bytes over and over.
    assert all(2 < float(row["bits_per_byte"]) < 7.5 for row in rows) and all(row["torch"] for row in rows)
    assert f"| GPT-2 | 0 | 0.002 | {rows[-1]['parameters']} |" in capsys.readouterr().out
    with pytest.raises(InputError, match="is there already"):
        run(clm_quality.main, monkeypatch, *flags)


@pytest.mark.parametrize("system", clm_systems.SYSTEMS)
def test_a_model_that_knows_nothing_needs_the_bits_of_its_vocabulary(text, system):
    model = clm_systems.build(system, 1, 16, 16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    # 1,280 bytes in blocks of 15, the last of which is shorter.
    blocks = clm_quality.blocks(text, 15, keep_remainder=True)
    assert clm_quality.bits_per_byte(model, blocks, 8) == pytest.approx(math.log2(258), rel=1e-6)


def test_gpt2_is_of_our_size():
    sizes = {name: clm_systems.parameters(clm_systems.build(name, 6, 128, 256)) for name in ("gMLP", "GPT-2")}
    assert sizes["GPT-2"] == pytest.approx(sizes["gMLP"], rel=0.1)


def test_speed_times_every_system(tmp_path, monkeypatch, capsys):
    flags = ["--layers", 1, "--dim", 16, "--n", 32, "--batch_size", 2, "--repeats", 1, "--tokens", 2,
             "--output", tmp_path / "out.csv"]  # fmt: skip
    run(clm_speed.main, monkeypatch, *flags)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert {row["system"] for row in rows} == set(clm_systems.SYSTEMS)
    assert {row["measure"] for row in rows} == {"token 10", "token 30", "mean token", "training"}
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)
    assert "GPT-2: with and without its cache" in capsys.readouterr().out


def test_speed_of_a_wrong_cache_is_not_measured():
    model = clm_systems.build("gMLP", 1, 16, 32)
    assert clm_speed.cache_difference(model, 16) < 1e-12

    class Forgetful(type(model)):
        def forward(self, *args, past_key_values=None, **kwargs):
            return super().forward(*args, **kwargs)

    model.__class__ = Forgetful
    with pytest.raises(InputError, match="computes something else"):
        clm_speed.cache_difference(model, 16)
