# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The heads of all text models, their losses, and what the models and configurations of this folder share.

A head is a mixin in front of an architecture's PreTrainedModel class:

    class GMLPForMaskedLM(ForMaskedLM, GMLPPreTrainedModel):
        base_model_class = GMLPModel

The base model is made as `base_model_class(config, add_pooling_layer=...)`.
Shapes: B batch, m tokens, D hidden_size, V vocab_size. Every checkpoint contains this file.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    ModelOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

logger = logging.get_logger(__name__)


# ---------------------------------------------------------------------------------------------------------------------
# Configurations


def full_auto_map(
    config_class: type[PreTrainedConfig], code_map: dict[str, str], given: dict[str, object] | None
) -> dict[str, object]:
    """
    The `auto_map` of a checkpoint: every class of its architecture, so that it opens as any head, whichever was saved.

    Args:
        config_class: In configuration_NAME.py, beside modeling_NAME.py.
        code_map: Auto class -> class of modeling_NAME.py.
        given: A loaded map. Its entries for other classes, such as a user's subclass or tokenizer, stay.
    """
    file = config_class.__module__.rpartition(".")[2]
    own = {auto_class: f"{file.replace('configuration', 'modeling')}.{name}" for auto_class, name in code_map.items()}
    own["AutoConfig"] = f"{file}.{config_class.__name__}"
    names = {reference.rpartition(".")[2] for reference in own.values()}
    others = {
        auto_class: reference
        for auto_class, reference in (given or {}).items()
        if auto_class != "AutoConfig" and not (isinstance(reference, str) and reference.rpartition(".")[2] in names)
    }
    return own | others


def check_fields(config: PreTrainedConfig, names: tuple[str, ...], is_valid: Callable[[Any], bool], rule: str):
    """Raises a ValueError with the rule for the first of these fields that is neither valid nor `None`."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not is_valid(value):
            raise ValueError(f"`{name}` {rule}, got {value}.")


def check_sizes(config: PreTrainedConfig, *names: str):
    check_fields(config, names, lambda size: size >= 1, "must be at least 1")


def check_probabilities(config: PreTrainedConfig, *names: str):
    check_fields(config, names, lambda rate: 0 <= rate <= 1, "must be a probability between 0 and 1")


# ---------------------------------------------------------------------------------------------------------------------
# Losses. The library's own cast float64 to float32, and most of them ignore `num_items_in_batch`, so that a loss comes
# out N times too large when Trainer accumulates N gradients.


def at_least_single(logits: torch.Tensor) -> torch.Tensor:
    """Casts half precision to single precision; leaves anything else as it is."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def class_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs,
) -> torch.Tensor:
    """Cross-entropy of logits [..., classes] and labels [...], without those that are `ignore_index`, divided by
    `num_items_in_batch`, by default the number of these labels."""
    labels = labels.to(logits.device).flatten()
    return fixed_cross_entropy(at_least_single(logits).flatten(0, -2), labels, num_items_in_batch, ignore_index)


