"""Extend a text model to texts that are longer than those of its training."""

from transformers import PreTrainedTokenizerBase

from .models.modeling_gmlp import GMLPPreTrainedModel


def extend_context(model: GMLPPreTrainedModel, tokenizer: PreTrainedTokenizerBase, length: int):
    """Extend a text model and its tokenizer, such as those of a pipeline, to texts of up to `length` tokens, in place.

    A Toeplitz W, the default of text models, needs no training for that. A model that accepts as many tokens already
    stays as it is.

    Example:
        classify = pipeline("text-classification", "checkpoints/amlp-mini-sst2")
        hf_gmlp.extend_context(classify.model, classify.tokenizer, 4096)

    Raises:
        ValueError: If W is dense, since its added positions must be trained (`model.resize_position_embeddings`).
    """
    is_longer = length > model.config.max_position_embeddings
    if is_longer and not model.config.toeplitz:
        raise ValueError(
            "The model has a dense W, whose added positions must be trained: call "
            f"`model.resize_position_embeddings({length})` and train it."
        )
    if is_longer:
        model.resize_position_embeddings(length)
    tokenizer.model_max_length = length
