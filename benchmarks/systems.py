"""What the benchmarks of models compare, that it computes the same, and how its time and memory are taken."""

import csv
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The package, where it is not installed.
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from hf_gmlp.errors import InputError  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
# The columns that say what was measured; those in front of them say where.
MEASURED = "suite mode system layers parameters batch tokens measure value unit".split()
# How far from their initial values the spatial weights are while outputs are compared and times taken.
SPATIAL_NOISE = 0.02
# How our forms are called in tables.
OURS = {"naive": "ours, plain", "lean": "ours, lean", "triton": "ours, triton"}


@dataclass
class System:
    """
    One model and what it is fed with.

    Attributes:
        run: run() is the output, run(count) that for the first `count` samples.
        layers, tokens: How many layers the model has, and how many tokens a sample.
        loss: loss() or loss(count) is what a training step differentiates; `objective` of the output by default.
        cotangent: The gradient of `loss()`, where that is no scalar.
    """

    name: str
    model: nn.Module
    run: Callable[..., torch.Tensor]
    layers: int
    tokens: int
    loss: Callable[..., torch.Tensor] | None = None
    cotangent: torch.Tensor | None = None

    def __post_init__(self):
        if self.loss is None:
            self.loss = lambda *count: objective(self.run(*count))

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def row(self, batch: int, mode: str = "eager") -> dict:
        """What the columns of a table say of the system."""
        sizes = {"layers": self.layers, "parameters": self.parameters, "batch": batch, "tokens": self.tokens}
        return {"mode": mode, "system": self.name} | sizes


def objective(output: torch.Tensor) -> torch.Tensor:
    """Something to train on. Not the mean square: after a LayerNorm that is constant, and gradients are rounding."""
    return output.pow(3).mean()


# ----------------------------------------------------------------------------------------------------- the systems


def build_vision(implementation: str, layers: int, batch: int, device: str = "cpu") -> System:
    from hf_gmlp import GMLPForImageClassification, GMLPVisionConfig

    config = GMLPVisionConfig(
        num_hidden_layers=layers, pooling="mean", num_labels=1000, gating_implementation=implementation
    )
    with torch.device(device):
        model = far(GMLPForImageClassification(config), "spatial_gating_unit.proj.weight")
    pixels = fixed(batch, 3, 224, 224, device=device)
    return System(OURS[implementation], model, lambda count=None: model(pixels[:count]).logits, layers, 196)


def build_timm(layers: int, batch: int, device: str = "cpu") -> System:
    import timm

    with torch.device(device):
        model = far(timm.create_model("gmlp_s16_224"), "gate.proj.weight")
    model.blocks = model.blocks[:layers]
    # Zero in a new model, and so would all outputs be.
    nn.init.normal_(model.head.weight, std=0.02)
    pixels = fixed(batch, 3, 224, 224, device=device)
    return System("timm gmlp_s16", model, lambda count=None: model(pixels[:count]), layers, 196)


def build_vit(layers: int, batch: int, device: str = "cpu") -> System:
    from transformers import ViTConfig, ViTForImageClassification

    # ViT-S has 12 layers where gMLP-S has 30.
    layers = max(1, round(layers * 12 / 30))
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=layers, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    with torch.device(device):
        model = ViTForImageClassification(config)
    pixels = fixed(batch, 3, 224, 224, device=device)
    return System("ViT-S", model, lambda count=None: model(pixels[:count]).logits, layers, 197)


def build_text(
    implementation: str, layers: int, batch: int, tokens: int, vocabulary: int = 32, device: str = "cpu"
) -> System:
    from hf_gmlp import GMLPConfig, GMLPModel

    config = GMLPConfig(
        num_hidden_layers=layers,
        max_position_embeddings=tokens,
        vocab_size=vocabulary,
        type_vocab_size=0,
        gating_implementation=implementation,
    )
    with torch.device(device):
        model = far(GMLPModel(config, add_pooling_layer=False), "spatial_gating_unit.proj.weight")
    ids = fixed_ids(batch, tokens, vocabulary).to(device)
    return System(OURS[implementation], model, lambda count=None: model(ids[:count]).last_hidden_state, layers, tokens)


def build_lucidrains(
    circulant: bool, layers: int, batch: int, tokens: int, vocabulary: int = 32, device: str = "cpu"
) -> System:
    import g_mlp_pytorch

    with torch.device(device):
        model = g_mlp_pytorch.gMLP(
            num_tokens=vocabulary, dim=512, depth=layers, seq_len=tokens, ff_mult=6, circulant_matrix=circulant
        )
        far(model, "sgu.weight")
    ids = fixed_ids(batch, tokens, vocabulary).to(device)
    name = "lucidrains, circulant" if circulant else "lucidrains, dense"
    return System(name, model, lambda count=None: model(ids[:count]), layers, tokens)


