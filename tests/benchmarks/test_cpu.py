"""benchmarks/cpu.py in tiny: that it finishes, that its numbers are right, and that it refuses wrong results."""

import argparse
import csv
import time
from functools import partial

import pytest
import torch

from hf_gmlp.errors import InputError
from hf_gmlp.kernels import fft, lean

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cpu(load):
    threads = torch.get_num_threads()
    yield load("cpu")
    torch.set_num_threads(threads)


TINY = ("--quick", "--layers", 1, "--batch", 1, "--rounds", 1, "--tokens", 16, "--skip_memory")


@pytest.fixture(scope="module")
def rows(cpu, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        flags = [*TINY, "--suites", "vision", "text", "length", "--out", out]
        patch.setattr("sys.argv", ["cpu.py", *map(str, flags)])
        cpu.main()
    (table,) = out.glob("cpu-*.csv")
    assert table.with_suffix(".png").stat().st_size > 10_000
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def builders(cpu, suite, tokens=16):
    return cpu.builders_of(suite, argparse.Namespace(tokens=tokens))


def test_every_system_is_timed_forward_and_in_training(cpu, rows):
    for suite in ("vision", "text"):
        for name in builders(cpu, suite):
            found = {row["measure"]: row for row in rows if row["suite"] == suite and row["system"] == name}
            assert float(found["forward time"]["value"]) > 0 and float(found["training time"]["value"]) > 0
            assert int(found["forward time"]["parameters"]) > 100_000 and found["forward time"]["unit"] == "s"


def test_rows_say_where_and_with_what(rows):
    assert all(row["date"] and row["machine"] and row["threads"] == "1" and row["torch"] for row in rows)


def test_results_are_added_to_those_in_the_file(cpu, tmp_path):
    path = tmp_path / "results.csv"
    cpu.harness.write_results(path, [{"value": 1 / 3}], {"machine": "old"})
    cpu.harness.write_results(path, [{"value": 2.0, "unit": "s"}], {"machine": "new"})
    assert path.read_text().split() == ["machine,value,unit", "old,0.333333,", "new,2,s"]


def test_saved_bytes(cpu, rows):
    saved = {(row["suite"], row["system"]): float(row["value"]) for row in rows if row["measure"].startswith("saved")}
    # Ten numbers of four bytes for each channel.
    assert saved["vision", "hf_gmlp, lean"] == 10 * 4 * 256
    assert saved["text", "hf_gmlp, lean"] == 10 * 4 * 512
    assert saved["vision", "timm gmlp_s16"] > 20 * 4 * 256
    assert saved["text", "hf_gmlp, plain"] > 20 * 4 * 512


def test_saved_bytes_of_a_known_layer(cpu):
    def build(layers):
        model = torch.nn.Sequential(*(torch.nn.Sigmoid() for _ in range(layers)))
        x = torch.ones(1, 5, 8, requires_grad=True)
        return cpu.peers.System("sigmoids", model, lambda: model(x), layers, 5)

    assert cpu.harness.saved_bytes(cpu.Bench(None), "", {"sigmoids": build}) == {"sigmoids": 8 * 4}


def test_peers_have_as_many_parameters(cpu):
    vision = {name: build(layers=1, batch=1).parameters for name, build in builders(cpu, "vision").items()}
    assert vision["hf_gmlp, lean"] == vision["timm gmlp_s16"]
    text = builders(cpu, "text", tokens=512)
    own, bert = (text[name](layers=3, batch=1).parameters for name in ("hf_gmlp, lean", "BERT"))
    assert abs(own - bert) < 0.07 * bert


@pytest.mark.parametrize("suite", ["length", "text"])
def test_nothing_is_reported_of_a_wrong_result(cpu, call, monkeypatch, tmp_path, capsys, suite):
    if suite == "length":
        right = fft.toeplitz_product_fft
        monkeypatch.setattr(fft, "toeplitz_product_fft", lambda *inputs: right(*inputs) * 1.01)
    else:
        right = lean._norm_backward
        monkeypatch.setattr(lean, "_norm_backward", lambda *inputs: tuple(1.01 * x for x in right(*inputs)))
    with pytest.raises(SystemExit):
        call(cpu, *TINY, "--suites", suite, "--out", tmp_path)
    assert "No times: the " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suite, name", [("vision", "timm gmlp_s16"), ("text", "annotated (labml's form)")])
def test_a_peer_with_other_results_is_noticed(cpu, suite, name):
    peer = builders(cpu, suite)[name](layers=1, batch=1)
    cpu.checks.check_peers({name: peer})
    peer.run = partial(lambda run: run() * 1.01, peer.run)
    with pytest.raises(InputError, match="the outputs of"):
        cpu.checks.check_peers({name: peer})


def test_peak_of_memory(cpu):
    before = cpu.resident_peak()
    block = torch.ones(int(before + 200) * 2**18)
    assert cpu.resident_peak() >= before + 150
    del block


def test_times_are_medians_of_turns(cpu, monkeypatch):
    ticks = iter([0, 1, 1, 3, 10, 11, 20, 29, 30, 31, 40, 42])
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks))
    order = []
    steps = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    bench = cpu.Bench(argparse.Namespace(threads=1))
    assert bench.times("", steps, 3) == {"a": 1, "b": 2}
    assert order == ["a", "b"] * 4
