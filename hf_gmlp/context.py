"""Texts that are longer than those of training."""

from transformers import PreTrainedTokenizerBase

from .models.modeling_gmlp import GMLPPreTrainedModel


def extend_context(model: GMLPPreTrainedModel, tokenizer: PreTrainedTokenizerBase, length: int):
    """
    Make a text model and its tokenizer, such as those of a pipeline, accept texts of up to `length` tokens, in place.

    A Toeplitz W, the default of text models, needs no training for that.

    Example:
        classify = pipeline("text-classification", "checkpoints/amlp-mini-sst2")
        hf_gmlp.extend_context(classify.model, classify.tokenizer, 4096)

    Raises:
        ValueError: If W is dense, so that added positions must be trained (`model.resize_position_embeddings`).
    """
    if not model.config.toeplitz:
        raise ValueError(
            "This model has a dense W, whose added positions must be trained: call "
            f"`model.resize_position_embeddings({length})` and train it."
        )
    model.resize_position_embeddings(length)
    tokenizer.model_max_length = length