class Annotated(nn.Module):
    """Blocks in the form of labml.ai's annotated implementation, tokens first."""

    def __init__(self, layers: int, tokens: int, vocabulary: int):
        super().__init__()
        from tests.peers.annotated import AnnotatedGMLPBlock

        self.embed = nn.Embedding(vocabulary, 512)
        self.blocks = nn.Sequential(*(AnnotatedGMLPBlock(512, 3072, tokens) for _ in range(layers)))
        self.norm = nn.LayerNorm(512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.embed(ids.T))).transpose(0, 1)


def build_annotated(layers: int, batch: int, tokens: int, vocabulary: int = 32, device: str = "cpu") -> System:
    with torch.device(device):
        model = far(Annotated(layers, tokens, vocabulary), "sgu.weight")
    ids = fixed_ids(batch, tokens, vocabulary).to(device)
    return System("annotated (labml's form)", model, lambda count=None: model(ids[:count]), layers, tokens)


def build_bert(layers: int, batch: int, tokens: int, vocabulary: int = 32, device: str = "cpu") -> System:
    """BERT with `layers` layers of BERT-base."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        max_position_embeddings=tokens,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.device(device):
        model = BertModel(config, add_pooling_layer=False)
    ids = fixed_ids(batch, tokens, vocabulary).to(device)
    return System("BERT", model, lambda count=None: model(ids[:count]).last_hidden_state, layers, tokens)


@torch.no_grad()
def far(model: nn.Module, spatial: str) -> nn.Module:
    """Spatial weights that matter: near zero, as they start, a wrong W would not be seen."""
    for name, parameter in model.named_parameters():
        if name.endswith(spatial):
            generator = torch.Generator(parameter.device).manual_seed(3)
            noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
            parameter.add_(noise, alpha=SPATIAL_NOISE)
    return model


def fixed(*shape: int, device: str | torch.device = "cpu") -> torch.Tensor:
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(1))


def fixed_ids(batch: int, tokens: int, vocabulary: int = 32) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(1))


def toeplitz_forms(
    batch: int, length: int, channels: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> dict[str, tuple[Callable[[], torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]]:
    """
    The Toeplitz product with a matrix in `dtype` and by FFT, each as what computes it without and with gradients. They
    agree in single precision.

    Raises:
        InputError: If they do not.
    """
    from hf_gmlp.kernels.fft import toeplitz_product_fft
    from hf_gmlp.models.spatial_gating import spatial_matrix

    weight = (fixed(2 * length - 1) * SPATIAL_NOISE).to(device).requires_grad_()
    bias, v = torch.ones(length, device=device), fixed(batch, length, channels, device=device)
    grad = torch.randn_like(v)

    def matrix(v: torch.Tensor) -> torch.Tensor:
        w = spatial_matrix(weight, length).to(v.dtype)
        return torch.baddbmm(bias[:, None].to(v.dtype), w.expand(v.shape[0], -1, -1), v)

    def fft(v: torch.Tensor) -> torch.Tensor:
        return toeplitz_product_fft(v, weight, bias.to(v.dtype))

    def forward(form: Callable, v: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return form(v)

    def training(form: Callable, v: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(form(v), (v, weight), grad)

    one, one_grad = v[:1].clone().requires_grad_(), grad[:1]
    compare("our products by FFT", forward(fft, one), forward(matrix, one), "those of the matrix")
    for ours, theirs in zip(training(fft, one, one_grad), training(matrix, one, one_grad)):
        compare("our gradients by FFT", ours, theirs, "those of the matrix")
    v, grad = v.to(dtype).requires_grad_(), grad.to(dtype)
    return {
        name: (partial(forward, form, v), partial(training, form, v, grad))
        for name, form in (("matrix", matrix), ("fft", fft))
    }


# --------------------------------------------------------------------------------------------------- the same results


def check_agreement(systems: dict[str, System]):
    """
    Compares "ours" and "ours, plain" with each other, and our model with every peer there is a conversion from.

    Raises:
        InputError: If our fast model and our plain one differ, or our model and a peer's with the same weights.
    """
    ours, plain = systems["ours"], systems["ours, plain"]
    plain.model.load_state_dict(ours.model.state_dict())
    compare("our outputs", ours.run(), plain.run(), "the plain path's")
    gradients = []
    for system in (ours, plain):
        system.model.zero_grad()
        system.loss().backward()
        gradients.append([parameter.grad for parameter in system.model.parameters()])
        system.model.zero_grad()
    for (name, _), fast, slow in zip(ours.model.named_parameters(), *gradients):
        compare(f"our gradients of {name}", fast, slow, "the plain path's")

    from hf_gmlp.conversion.lucidrains import model_from_lucidrains
    from hf_gmlp.conversion.timm import model_from_timm

    for name, peer in systems.items():
        theirs = peer.run
        with torch.no_grad():
            weights = {key: value.cpu() for key, value in peer.model.state_dict().items()}
            device = next(peer.model.parameters()).device
            if name.startswith("timm"):
                model = model_from_timm(weights)
                # So that the very models that are timed agree.
                ours.model.load_state_dict(model.state_dict())
                plain.model.load_state_dict(model.state_dict())
                output = ours.run()
            elif name.startswith("lucidrains"):
                model = model_from_lucidrains(weights)[0].eval().to(device)
                output = model(fixed_ids(*peer_shape(peer)).to(device)).logits
            elif name.startswith("annotated"):
                model = from_annotated(peer.model).to(device)
                output = model(fixed_ids(*peer_shape(peer)).to(device)).last_hidden_state
            else:
                continue
            compare("our outputs", output, theirs(), f"those of {name} with the same weights")


def peer_shape(peer: System) -> tuple[int, int]:
    return peer.run().shape[0], peer.tokens


def from_annotated(peer: Annotated) -> nn.Module:
    from hf_gmlp import GMLPConfig, GMLPModel

    config = GMLPConfig(
        vocab_size=peer.embed.num_embeddings,
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


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative to the size of theirs. Nothing but zeros would be no comparison, and gives NaN."""
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).norm() / theirs.norm())


