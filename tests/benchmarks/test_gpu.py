"""benchmarks/gpu.py at a tiny size on a CPU: it runs, reports correct numbers, and refuses wrong results."""

import pytest

from .conftest import read

pytestmark = pytest.mark.heavy

pytest.importorskip("g_mlp_pytorch")
pytest.importorskip("timm")
from benchmarks import gpu, peers  # noqa: E402


def test_every_system_is_measured(call, tmp_path, capsys):
    call(gpu, "--device", "cpu", "--quick", "--suites", "text", "--out", tmp_path)
    values = {(row["system"], row["measure"]): float(row["value"]) for row in read(tmp_path)}
    for name in gpu.SUITES["text"]:
        assert values[name, "training"] > 0 and values[name, "kept for backward"] > 0
    # Different work would give a different ratio.
    rates = [
        values[name, "training"] * values[name, "MFU"] for name in (gpu.OWN, gpu.OWN + gpu.SELECTIVE, gpu.LUCIDRAINS)
    ]
    assert rates[1] == pytest.approx(rates[0], rel=0.5)
    assert "| MFU, %: hf_gmlp | " in capsys.readouterr().out


@pytest.mark.parametrize("n", [32, 64])
def test_operations_are_counted(n):
    counts = {}
    for name in (gpu.OWN, gpu.LUCIDRAINS, gpu.BERT):
        small, large = (gpu.flops_of(peers.build(peers.text_model, name, layers=k, batch=2, tokens=n)) for k in (3, 6))
        counts[name] = (large - small) // 3
    # Multiplications and additions: W_in [6d, d], W [n, n] on 3d channels, W_out [d, 3d]; backward, each has two more.
    block = 3 * 2 * 2 * n * (6 * 512**2 + n * 3 * 512 + 3 * 512**2)
    assert counts[gpu.OWN] == counts[gpu.LUCIDRAINS] == block
    # One BERT layer corresponds to three blocks.
    assert counts[gpu.BERT] == 3 * 2 * 2 * n * (12 * 768**2 + 2 * n * 768) // 3
