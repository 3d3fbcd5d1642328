# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The heads of all text models, their losses, and what the models and configurations of this folder share.

A head is a mixin in front of an architecture's PreTrainedModel class:

    class GMLPForMaskedLM(ForMaskedLM, GMLPPreTrainedModel):
        base_model_class = GMLPModel

The base model is made as `base_model_class(config, add_pooling_layer=...)` and returns a `TextModelOutput`.
Shapes: B batch, m tokens, D hidden_size, V vocab_size. Every checkpoint contains this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_outputs import (
    BaseModelOutputWithPoolingAndCrossAttentions,
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
# Losses. The library's own cast float64 to float32, and all but that for single labels ignore `num_items_in_batch`, so
# that a loss comes out N times too large when Trainer accumulates N gradients.


def at_least_single(logits: torch.Tensor) -> torch.Tensor:
    """Casts half precision to single precision; leaves anything else as it is."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs,
) -> torch.Tensor:
    """Cross-entropy over the tokens that have a label: logits [..., classes], labels [...], where `ignore_index` leaves
    a token out. `num_items_in_batch` is the number of labels to divide by, by default that of these labels."""
    labels = labels.to(logits.device).flatten()
    return fixed_cross_entropy(at_least_single(logits).flatten(0, -2), labels, num_items_in_batch, ignore_index)


def next_token_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **kwargs,
) -> torch.Tensor:
    """As `token_loss`, for logits [B, m, V] of the next token. `shift_labels` are already shifted."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return token_loss(logits, shift_labels, num_items_in_batch, ignore_index)


def classification_loss(
    labels: torch.Tensor,
    logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs,
) -> torch.Tensor:
    """
    Mean squared error ("regression"), cross-entropy ("single_label_classification") or binary cross-entropy per label
    ("multi_label_classification"), by `config.problem_type`, which is set from the labels if it is `None`. Labels are
    [B], or [B, num_labels] with several values per sample; logits are [B, num_labels].

    Raises:
        ValueError: If `config.problem_type` is not one of the three.
    """
    if config.problem_type is None:
        whole = labels.dtype in (torch.long, torch.int)
        kind = "single_label_classification" if whole else "multi_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else kind
    labels, logits = labels.to(logits.device), at_least_single(logits)
    if config.problem_type == "single_label_classification":
        return fixed_cross_entropy(logits, labels.view(-1), num_items_in_batch)
    distances = {"regression": F.mse_loss, "multi_label_classification": F.binary_cross_entropy_with_logits}
    if config.problem_type not in distances:
        raise ValueError(
            f"`config.problem_type` must be 'regression', 'single_label_classification' or "
            f"'multi_label_classification', got {config.problem_type!r}."
        )
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = distances[config.problem_type](logits.view(labels.shape), labels.to(logits.dtype), reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def choice_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None, **kwargs
) -> torch.Tensor:
    """Cross-entropy over the choices: logits [B, choices], labels [B]."""
    return fixed_cross_entropy(at_least_single(logits), labels.view(-1).to(logits.device), num_items_in_batch)


# ---------------------------------------------------------------------------------------------------------------------
# Where a sequence stands in its row, which may have padding on either side or hold several sequences


def first_places(attention_mask: torch.Tensor) -> torch.Tensor:
    """The place of each sequence's first token, or 0 if there is none: [B, t] -> [B]"""
    return (attention_mask != 0).long().argmax(-1)


def last_places(attention_mask: torch.Tensor) -> torch.Tensor:
    """The place of each sequence's last token, or 0 if there is none: [B, t] -> [B]"""
    places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return torch.where(attention_mask != 0, places, 0).amax(-1)


def shift(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Moves each sequence of x [B, t, ...] towards its front by its number of places [B], which may be negative. What
    leaves at one end comes back at the other."""
    columns, length = torch.arange(x.shape[1], device=x.device) + places[:, None], x.shape[1]
    # Not `%`: the ONNX exporter does not support it with a symbolic length.
    columns = torch.where(columns < 0, columns + length, torch.where(columns < length, columns, columns - length))
    return x[torch.arange(x.shape[0], device=x.device)[:, None], columns]


class Documents(NamedTuple):
    """Where k documents stand that are packed into rows [B, m], with N tokens in all and at most l in one."""

    tokens: torch.Tensor  # [N], the places of their tokens in the flattened rows, without padding between documents
    real: torch.Tensor  # [k, l], whether there is a token
    rows: torch.Tensor  # [N], the place of each token in the flattened [k, l]

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """All tokens in one row: [B, m, ...] -> [1, N, ...]"""
        return x.flatten(0, 1).index_select(0, self.tokens)[None]

    def scatter(self, x: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        """Back from `gather`, with zeros for padding: [1, N, ...] -> [B, m, ...]"""
        return x.new_zeros(shape[0] * shape[1], *x.shape[2:]).index_copy_(0, self.tokens, x[0]).unflatten(0, shape)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """A row for each document, with zeros behind its end: [1, N, ...] -> [k, l, ...]"""
        shape = self.real.shape
        return x.new_zeros(shape.numel(), *x.shape[2:]).index_copy_(0, self.rows, x[0]).unflatten(0, shape)

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """Back from `split`, and its transpose: [k, l, ...] -> [1, N, ...]"""
        return x.flatten(0, 1).index_select(0, self.rows)[None]


def packed_documents(
    kwargs: dict, shape: tuple[int, int], attention_mask: torch.Tensor | None, device: torch.device
) -> Documents | None:
    """
    Finds the documents that are packed into the rows of a batch from what transformers, TRL and flash attention pass:
    `position_ids` that restart, `seq_idx` or `cu_seq_lens_q`.

    Args:
        kwargs: Those of a forward pass. What describes packing is removed.
        shape: B and m.
        attention_mask: [B, m], 0 for padding. A document reaches from its first to its last token that is not padding.

    Returns:
        The documents, or `None` if no row holds more than one.

    Raises:
        ValueError: If an input does not have the batch's shape, inputs contradict each other, or the positions of a
            document are not counted from 0.
    """
    column, keys = torch.arange(shape[1], device=device), []  # keys: each [B, m], with changes between documents
    given = {name: kwargs.pop(name, None) for name in ("position_ids", "seq_idx")}
    for name, value in given.items():
        if value is None:
            continue
        if value.shape not in (shape, (1, shape[1]), shape[1:]):
            raise ValueError(f"`{name}` must have the shape of the tokens, {tuple(shape)}, got {tuple(value.shape)}.")
        given[name] = value = value.to(device).expand(shape)
        keys.append(value if name == "seq_idx" else column - value)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "max_length_q", "max_length_k"):
        bounds = kwargs.pop(name, None)
        if bounds is None or name.startswith("max"):
            continue
        bounds = bounds.to(device).flatten()
        if shape[0] != 1 or bounds[0] != 0 or bounds[-1] != shape[1] or (bounds.diff() < 0).any():
            raise ValueError(
                f"`{name}` must go up from 0 to the number of tokens in a batch of one row, got {bounds.tolist()} for "
                f"a batch of {tuple(shape)}."
            )
        keys.append(torch.bucketize(column, bounds, right=True)[None])
    if not keys:
        return None
    shown = torch.arange(shape[0] * shape[1], device=device)
    if attention_mask is not None:
        shown = shown[attention_mask.to(device).flatten() != 0]
    new_row = (shown // shape[1]).diff() != 0
    begins = [F.pad((key.flatten()[shown].diff() != 0) | new_row, (1, 0), value=len(shown) > 0) for key in keys]
    if any(not torch.equal(begin, begins[0]) for begin in begins):
        raise ValueError("`position_ids`, `seq_idx` and `cu_seq_lens` must agree about where documents begin.")
    begin = begins[0].nonzero()[:, 0]
    if given["position_ids"] is not None and given["position_ids"].flatten()[shown][begin].any():
        raise ValueError(
            "`position_ids` must count the tokens of each document from 0, without padding in front of it. Leave them "
            "out unless rows are packed."
        )
    if len(begin) == new_row.sum() + 1 or not len(shown):
        return None
    first, last = shown[begin], shown[F.pad(begin[1:], (0, 1), value=len(shown)) - 1]
    lengths = last - first + 1
    place = torch.arange(int(lengths.max()), device=device)
    real = place < lengths[:, None]
    return Documents((first[:, None] + place)[real], real, real.flatten().nonzero()[:, 0])


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
    """Returns the one that is given. Raises a ValueError if that is both or neither."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Pass either `input_ids` or `inputs_embeds`, and not both.")
    return input_ids if inputs_embeds is None else inputs_embeds


@dataclass
class TextModelOutput(BaseModelOutputWithPoolingAndCrossAttentions):
    """The output of a text model. With k documents packed into rows, `documents` tells where they stand, and
    `pooler_output` is [k, D]."""

    documents: Documents | None = None


def pool_tokens(
    hidden_states: torch.Tensor, padding_mask: torch.Tensor | None, pooling: str, is_causal: bool = False
) -> torch.Tensor:
    """One vector for each sequence, [B, m, D] -> [B, D], by `pooling`: "cls", the first token, or the last if
    `is_causal`, since only the last has seen the others; "mean" or "max" over all tokens but padding, 0 in the mask."""
    if pooling == "cls":
        last, places = hidden_states.shape[1] - 1, last_places if is_causal else first_places
        place = (last if is_causal else 0) if padding_mask is None else places(padding_mask)
        return hidden_states[torch.arange(hidden_states.shape[0], device=hidden_states.device), place]
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
    """What heads share. Those with logits and labels for one `self.loss_function` only implement `predict`."""

    base_model_class: type[PreTrainedModel]
    output_class: type[ModelOutput]

    def __init__(self, config: PreTrainedConfig, add_pooling_layer: bool = False):
        super().__init__(config)
        self.model = self.base_model_class(config, add_pooling_layer=add_pooling_layer)

    def predict(
        self, outputs: TextModelOutput, labels: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the logits, and the labels that belong to them."""
        raise NotImplementedError

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput | SequenceClassifierOutput | TokenClassifierOutput:
        """Takes the arguments of the base model, and labels. Returns `logits` and, with labels, `loss`; the shapes are
        in the docstring of the class."""
        outputs = self.model(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs | {"return_dict": True})
        logits, labels = self.predict(outputs, labels)
        return self.output_class(
            loss=self.compute_loss(logits, labels, **kwargs),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def compute_loss(self, logits: torch.Tensor, labels: torch.Tensor | None, **kwargs) -> torch.Tensor | None:
        if labels is None:
            return None
        names = {"config": self.config, "vocab_size": self.config.vocab_size}
        return self.loss_function(logits=logits, labels=labels, **names, **kwargs)


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
    """
    A masked-language-model head (paper, section 4).

    Labels are [B, m], the token to predict, or -100 where there is nothing to predict. `logits` is [B, m, V], or
    [labeled positions, V] in training with `config.sparse_prediction`.
    """

    _auto_class = "AutoModelForMaskedLM"
    output_class = MaskedLMOutput

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.head = PredictionHead(config) if getattr(config, "mlm_transform", True) else nn.Identity()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.loss_function = token_loss
        self.post_init()

    def predict(self, outputs, labels):
        hidden_states = outputs.last_hidden_state
        if self.config.sparse_prediction and self.training and labels is not None:
            labeled = labels != -100
            hidden_states, labels = hidden_states[labeled], labels[labeled]
        return self.decoder(self.head(hidden_states)), labels


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
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: torch.LongTensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        r"""
        Args (others as in the base model):
            labels: [B, m], the tokens themselves, which are shifted here, or -100 where there is nothing to predict.
            logits_to_keep: How many of the last tokens to compute logits for, or the places of tokens; all by default.

        Returns:
            `loss`, `logits` [B, m, V] and `past_key_values`.

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
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs | {"return_dict": True},
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.decoder(outputs.last_hidden_state[:, kept])
        if labels is not None and outputs.documents is not None:
            # No document tells what the next one begins with.
            documents = outputs.documents
            begins = documents.tokens[documents.rows % documents.real.shape[1] == 0]
            labels = labels.flatten().index_fill(0, begins.to(labels.device), -100).view_as(labels)
        return CausalLMOutputWithPast(
            loss=self.compute_loss(logits, labels, **kwargs),
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ForSequenceClassification(PooledHead):
    """
    A classifier or regressor on the pooler's output, for GLUE's tasks among others.

    Labels are [B], classes or values, or [B, num_labels], several labels or values per sample. `logits` is
    [B, num_labels]. With packed documents, B is their number.
    """

    _auto_class = "AutoModelForSequenceClassification"
    output_class = SequenceClassifierOutput

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config, config.num_labels)
        self.num_labels = config.num_labels
        self.loss_function = classification_loss
        self.post_init()

    def predict(self, outputs, labels):
        return self.classifier(self.dropout(outputs.pooler_output)), labels


class ForTokenClassification(Head):
    """
    A classifier on every token, for named entities among others.

    Labels are [B, m], the class of each token, or -100 to leave it out. `logits` is [B, m, num_labels].
    """

    _auto_class = "AutoModelForTokenClassification"
    output_class = TokenClassifierOutput

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.loss_function = token_loss
        self.post_init()

    def predict(self, outputs, labels):
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        if labels is not None and labels.shape != logits.shape[:2]:
            raise ValueError(
                f"`labels` must have one entry per token, shape {tuple(logits.shape[:2])}, got {tuple(labels.shape)}. "
                f"Virtual tokens of prompt tuning come first: pad the labels with -100 there."
            )
        return logits, labels


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
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""
        Args (others as in the base model):
            start_positions, end_positions: [B], the places of the answer's first and last token. The loss leaves out
                places outside of the sequence.

        Returns:
            `loss`, and `start_logits` and `end_logits` [B, m]. With packed documents, B is their number, m the length
            of the longest, and places are counted from the first token of a document.
        """
        outputs = self.model(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs | {"return_dict": True})
        logits = self.qa_outputs(outputs.last_hidden_state)
        if outputs.documents is not None:
            documents = outputs.documents
            logits = documents.split(documents.gather(logits))
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
    """
    Scores each of several choices by the pooler's output, for SWAG among others.

    Inputs have a dimension for the choices, [B, choices, m]. Labels are [B], the right choice. `logits` is
    [B, choices].
    """

    _auto_class = "AutoModelForMultipleChoice"

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config, 1)
        # The library has no loss for choices and would use that of a causal language model.
        self.loss_function = choice_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        num_choices = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]
        outputs = self.model(*flat, **kwargs | {"return_dict": True})
        if outputs.documents is not None:
            raise ValueError("Give each choice a row of its own: packed documents do not tell which question is whose.")
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, num_choices)
        return MultipleChoiceModelOutput(
            loss=self.compute_loss(logits, labels, **kwargs),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
