# Copyright 2026 The hf_gmlp authors. Licensed under the Apache License, Version 2.0.
"""The heads of all text models, their losses, and what the models and configurations of this folder share.

A head is a mixin in front of an architecture's PreTrainedModel class, and makes the base model `base_model_class`.
Shapes: B batch, m tokens, D hidden_size, V vocab_size. Every checkpoint contains this file.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.loss.loss_utils import ForQuestionAnsweringLoss, fixed_cross_entropy
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

logger = logging.get_logger(__name__)

# What the library calls a cache in its functions and outputs: "cache" from 5.24 on.
CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"


# ---------------------------------------------------------------------------------------------------------------------
# Configurations


def full_auto_map(config_class: type[PreTrainedConfig], code_map: dict[str, str], auto_map: dict | None) -> dict:
    """Return the `auto_map` of a checkpoint, with every class of its architecture, so that it opens as any head.

    Args:
        code_map: From Auto classes to the classes of modeling_NAME.py.
        auto_map: Earlier entries, of which those for other classes, such as a user's tokenizer, stay.
    """
    file = config_class.__module__.rpartition(".")[2]
    own = {auto_class: f"{file.replace('configuration', 'modeling')}.{name}" for auto_class, name in code_map.items()}
    names, items = set(code_map.values()), (auto_map or {}).items()
    others = {auto_class: name for auto_class, name in items if str(name).rpartition(".")[2] not in names}
    return own | others | {"AutoConfig": f"{file}.{config_class.__name__}"}


def check_fields(config: PreTrainedConfig, names: tuple[str, ...], is_valid: Callable[[Any], bool], rule: str):
    """Raise a ValueError with the rule for the first of these fields that is neither valid nor `None`."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not is_valid(value):
            raise ValueError(f"`{name}` {rule}, got {value}.")


def check_sizes(config: PreTrainedConfig, *names: str):
    check_fields(config, names, lambda size: size >= 1, "must be at least 1")


def check_probabilities(config: PreTrainedConfig, *names: str):
    check_fields(config, names, lambda rate: 0 <= rate <= 1, "must be a probability between 0 and 1")


# ---------------------------------------------------------------------------------------------------------------------
# Losses, in at least single precision. The library's own cast float64 to float32 or leave half precision, and some
# ignore `num_items_in_batch`, so that a loss comes out N times too large when Trainer accumulates N gradients.


def class_loss(logits: torch.Tensor, labels: torch.Tensor, **kwargs) -> torch.Tensor:
    """Return the cross-entropy of logits [..., classes] and labels [...] other than -100, divided by their number or by
    `num_items_in_batch`.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return fixed_cross_entropy(logits, labels.to(logits.device).flatten(), **kwargs)


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor, **kwargs) -> torch.Tensor:
    """Return the `class_loss` of logits [B, m, V] for the next token; `shift_labels` replace the labels, unshifted."""
    shifted = kwargs.pop("shift_labels", None)
    if shifted is None:
        shifted = F.pad(labels, (0, 1), value=kwargs.get("ignore_index", -100))[..., 1:]
    return class_loss(logits, shifted, **kwargs)


def classification_loss(
    labels: torch.Tensor, logits: torch.Tensor, config: PreTrainedConfig, num_items_in_batch=None, **kwargs
) -> torch.Tensor:
    """Return the loss of `config.problem_type`, which is set from the labels if it is `None`, as in the library.

    Args:
        labels: [B], or [B, num_labels] with several per sample, or with the probability of each class.
        logits: [B, num_labels]
    """
    if config.problem_type is None:
        several = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else several
    if config.problem_type == "single_label_classification" and not labels.is_floating_point():
        return class_loss(logits, labels, num_items_in_batch=num_items_in_batch)
    distances: dict[str, Callable[..., torch.Tensor]]
    distances = {
        "regression": F.mse_loss,
        "single_label_classification": F.cross_entropy,
        "multi_label_classification": F.binary_cross_entropy_with_logits,
    }
    labels = labels.to(logits.device, torch.promote_types(logits.dtype, torch.float32))
    loss = distances[config.problem_type](logits.view(labels.shape).to(labels.dtype), labels)
    return loss if num_items_in_batch is None else loss * labels.numel() / num_items_in_batch


# ---------------------------------------------------------------------------------------------------------------------
# Documents: a row may hold one, with padding on either side, or several


def is_readable(x: torch.Tensor) -> bool:
    """Whether the values of a tensor can be read: not while a model is compiled, exported, traced or faked, and not on
    XLA devices, which compile everything up to a read value as a graph of its own."""
    lazy = x.is_meta or x.device.type == "xla"
    return type(x) is torch.Tensor and not (lazy or torch.compiler.is_compiling() or torch.jit.is_tracing())


def first_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Return the index of the first token that is not padding, or 0 if there is none: [B, t] -> [B]"""
    return (attention_mask != 0).long().argmax(-1)


