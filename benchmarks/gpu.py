"""gMLP beside its peers on a GPU, in one process and one run: whether they compute the same, how fast, in what memory.

    python benchmarks/gpu.py                              everything, in some minutes
    python benchmarks/gpu.py --suites text --batch 32     one suite
    python benchmarks/gpu.py --device cpu --quick         all of it in tiny, on a machine without a GPU: does it run

Suites:
    rate      the measured rate of bf16 products and of copies, and the rate of gMLP-base's own products
    text      gMLP-base as a masked language model, logits at the masked positions only, in all of its forms; the same
              work by g-mlp-pytorch (lucidrains), labml's form and BERT-base
    vision    gMLP-S on images of 224 pixels; timm's gMLP-S and ViT-S
    unit      GELU and spatial gating unit alone, and one block, in all forms
    fft       the Toeplitz product as a matrix and by FFT
    scaling   cost per token as tokens, batch and depth grow

Everything runs under bf16 autocast with parameters in single precision. Systems take turns within every round, each
with one untimed step first; CUDA events take the time; the median of the rounds counts. Forward is up to the loss of a
text and the logits of an image; a training step is forward and backward, without an optimizer, which is the same for
all. Dropout is off everywhere; a line says layers and parameters. "MFU" is the operations of the model (those of the
plain form, counted by torch) over time over the rate of a large product that was measured in the same run. "compiled"
is torch.compile of every block of the plain form, unless --compile says otherwise. "Above start" is the peak of a
training step less what was there before it, parameters among that; gradients count.

No number of a system is reported if its outputs or gradients differ from those of the plain form: in single precision
by more than rounding, or under autocast if they are farther from the truth than 1.3 times the plain form's. A system
that fails, or does not fit into memory, is left out; the rest goes on, and the command ends with an error.

The results are added to benchmarks/results/gpu-DATE.csv after every suite, and drawn to a picture beside it.
"""

import argparse
import datetime
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from gpu_measure import (
    Bench,
    able,
    build_all,
    check,
    flops_of,
    forward_step,
    label_of,
    measure,
    saved_by,
    seconds_of,
    training_step,
)
from gpu_systems import build_alone, build_masked, build_ours, compiled, our_forms, text_sizes, with_labels
from systems import (
    OURS,
    RESULTS,
    build_annotated,
    build_bert,
    build_lucidrains,
    build_text,
    build_timm,
    build_vision,
    build_vit,
    check_agreement,
    draw_bars,
    draw_lengths,
    interleaved,
    name_sizes,
    toeplitz_forms,
    write,
)

from hf_gmlp import errors
from hf_gmlp.analysis.machine import processor_name
from hf_gmlp.errors import InputError
from hf_gmlp.models.spatial_gating import spatial_matrix

SUITES = ("rate", "text", "vision", "unit", "fft", "scaling")


