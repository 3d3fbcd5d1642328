"""Whether the compared systems compute the same: no time is taken of a wrong result."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from peers import ANNOTATED, CIRCULANT, DENSE, SPATIAL_NOISE, TIMM, Annotated, System, base_of, fixed, output_of
from torch import nn

from hf_gmlp.errors import InputError

# Forty-eight layers in single precision differ by 5e-6 from each other; TF32 is beyond this.
FLOAT32_DISTANCE = 2e-4
# Under autocast, how much farther than the plain form another may be from the truth: with all gradients as one vector,
# and with those of one kind of parameter, which may be few numbers.
BF16_FACTOR, BF16_FACTOR_OF_A_KIND = 1.3, 2.0
# Samples on which forms are compared.
SAMPLES = 2


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative to the size of the reference. If that is zero, which would be no comparison, the distance is NaN."""
    value, reference = value.detach(), reference.detach()
    return float((value - reference).norm() / reference.norm())


def compare(what: str, value: torch.Tensor, reference: torch.Tensor, whose: str):
    """
    Raises:
        InputError: If the value is farther from the reference than single precision through many layers explains.
    """
    apart = distance(value, reference)
    if not apart < FLOAT32_DISTANCE:
        raise InputError(f"No times: {what} are {apart:.1e} away from {whose}, relative to their size.")


# -------------------------------------------------------------------------------------------------------------- peers


@torch.no_grad()
def check_peers(systems: dict[str, System]):
    """
    Raises:
        InputError: If a peer's output differs from that of the model that hf_gmlp converts its weights to.
    """
    for name, peer in systems.items():
        if model := converted(name, peer.model):
            expected = output_of(model.eval().to(peer.inputs.device)(peer.inputs))
            compare(f"the outputs of {name}", peer.run(), expected, "those of hf_gmlp with the same weights")


def converted(name: str, peer: nn.Module) -> nn.Module | None:
    """The model of hf_gmlp with the weights of a peer, if that is a gMLP."""
    from hf_gmlp.conversion.lucidrains import model_from_lucidrains
    from hf_gmlp.conversion.timm import model_from_timm

    weights = {key: value.cpu() for key, value in peer.state_dict().items()}
    if name == TIMM:
        return model_from_timm(weights)
    if name in (CIRCULANT, DENSE):
        return model_from_lucidrains(weights)[0]
    return model_from_annotated(peer) if name == ANNOTATED else None


def model_from_annotated(peer: Annotated) -> nn.Module:
    from hf_gmlp import GMLPConfig, GMLPModel

    config = GMLPConfig(
        vocab_size=peer.embed.num_embeddings,
        num_hidden_layers=len(peer.blocks),
        max_position_embeddings=peer.blocks[0].sgu.bias.shape[0],
        type_vocab_size=0,
        toeplitz=False,
        layer_norm_eps=1e-5,
    )
    model = GMLPModel(config, add_pooling_layer=False)
    pairs = [(model.embeddings.word_embeddings, peer.embed), (model.norm, peer.norm)]
    for layer, block in zip(model.layers, peer.blocks):
        unit = layer.spatial_gating_unit
        pairs += [(layer.norm, block.norm), (layer.proj_in, block.proj1), (layer.proj_out, block.proj2)]
        pairs += [(unit.norm, block.sgu.norm), (unit.proj, block.sgu)]
    for module, source in pairs:
        for name, parameter in module.named_parameters():
            parameter.copy_(getattr(source, name))
    return model


# -------------------------------------------------------------------------------------------------------------- forms


