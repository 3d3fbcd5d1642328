"""benchmarks/gpu.py in tiny on a CPU: that every suite runs, and that its numbers are right or refused."""

import csv
import math

import pytest
import torch
from torch import nn

from hf_gmlp.errors import InputError
from hf_gmlp.kernels import fft, lean
from hf_gmlp.kernels import triton as triton_kernels

pytestmark = pytest.mark.slow

pytest.importorskip("g_mlp_pytorch")
pytest.importorskip("timm")


@pytest.fixture(scope="module")
def gpu(load):
    return load("gpu")


@pytest.fixture
def bench(gpu, monkeypatch):
    """A run of which only parts are used."""
    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--quick", "--compile", "none"])
    return gpu.GPUBench(gpu.read_arguments(), "cpu")


def masked(gpu, name="hf_gmlp, plain", layers=2, tokens=32):
    return gpu.peers.build_masked(name, layers=layers, batch=2, tokens=tokens, vocabulary=64)


def operations(gpu, bench, system):
    """Operations forward and of a training step."""
    forward = gpu.harness.forward_step(bench, system, gradients=True)
    return gpu.flops_of(forward), gpu.flops_of(gpu.harness.training_step(bench, system))


TINY = ("--device", "cpu", "--quick", "--layers", 1, "--batch", 2, "--tokens", 16, "--backend", "eager")