def next_token_loss(
    logits: torch.Tensor, labels: torch.Tensor, shift_labels: torch.Tensor | None = None, **kwargs
) -> torch.Tensor:
    """As `class_loss`, for logits [B, m, V] of the next token. `shift_labels` are already shifted."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=kwargs.get("ignore_index", -100))[..., 1:]
    return class_loss(logits, shift_labels, **kwargs)


def classification_loss(
    labels: torch.Tensor,
    logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs,
) -> torch.Tensor:
    """
    The loss of `config.problem_type`, which is set from the labels if it is `None`: cross-entropy, mean squared error
    or binary cross-entropy per label. Labels are [B], or [B, num_labels] with several per sample, like the logits.

    Raises:
        ValueError: If there is no such problem type.
    """
    if config.problem_type is None:
        whole = labels.dtype in (torch.long, torch.int)
        kind = "single_label_classification" if whole else "multi_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else kind
    if config.problem_type == "single_label_classification":
        return class_loss(logits, labels, num_items_in_batch)
    distances = {"regression": F.mse_loss, "multi_label_classification": F.binary_cross_entropy_with_logits}
    if config.problem_type not in distances:
        known = ", ".join(map(repr, ("single_label_classification", *distances)))
        raise ValueError(f"`config.problem_type` must be one of {known}, got {config.problem_type!r}.")
    logits, reduction = at_least_single(logits).view(labels.shape), "mean" if num_items_in_batch is None else "sum"
    loss = distances[config.problem_type](logits, labels.to(logits.device, logits.dtype), reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


# ---------------------------------------------------------------------------------------------------------------------
# Documents: a row may hold one, with padding on either side, or several


def is_readable(x: torch.Tensor) -> bool:
    """Whether the values of a tensor can be looked at: not while a model is compiled, exported, traced or faked."""
    return type(x) is torch.Tensor and not (x.is_meta or torch.compiler.is_compiling() or torch.jit.is_tracing())


def first_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """The index of the first token that is not padding, or 0 if there is none: [B, t] -> [B]"""
    return (attention_mask != 0).long().argmax(-1)


def last_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """The index of the last token that is not padding, or 0 if there is none: [B, t] -> [B]"""
    index = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return torch.where(attention_mask != 0, index, 0).amax(-1)


def document_numbers(
    shape: tuple[int, int],
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    cu_seq_lens: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """
    The number of each token's document within its packed row, counted from 0. It is told by the first of these that is
    given: `seq_idx` [B, m], which changes where a document begins, `cu_seq_lens` [documents + 1], the bounds of the
    documents in a batch of one row, or `position_ids` [B, m], which do not increase where a document begins.

    Returns:
        [B, m], or `None` if nothing tells or every row holds one document. Compiled models do not look at the values.

    Raises:
        ValueError: If an argument does not fit the shape of the tokens, B and m.
    """
    for name, value in (("position_ids", position_ids), ("seq_idx", seq_idx)):
        if value is not None and value.shape not in (shape, (1, shape[1])):
            raise ValueError(f"`{name}` must have the shape of the tokens, {tuple(shape)}, got {tuple(value.shape)}.")
    shown = None if attention_mask is None else attention_mask != 0
    if seq_idx is not None:
        begins = seq_idx.diff() != 0
    elif cu_seq_lens is not None:
        if shape[0] != 1 or (is_readable(cu_seq_lens) and cu_seq_lens[[0, -1]].tolist() != [0, shape[1]]):
            raise ValueError(f"`cu_seq_lens_q` must go from 0 to m in a batch of one row, [1, m], not {tuple(shape)}.")
        index = torch.arange(shape[1], device=cu_seq_lens.device)
        begins = torch.bucketize(index, cu_seq_lens, right=True)[None].diff() != 0
    elif position_ids is not None and shown is None:
        begins = position_ids.diff() <= 0
    elif position_ids is not None:
        # Compared with the token before that is not padding.
        index, position_ids = torch.arange(shape[1], device=position_ids.device), position_ids.expand(shape)
        before = torch.where(shown, index, -1).cummax(-1)[0][:, :-1]
        begins = (before >= 0) & shown[:, 1:] & (position_ids[:, 1:] <= position_ids.gather(1, before.clamp(min=0)))
    else:
        return None
    numbers = F.pad(begins, (1, 0)).cumsum(-1).expand(shape)
    if is_readable(numbers):
        padding = torch.zeros_like(numbers, dtype=torch.bool) if shown is None else ~shown
        lowest, highest = numbers.masked_fill(padding, shape[1]).amin(-1), numbers.masked_fill(padding, -1).amax(-1)
        return numbers if (lowest < highest).any() else None
    return numbers


class Documents(NamedTuple):
    """A row for each of k packed documents, of at most l tokens: [B, m, ...] -> [k, l, ...] and back."""

    index: torch.Tensor  # [k, l], the index of each token in the flattened [B, m]; 0 behind a document's end
    real: torch.Tensor  # [k, l], whether there is a token
    shape: tuple[int, int]  # B and m

    @classmethod
    def find(cls, numbers: torch.Tensor, attention_mask: torch.Tensor | None = None) -> "Documents":
        """The documents of the rows of `document_numbers`, [B, m], from the first token of each that is not padding to
        its last."""
        index = torch.arange(numbers.numel(), device=numbers.device)
        keys = (numbers + torch.arange(numbers.shape[0], device=numbers.device)[:, None] * numbers.shape[1]).flatten()
        if attention_mask is not None:
            index = index[attention_mask.flatten() != 0]
        begins = F.pad(keys[index].diff() != 0, (1, 0), value=True).nonzero()[:, 0]
        first, last = index[begins], index[F.pad(begins[1:] - 1, (0, 1), value=len(index) - 1)]
        index = first[:, None] + torch.arange(int((last - first).max()) + 1, device=numbers.device)
        real = index <= last[:, None]
        return cls(torch.where(real, index, 0), real, tuple(numbers.shape))

    def mask(self, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Whether there is a token that is not padding: [B, m] -> [k, l]"""
        return self.real if attention_mask is None else self.split(attention_mask != 0)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """A row for each document, with zeros behind its end: [B, m, ...] -> [k, l, ...]"""
        rows = x.flatten(0, 1).index_select(0, self.index.flatten()).unflatten(0, self.index.shape)
        return rows.masked_fill(~self.real.reshape(*self.real.shape, *[1] * (x.dim() - 2)), 0)

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """Back from `split`, with zeros for padding between documents: [k, l, ...] -> [B, m, ...]"""
        flat = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        return flat.index_copy(0, self.index[self.real], x[self.real]).unflatten(0, self.shape)