def check_forms(bench, suite: str, systems: dict[str, System]):
    """
    Compares outputs and gradients of every form of hf_gmlp with those of the plain one, after copying its weights: in
    single precision, and if the bench runs under autocast also there, where both are compared with the plain form in
    single precision. A wrong form is taken out of `systems`, and `bench.fault` decides what follows.
    """
    references: dict[str, list[tuple]] = {}
    precisions = (False, True) if bench.autocast else (False,)
    for name in list(systems):
        family, _, form = name.partition(", ")
        if family not in ("hf_gmlp", "unit", "block") or form == "plain":
            continue
        try:
            reference = systems.get(f"{family}, plain")
            if reference is None:
                raise InputError("No times: the plain form, with which it would be compared, is missing.")
            if family not in references:
                references[family] = [values_of(bench, reference, autocast) for autocast in precisions]
            truth = references[family][0]
            systems[name].model.load_state_dict(reference.model.state_dict())
            with kernels_launched() if form == "triton" else nullcontext(["not counted"]) as launched:
                output, gradients = values_of(bench, systems[name], autocast=False)
            if not launched:
                raise InputError("No times: no Triton kernel of hf_gmlp ran, so that another form would be timed.")
            compare(f"the outputs of {name}", output, truth[0], "those of the plain form")
            for key, gradient in gradients.items():
                compare(f"the gradients of {key} of {name}", gradient, truth[1][key], "those of the plain form")
            if bench.autocast:
                check_bf16(name, values_of(bench, systems[name], autocast=True), references[family][1], truth)
        except Exception as error:
            del systems[name]
            bench.fault(f"{suite}: {name} is left out", error)


def values_of(bench, system: System, autocast: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Output and gradients."""
    system.model.zero_grad()
    with torch.autocast(bench.device.type, torch.bfloat16, enabled=autocast):
        # Without gradients, the faster forms run other code. A compiled model does not, and would be compiled again.
        with torch.set_grad_enabled(system.name != base_of(system.name)):
            output = system.run(SAMPLES).detach()
        loss = system.loss(SAMPLES)
    system.backward(loss, SAMPLES)
    gradients = {name: parameter.grad.float() for name, parameter in system.model.named_parameters()}
    system.model.zero_grad()
    return output.float(), gradients


@contextmanager
def kernels_launched() -> Iterator[list[str]]:
    """The names of the package's Triton kernels as they are launched."""
    from hf_gmlp.kernels import triton as triton_kernels

    kernel = next(
        type(value) for value in vars(triton_kernels).values() if hasattr(value, "run") and hasattr(value, "fn")
    )
    launched, run = [], kernel.run

    def counted(self, *args, **kwargs):
        launched.append(self.fn.__name__)
        return run(self, *args, **kwargs)

    kernel.run = counted
    try:
        yield launched
    finally:
        kernel.run = run


def check_bf16(name: str, values: tuple, plain: tuple, truth: tuple):
    """
    Raises:
        InputError: If the outputs or gradients are too much farther from the truth than the plain form's.
    """
    kinds: dict[str, list[str]] = {}
    for key in truth[1]:
        # The parameters of one name in all blocks are one kind.
        kinds.setdefault(".".join(part for part in key.split(".") if not part.isdigit()), []).append(key)

    def joined(keys: list[str]) -> list[torch.Tensor]:
        return [torch.cat([gradients[key].flatten() for key in keys]) for _, gradients in (values, plain, truth)]

    found = [("outputs", BF16_FACTOR, [values[0], plain[0], truth[0]])]
    found.append(("gradients", BF16_FACTOR, joined(list(truth[1]))))
    found += [(f"gradients of {kind}", BF16_FACTOR_OF_A_KIND, joined(keys)) for kind, keys in kinds.items()]
    for what, factor, (own, other, true) in found:
        apart, allowed = distance(own, true), factor * distance(other, true)
        # A form that computes exactly what the plain one does may be as far away.
        if not apart <= allowed:
            raise InputError(
                f"No times: under bf16 autocast, the {what} of {name} are {apart:.1e} away from the truth. {factor} "
                f"times the plain form's distance is {allowed:.1e}."
            )


# --------------------------------------------------------------------------------------------------- Toeplitz products


def toeplitz_forms(
    batch: int, length: int, channels: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> dict[str, tuple[Callable[[], torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]]:
    """
    The Toeplitz product with a matrix in `dtype` and by FFT, each as a function without and one with gradients.

    Raises:
        InputError: If they differ in single precision.
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
    compare("the products by FFT", forward(fft, one), forward(matrix, one), "those of the matrix")
    for found, expected in zip(training(fft, one, one_grad), training(matrix, one, one_grad)):
        compare("the gradients by FFT", found, expected, "those of the matrix")
    v, grad = v.to(dtype).requires_grad_(), grad.to(dtype)
    return {
        name: (partial(forward, form, v), partial(training, form, v, grad))
        for name, form in (("matrix", matrix), ("fft", fft))
    }