def document_numbers(
    shape: tuple[int, ...],
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    cu_seq_lens: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Return the number of each token's document within its packed row, [B, m], or `None` if every row holds one.

    The first of `seq_idx`, `cu_seq_lens` and `position_ids` that is not `None` decides. Compiled models return numbers
    even for rows that hold one document, since they do not read the values.

    Args:
        shape: B and m.
        seq_idx: [B or 1, m]. A document begins where it changes.
        cu_seq_lens: [documents + 1], the bounds of documents in a batch of one row.
        position_ids: [B or 1, m]. A document begins where they do not increase.

    Raises:
        ValueError: If one of them has another shape.
    """
    for name, value in (("position_ids", position_ids), ("seq_idx", seq_idx)):
        if value is not None and value.shape not in (shape, (1, shape[1])):
            raise ValueError(f"`{name}` must have the shape of the tokens, {tuple(shape)}, got {tuple(value.shape)}.")
    sources = [value for value in (seq_idx, cu_seq_lens, position_ids) if value is not None]
    if not sources:
        return None
    index = torch.arange(shape[1], device=sources[0].device)
    shown = (index >= 0).expand(shape) if attention_mask is None else attention_mask != 0
    if seq_idx is not None:
        begins = seq_idx.diff() != 0
    elif cu_seq_lens is not None:
        if shape[0] != 1 or (is_readable(cu_seq_lens) and cu_seq_lens[[0, -1]].tolist() != [0, shape[1]]):
            raise ValueError(f"`cu_seq_lens_q` must go from 0 to m in a batch of one row, [1, m], not {tuple(shape)}.")
        begins = torch.bucketize(index, cu_seq_lens, right=True)[None].diff() != 0
    else:
        # Compared with the token before that is not padding.
        rows, before = sources[0].expand(shape), torch.where(shown, index, -1).cummax(-1)[0][:, :-1]
        begins = (before >= 0) & shown[:, 1:] & (rows[:, 1:] <= rows.gather(1, before.clamp(min=0)))
    # Not of booleans, whose sums XLA gives as booleans.
    numbers = F.pad(begins, (1, 0)).long().cumsum(-1).expand(shape)
    if is_readable(numbers):
        lowest, highest = numbers.masked_fill(~shown, shape[1]).amin(-1), numbers.masked_fill(~shown, -1).amax(-1)
        return numbers if (lowest < highest).any() else None
    return numbers


class Documents(NamedTuple):
    """A row for each of k packed documents, of at most l tokens: [B, m, ...] -> [k, l, ...] and back."""

    indices: torch.Tensor  # [k, l], the index of each token in the flattened [B, m]; 0 behind a document's end
    real: torch.Tensor  # [k, l], whether there is a token
    shape: torch.Size  # B and m

    @classmethod
    def find(cls, numbers: torch.Tensor, attention_mask: torch.Tensor | None = None) -> "Documents":
        """The documents of rows [B, m], each from its first to its last token that is not padding."""
        index = torch.arange(numbers.numel(), device=numbers.device)
        keys = (numbers + torch.arange(numbers.shape[0], device=numbers.device)[:, None] * numbers.shape[1]).flatten()
        if attention_mask is not None:
            index = index[attention_mask.flatten() != 0]
        begins = F.pad(keys[index].diff() != 0, (1, 0), value=True).nonzero()[:, 0]
        first, last = index[begins], index[F.pad(begins[1:] - 1, (0, 1), value=len(index) - 1)]
        index = first[:, None] + torch.arange(int((last - first).max()) + 1, device=numbers.device)
        real = index <= last[:, None]
        return cls(torch.where(real, index, 0), real, numbers.shape)

    def mask(self, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Whether there is a token that is not padding: [B, m] -> [k, l]"""
        return self.real if attention_mask is None else self.split(attention_mask != 0)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """A row for each document, with zeros behind its end: [B, m, ...] -> [k, l, ...]"""
        rows = x.flatten(0, 1).index_select(0, self.indices.flatten()).unflatten(0, self.indices.shape)
        return rows.masked_fill(~self.real.reshape(*self.real.shape, *[1] * (x.dim() - 2)), 0)

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """Back from `split`, with zeros for padding between documents: [k, l, ...] -> [B, m, ...]"""
        flat = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        return flat.index_copy(0, self.indices[self.real], x[self.real]).unflatten(0, self.shape)


# ---------------------------------------------------------------------------------------------------------------------
# Parts of models


class TextEmbeddings(nn.Module):
    """Token and segment embeddings as in BERT, but without positions and, in pre-norm models, without a norm."""

    def __init__(self, config: PreTrainedConfig, normalize: bool = False):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        segments = config.type_vocab_size
        self.token_type_embeddings = nn.Embedding(segments, config.hidden_size) if segments else None
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if normalize else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,  # [B, m]
        token_type_ids: torch.Tensor | None = None,  # [B or 1, m]
        inputs_embeds: torch.Tensor | None = None,  # [B, m, D]
    ) -> torch.Tensor:  # [B, m, D]
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(embeddings if self.norm is None else self.norm(embeddings))


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
    """Compute attention with H heads step by step. Without query and key, the softmax sees only the position biases.

    Returns:
        The output [B, m, H, D / H], and the attention weights [B, H, m, t].
    """
    scores = value.new_zeros(())
    if query is not None and key is not None:
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # The mask of another attention implementation, if the model was set to one.
        scores = torch.where(attention_mask, scores, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(value.dtype, torch.float32)).to(value.dtype)
    # Biases alone are the same for all samples; dropout is not.
    weights = F.dropout(weights.expand(value.shape[0], -1, -1, -1), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def pair_mask_options(attention_mask: torch.Tensor | None) -> dict[str, Callable]:
    """Return the options of transformers' `create_..._mask` that keep it from reading the mask where its values cannot
    be read (`is_readable`): it reads them, to leave out a mask that hides nothing, unless it has a function to apply.
    """
    reads = attention_mask is not None and attention_mask.device.type == "xla"
    return {"and_mask_function": lambda batch, head, query, key: key >= 0} if reads else {}


def check_inputs(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
    """Return the one that is not `None`. Raise a ValueError if that is both or neither, or has no tokens."""
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if inputs is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("Pass either `input_ids` or `inputs_embeds`, and not both.")
    if 0 in inputs.shape[:2]:
        raise ValueError(f"There are no tokens: the batch has the shape {tuple(inputs.shape[:2])}.")
    return inputs


def check_mask(attention_mask: torch.Tensor | None, shape: tuple[int, ...]):
    """Raise a ValueError if the mask does not have the shape of the tokens."""
    if attention_mask is not None and attention_mask.shape != shape:
        got = tuple(attention_mask.shape)
        raise ValueError(f"`attention_mask` must have one entry per token, shape {tuple(shape)}, got {got}.")


def pool_tokens(
    hidden_states: torch.Tensor, padding_mask: torch.Tensor | None, pooling: str, is_causal: bool = False
) -> torch.Tensor:
    """Pool each sequence to one vector: [B, m, D] -> [B, D]

    Args:
        padding_mask: [B, m], 0 for padding, which is left out.
        pooling: "mean" or "max" over the tokens, or "cls" for the first token, or the last if `is_causal`, since only
            that one has seen the others.
    """
    if pooling == "cls":
        if padding_mask is None:
            return hidden_states[:, -1 if is_causal else 0]
        rows, columns = (torch.arange(size, device=hidden_states.device) for size in padding_mask.shape)
        last = torch.where(padding_mask != 0, columns, 0).amax(-1)
        return hidden_states[rows, last if is_causal else first_index(padding_mask)]
    if padding_mask is None:
        return hidden_states.mean(1) if pooling == "mean" else hidden_states.amax(1)
    padding = (padding_mask == 0)[..., None]
    if pooling == "mean":
        return hidden_states.masked_fill(padding, 0).sum(1) / (~padding).sum(1).clamp(min=1)
    return hidden_states.masked_fill(padding, torch.finfo(hidden_states.dtype).min).amax(1)


class Pooler(nn.Sequential):
    """Dense and tanh on one vector: BERT's pooler and ViT's pre-logits. [B, D] -> [B, D]"""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()


class PredictionHead(nn.Sequential):
    """BERT's transform before the masked-language-model decoder: dense, activation, LayerNorm. [..., D] -> [..., D]"""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class Head(nn.Module):
    """What heads share. All take the inputs of the base model, `input_ids` [B, m] or `inputs_embeds` [B, m, D], and
    `attention_mask`, `token_type_ids`, `position_ids` and `seq_idx` [B, m], and return `loss` if there are labels."""

    # Of the PreTrainedModel behind which a head stands.
    config: PreTrainedConfig
    post_init: Callable[[], None]

    base_model_class: type[PreTrainedModel]
    add_pooling_layer = False
    loss_function: Callable[..., torch.Tensor] = staticmethod(class_loss)

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.model = self.base_model_class(config, add_pooling_layer=self.add_pooling_layer)

    def encode(self, *inputs: torch.Tensor | None, **kwargs) -> ModelOutput:
        return self.model(*inputs, **kwargs | {"return_dict": True})

    def make_output(
        self, output_class: type, base: ModelOutput, logits: torch.Tensor, labels: torch.Tensor | None, **kwargs
    ) -> ModelOutput:
        loss = None
        if labels is not None:
            names = {"config": self.config, "vocab_size": self.config.vocab_size}
            loss = self.loss_function(logits=logits, labels=labels, **names, **kwargs)
        return output_class(loss=loss, logits=logits, hidden_states=base.hidden_states, attentions=base.attentions)


class LanguageModelHead(Head):
    """A head with a decoder whose weight is that of the embeddings."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}
    _fsdp_plan = {"decoder": "keep_full_weight"}

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.decoder = new_embeddings


class ClassifierHead(Head):
    """A head with a classifier on the pooler's output or on every token."""

    num_logits: int | None = None  # by default `config.num_labels`

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        rate = config.classifier_dropout
        self.num_labels = config.num_labels
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.classifier = nn.Linear(config.hidden_size, self.num_logits or config.num_labels)
        self.post_init()

    def train(self, mode: bool = True):
        # An adapter's `weight` is the one that it wraps. A pooler may have been replaced.
        weight = getattr(getattr(self.model.pooler, "dense", None), "weight", None)
        frozen = mode and weight is not None and not weight.requires_grad
        if frozen and any(parameter.requires_grad for parameter in self.classifier.parameters()):
            logger.warning_once(
                "The classifier is trained, but the pooler that it reads is frozen, and is random in a checkpoint "
                'without one. Train and save it too, in PEFT with `modules_to_save=["pooler.dense", "classifier"]`.'
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
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        masked_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        r"""Takes the inputs of the base model, and labels [B, m], the token to predict, or -100 where there is none.
        Returns `loss` and `logits` [B, m, V], or [labeled positions, V] in training with `sparse_prediction`. Compiled
        models need `masked_positions` [B, k] for that, the indices of all labels and some others, and return [B, k, V].
        """
        outputs = self.encode(input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx, **kwargs)
        hidden_states = outputs.last_hidden_state
        if self.config.sparse_prediction and self.training and labels is not None:
            if masked_positions is not None:
                hidden_states = hidden_states.take_along_dim(masked_positions[..., None], 1)
                labels = labels.gather(1, masked_positions)
            elif is_readable(labels):
                labeled = labels != -100
                hidden_states, labels = hidden_states[labeled], labels[labeled]
            # Otherwise all positions, since a compiled model cannot know their number.
        return self.make_output(MaskedLMOutput, outputs, self.decoder(self.head(hidden_states)), labels, **kwargs)


class ForCausalLM(LanguageModelHead):
    """A causal-language-model head without a transform, as in GPT-2. The base model must be causal."""

    _auto_class = "AutoModelForCausalLM"
    loss_function = staticmethod(next_token_loss)

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        r"""Takes the inputs of the base model; labels [B, m], the tokens themselves, which are shifted here, or -100
        where there is nothing to predict; and `logits_to_keep`, how many of the last tokens to compute logits for, or
        the indices of tokens, by default all. Returns `loss`, in which no document predicts the first token of the
        next, `logits` [B, m, V] and `past_key_values`."""
        if not self.config.is_causal:
            raise ValueError("`config.is_causal` must stay on: to see both ways, load a masked language model.")
        if labels is None and kwargs.get("num_items_in_batch") is not None:
            logger.warning_once(
                "Trainer does not shift the labels of this model for `label_smoothing_factor`: use `compute_loss_func`."
            )
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx)
        outputs = self.encode(*inputs, past_key_values=past_key_values, use_cache=use_cache, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.decoder(outputs.last_hidden_state[:, kept])
        packing, numbers = (attention_mask, position_ids, seq_idx, kwargs.get("cu_seq_lens_q")), None
        if labels is not None and kwargs.get("shift_labels") is None and getattr(outputs, CACHE) is None:
            numbers = document_numbers(labels.shape, *packing)
        if labels is not None and numbers is not None:
            counted = (labels[:, 1:] != -100).sum()
            labels = labels.masked_fill(F.pad(numbers.diff() != 0, (1, 0)).to(labels.device), -100)
            if (num_items := kwargs.get("num_items_in_batch")) is not None:
                # Trainer has counted the first tokens of documents too.
                kwargs["num_items_in_batch"] = num_items * (labels[:, 1:] != -100).sum() / counted.clamp(min=1)
        output = self.make_output(CausalLMOutputWithPast, outputs, logits, labels, **kwargs)
        setattr(output, CACHE, getattr(outputs, CACHE))
        return output


class ForSequenceClassification(ClassifierHead):
    """A classifier or regressor on the pooler's output, for GLUE's tasks among others."""

    _auto_class = "AutoModelForSequenceClassification"
    add_pooling_layer = True
    loss_function = staticmethod(classification_loss)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        r"""Takes the inputs of the base model, and labels, [B] classes or values, or [B, num_labels] with several per
        sample. Returns `loss` and `logits` [B, num_labels]. With packed documents, B is their number."""
        outputs = self.encode(input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        return self.make_output(SequenceClassifierOutput, outputs, logits, labels, **kwargs)


class ForTokenClassification(ClassifierHead):
    """A classifier on every token, for named entities among others."""

    _auto_class = "AutoModelForTokenClassification"

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""Takes the inputs of the base model, and labels [B, m], the class of each token, or -100 to leave it out.
        Returns `loss` and `logits` [B, m, num_labels]."""
        outputs = self.encode(input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        return self.make_output(TokenClassifierOutput, outputs, logits, labels, **kwargs)


class ForQuestionAnswering(Head):
    """Marks the first and the last token of an answer, for SQuAD."""

    _auto_class = "AutoModelForQuestionAnswering"
    loss_function = staticmethod(ForQuestionAnsweringLoss)

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""Takes the inputs of the base model, and the indices of the first and last tokens of the answers, [B] each;
        the loss leaves out those outside of the sequence. Returns `loss`, `start_logits` and `end_logits` [B, m]. With
        packed documents, B is their number, m the length of the longest, and indices count from their first tokens."""
        outputs = self.encode(input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids, seq_idx, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)
        packing = (attention_mask, position_ids, seq_idx, kwargs.get("cu_seq_lens_q"))
        if (numbers := document_numbers(logits.shape[:2], *packing)) is not None:
            documents = Documents.find(numbers, attention_mask)
            logits = documents.split(logits).masked_fill(~documents.real[..., None], torch.finfo(logits.dtype).min)
        start_logits, end_logits = (x.contiguous() for x in logits.unbind(-1))
        loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(loss, start_logits, end_logits, outputs.hidden_states, outputs.attentions)


class ForMultipleChoice(ClassifierHead):
    """Scores each of several choices by the pooler's output, for SWAG among others."""

    _auto_class = "AutoModelForMultipleChoice"
    add_pooling_layer = True
    num_logits = 1

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        r"""Takes the inputs of the base model as [B, choices, m] or [B, choices, m, D], without packed documents, and
        labels [B], the right choices. Returns `loss` and `logits` [B, choices]."""
        shape = check_inputs(input_ids, inputs_embeds).shape[:2]
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds, position_ids)
        outputs = self.encode(*(None if x is None else x.flatten(0, 1) for x in inputs), **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        return self.make_output(MultipleChoiceModelOutput, outputs, logits.view(shape), labels, **kwargs)
