"""gMLP beside its peers on a CPU, in one process and one run.

    python benchmarks/cpu.py                              vision, text and length, in some minutes
    python benchmarks/cpu.py --quick                      the same, small, in less than a minute
    python benchmarks/cpu.py --suites text --batch 8      one of them
    python benchmarks/cpu.py --suites scaling             cost as tokens, batch and depth grow
    python benchmarks/cpu.py --compiled --layers 4        through torch.compile (needs a C++ compiler)

Systems take turns within every round, so that a busy machine disturbs all of them alike, and the median of the rounds
counts. With one thread, what is measured is that thread's CPU time; with more, the time that passes. Nothing is
reported if our outputs differ from those of a peer with the same weights, or our fast paths from the plain ones, in
output or gradients. Dropout is off everywhere; a line of the table says layers and parameters.

The results are added to benchmarks/results/cpu-DATE.csv, and drawn to a picture beside it.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The package, where it is not installed.
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from hf_gmlp import errors  # noqa: E402
from hf_gmlp.errors import InputError  # noqa: E402

SUITES = ("vision", "text", "length", "scaling")
COLUMNS = (
    "date machine threads torch transformers suite mode system layers parameters batch tokens measure value unit"
).split()
# How far from their initial values the spatial weights are while outputs are compared and times taken.
SPATIAL_NOISE = 0.02


@dataclass
class System:
    """One model and what it is fed with; `run()` is its output."""

    name: str
    model: nn.Module
    run: Callable[[], torch.Tensor]
    layers: int
    tokens: int

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def main():
    arguments = parse_arguments()
    errors.run(lambda: benchmark(arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=["vision", "text", "length"])
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, few rounds: does it work, and roughly how fast"
    )
    parser.add_argument("--compiled", action="store_true", help="all models through torch.compile")
    parser.add_argument("--batch", type=int, help="batch size (default: vision 8, text 2)")
    parser.add_argument(
        "--layers",
        type=int,
        help="gMLP blocks (default: vision 30, text 6); the others have as many, BERT a third, ViT 12 for 30",
    )
    parser.add_argument("--tokens", type=int, default=512, help="length of a text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="how often every system is timed (default: 5)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--skip_memory", action="store_true", help="leave out the fresh process per system that tells its peak memory"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results (default: %(default)s)"
    )
    # What the fresh processes are called with.
    parser.add_argument("--peak_of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.tokens = min(arguments.tokens, 128)
    for name, usual, quick in (("rounds", 5, 2), ("batch", None, 2), ("layers", None, 2)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else usual)
    for name in ("batch", "layers", "tokens", "rounds", "threads"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def benchmark(arguments: argparse.Namespace):
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    if arguments.peak_of:
        print(json.dumps(peak_memory(*arguments.peak_of, arguments)))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for suite in arguments.suites:
        if suite == "length":
            rows += length_suite(arguments)
        elif suite == "scaling":
            rows += scaling_suite(arguments)
        else:
            rows += model_suite(suite, arguments)
    path = arguments.out / f"cpu-{datetime.date.today().isoformat()}.csv"
    write(path, rows, arguments)
    draw(path.with_suffix(".png"), rows)
    print(f"\nWritten: {path} and {path.with_suffix('.png').name}")


# ----------------------------------------------------------------------------------------------------- the systems


def systems_of(suite: str, layers: int, batch: int, tokens: int) -> dict[str, Callable[[], System]]:
    """Name -> a function that builds the system and imports what it needs, and nothing that other systems need."""
    if suite == "vision":
        return {
            "ours": partial(build_vision, "lean", layers, batch),
            "ours, plain": partial(build_vision, "reference", layers, batch),
            "timm gmlp_s16": partial(build_timm, layers, batch),
            "ViT-S": partial(build_vit, layers, batch),
        }
    return {
        "ours": partial(build_text, "lean", layers, batch, tokens),
        "ours, plain": partial(build_text, "reference", layers, batch, tokens),
        "lucidrains, circulant": partial(build_lucidrains, True, layers, batch, tokens),
        "lucidrains, dense": partial(build_lucidrains, False, layers, batch, tokens),
        "annotated (labml's form)": partial(build_annotated, layers, batch, tokens),
        "BERT": partial(build_bert, layers, batch, tokens),
    }


def build_one(suite: str, name: str, tokens: int, layers: int) -> System:
    return systems_of(suite, layers, 1, tokens)[name]()


def build_vision(implementation: str, layers: int, batch: int) -> System:
    from hf_gmlp import GMLPForImageClassification, GMLPVisionConfig

    config = GMLPVisionConfig(
        num_hidden_layers=layers, pooling="mean", num_labels=1000, gating_implementation=implementation
    )
    model = far(GMLPForImageClassification(config), "spatial_gating_unit.proj.weight")
    pixels = fixed(batch, 3, 224, 224)
    name = "ours" if implementation == "lean" else "ours, plain"
    return System(name, model, lambda: model(pixels).logits, layers, 196)


def build_timm(layers: int, batch: int) -> System:
    import timm

    model = timm.create_model("gmlp_s16_224")
    model.blocks = model.blocks[:layers]
    # Zero in a new model, and so would all outputs be.
    nn.init.normal_(model.head.weight, std=0.02)
    far(model, "gate.proj.weight")
    pixels = fixed(batch, 3, 224, 224)
    return System("timm gmlp_s16", model, lambda: model(pixels), layers, 196)


def build_vit(layers: int, batch: int) -> System:
    from transformers import ViTConfig, ViTForImageClassification

    # ViT-S has 12 layers where gMLP-S has 30.
    layers = max(1, round(layers * 12 / 30))
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=layers, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    model = ViTForImageClassification(config)
    pixels = fixed(batch, 3, 224, 224)
    return System("ViT-S", model, lambda: model(pixels).logits, layers, 197)


def build_text(implementation: str, layers: int, batch: int, tokens: int) -> System:
    from hf_gmlp import GMLPConfig, GMLPModel

    config = GMLPConfig(
        num_hidden_layers=layers,
        max_position_embeddings=tokens,
        vocab_size=32,
        type_vocab_size=0,
        gating_implementation=implementation,
    )
    model = far(GMLPModel(config, add_pooling_layer=False), "spatial_gating_unit.proj.weight")
    ids = fixed_ids(batch, tokens)
    name = "ours" if implementation == "lean" else "ours, plain"
    return System(name, model, lambda: model(ids).last_hidden_state, layers, tokens)


def build_lucidrains(circulant: bool, layers: int, batch: int, tokens: int) -> System:
    import g_mlp_pytorch

    model = g_mlp_pytorch.gMLP(
        num_tokens=32, dim=512, depth=layers, seq_len=tokens, ff_mult=6, circulant_matrix=circulant
    )
    far(model, "sgu.weight")
    ids = fixed_ids(batch, tokens)
    name = "lucidrains, circulant" if circulant else "lucidrains, dense"
    return System(name, model, lambda: model(ids), layers, tokens)


class Annotated(nn.Module):
    """Blocks in the form of labml.ai's annotated implementation, tokens first."""

    def __init__(self, layers: int, tokens: int):
        super().__init__()
        from tests.peers.annotated import AnnotatedGMLPBlock

        self.embed = nn.Embedding(32, 512)
        self.blocks = nn.Sequential(*(AnnotatedGMLPBlock(512, 3072, tokens) for _ in range(layers)))
        self.norm = nn.LayerNorm(512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.embed(ids.T))).transpose(0, 1)


