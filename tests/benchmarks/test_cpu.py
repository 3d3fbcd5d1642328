"""benchmarks/cpu.py at a tiny size: it finishes, reports correct numbers, and refuses wrong results."""

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.models.modeling_gmlp import SpatialProjection

from .conftest import read

pytestmark = pytest.mark.heavy

pytest.importorskip("g_mlp_pytorch")
pytest.importorskip("timm")
from benchmarks import checks, cpu, peers  # noqa: E402


def build(name, **sizes):
    make = peers.image_model if name in (peers.TIMM, peers.VIT) or "tokens" not in sizes else peers.text_model
    return peers.build(make, name, layers=1, batch=2, **sizes)


def test_every_system_is_measured(call, tmp_path):
    call(cpu, "--quick", "--suites", "images", "text", "--out", tmp_path)
    rows = read(tmp_path)
    for suite in ("images", "text"):
        for name in cpu.systems_of(suite):
            measures = {row["measure"]: row for row in rows if row["suite"] == suite and row["system"] == name}
            assert measures.keys() == {"training", "kept for backward"} | ({"forward"} if "+" not in name else set())
            assert all(float(row["value"]) > 0 for row in measures.values())
            assert int(measures["training"]["parameters"]) > 100_000 and measures["training"]["unit"] == "ms"
    assert all(row["date"] and row["machine"] and row["threads"] == "1" and row["torch"] for row in rows)


def test_nothing_is_reported_of_a_wrong_result(call, monkeypatch, tmp_path, capsys):
    right = SpatialProjection.forward
    monkeypatch.setattr(SpatialProjection, "forward", lambda *args: 1.01 * right(*args))
    with pytest.raises(SystemExit):
        call(cpu, "--quick", "--suites", "images", "--out", tmp_path)
    assert "No times: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["timm", "g-mlp-pytorch"])
def test_a_peer_with_other_results_is_noticed(name):
    peer = build(name, **({} if name == "timm" else {"tokens": 9}))
    checks.check({name: peer})
    peer.model.register_forward_hook(lambda module, inputs, output: 1.01 * output)
    with pytest.raises(InputError, match="the outputs of"):
        checks.check({name: peer})


def test_compiled_and_checkpointed_systems_are_checked():
    name = peers.OWN + peers.SELECTIVE
    systems = {name: build(name, tokens=9) for name in (peers.OWN, name)}
    checks.check(systems)
    systems[name].model.norm.weight.register_hook(lambda gradient: 1.01 * gradient)
    with pytest.raises(InputError, match="the gradients of hf_gmlp . selective checkpointing"):
        checks.check(systems)