@pytest.fixture(scope="module")
def run(gpu, tmp_path_factory):
    """All suites once: the rows, and the folder."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        # Interpreted kernels are slow, and round bfloat16 more coarsely than the check allows.
        patch.setattr("sys.argv", ["gpu.py", *map(str, TINY), "--without", "triton", "--out", str(out)])
        gpu.main()
    (table,) = out.glob("gpu-*.csv")
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file)), table


def measures(rows, suite, system, mode="eager"):
    return {
        row["measure"]: float(row["value"])
        for row in rows
        if (row["suite"], row["system"], row["mode"]) == (suite, system, mode)
    }


def test_every_system_is_timed_in_every_suite(run):
    rows, table = run
    assert table.with_suffix(".png").stat().st_size > 10_000
    text = [("hf_gmlp", "compiled"), ("lucidrains, dense", "compiled"), ("BERT-base", "compiled")]
    text += [
        (name, "eager") for name in ("hf_gmlp, plain", "hf_gmlp, lean", "lucidrains, dense", "lucidrains, circulant")
    ]
    text += [("annotated (labml's form)", "eager"), ("BERT-base", "eager")]
    vision = [(name, "eager") for name in ("hf_gmlp, plain", "hf_gmlp, lean", "timm gmlp_s16", "ViT-S")]
    vision += [(name, "compiled") for name in ("hf_gmlp", "timm gmlp_s16", "ViT-S")]
    units = [("unit, plain", "eager"), ("unit", "compiled"), ("block, lean", "eager"), ("block", "compiled")]
    kinds = {f"unit: {kind}, 16 x 48": units for kind in ("dense", "toeplitz", "causal")}
    for suite, systems in ({"text": text, "vision": vision} | kinds).items():
        for system, mode in systems:
            found = measures(rows, suite, system, mode)
            for kind in ("forward", "training"):
                assert found[f"{kind} time"] > 0 and found[f"{kind} operations"] > 0, (suite, system, mode)
    for what, system in (("tokens", "hf_gmlp, lean"), ("batch", "lucidrains, dense"), ("layers", "BERT")):
        assert measures(rows, f"scaling: {what}", system)["training time per token and layer"] > 0
    assert measures(rows, "fft", "matrix").keys() == {
        f"{kind} {what}" for kind in ("forward", "training") for what in ("time", "time / fft")
    }
    assert measures(rows, "rate", "matrix product")["bf16 product of 256^3"] > 0


def test_rows_say_where_and_with_what(run):
    rows = run[0]
    for row in rows:
        assert row["date"] and row["machine"] and row["torch"] and row["transformers"] and "--quick" in row["command"]
    row = next(row for row in rows if (row["suite"], row["system"]) == ("text", "hf_gmlp, plain"))
    assert (row["layers"], row["batch"], row["tokens"]) == ("1", "2", "16")


def test_shares_follow_from_times(run):
    rows = run[0]
    rate = measures(rows, "rate", "matrix product")
    for row in rows:
        if row["measure"] == "training MFU":
            found = measures(rows, row["suite"], row["system"], row["mode"])
            assert found["training rate"] == pytest.approx(found["training operations"] / found["training time"], 1e-4)
    # The rate is measured at the beginning, which counts, and at the end.
    first = next(float(row["value"]) for row in rows if row["measure"] in rate)
    found = measures(rows, "text", "hf_gmlp, lean")
    assert found["training MFU"] == pytest.approx(found["training rate"] / first, rel=1e-4)
    assert found["training samples"] == pytest.approx(2 / found["training time"], rel=1e-4)


def test_all_forms_have_the_operations_of_the_plain_form(run):
    rows = run[0]
    plain = measures(rows, "text", "hf_gmlp, plain")
    # Two texts of 16 tokens, 2 of them masked; every product has two more backward.
    forward = 2 * 2 * 16 * (9 * 512 * 512 + 16 * 3 * 512) + 2 * 2 * 2 * (512 * 512 + 512 * 64)
    assert plain["forward operations"] == pytest.approx(forward, rel=1e-5)
    assert plain["training operations"] == pytest.approx(3 * forward, rel=1e-5)
    for system, mode in (("hf_gmlp, lean", "eager"), ("hf_gmlp", "compiled")):
        found = measures(rows, "text", system, mode)
        assert all(found[f"{kind} operations"] == plain[f"{kind} operations"] for kind in ("forward", "training"))


def test_goals_compare_the_best_with_the_best(gpu, bench, capsys):
    for system, mode, samples, mfu in (
        ("hf_gmlp, plain", "eager", 10, 0.2),
        ("hf_gmlp", "compiled", 30, 0.6),
        ("lucidrains, dense", "eager", 15, 0.3),
        ("lucidrains, circulant", "eager", 16, 0.31),
        ("lucidrains, dense", "compiled", 29, 0.58),
        ("BERT-base", "eager", 20, 0.4),
        ("BERT-base", "compiled", 25, 0.5),
    ):
        bench.add("text", "training samples", samples, "", system=system, mode=mode)
        bench.add("text", "training MFU", mfu, "", system=system, mode=mode)
    for system, memory in (("hf_gmlp, plain", 90), ("hf_gmlp, lean", 60), ("timm gmlp_s16", 100)):
        bench.add("vision", "training memory above start", memory, "MiB", system=system)
    gpu.print_goals(bench)
    goals = {row["measure"]: (row["system"], row["value"]) for row in bench.rows if row["suite"] == "goal"}
    assert goals == {
        "gMLP-base training, share of the measured rate": ("hf_gmlp, compiled", 0.6),
        "gMLP-base training, MFU over BERT-base's": ("hf_gmlp, compiled", pytest.approx(1.2)),
        "gMLP-base training, over lucidrains eager": ("hf_gmlp, compiled", 30 / 16),
        "gMLP-base training, over lucidrains compiled": ("hf_gmlp, compiled", 30 / 29),
        "gMLP-S training memory above start, over timm's": ("hf_gmlp, lean", 0.6),
    }
    printed = capsys.readouterr().out
    assert (
        "| gMLP-S training memory above start, over timm's | hf_gmlp, lean | 0.600 | <= 0.5 | NOT reached |" in printed
    )
    assert (
        "| gMLP-base training, share of the measured rate | hf_gmlp, compiled | 0.600 | >= 0.5 | reached |" in printed
    )
    assert "| gMLP-S training, over timm eager | - | - | >= 1.3 | not measured |" in printed


def test_operations_of_a_block_are_those_of_its_products(gpu, bench):
    (forward_2, training_2), (forward_3, training_3) = (operations(gpu, bench, masked(gpu, layers=n)) for n in (2, 3))
    batch, n, d = 2, 32, 512
    # Multiplications and additions: W_in [6d, d], W [n, n] on 3d channels, W_out [d, 3d].
    block = 2 * batch * n * (6 * d * d + n * 3 * d + 3 * d * d)
    assert forward_3 - forward_2 == block
    # Backward, each product has one for either of its factors.
    assert training_3 - training_2 == 3 * block


def test_operations_of_a_head_are_those_of_the_masked_positions(gpu, bench):
    heads = []
    for n in (40, 80):
        count, _ = operations(gpu, bench, masked(gpu, layers=1, tokens=n))
        heads.append(count - 2 * 2 * n * (9 * 512 * 512 + n * 3 * 512))
    # 15 percent of two texts through the transform and the decoder for 64 words.
    assert heads == [2 * 2 * masked * (512 * 512 + 512 * 64) for masked in (6, 12)]


@pytest.mark.parametrize("n", [32, 64])
def test_operations_of_attention_are_counted(gpu, bench, n):
    forward, training = operations(gpu, bench, gpu.peers.build_text("BERT", 1, 2, n, vocabulary=64))
    layer = 2 * 2 * n * (12 * 768 * 768 + 2 * n * 768)
    assert forward == layer and training == 3 * layer


@pytest.mark.parametrize("name", ["lucidrains, dense", "annotated (labml's form)"])
def test_peers_do_the_same_work(gpu, bench, name):
    plain, peer = masked(gpu), masked(gpu, name)
    assert operations(gpu, bench, plain) == operations(gpu, bench, peer)
    assert peer.run().shape == plain.run().shape
    # Biases, and the segments and W of n tokens: 2n - 1 weights against n * n.
    assert abs(peer.parameters - plain.parameters) < 0.01 * plain.parameters


@pytest.mark.parametrize("suite", ["text", "vision", "unit", "fft"])
def test_nothing_is_reported_of_a_wrong_result(gpu, call, monkeypatch, tmp_path, capsys, suite):
    if suite == "fft":
        right = fft.toeplitz_product_fft
        monkeypatch.setattr(fft, "toeplitz_product_fft", lambda *inputs: right(*inputs) * 1.01)
    else:
        right = lean._norm_backward
        monkeypatch.setattr(lean, "_norm_backward", lambda *inputs: tuple(1.01 * x for x in right(*inputs)))
    with pytest.raises(SystemExit):
        call(gpu, *TINY, "--compile", "none", "--suites", suite, "--out", tmp_path)
    printed = capsys.readouterr()
    assert "Not everything was measured" in printed.err and "No times: " in printed.err
    (table,) = tmp_path.glob("gpu-*.csv")
    with table.open(newline="", encoding="utf-8") as file:
        systems = {row["system"] for row in csv.DictReader(file) if row["suite"] not in ("rate", "goal")}
    assert not any("lean" in system or "fft" in system for system in systems)
    # Blocks are checked one by one, and the rest goes on.
    assert ("block, plain" in systems) == (suite == "unit")


def test_half_precision_that_is_worse_than_the_plain_forms_is_refused(gpu):
    check_bf16 = gpu.checks.check_bf16
    generator = torch.Generator().manual_seed(0)
    shapes = {"layers.0.norm.weight": (50,), "layers.1.norm.weight": (50,), "decoder.weight": (100, 100)}

    def values(noise: dict[str, float]):
        def near(x, size):
            return x + size * torch.randn(x.shape, generator=generator)

        gradients = {name: near(truth[1][name], noise.get(name, 0.01)) for name in shapes}
        return near(truth[0], noise.get("output", 0.01)), gradients

    truth = torch.ones(100, 100), {name: torch.ones(shape) for name, shape in shapes.items()}
    plain = values({})
    check_bf16("lean", values({}), plain, truth)
    check_bf16("lean", truth, plain, truth)
    check_bf16("lean", plain, plain, truth)
    with pytest.raises(InputError, match="outputs of lean"):
        check_bf16("lean", values({"output": 0.015}), plain, truth)
    with pytest.raises(InputError, match="the gradients of lean"):
        check_bf16("lean", values({"decoder.weight": 0.015}), plain, truth)
    # Of all the gradients it is a small part.
    with pytest.raises(InputError, match="gradients of layers.norm.weight of lean"):
        check_bf16("lean", values({"layers.1.norm.weight": 0.04}), plain, truth)
    with pytest.raises(InputError):
        check_bf16("lean", (truth[0] * math.nan, truth[1]), plain, truth)


@pytest.mark.skipif(not triton_kernels.can_use_triton(torch.device("cpu")), reason="triton is not interpreted here")
@pytest.mark.parametrize("kind", ["dense", "toeplitz", "causal"])
def test_the_unit_by_triton_is_the_plain_one(gpu, bench, kind):
    found = []
    for form in ("hf_gmlp, plain", "hf_gmlp, triton"):
        system = gpu.build_alone(bench, "unit", form, 2, 9, 12, kind)
        if found:
            system.model.load_state_dict(found[0][0])
        with torch.no_grad():
            forward = system.run()
        output = system.loss()
        output.backward(system.cotangent)
        gradients = [parameter.grad for parameter in system.model.parameters() if parameter.grad is not None]
        found.append((system.model.state_dict(), [forward, output.detach(), *gradients]))
    for value, expected in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4)


def test_triton_without_a_kernel_is_refused(gpu, bench, monkeypatch):
    class Kernel:
        def fn(self):
            pass

        def run(self):
            return 7

    for name in [name for name, value in vars(triton_kernels).items() if hasattr(value, "run")]:
        monkeypatch.delattr(triton_kernels, name)
    monkeypatch.setattr(triton_kernels, "kernel", Kernel(), raising=False)
    with gpu.checks.kernels_launched() as launched:
        assert Kernel().run() == 7
    Kernel().run()
    assert launched == ["fn"]

    systems = {}
    for name in ("unit, plain", "unit, triton"):
        systems[name] = gpu.build_alone(bench, "unit", "hf_gmlp, plain", 2, 8, 12, "dense")
        systems[name].name = name
    gpu.checks.check_forms(bench, "unit", systems)
    assert list(systems) == ["unit, plain"]
    assert "no Triton kernel of hf_gmlp ran" in bench.faults[0]


def test_a_system_without_memory_is_left_out_and_the_rest_goes_on(bench):
    def full():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB.")

    def broken():
        raise RuntimeError("a kernel failed\nat length")

    steps = {"full": full, "fine": lambda: None, "broken": broken}
    assert list(bench.all_times("text", steps)) == ["fine"]
    assert bench.faults == [
        "text: full is left out: it does not fit into memory.",
        "text: broken is left out: RuntimeError: a kernel failed",
    ]


def test_compiled_blocks_share_their_code(gpu, bench):
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    system = gpu.peers.compiled(masked(gpu, layers=3), "blocks", backend)
    assert system.name == "hf_gmlp, compiled"
    gpu.harness.training_step(bench, system)()
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_blocks_are_found_in_any_model(gpu):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    model = nn.Sequential(nn.Sequential(nn.Linear(9, 9), nn.GELU()), nn.ModuleList(Block() for _ in range(3)))
    assert [type(block) for block in gpu.peers.blocks_of(model)] == [Block] * 3


def test_systems_are_left_out_by_name_but_the_plain_form(gpu, bench):
    bench.arguments.without = ["hf_gmlp", "BERT"]
    systems = [
        gpu.System(name, nn.Linear(1, 1), None, 1, 1) for name in ("hf_gmlp, plain", "hf_gmlp, lean", "BERT", "ViT")
    ]
    kept = bench.build_all("text", [lambda system=system: system for system in systems])
    assert list(kept) == ["hf_gmlp, plain", "ViT"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="There is a GPU.")
def test_without_a_gpu_it_says_so(gpu, call, tmp_path, capsys):
    with pytest.raises(SystemExit):
        call(gpu, "--out", tmp_path)
    assert "There is no CUDA GPU here" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call(gpu, "--device", "cpu", "--out", tmp_path)
    assert "add --quick" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