def compare(what: str, ours: torch.Tensor, theirs: torch.Tensor, whose: str):
    """
    Raises:
        InputError: If ours is farther from theirs than single precision through many layers explains.
    """
    apart = distance(ours, theirs)
    # Forty-eight layers make 5e-6 of it; TF32 is beyond.
    if not apart < 2e-4:
        raise InputError(f"No times: {what} are {apart:.1e} away from {whose} (relative to their size).")


# ----------------------------------------------------------------------------------------------------------- measuring


def cpu_seconds(step: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


def cpu_timer(threads: int) -> Callable[[Callable[[], object]], float]:
    """Seconds of a step: with one thread its CPU time, with more the time that passes."""
    return partial(cpu_seconds, clock=time.thread_time if threads == 1 else time.perf_counter)


def all_rounds(
    steps: dict[str, Callable[[], object]], rounds: int, seconds: Callable[[Callable[[], object]], float]
) -> dict[str, list[float]]:
    """Seconds of every step in every round, in each of which all steps have their turn."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(seconds(step))
    return times


def interleaved(
    steps: dict[str, Callable[[], object]], rounds: int, seconds: Callable[[Callable[[], object]], float]
) -> dict[str, float]:
    """Seconds of every step: the median of the rounds."""
    return {name: statistics.median(values) for name, values in all_rounds(steps, rounds, seconds).items()}


def saved_bytes(build: Callable[[int], System], precision: Callable[[], AbstractContextManager] = nullcontext) -> float:
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
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), precision():
            output = system.run()
        # Alive until here, or an address could be counted once for two.
        return sum(kept.values()), output.shape[0] * system.tokens

    (small, tokens), (large, _) = of(1), of(2)
    return (large - small) / tokens


# --------------------------------------------------------------------------------------------------------------- output


def write(path: Path, rows: list[dict], common: dict):
    """Adds rows to a table, `common` in front of each, and makes the table if there is none."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*common, *MEASURED], restval="")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow(common | row | {"value": f"{row['value']:.6g}"})


def draw_bars(axis, bars: dict[str, dict[str, float]], xlabel: str, title: str):
    """Horizontal bars, a group for each system: label -> system -> value; a system may lack some."""
    names = list(dict.fromkeys(name for values in bars.values() for name in values))[::-1]
    height = 0.8 / len(bars)
    for i, (label, values) in enumerate(bars.items()):
        places = [names.index(name) + height * ((len(bars) - 1) / 2 - i) for name in values]
        axis.barh(places, list(values.values()), height=0.92 * height, label=label)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel(xlabel)
    axis.set_title(title)
    # Below: bars may be anywhere.
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(bars), frameon=False)


def draw_lengths(axis, rows: list[dict]):
    """What the Toeplitz product costs as a matrix and by FFT as texts grow."""
    for system, label in (("matrix", "as a matrix"), ("fft", "by FFT")):
        points = [(row["tokens"], row["value"] * 1e3) for row in rows if row["system"] == system]
        axis.loglog(*zip(*points), marker="o", label=label)
    name_sizes(axis, [row["tokens"] for row in rows])
    axis.set_xlabel("tokens")
    axis.set_ylabel("ms")
    axis.set_title("Toeplitz product, forward")
    axis.legend(fontsize=7)


def name_sizes(axis, sizes: list[int]):
    """The sizes that were measured, on a logarithmic axis of x."""
    axis.set_xticks(sorted(set(sizes)), [f"{size:,}" for size in sorted(set(sizes))])
    axis.minorticks_off()