# ---------------------------------------------------------------------------------------------------------------------
# Parts of models


class TextEmbeddings(nn.Module):
    """Token and segment embeddings as in BERT, but without positions: [B, m] -> [B, m, D]. Pre-norm models do not
    normalize them, and `type_vocab_size=0` leaves the segments out."""

    def __init__(self, config: PreTrainedConfig, normalize: bool = False):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = None
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if normalize else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,  # [B, m]
        token_type_ids: torch.Tensor | None = None,  # [B, m]
        inputs_embeds: torch.Tensor | None = None,  # [B, m, D]
    ) -> torch.Tensor:
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        if self.norm is not None:
            embeddings = self.norm(embeddings)
        return self.dropout(embeddings)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor | None,  # [B, H, m, D / H]
    key: torch.Tensor | None,  # [B, H, t, D / H]
    value: torch.Tensor,  # [B, H, t, D / H]
    attention_mask: torch.Tensor | None,  # [B, 1, m, t]: True to see, or 0 to see and very negative to hide
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,  # [1, H, m, t]
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The plain form of attention with H heads, which also returns its weights: ([B, m, H, D / H], [B, H, m, t]).
    Without query and key, the softmax sees only the position biases."""
    scores = position_bias
    if query is not None:
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling
        scores = scores if position_bias is None else position_bias + scores
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # The mask of another attention implementation, if the model was set to one.
        scores = torch.where(attention_mask, scores, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    # In half precision, the softmax is computed in single.
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(value.dtype, torch.float32)).to(value.dtype)
    # Biases alone are the same for all samples; dropout is not.
    weights = F.dropout(weights.expand(value.shape[0], -1, -1, -1), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def check_inputs(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """Returns the one that is given. Raises a ValueError if that is both or neither, or has no tokens."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Pass either `input_ids` or `inputs_embeds`, and not both.")
    given = input_ids if inputs_embeds is None else inputs_embeds
    if 0 in given.shape[:2]:
        raise ValueError(f"There are no tokens: the batch has the shape {tuple(given.shape[:2])}.")
    return given


def check_mask(attention_mask: torch.Tensor | None, shape: tuple[int, int]):
    """Raises a ValueError if the mask does not have the shape of the tokens."""
    if attention_mask is not None and attention_mask.shape != shape:
        raise ValueError(
            f"`attention_mask` must have one entry per token, shape {tuple(shape)}, got {tuple(attention_mask.shape)}: "
            f"a matrix over the tokens has no masks between pairs of them."
        )


def pool_tokens(
    hidden_states: torch.Tensor, padding_mask: torch.Tensor | None, pooling: str, is_causal: bool = False
) -> torch.Tensor:
    """One vector for each sequence, [B, m, D] -> [B, D], by `pooling`: "cls", the first token, or the last if
    `is_causal`, since only the last has seen the others; "mean" or "max" over all tokens but padding, 0 in the mask."""
    if pooling == "cls":
        if padding_mask is None:
            return hidden_states[:, -1 if is_causal else 0]
        index = (last_index if is_causal else first_index)(padding_mask)
        return hidden_states[torch.arange(hidden_states.shape[0], device=hidden_states.device), index]
    if padding_mask is None:
        return hidden_states.mean(1) if pooling == "mean" else hidden_states.amax(1)
    padding = (padding_mask == 0)[..., None]
    if pooling == "mean":
        return hidden_states.masked_fill(padding, 0).sum(1) / (~padding).sum(1).clamp(min=1)
    return hidden_states.masked_fill(padding, torch.finfo(hidden_states.dtype).min).amax(1)


class Pooler(nn.Module):
    """Dense and tanh on one vector: BERT's pooler and ViT's pre-logits. [B, D] -> [B, D]"""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden_states))


class PredictionHead(nn.Module):
    """BERT's transform before the masked-language-model decoder: dense, activation, LayerNorm. [..., D] -> [..., D]"""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.activation(self.dense(hidden_states)))


def classifier_dropout(config: PreTrainedConfig) -> nn.Dropout:
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