def main():
    arguments = parse_arguments()
    errors.run(lambda: benchmark(arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for --quick alone")
    parser.add_argument("--quick", action="store_true", help="tiny models and few rounds: does it run")
    parser.add_argument("--batch", type=int, help="texts in a batch (default: 64)")
    parser.add_argument("--images", type=int, help="images in a batch (default: 128)")
    parser.add_argument("--layers", type=int, help="gMLP blocks of the text models, BERT a fourth (default: 48)")
    parser.add_argument("--tokens", type=int, help="length of a text (default: 512)")
    parser.add_argument("--rounds", type=int, help="how often every system is timed (default: 7)")
    parser.add_argument(
        "--compile",
        choices=("blocks", "model", "none"),
        default="blocks",
        help="what torch.compile is given; whole models take minutes each (default: %(default)s)",
    )
    parser.add_argument("--backend", default="inductor", help="of torch.compile (default: %(default)s)")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="WORD", help="leave out systems with such a word in their name"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    arguments = parser.parse_args()
    usual = {"batch": (64, 2), "images": (128, 1), "layers": (48, 2), "tokens": (512, 32), "rounds": (7, 1)}
    for name, (full, quick) in usual.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else full)
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if arguments.device == "cpu" and not arguments.quick:
        parser.error("--device cpu takes hours at full size: add --quick, or see benchmarks/cpu.py")
    return arguments


def benchmark(arguments: argparse.Namespace):
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "There is no CUDA GPU here: run this on a machine with one, or try it out with --device cpu --quick."
        )
    bench = Bench(arguments, torch.device(arguments.device))
    torch.manual_seed(0)
    # Single precision is what it says, in the checks.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    # Blocks of many models share one function, and every size and precision is compiled for itself.
    torch._dynamo.config.recompile_limit = 256
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"gpu-{datetime.date.today().isoformat()}.csv"
    common = circumstances(bench)
    print(", ".join(f"{key} {value}" for key, value in common.items()))
    bench.forms = our_forms(bench)
    functions = {
        "text": text_suite,
        "vision": vision_suite,
        "unit": unit_suite,
        "fft": fft_suite,
        "scaling": scaling_suite,
    }
    begin = time.perf_counter()
    # Everything else is a share of it.
    rate_suite(bench, own_products="rate" in arguments.suites)
    written = 0
    for suite in ("rate", *(suite for suite in arguments.suites if suite != "rate")):
        try:
            if suite != "rate":
                functions[suite](bench)
        except Exception as error:
            # Hours on such machines are dear: neither what was found so far nor the other suites are lost.
            bench.fault(f"the suite {suite} ended", error)
        torch._dynamo.reset()
        bench.free()
        write(path, bench.rows[written:], common)
        written = len(bench.rows)
        print(f"[{suite} done after {time.perf_counter() - begin:.0f} s]", flush=True)
    print(f"rate at the end: {measured_rate(bench) / bench.rate:.1%} of that at the beginning")
    print_goals(bench)
    write(path, bench.rows[written:], common)
    draw(path.with_suffix(".png"), bench)
    print(f"\nWritten: {path} and {path.with_suffix('.png').name}")
    if bench.faults:
        raise InputError("Not everything was measured. " + " ".join(bench.faults))


# ---------------------------------------------------------------------------------------------------------------- rate


def measured_rate(bench: Bench) -> float:
    """Operations per second of a large bf16 product."""
    size, rounds = (256, 3) if bench.quick else (8192, 30)
    left, right, out = torch.randn(3, size, size, device=bench.device, dtype=torch.bfloat16)
    for _ in range(3 if bench.quick else 100):
        # Until the clocks are up.
        torch.mm(left, right, out=out)
    step = partial(torch.mm, left, right, out=out)
    rate = flops_of(lambda: torch.mm(left, right)) / interleaved({"": step}, rounds, partial(seconds_of, bench))[""]
    bench.add("rate", f"bf16 product of {size}^3", rate, "FLOP/s", system="matrix product")
    return rate


def rate_suite(bench: Bench, own_products: bool):
    """The rates that everything else is a share of."""
    bench.rate = measured_rate(bench)
    rounds = 3 if bench.quick else 30

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=bench.device, dtype=torch.bfloat16)

    source = torch.empty(2**16 if bench.quick else 2**30, dtype=torch.uint8, device=bench.device).random_()
    target = torch.empty_like(source)
    copy = {"": partial(target.copy_, source)}
    bandwidth = 2 * source.numel() / interleaved(copy, rounds, partial(seconds_of, bench))[""]
    bench.add("rate", "copy, bytes read and written", bandwidth, "B/s", system="copy")
    print(f"\nrate: {bench.rate / 1e12:.4g} TFLOP/s in a large bf16 product, {bandwidth / 1e9:.4g} GB/s in a copy")
    if not own_products:
        return

    batch, tokens, d = bench.arguments.batch, bench.arguments.tokens, 512
    rows, d_ffn, half = batch * tokens, 6 * d, 3 * d
    x, z, v = normal(rows, d), normal(rows, d_ffn), normal(batch, tokens, half)
    w_in, w_out, w = normal(d_ffn, d), normal(d, half), normal(tokens, tokens).expand(batch, -1, -1)
    gated = v.view(rows, half)
    products = {
        "in": lambda: torch.mm(x, w_in.T),
        "in, gradient of x": lambda: torch.mm(z, w_in),
        "in, gradient of W": lambda: torch.mm(z.T, x),
        "out": lambda: torch.mm(gated, w_out.T),
        "out, gradient of x": lambda: torch.mm(x, w_out),
        "out, gradient of W": lambda: torch.mm(x.T, gated),
        "spatial": lambda: torch.bmm(w, v),
        "spatial, gradient of v": lambda: torch.bmm(w.transpose(1, 2), v),
        "spatial, gradient of W": lambda: torch.bmm(v, v.transpose(1, 2)),
    }
    times = interleaved(products, rounds, partial(seconds_of, bench))
    operations = {name: flops_of(step) for name, step in products.items()}
    print(f"products of a block of gMLP-base, batch {batch}, {tokens} tokens")
    for name in products:
        rate = operations[name] / times[name]
        print(f"  {name:<26}{times[name] * 1e3:>9.3f} ms{rate / 1e12:>9.4g} TFLOP/s{rate / bench.rate:>8.1%}")
        bench.add("rate", f"product {name}", rate, "FLOP/s", system="gMLP-base", batch=batch, tokens=tokens)
    for kind, names in (("forward", [name for name in products if "," not in name]), ("training", list(products))):
        share = sum(operations[name] for name in names) / sum(times[name] for name in names) / bench.rate
        print(f"  all of {kind:<19}{share:>8.1%} of the rate: with these products, no code around them gets beyond")
        bench.add("rate", f"{kind} products / rate", share, "", system="gMLP-base", batch=batch, tokens=tokens)


