"""What gpu.py compares beside the models of systems.py: masked language models, parts alone, and compiled models."""

from collections.abc import Callable

import torch
from gpu_measure import Bench
from systems import OURS, SPATIAL_NOISE, System, far, fixed, fixed_ids
from torch import nn
from torch.nn import functional as F

from hf_gmlp import GMLPConfig, GMLPForMaskedLM
from hf_gmlp.kernels.triton import can_use_triton, gating_backward, gating_forward
from hf_gmlp.models.modeling_gmlp import GMLPBlock
from hf_gmlp.models.spatial_gating import SpatialGatingUnit

# The share of tokens that is masked, as in BERT.
MASKED = 0.15
IGNORED = -100


def our_forms(bench: Bench) -> list[str]:
    """Values of `gating_implementation` that do something of their own here."""
    if can_use_triton(bench.device):
        return ["naive", "lean", "triton"]
    print("Left out: ours, triton, since it needs the package triton and an NVIDIA GPU.")
    return ["naive", "lean"]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The largest list of modules of one kind."""
    lists = [
        module
        for module in model.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len({type(child) for child in module}) == 1
    ]
    return list(max(lists, key=lambda module: sum(parameter.numel() for parameter in module.parameters())))


def compiled(bench: Bench, system: System) -> System:
    """The system with its blocks, or the whole model, compiled."""
    for module in [system.model] if bench.arguments.compile == "model" else blocks_of(system.model):
        # Sizes are constants: with the first other size, they would become variables, and products slower.
        module.compile(backend=bench.arguments.backend, dynamic=False)
    system.name = system.name.removesuffix(", plain") + ", compiled"
    return system


# ------------------------------------------------------------------------------------------------------------- models


class MaskedLM(nn.Module):
    """A trunk with the masked language model's head of BERT and ours, at the labeled positions only."""

    def __init__(self, hidden: Callable[..., torch.Tensor], trunk: nn.Module, embeddings: nn.Embedding):
        super().__init__()
        vocabulary, width = embeddings.weight.shape
        self.trunk, self.hidden = trunk, hidden
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = embeddings.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labeled = labels != IGNORED
        logits = self.decoder(self.head(self.hidden(self.trunk, ids)[labeled]))
        return F.cross_entropy(logits.float(), labels[labeled]), logits


def masked_labels(ids: torch.Tensor) -> torch.Tensor:
    """As many positions in each text, so that work grows with the number of texts."""
    count = max(1, int(MASKED * ids.shape[1]))
    places = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)).argsort(1)[:, :count]
    return torch.full_like(ids, IGNORED).scatter(1, places, ids.gather(1, places))


def text_sizes(bench: Bench) -> dict:
    sizes = {name: getattr(bench.arguments, name) for name in ("layers", "batch", "tokens")}
    return sizes | {"vocabulary": 64 if bench.quick else 32000, "device": bench.device.type}


def build_ours(bench: Bench, implementation: str) -> System:
    sizes = text_sizes(bench)
    config = GMLPConfig.from_preset(
        "gmlp-base",
        num_hidden_layers=sizes["layers"],
        max_position_embeddings=sizes["tokens"],
        vocab_size=sizes["vocabulary"],
        sparse_prediction=True,
        gating_implementation=implementation,
    )
    with bench.device:
        model = far(GMLPForMaskedLM(config), "spatial_gating_unit.proj.weight")
    return masked_system(
        OURS[implementation], model, lambda *inputs: model(inputs[0], labels=inputs[1]).to_tuple(), sizes
    )