class Head:
    """What heads share: the base model, and an output with a loss."""

    base_model_class: type[PreTrainedModel]

    def __init__(self, config: PreTrainedConfig, add_pooling_layer: bool = False):
        super().__init__(config)
        self.model = self.base_model_class(config, add_pooling_layer=add_pooling_layer)

    def make_output(
        self, output_class: type, outputs: ModelOutput, logits: torch.Tensor, labels: torch.Tensor | None, **kwargs
    ) -> ModelOutput:
        """An output with the loss, if there are labels."""
        loss = None
        if labels is not None:
            names = {"config": self.config, "vocab_size": self.config.vocab_size}
            loss = self.loss_function(logits=logits, labels=labels, **names, **kwargs)
        return output_class(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class LanguageModelHead(Head):
    """A head with a decoder whose weight is that of the embeddings."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.decoder = new_embeddings


class PooledHead(Head):
    """A head with a classifier on the pooler's output."""

    def __init__(self, config: PreTrainedConfig, num_logits: int):
        super().__init__(config, add_pooling_layer=True)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, num_logits)

    def train(self, mode: bool = True):
        # Adapters give access to the weight that they wrap; a pooler may have been replaced.
        pooler = getattr(getattr(self.model.pooler, "dense", None), "weight", None) if mode else None
        frozen = pooler is not None and not pooler.requires_grad
        if frozen and any(weight.requires_grad for weight in self.classifier.parameters()):
            logger.warning_once(
                "The classifier is trained, but the pooler that it reads is frozen. A checkpoint without a pooler (a "
                "masked language model's, for one) got a random pooler, and an adapter is saved without it. Train and "
                'save the pooler too, in PEFT with `modules_to_save=["pooler.dense", "classifier"]`.'
            )
        return super().train(mode)


# ---------------------------------------------------------------------------------------------------------------------
# The heads


class ForMaskedLM(LanguageModelHead):
    """A masked-language-model head (paper, section 4)."""

    _auto_class = "AutoModelForMaskedLM"

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.head = PredictionHead(config) if getattr(config, "mlm_transform", True) else nn.Identity()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.loss_function = class_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        seq_idx: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        r"""
        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of them.
            attention_mask, token_type_ids, position_ids, seq_idx: [B, m], as in the base model.
            labels: [B, m], the token to predict, or -100 where there is nothing to predict.

        Returns:
            `loss`, if there are labels, and `logits` [B, m, V], or [labeled positions, V] in training with
            `config.sparse_prediction`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx)
        outputs = self.model(*inputs, **kwargs | {"return_dict": True})
        hidden_states = outputs.last_hidden_state
        if self.config.sparse_prediction and self.training and labels is not None:
            labeled = labels != -100
            hidden_states, labels = hidden_states[labeled], labels[labeled]
        return self.make_output(MaskedLMOutput, outputs, self.decoder(self.head(hidden_states)), labels, **kwargs)


class ForCausalLM(LanguageModelHead):
    """A causal-language-model head without a transform, as in GPT-2. The base model must be causal."""

    _auto_class = "AutoModelForCausalLM"

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.loss_function = next_token_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        seq_idx: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: torch.LongTensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        r"""
        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of them.
            attention_mask, token_type_ids, position_ids, seq_idx, past_key_values, use_cache: As in the base model.
            labels: [B, m], the tokens themselves, which are shifted here, or -100 where there is nothing to predict. No
                document predicts the first token of the next.
            logits_to_keep: How many of the last tokens to compute logits for, or the indices of tokens; all by default.

        Returns:
            `loss`, if there are labels, `logits` [B, m, V] and `past_key_values`.

        Raises:
            ValueError: If `config.is_causal` was turned off.
        """
        if not self.config.is_causal:
            raise ValueError(
                f"A {type(self).__name__} predicts later tokens, so `config.is_causal` must stay on. To see both ways, "
                f"load the checkpoint as a masked language model or as an encoder."
            )
        if labels is None and kwargs.get("num_items_in_batch") is not None:
            logger.warning_once(
                "Trainer has taken the labels out of the batch. If this is due to `label_smoothing_factor`, the loss "
                "is wrong: Trainer does not shift the labels of causal models from outside of transformers. Pass it a "
                "`compute_loss_func` that shifts them, or train with run_clm.py."
            )
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx)
        cache = {"past_key_values": past_key_values, "use_cache": use_cache}
        outputs = self.model(*inputs, **kwargs | cache | {"return_dict": True})
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.decoder(outputs.last_hidden_state[:, kept])
        packing = (attention_mask, position_ids, seq_idx, kwargs.get("cu_seq_lens_q"))
        if labels is not None and kwargs.get("shift_labels") is None and outputs.past_key_values is None:
            if (numbers := document_numbers(labels.shape, *packing)) is not None:
                counted = (labels[:, 1:] != -100).sum()
                labels = labels.masked_fill(F.pad(numbers.diff() != 0, (1, 0)).to(labels.device), -100)
                if kwargs.get("num_items_in_batch") is not None:
                    # Trainer has counted the first tokens of documents too.
                    remaining = (labels[:, 1:] != -100).sum() / counted.clamp(min=1)
                    kwargs["num_items_in_batch"] = kwargs["num_items_in_batch"] * remaining
        output = self.make_output(CausalLMOutputWithPast, outputs, logits, labels, **kwargs)
        output.past_key_values = outputs.past_key_values
        return output


class ForSequenceClassification(PooledHead):
    """A classifier or regressor on the pooler's output, for GLUE's tasks among others."""

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config, config.num_labels)
        self.num_labels = config.num_labels
        self.loss_function = classification_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        seq_idx: torch.LongTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        r"""
        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of them.
            attention_mask, token_type_ids, position_ids, seq_idx: [B, m], as in the base model.
            labels: [B], classes or values, or [B, num_labels], several per sample.

        Returns:
            `loss`, if there are labels, and `logits` [B, num_labels]. With packed documents, B is their number.
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx)
        outputs = self.model(*inputs, **kwargs | {"return_dict": True})
        logits = self.classifier(self.dropout(outputs.pooler_output))
        return self.make_output(SequenceClassifierOutput, outputs, logits, labels, **kwargs)