# ---------------------------------------------------------------------------------------------------------------- text


def text_suite(bench: Bench):
    sizes = text_sizes(bench)
    few = sizes | {"layers": 2, "batch": 2, "vocabulary": 32}
    trunks = {
        "ours": partial(build_text, "lean"),
        "ours, plain": partial(build_text, "naive"),
        "lucidrains, circulant": partial(build_lucidrains, True),
        "lucidrains, dense": partial(build_lucidrains, False),
        "annotated (labml's form)": build_annotated,
    }
    check_agreement({name: build(**few) for name, build in trunks.items()})

    dense, circulant = partial(build_lucidrains, False), partial(build_lucidrains, True)
    # BERT-base has 12 layers where gMLP-base has 48.
    bert = partial(build_masked, bench, build_bert, layers=max(1, sizes["layers"] // 4))
    builders = [partial(build_ours, bench, form) for form in bench.forms]
    builders += [partial(build_masked, bench, build) for build in (dense, circulant, build_annotated)] + [bert]
    if bench.arguments.compile != "none":
        builders.append(lambda: compiled(bench, build_ours(bench, "naive")))
        builders.append(lambda: compiled(bench, build_masked(bench, dense)))
        builders.append(lambda: compiled(bench, bert()))
    systems = build_all(bench, "text", builders)

    one = few | {"batch": min(8, sizes["batch"])}
    forms = {OURS[form]: partial(build_text, form) for form in bench.forms}
    saved = saved_by(bench, forms | {name: trunks[name] for name in list(trunks)[2:]}, one)
    check(bench, "text", systems)
    measure(bench, "text", systems, sizes["batch"], saved)


# -------------------------------------------------------------------------------------------------------------- vision


def vision_suite(bench: Bench):
    batch = bench.arguments.images
    sizes = {"layers": 2 if bench.quick else 30, "batch": batch, "device": bench.device.type}
    few = sizes | {"layers": 2, "batch": min(2, batch)}
    check_agreement(
        {
            "ours": build_vision("lean", **few),
            "ours, plain": build_vision("naive", **few),
            "timm gmlp_s16": build_timm(**few),
        }
    )
    forms = {OURS[form]: partial(build_vision, form) for form in bench.forms}
    builders = [partial(build, **sizes) for build in (*forms.values(), build_timm, build_vit)]
    if bench.arguments.compile != "none":
        plain = partial(build_vision, "naive", **sizes)
        builders.append(lambda: compiled(bench, plain()))
        builders += [lambda build=build: compiled(bench, build(**sizes)) for build in (build_timm, build_vit)]
    systems = build_all(bench, "vision", [lambda build=build: with_labels(bench, build()) for build in builders])
    saved = saved_by(bench, forms | {"timm gmlp_s16": build_timm}, few | {"batch": min(8, batch)})
    check(bench, "vision", systems)
    measure(bench, "vision", systems, batch, saved)


# ---------------------------------------------------------------------------------------------------------------- unit


def unit_suite(bench: Bench):
    """The unit, and the block, in their forms; of the unit, also bytes per second of the least that must move."""
    # gMLP-base's, gMLP-S's, and longer texts.
    sizes = [(64, 512, 1536), (128, 196, 768), (16, 2048, 1536)]
    kinds = [("dense", "toeplitz", "causal"), ("dense",), ("toeplitz", "causal")]
    if bench.quick:
        sizes, kinds = [(2, 16, 48)], kinds[:1]
    for size, of_size in zip(sizes, kinds):
        for kind in of_size:
            plan = [(what, form, False) for what in ("unit", "block") for form in bench.forms]
            # A unit by itself has no lean form.
            plan.remove(("unit", "lean", False))
            # Each takes some seconds to compile, so not all of them are.
            if bench.arguments.compile != "none" and size in sizes[:2]:
                plan += [("unit", "naive", True), ("block", "naive", True)]
            suite = f"unit: {kind}, {size[1]} x {size[2]}"
            builders = [partial(build_alone, bench, what, form, *size, kind, compile) for what, form, compile in plan]
            systems = build_all(bench, suite, builders)
            check(bench, suite, systems)
            for system in systems.values():
                if system.name.startswith("unit"):
                    system.model.inputs.to(torch.bfloat16)
                    system.cotangent = system.cotangent.to(torch.bfloat16)
            measure(bench, suite, systems, size[0])
            del systems
            bench.free()
            add_bytes(bench, suite, size)
    for tokens in (16,) if bench.quick else (512, 2048):
        toeplitz_cost(bench, tokens)


def add_bytes(bench: Bench, suite: str, size: tuple[int, int, int]):
    """
    Bytes per second of the unit, counted as the least that must move: forward, u and v are read and s(Z) is written; in
    training, u, v and the gradient of s(Z) are read, and the gradients of u and v written; 2 bytes each.
    """
    numbers = size[0] * size[1] * size[2] * 2
    for row in [row for row in bench.rows if row["suite"] == suite and row["system"].startswith("unit")]:
        if row["measure"] in ("forward time", "training time"):
            kind = row["measure"].split()[0]
            speed = (3 if kind == "forward" else 8) * numbers / row["value"]
            print(f"  {label_of(row)}, {kind}: {speed / 1e9:.4g} GB/s")
            bench.rows.append(row | {"measure": f"{kind} least bytes", "value": speed, "unit": "B/s"})


def toeplitz_cost(bench: Bench, tokens: int):
    """What making W from its 2n - 1 weights costs in every block, and its gradient."""
    weight = torch.randn(2 * tokens - 1, device=bench.device, requires_grad=True)
    grad = torch.randn(tokens, tokens, device=bench.device)
    steps = {
        "forward": lambda: spatial_matrix(weight.detach(), tokens),
        "training": lambda: torch.autograd.grad(spatial_matrix(weight, tokens), weight, grad),
    }
    times = interleaved(steps, bench.arguments.rounds, partial(seconds_of, bench))
    for kind, seconds in times.items():
        print(f"the matrix W of {tokens} tokens from its weights, {kind}: {seconds * 1e3:.3f} ms")
        bench.add("unit", f"{kind} time", seconds, "s", system="Toeplitz matrix", tokens=tokens)


# ----------------------------------------------------------------------------------------------------------------- fft


def fft_suite(bench: Bench):
    lengths = (16, 32) if bench.quick else (512, 1024, 2048, 4096, 8192, 16384)
    channels = 24 if bench.quick else 1536
    print(
        f"\nToeplitz product of 32,768 tokens by {channels} channels in all: bf16 matrix / FFT in single precision, ms"
    )
    for length in lengths:
        batch = 2 if bench.quick else 32768 // length
        forms = toeplitz_forms(batch, length, channels, bench.device.type, torch.bfloat16)
        line = f"{length:>7}"
        for i, kind in enumerate(("forward", "training")):
            steps = able(bench, f"fft, {kind}, {length} tokens", {name: form[i] for name, form in forms.items()})
            times = interleaved(steps, bench.arguments.rounds, partial(seconds_of, bench))
            for name, seconds in times.items():
                bench.add("fft", f"{kind} time", seconds, "s", system=name, batch=batch, tokens=length)
            if len(times) == 2:
                ratio = times["matrix"] / times["fft"]
                line += f"   {kind} {times['matrix'] * 1e3:8.3f} / {times['fft'] * 1e3:8.3f} {ratio:6.2f}x"
                bench.add("fft", f"{kind} time / fft", ratio, "", system="matrix", batch=batch, tokens=length)
        print(line, flush=True)
        del forms
        bench.free()


# ------------------------------------------------------------------------------------------------------------- scaling


def scaling_suite(bench: Bench):
    """Time per token and layer as one size grows and the others stay."""
    base = {"layers": 6, "batch": 16, "tokens": 512}
    grown = {"tokens": (128, 512, 1024, 2048, 4096), "batch": (1, 4, 16, 64, 256), "layers": (3, 12, 48)}
    if bench.quick:
        base = {"layers": 1, "batch": 2, "tokens": 16}
        grown = {"tokens": (16, 32), "batch": (1, 2), "layers": (1, 2)}
    for what, values in grown.items():
        print(f"\nns per token and layer, growing {what}: forward / training")
        for value in values:
            sizes = base | {what: value}
            given = sizes | {"device": bench.device.type}
            bert = given | {"layers": max(1, sizes["layers"] // 4)}
            builders = [partial(build_text, form, **given) for form in bench.forms]
            builders += [partial(build_lucidrains, False, **given), partial(build_bert, **bert)]
            systems = build_all(bench, "scaling", builders)
            suite = f"scaling: {what}"
            check(bench, suite, systems)
            line: dict[str, str] = {}
            for kind, make in (("forward", forward_step), ("training", training_step)):
                steps = {name: make(bench, system) for name, system in systems.items()}
                steps = able(bench, f"{suite} {value}, {kind}", steps)
                times = interleaved(steps, min(bench.arguments.rounds, 3), partial(seconds_of, bench))
                for name, seconds in times.items():
                    per_token = seconds / (sizes["batch"] * sizes["tokens"] * systems[name].layers)
                    line[name] = (f"{line[name]} / " if name in line else "") + f"{per_token * 1e9:.2f}"
                    measured = {"measure": f"{kind} time per token and layer", "value": per_token, "unit": "s"}
                    bench.rows.append({"suite": suite} | systems[name].row(sizes["batch"]) | measured)
            print(f"{value:>7}  " + "   ".join(f"{name} {text}" for name, text in line.items()), flush=True)
            del systems, builders, steps
            bench.free()


# --------------------------------------------------------------------------------------------------------------- output


def circumstances(bench: Bench) -> dict:
    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    driver = ""
    if bench.cuda:
        question = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            driver = subprocess.run(question, capture_output=True, text=True, timeout=30).stdout.strip().split("\n")[0]
        except (OSError, subprocess.TimeoutExpired):
            pass
    return {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "device": torch.cuda.get_device_name() if bench.cuda else processor_name(),
        "driver": driver,
        "cuda": (torch.version.cuda or "") if bench.cuda else "",
        "torch": torch.__version__,
        **{name: installed(name) for name in ("triton", "transformers", "timm", "g-mlp-pytorch")},
        "command": shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
    }


def goals_of(bench: Bench) -> list[tuple[str, str, float, str, float]]:
    """What is wanted: (what, of which of our forms, measured, how it must compare, wanted); NaN where not measured."""

    def best(suite: str, start: str, measure: str, pick: Callable = max, modes=("eager", "compiled")) -> tuple:
        found = [
            (row["value"], label_of(row))
            for row in bench.rows
            if (row["suite"], row["measure"]) == (suite, measure)
            and row["system"].startswith(start)
            and row["mode"] in modes
        ]
        return pick(found, default=(float("nan"), "-"))

    samples, above, whole = "training samples", "training memory above start", "training memory with parameters"
    timm, eager, compiled_alone = "timm gmlp_s16", ("eager",), ("compiled",)
    share = best("text", "ours", "training MFU")
    bert = best("text", "BERT", "training MFU")
    pairs = [
        ("gMLP-base training, over lucidrains eager", "text", samples, "lucidrains", eager, ">=", 1.5),
        ("gMLP-base training, over lucidrains compiled", "text", samples, "lucidrains", compiled_alone, "", 0.0),
        ("gMLP-S training, over timm eager", "vision", samples, timm, eager, ">=", 1.3),
        ("gMLP-S training, over timm compiled", "vision", samples, timm, compiled_alone, "", 0.0),
        ("gMLP-S forward, over timm eager", "vision", "forward samples", timm, eager, ">=", 1.3),
        ("gMLP-S forward, over timm compiled", "vision", "forward samples", timm, compiled_alone, "", 0.0),
        ("gMLP-S training memory above start, of timm's", "vision", above, timm, eager, "<=", 0.5),
        ("gMLP-S training memory with parameters, of timm's", "vision", whole, timm, eager, "<=", 0.5),
    ]
    goals = [
        ("gMLP-base training, share of the measured rate", share[1], share[0], ">=", 0.5),
        (f"gMLP-base training, MFU over that of {bert[1]}", share[1], share[0] / bert[0], ">=", 1.0),
    ]
    for what, suite, measured, peer, modes, relation, wanted in pairs:
        pick = min if relation == "<=" else max
        ours, theirs = best(suite, "ours", measured, pick), best(suite, peer, measured, pick, modes)
        goals.append((what, ours[1], ours[0] / theirs[0], relation, wanted))
    return goals


def print_goals(bench: Bench):
    """The goals and what was reached, by the best of our forms against the best of theirs; as rows, too."""
    if bench.quick:
        print("\nThe models were tiny: what follows says that this command runs, and nothing else.")
    print(f"\n{'goal':<64}{'our form':<18}{'measured':>9}{'wanted':>9}")
    for what, form, measured, relation, wanted in goals_of(bench):
        goal = f"{relation} {wanted}" if relation else ""
        if measured != measured:
            print(f"{what:<64}{form:<18}{'-':>9}{goal:>9}  not measured")
            continue
        reached = "" if not relation else "reached" if (measured >= wanted) == (relation == ">=") else "NOT reached"
        print(f"{what:<64}{form:<18}{measured:>9.3f}{goal:>9}  {reached}")
        bench.add("goal", what, measured, goal, system=form)


def draw(path, bench: Bench):
    """MFU and memory of every system, what length costs, and how cost grows."""
    from hf_gmlp.analysis.pictures import plt, save_picture

    def bars(suite: str, measures: dict[str, str]) -> dict[str, dict[str, float]]:
        found = {
            label: {
                label_of(row): row["value"] for row in bench.rows if row["suite"] == suite and row["measure"] == measure
            }
            for measure, label in measures.items()
        }
        return {label: values for label, values in found.items() if values}

    panels: list[Callable] = []
    for suite in ("text", "vision"):
        shares = bars(suite, {"forward MFU": "forward", "training MFU": "training"})
        rates = bars(suite, {"forward samples": "forward", "training samples": "training"})
        memory = bars(suite, {"training memory with parameters": "with", "training memory above start": "without"})
        if shares:
            panels.append(partial(draw_bars, bars=shares, xlabel="share of the measured rate", title=f"{suite}, MFU"))
            plain = {label: values.get("ours, plain", float("nan")) for label, values in rates.items()}
            ratios = {
                label: {name: value / plain[label] for name, value in values.items()} for label, values in rates.items()
            }
            title = f"{suite}, samples per second"
            panels.append(partial(draw_bars, bars=ratios, xlabel="in units of ours, plain", title=title))
        if memory:
            memory = {f"{label} parameters": values for label, values in memory.items()}
            title = f"{suite}, peak memory of training"
            panels.append(partial(draw_bars, bars=memory, xlabel="MiB", title=title))
    lengths = [row for row in bench.rows if row["suite"] == "fft" and row["measure"] == "forward time"]
    if lengths:
        panels.append(partial(draw_lengths, rows=lengths))
    for what in ("tokens", "batch", "layers"):
        rows = [row for row in bench.rows if row["suite"] == f"scaling: {what}" and "training" in row["measure"]]
        if rows:
            panels.append(partial(draw_growth, what=what, rows=rows))
    if not panels:
        return
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(5.6 * columns, 3.8 * lines), squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes.flat, panels):
        panel(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.suptitle(circumstances(bench)["device"])
    save_picture(figure, path)


def draw_growth(axis, what: str, rows: list[dict]):
    for name in dict.fromkeys(row["system"] for row in rows):
        # BERT has fewer layers than were asked for, so that its points lie where it is.
        points = [(row[what], row["value"] * 1e9) for row in rows if row["system"] == name]
        axis.loglog(*zip(*points), marker="o", label=name)
    name_sizes(axis, [row[what] for row in rows])
    axis.set_xlabel(what)
    axis.set_ylabel("ns per token and layer")
    axis.set_title(f"training, {what} growing")
    axis.legend(fontsize=7)


if __name__ == "__main__":
    main()
