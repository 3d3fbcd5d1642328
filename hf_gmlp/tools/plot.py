"""`hf-gmlp plot`: plots of what a checkpoint has learned."""

from ..errors import InputError
from .analysis.attention import load_attentive_model, plot_attention
from .analysis.filters import head_names, load_spatial_model, plot_filters
from .analysis.toeplitz import plot_matrices, random_fraction


def filters(checkpoint: str, max_layers: int | None, output: str) -> list[str]:
    plot_filters(load_spatial_model(checkpoint), output, max_layers=max_layers)
    return [f"The picture is in {output}."]


def matrices(checkpoint: str, output: str) -> list[str]:
    model = load_spatial_model(checkpoint)
    if model.config.model_type == "gmlp_vision":
        raise InputError(f"{checkpoint} is an image model: plot its filters, since matrices are for text models.")
    fractions, names = plot_matrices(model, output), head_names(model)
    lines = [f"{name:<{len(names[-1])}}  {fraction:.4f}" for name, fraction in zip(names, fractions)]
    chance = random_fraction(model.config.max_position_embeddings)
    mean = f"mean {sum(fractions) / len(fractions):.4f}, random weights {chance:.4f}"
    return [*lines, mean, f"The picture is in {output}."]


def attention(checkpoint: str, sentences: list[str], output: str) -> list[str]:
    if len(sentences) > 2:
        raise InputError(f"Got {len(sentences)} sentences: pass one or two, each in quotation marks.")
    plot_attention(*load_attentive_model(checkpoint), *sentences, path=output)
    return [f"The picture is in {output}."]