class ForTokenClassification(Head):
    """A classifier on every token, for named entities among others."""

    _auto_class = "AutoModelForTokenClassification"

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = class_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        seq_idx: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of them.
            attention_mask, token_type_ids, position_ids, seq_idx: [B, m], as in the base model.
            labels: [B, m], the class of each token, or -100 to leave it out.

        Returns:
            `loss`, if there are labels, and `logits` [B, m, num_labels].
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx)
        outputs = self.model(*inputs, **kwargs | {"return_dict": True})
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        if labels is not None and labels.shape != logits.shape[:2]:
            raise ValueError(
                f"`labels` must have one entry per token, shape {tuple(logits.shape[:2])}, got {tuple(labels.shape)}. "
                f"Virtual tokens of prompt tuning come first: pad the labels with -100 there."
            )
        return self.make_output(TokenClassifierOutput, outputs, logits, labels, **kwargs)


class ForQuestionAnswering(Head):
    """Marks the first and the last token of an answer, for SQuAD."""

    _auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        seq_idx: torch.LongTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""
        Args:
            input_ids, inputs_embeds: [B, m] or [B, m, D], one of them.
            attention_mask, token_type_ids, position_ids, seq_idx: [B, m], as in the base model.
            start_positions, end_positions: [B], the indices of the answer's first and last token. The loss leaves out
                indices outside of the sequence.

        Returns:
            `loss`, if there are positions, and `start_logits` and `end_logits` [B, m]. With packed documents, B is
            their number, m the length of the longest, and indices are counted from the first token of a document.
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx)
        outputs = self.model(*inputs, **kwargs | {"return_dict": True})
        logits = self.qa_outputs(outputs.last_hidden_state)
        packing = (attention_mask, position_ids, seq_idx, kwargs.get("cu_seq_lens_q"))
        numbers = document_numbers(logits.shape[:2], *packing)
        if numbers is not None:
            documents = Documents.find(numbers, attention_mask)
            logits = documents.split(logits)
            logits = logits.masked_fill(~documents.real[..., None], torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits.contiguous(),
            end_logits=end_logits.contiguous(),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ForMultipleChoice(PooledHead):
    """Scores each of several choices by the pooler's output, for SWAG among others."""

    _auto_class = "AutoModelForMultipleChoice"

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config, 1)
        # The library has no loss for choices and would use that of a causal language model.
        self.loss_function = class_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        r"""
        Args:
            input_ids, inputs_embeds: [B, choices, m] or [B, choices, m, D], one of them.
            attention_mask, token_type_ids, position_ids: [B, choices, m], as in the base model. Choices are not packed.
            labels: [B], the right choice.

        Returns:
            `loss`, if there are labels, and `logits` [B, choices].
        """
        num_choices = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]
        outputs = self.model(*flat, **kwargs | {"return_dict": True})
        logits = self.classifier(self.dropout(outputs.pooler_output))
        if logits.shape[0] != flat[0 if inputs_embeds is None else 3].shape[0]:
            raise ValueError("Give each choice a row of its own: packed documents do not tell which question is whose.")
        return self.make_output(MultipleChoiceModelOutput, outputs, logits.view(-1, num_choices), labels, **kwargs)
