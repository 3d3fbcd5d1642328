"""The tiny attention of an aMLP over a sentence or a pair (paper, Appendix D and Figure 10)."""

from pathlib import Path

import torch
from transformers import AutoModel, PreTrainedTokenizerBase

from hf_gmlp.errors import InputError
from hf_gmlp.loading import open_model, open_tokenizer
from hf_gmlp.models.modeling_gmlp import GMLPModel
from hf_gmlp.tokenizer import padding_for

from .pictures import plt, save_picture


def load_attentive_model(checkpoint: str | Path) -> tuple[GMLPModel, PreTrainedTokenizerBase]:
    """Load an aMLP for text without its head, and its tokenizer, or raise an InputError for another model."""
    # Only eager attention returns its weights.
    model = open_model(AutoModel, checkpoint, new_head=True, attn_implementation="eager")
    if not isinstance(model, GMLPModel) or not model.config.attention_size:
        raise InputError(f"{checkpoint} has no attention to plot: choose an aMLP for text (attention_size > 0).")
    return model.eval(), open_tokenizer(checkpoint)


@torch.no_grad()
def largest_attention(
    model: GMLPModel, tokenizer: PreTrainedTokenizerBase, first: str, second: str | None = None
) -> tuple[list[str], list[int], torch.Tensor]:
    """Find, for every pair of tokens, the largest attention weight over the first half of the blocks.

    For a model with visible padding (`mask_padding=False`, as in the paper), the sentences are padded to n tokens as in
    its training. The result leaves the padding out.

    Args:
        model: An aMLP for text in eval mode, with eager attention.
        tokenizer: The model's tokenizer.
        first, second: A sentence, or a pair of them.

    Returns:
        The tokens, with [CLS] and [SEP]; the segment of each; the weights [m, m], from the query (rows) to the key
        (columns).
    """
    n = model.config.max_position_embeddings
    length = len(tokenizer(first, second)["input_ids"])
    if length > n:
        raise InputError(f"The sentences have {length} tokens, but the model has {n} positions: pass shorter ones.")
    padding = {"padding": padding_for(model.config), "max_length": n}
    inputs = tokenizer(first, second, return_token_type_ids=True, return_tensors="pt", **padding)
    segments = inputs["token_type_ids"]
    if not model.config.type_vocab_size:
        del inputs["token_type_ids"]
    attentions = model(**inputs, output_attentions=True).attentions
    # Each block has one head: [L / 2, 1, 1, m, m].
    weights = torch.stack(attentions[: max(1, len(attentions) // 2)]).float().amax(dim=0)[0, 0]
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    return tokens[:length], segments[0, :length].tolist(), weights[:length, :length].cpu()


def plot_attention(
    model: GMLPModel, tokenizer: PreTrainedTokenizerBase, first: str, second: str | None = None, *, path: str | Path
) -> None:
    """Plot the paper's Figure 10: `largest_attention`, with the tokens on both axes and lines between the sentences."""
    tokens, segments, weights = largest_attention(model, tokenizer, first, second)
    # Leave out SentencePiece's mark of a word's beginning. `parse_math=False` prints dollar signs as they are.
    names = [token.replace("\u2581", "").strip() or "(space)" for token in tokens]
    size = max(7.0, 0.15 * len(tokens))
    figure, axis = plt.subplots(figsize=(size, size + 1), layout="constrained")
    image = axis.imshow(weights, cmap="Blues", vmin=0, vmax=weights.max().item(), interpolation="nearest")
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7, parse_math=False)
    axis.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
    for i in range(1, len(tokens)):
        if segments[i] != segments[i - 1]:
            axis.axhline(i - 0.5, color="black", linewidth=0.8)
            axis.axvline(i - 0.5, color="black", linewidth=0.8)
    axis.set_xlabel("key", fontsize=9)
    axis.set_ylabel("query", fontsize=9)
    depth = model.config.num_hidden_layers
    axis.set_title(f"Tiny attention: largest weight over the first {max(1, depth // 2)} of {depth} blocks", fontsize=9)
    bar = figure.colorbar(image, ax=axis, orientation="horizontal", fraction=0.035, pad=0.02, aspect=40)
    bar.set_label("attention weight (the weights of a query add up to 1 in each block)", fontsize=8)
    save_picture(figure, path)


def plot(checkpoint: str, sentences: list[str], output: str) -> None:
    """Run `python -m paper plot attention`."""
    if len(sentences) > 2:
        raise InputError(f"Got {len(sentences)} sentences: pass one or two, each in quotation marks.")
    plot_attention(*load_attentive_model(checkpoint), *sentences, path=output)
    print(f"The picture is in {output}.")