def build_masked(bench: Bench, build: Callable[..., System], **changes) -> System:
    """A peer with the head that ours has."""
    sizes = text_sizes(bench) | changes
    trunk = build(**sizes)
    embeddings = next(module for module in trunk.model.modules() if isinstance(module, nn.Embedding))
    if trunk.name.startswith("lucidrains"):
        # What is left is the final norm.
        trunk.model.to_logits = trunk.model.to_logits[0]

    def hidden(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        output = model(ids)
        return output if isinstance(output, torch.Tensor) else output.last_hidden_state

    with bench.device:
        model = MaskedLM(hidden, trunk.model, embeddings)
    return masked_system("BERT-base" if trunk.name == "BERT" else trunk.name, model, model, sizes)


def masked_system(name: str, model: nn.Module, call: Callable[..., tuple], sizes: dict) -> System:
    """`call(ids, labels)` is (loss, logits)."""
    ids = fixed_ids(sizes["batch"], sizes["tokens"], sizes["vocabulary"])
    labels = masked_labels(ids).to(sizes["device"])
    ids = ids.to(sizes["device"])
    return System(
        name,
        model,
        lambda count=None: call(ids[:count], labels[:count])[1],
        sizes["layers"],
        sizes["tokens"],
        loss=lambda count=None: call(ids[:count], labels[:count])[0],
    )


def with_labels(bench: Bench, system: System) -> System:
    labels = torch.randint(1000, (bench.arguments.images,), generator=torch.Generator().manual_seed(2)).to(bench.device)
    system.loss = lambda count=None: F.cross_entropy(system.run(count).float(), labels[:count])
    return system


# -------------------------------------------------------------------------------------------------------- parts alone


class Alone(nn.Module):
    """
    A block, or its GELU and spatial gating unit, with its inputs, so that their gradients are looked at too. The unit's
    are the halves u and v of Z before the GELU, apart, as the lean and the Triton form have them.
    """

    def __init__(self, block: GMLPBlock, inputs: list[torch.Tensor], form: str):
        super().__init__()
        self.inputs = nn.ParameterList(inputs)
        self.part = block if len(inputs) == 1 else block.spatial_gating_unit
        self.form = form

    def forward(self, count: int | None = None) -> torch.Tensor:
        # The whole of an input is no slice, whose gradient would be copied.
        inputs = [x if count is None else x[:count] for x in self.inputs]
        if len(inputs) == 1:
            return self.part(*inputs)
        device = inputs[0].device.type
        if torch.is_autocast_enabled(device):
            # As they come from a product. When times are taken, they are so already.
            inputs = [x.to(torch.bfloat16) for x in inputs]
        return (triton_unit if self.form == "triton" else plain_unit)(self.part, *inputs)


def plain_unit(unit: SpatialGatingUnit, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(u) * unit.proj(unit.norm(F.gelu(v)), unit.config.is_causal)


def triton_unit(unit: SpatialGatingUnit, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    parameters = unit.norm.weight, unit.norm.bias, unit.proj.weight, unit.proj.bias
    if torch.is_grad_enabled():
        return TritonUnit.apply(unit, u, v, *parameters)
    return gating_forward(u, v, *arguments_of(unit, parameters), **form_of(unit), needs_gate=False)[0]


def arguments_of(unit: SpatialGatingUnit, parameters: tuple[torch.Tensor, ...]) -> tuple:
    return *parameters[:2], unit.norm.eps, *parameters[2:]


def form_of(unit: SpatialGatingUnit) -> dict:
    return {"spatial_gating": "split", "toeplitz": unit.proj.toeplitz, "causal": unit.config.is_causal}


class TritonUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, unit, u, v, *parameters):
        gated, gate = gating_forward(u, v, *arguments_of(unit, parameters), **form_of(unit))
        ctx.unit = unit
        ctx.save_for_backward(u, v, gate, *parameters)
        return gated

    @staticmethod
    def backward(ctx, grad):
        u, v, gate, *parameters = ctx.saved_tensors
        arguments = arguments_of(ctx.unit, parameters)
        # What was gated is wanted by the product behind the unit, which is not here.
        found = gating_backward(grad, u, v, gate, *arguments, **form_of(ctx.unit), needs_gated=False)
        return None, found.u, found.v, found.norm_weight, found.norm_bias, found.weight, found.bias


def build_alone(
    bench: Bench, what: str, form: str, batch: int, tokens: int, channels: int, kind: str, compile: bool = False
) -> System:
    config = GMLPConfig(
        hidden_size=channels // 3,
        intermediate_size=2 * channels,
        max_position_embeddings=tokens,
        toeplitz=kind != "dense",
        is_causal=kind == "causal",
        gating_implementation="naive" if what == "unit" else form,
    )
    block = GMLPBlock(config)
    block.spatial_gating_unit.proj.reset_parameters(SPATIAL_NOISE)
    width = channels if what == "unit" else channels // 3
    both = fixed(2, batch, tokens, width, device=bench.device)
    model = Alone(block, [x.clone() for x in both] if what == "unit" else [both[0].clone()], form).to(bench.device)
    system = System(f"{what}, " + OURS[form].removeprefix("ours, "), model, model, 1, tokens, loss=model)
    system.cotangent = fixed(batch, tokens, width, device=bench.device)
    if compile:
        model.compile(backend=bench.arguments.backend, dynamic=False)
        system.name = f"{what}, compiled"
    return system