def build_annotated(layers: int, batch: int, tokens: int) -> System:
    model = far(Annotated(layers, tokens), "sgu.weight")
    ids = fixed_ids(batch, tokens)
    return System("annotated (labml's form)", model, lambda: model(ids), layers, tokens)


def build_bert(layers: int, batch: int, tokens: int) -> System:
    from transformers import BertConfig, BertModel

    # A layer of BERT-base has the parameters of three gMLP blocks of width 512: 7.1 million.
    layers = max(1, layers // 3)
    config = BertConfig(
        vocab_size=32,
        num_hidden_layers=layers,
        max_position_embeddings=tokens,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertModel(config, add_pooling_layer=False)
    ids = fixed_ids(batch, tokens)
    return System("BERT", model, lambda: model(ids).last_hidden_state, layers, tokens)


@torch.no_grad()
def far(model: nn.Module, spatial: str) -> nn.Module:
    """Spatial weights that matter: near zero, as they start, a wrong W would not be seen."""
    for name, parameter in model.named_parameters():
        if name.endswith(spatial):
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)), alpha=SPATIAL_NOISE
            )
    return model


def fixed(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def fixed_ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(32, (batch, tokens), generator=torch.Generator().manual_seed(1))


# --------------------------------------------------------------------------------------------------- the same results


def check_agreement(suite: str, systems: dict[str, System]):
    """
    Raises:
        InputError: If our fast model and our plain one differ, or our model and a peer's with the same weights.
    """
    ours, plain = systems["ours"], systems["ours, plain"]
    plain.model.load_state_dict(ours.model.state_dict())
    compare("our outputs", ours.run(), plain.run(), "the plain path's")
    gradients = []
    for system in (ours, plain):
        system.model.zero_grad()
        system.run().square().mean().backward()
        gradients.append([parameter.grad for parameter in system.model.parameters()])
        system.model.zero_grad()
    for (name, _), fast, slow in zip(ours.model.named_parameters(), *gradients):
        compare(f"our gradients of {name}", fast, slow, "the plain path's")

    from hf_gmlp.conversion.lucidrains import model_from_lucidrains
    from hf_gmlp.conversion.timm import model_from_timm

    for name, peer in systems.items():
        with torch.no_grad():
            if name.startswith("timm"):
                model = model_from_timm(peer.model.state_dict())
                # So that the very models that are timed agree.
                ours.model.load_state_dict(model.state_dict())
                plain.model.load_state_dict(model.state_dict())
                output = ours.run()
            elif name.startswith("lucidrains"):
                model, _ = model_from_lucidrains(peer.model.state_dict())
                output = model.eval()(fixed_ids(*peer_shape(peer))).logits
            elif name.startswith("annotated"):
                model = from_annotated(peer.model)
                output = model(fixed_ids(*peer_shape(peer))).last_hidden_state
            else:
                continue
            compare("our outputs", output, peer.run(), f"those of {name} with the same weights")


def peer_shape(peer: System) -> tuple[int, int]:
    return peer.run().shape[0], peer.tokens


def from_annotated(peer: Annotated) -> nn.Module:
    from hf_gmlp import GMLPConfig, GMLPModel

    config = GMLPConfig(
        vocab_size=32,
        num_hidden_layers=len(peer.blocks),
        max_position_embeddings=peer.blocks[0].sgu.bias.shape[0],
        type_vocab_size=0,
        toeplitz=False,
        layer_norm_eps=1e-5,
    )
    model = GMLPModel(config, add_pooling_layer=False).eval()
    pairs = [(model.embeddings.word_embeddings, peer.embed), (model.norm, peer.norm)]
    for layer, block in zip(model.layers, peer.blocks):
        unit = layer.spatial_gating_unit
        pairs += [(layer.norm, block.norm), (layer.proj_in, block.proj1), (layer.proj_out, block.proj2)]
        pairs += [(unit.norm, block.sgu.norm), (unit.proj, block.sgu)]
    for module, their_module in pairs:
        for name, parameter in module.named_parameters():
            parameter.copy_(getattr(their_module, name))
    return model


def compare(what: str, ours: torch.Tensor, theirs: torch.Tensor, whose: str):
    ours, theirs = ours.detach(), theirs.detach()
    distance = float((ours - theirs).norm() / theirs.norm())
    # Single precision through many layers. Nothing but zeros would be no comparison, and gives NaN.
    if not distance < 2e-4:
        raise InputError(f"No times: {what} are {distance:.1e} away from {whose} (relative to their size).")


# ----------------------------------------------------------------------------------------------------------- measuring


def interleaved(steps: dict[str, Callable[[], object]], rounds: int, threads: int) -> dict[str, float]:
    """Seconds of every step: the median of the rounds, in each of which all steps have their turn."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = clock()
            step()
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def forward_step(system: System, run: Callable[[], torch.Tensor]) -> Callable[[], object]:
    def step():
        system.model.eval()
        with torch.no_grad():
            run()

    return step


def training_step(system: System, run: Callable[[], torch.Tensor]) -> Callable[[], object]:
    def step():
        system.model.train()
        run().square().mean().backward()
        system.model.zero_grad()

    return step


def products_step(batch: int, tokens: int, d: int, stem: int, layers: int, training: bool) -> Callable[[], object]:
    """
    The matrix products of a gMLP and nothing else, into memory that is there already: what no code around them can
    beat. `stem` is the width of a flattened patch, 0 without.
    """
    d_ffn, half, rows = 6 * d, 3 * d, batch * tokens
    spatial, v = torch.randn(tokens, tokens).expand(batch, -1, -1), torch.randn(batch, tokens, half)
    pairs = [(rows, d, d_ffn), (rows, half, d)]

    def make(rows: int, inner: int, columns: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        x, weight, y = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(rows, columns)
        forward = [(x, weight.T, y)]
        backward = [(y, weight, torch.empty_like(x)), (y.T, x, torch.empty_like(weight))]
        return forward + (backward if training else [])

    products = [product for pair in pairs for product in make(*pair)]
    # The input of a model needs no gradient.
    stem_products = make(rows, stem, d) if stem else []
    stem_products = stem_products[:1] + stem_products[2:]
    gate, square = torch.empty_like(v), torch.empty(batch, tokens, tokens)

    def step():
        for left, right, out in stem_products:
            torch.mm(left, right, out=out)
        for _ in range(layers):
            for left, right, out in products:
                torch.mm(left, right, out=out)
            torch.bmm(spatial, v, out=gate)
            if training:
                torch.bmm(spatial.transpose(1, 2), v, out=gate)
                torch.bmm(v, gate.transpose(1, 2), out=square)

    return step


def saved_bytes(build: Callable[[int], System]) -> float:
    """Bytes per token and layer that autograd keeps for the backward pass: what a second layer adds."""

    def of(layers: int) -> tuple[int, int]:
        system = build(layers)
        own = {parameter.untyped_storage().data_ptr() for parameter in system.model.parameters()}
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        system.model.train()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = system.run()
        # Alive until here, or an address could be counted once for two.
        return sum(kept.values()), output.shape[0] * system.tokens

    (small, tokens), (large, _) = of(1), of(2)
    return (large - small) / tokens


def resident_peak() -> float:
    """The most memory that this process has had so far, in MiB, by the operating system's account."""
    try:
        # Not `ru_maxrss`, which on Linux a process takes over from the one that started it.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.split("VmHWM:")[1].split()[0]) / 2**10
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def peak_memory(suite: str, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """MiB that this process has taken before the first training step, and at most."""
    layers, batch = sizes_of(suite, arguments)
    system = systems_of(suite, layers, batch, arguments.tokens)[name]()
    before = resident_peak()
    step = training_step(system, system.run)
    step()
    step()
    return {"before": before, "peak": resident_peak()}


def peak_in_fresh_process(suite: str, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    flags = ["--peak_of", suite, name, "--tokens", arguments.tokens, "--threads", arguments.threads]
    for option in ("batch", "layers"):
        if getattr(arguments, option) is not None:
            flags += [f"--{option}", getattr(arguments, option)]
    done = subprocess.run([sys.executable, __file__, *map(str, flags)], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"The process that tells the memory of {name} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


# -------------------------------------------------------------------------------------------------------------- suites


def sizes_of(suite: str, arguments: argparse.Namespace) -> tuple[int, int]:
    """Layers and batch size."""
    return arguments.layers or (30 if suite == "vision" else 6), arguments.batch or (8 if suite == "vision" else 2)


def model_suite(suite: str, arguments: argparse.Namespace) -> list[dict]:
    """Time forward and of a training step, memory, and the share of time spent in matrix products."""
    layers, batch = sizes_of(suite, arguments)
    builders = systems_of(suite, layers, batch, arguments.tokens)
    systems = {name: build() for name, build in builders.items()}
    for system in systems.values():
        system.model.eval()
    check_agreement(suite, systems)

    runs = {}
    for name, system in systems.items():
        runs[name] = torch.compile(system.run) if arguments.compiled else system.run
    tokens, d, stem = (196, 256, 768) if suite == "vision" else (arguments.tokens, 512, 0)
    found: dict[str, dict[str, tuple[float, str]]] = {name: {} for name in systems}
    for measure, make in (("forward", forward_step), ("training", training_step)):
        steps = {name: make(system, runs[name]) for name, system in systems.items()}
        steps["products"] = products_step(batch, tokens, d, stem, layers, measure == "training")
        times = interleaved(steps, arguments.rounds, arguments.threads)
        for name in systems:
            found[name][f"{measure} time"] = (times[name], "s")
            found[name][f"{measure} time / ours"] = (times[name] / times["ours"], "")
            if name.startswith("ours"):
                # What share of the time its matrix products alone would take.
                found[name][f"{measure} share of the ceiling"] = (times["products"] / times[name], "")
    for name in systems:
        # Of the two others, asking for one or two blocks gives the same model.
        if name not in ("ViT-S", "BERT"):
            saved = saved_bytes(partial(build_one, suite, name, arguments.tokens))
            found[name]["saved per token and layer"] = (saved, "bytes")
        if not arguments.skip_memory and not arguments.compiled:
            memory = peak_in_fresh_process(suite, name, arguments)
            found[name]["training peak memory"] = (memory["peak"], "MiB")
            found[name]["training memory above start"] = (memory["peak"] - memory["before"], "MiB")
    print_suite(suite, systems, found, batch)
    mode = "compiled" if arguments.compiled else "eager"
    return [
        {
            "suite": suite,
            "mode": mode,
            "system": name,
            "layers": system.layers,
            "parameters": system.parameters,
            "batch": batch,
            "tokens": system.tokens,
            "measure": measure,
            "value": value,
            "unit": unit,
        }
        for name, system in systems.items()
        for measure, (value, unit) in found[name].items()
    ]


def print_suite(suite: str, systems: dict[str, System], found: dict[str, dict[str, tuple[float, str]]], batch: int):
    tokens = next(iter(systems.values())).tokens
    print(f"\n{suite}, batch {batch}, {tokens} tokens; ratios are theirs / ours, above 1 where ours is better")
    head = (
        "system",
        "layers",
        "params",
        "forward",
        "ratio",
        "ceiling",
        "training",
        "ratio",
        "ceiling",
        "saved",
        "peak",
        "above start",
    )
    print("{:<26}{:>7}{:>9}{:>10}{:>7}{:>9}{:>10}{:>7}{:>9}{:>9}{:>10}{:>13}".format(*head))
    for name, system in systems.items():
        values = {measure: value for measure, (value, _) in found[name].items()}

        def show(measure: str, form: str) -> str:
            return form.format(values[measure]) if measure in values else "-"  # noqa: B023

        cells = [name, system.layers, f"{system.parameters / 1e6:.1f} M"]
        for kind in ("forward", "training"):
            cells += [show(f"{kind} time", "{:.3f} s"), show(f"{kind} time / ours", "{:.2f}")]
            cells.append(show(f"{kind} share of the ceiling", "{:.0%}"))
        cells += [show("saved per token and layer", "{:.0f} B")]
        cells += [show("training peak memory", "{:.0f} MiB"), show("training memory above start", "{:.0f} MiB")]
        print("{:<26}{:>7}{:>9}{:>10}{:>7}{:>9}{:>10}{:>7}{:>9}{:>9}{:>10}{:>13}".format(*cells))


def length_suite(arguments: argparse.Namespace) -> list[dict]:
    """The Toeplitz product by FFT and as a matrix, forward and with its gradients, as sequences grow."""
    from hf_gmlp.lean_gating import toeplitz_product_fft
    from hf_gmlp.spatial_gating import spatial_projection, toeplitz_matrix

    lengths = (256, 1024) if arguments.quick else (512, 1024, 2048, 4096, 8192)
    channels, rows = 384, []
    print(f"\nToeplitz product, batch 1, {channels} channels\n{'tokens':>7}{'forward':>24}{'with gradients':>24}")
    for length in lengths:
        weight = (torch.randn(2 * length - 1) * SPATIAL_NOISE).requires_grad_()
        bias, v = torch.ones(length), torch.randn(1, length, channels, requires_grad=True)
        grad = torch.randn(1, length, channels)

        def matrix() -> torch.Tensor:
            return spatial_projection(v, toeplitz_matrix(weight, length), bias)  # noqa: B023

        def fft() -> torch.Tensor:
            return toeplitz_product_fft(v, weight, bias)  # noqa: B023

        def forward(product: Callable[[], torch.Tensor]) -> torch.Tensor:
            with torch.no_grad():
                return product()

        def training(product: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(product(), (v, weight), grad)  # noqa: B023

        compare("our products by FFT", fft(), matrix(), "those of the matrix")
        for ours, theirs in zip(training(fft), training(matrix)):
            compare("our gradients by FFT", ours, theirs, "those of the matrix")
        line = f"{length:>7}"
        for measure, step in (("forward", forward), ("training", training)):
            steps = {"matrix": partial(step, matrix), "fft": partial(step, fft)}
            times = interleaved(steps, min(arguments.rounds, 3), arguments.threads)
            line += (
                f"{times['matrix'] * 1e3:>9.1f} / {times['fft'] * 1e3:.1f} ms{times['matrix'] / times['fft']:>6.1f}x"
            )
            base = {"suite": "length", "mode": "eager", "batch": 1, "tokens": length}
            for system, value in times.items():
                rows.append(base | {"system": system, "measure": f"{measure} time", "value": value, "unit": "s"})
            ratio = times["matrix"] / times["fft"]
            rows.append(base | {"system": "matrix", "measure": f"{measure} time / fft", "value": ratio, "unit": ""})
        print(line)
    return rows


def scaling_suite(arguments: argparse.Namespace) -> list[dict]:
    """Time per token of text models as tokens, batch and depth grow, everything else as it was."""
    quick = arguments.quick
    grown = {
        "tokens": (64, 128) if quick else (128, 256, 512, 1024, 2048),
        "batch": (1, 2) if quick else (1, 2, 4, 8),
        "layers": (1, 2) if quick else (2, 4, 8),
    }
    names = ("ours", "ours, plain", "lucidrains, circulant", "BERT")
    rows = []
    for what, values in grown.items():
        print(f"\nms per token and block, growing {what}\n{what:>7}" + "".join(f"{name:>34}" for name in names))
        for value in values:
            sizes = {"layers": 3, "batch": 2, "tokens": 64 if quick else 256} | {what: value}
            builders = systems_of("text", **sizes)
            systems = {name: builders[name]() for name in names}
            systems["ours, plain"].model.load_state_dict(systems["ours"].model.state_dict())
            with torch.no_grad():
                compare("our outputs", systems["ours"].run(), systems["ours, plain"].run(), "the plain path's")
            line = {name: "" for name in names}
            for measure, make in (("forward", forward_step), ("training", training_step)):
                steps = {name: make(system, system.run) for name, system in systems.items()}
                times = interleaved(steps, min(arguments.rounds, 3), arguments.threads)
                for name, system in systems.items():
                    per_token = times[name] / (sizes["batch"] * sizes["tokens"] * system.layers)
                    line[name] += f"{measure} {per_token * 1e3:.4f} "
                    rows.append(
                        {
                            "suite": f"scaling: {what}",
                            "mode": "eager",
                            "system": name,
                            "layers": system.layers,
                            "parameters": system.parameters,
                            "batch": sizes["batch"],
                            "tokens": sizes["tokens"],
                            "measure": f"{measure} time per token and layer",
                            "value": per_token,
                            "unit": "s",
                        }
                    )
            print(f"{value:>7}" + "".join(f"{text:>34}" for text in line.values()))
    return rows


# --------------------------------------------------------------------------------------------------------------- output


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write(path: Path, rows: list[dict], arguments: argparse.Namespace):
    import transformers

    common = {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "machine": f"{processor_name()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": arguments.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow(common | row | {"value": f"{row['value']:.6g}"})


def draw(path: Path, rows: list[dict]):
    """Times and memory of the others in units of ours, and what length costs."""
    from hf_gmlp.analysis.pictures import plt, save_picture

    suites = [suite for suite in ("vision", "text") if any(row["suite"] == suite for row in rows)]
    lengths = [row for row in rows if row["suite"] == "length" and row["measure"] == "forward time"]
    panels = len(suites) + bool(lengths)
    if not panels:
        return
    figure, axes = plt.subplots(1, panels, figsize=(5 * panels, 3.6), squeeze=False, layout="constrained")
    for axis, suite in zip(axes[0], suites):
        table: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["suite"] == suite:
                table.setdefault(row["system"], {})[row["measure"]] = row["value"]
        measures = {
            "forward time": "time forward",
            "training time": "time of a training step",
            "training memory above start": "memory of a training step",
        }
        measures = {measure: label for measure, label in measures.items() if measure in table["ours"]}
        names = list(table)[::-1]
        for i, (measure, label) in enumerate(measures.items()):
            ratios = [table[name][measure] / max(table["ours"][measure], 1e-9) for name in names]
            places = [place + 0.27 * (1 - i) for place in range(len(names))]
            axis.barh(places, ratios, height=0.25, label=label)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_yticks(range(len(names)), names)
        axis.set_xlabel("in units of ours")
        axis.set_title(suite)
        axis.legend(fontsize=7)
    if lengths:
        axis = axes[0][-1]
        for system, label in (("matrix", "as a matrix"), ("fft", "by FFT")):
            points = [(row["tokens"], row["value"] * 1e3) for row in lengths if row["system"] == system]
            axis.loglog(*zip(*points), marker="o", label=label)
        axis.set_xlabel("tokens")
        axis.set_ylabel("ms")
        axis.set_title("Toeplitz product, forward")
        axis.legend(fontsize=7)
    save_picture(figure, path)


if __name__ == "__main__":
    main()
