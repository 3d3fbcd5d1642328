"""Text models of the paper's tables that transformers lacks: BERT without position embeddings, and MLP-Mixer.

- BertRelpos: T5's relative position biases, separate in each layer and head. Without `content_attention`, the softmax
  sees only the biases: "BERT-base + rel pos - attn" of Table 3. With `pre_norm`, which the paper does not have, norms
  are placed as in a gMLP.
- TextMixer: MLP-Mixer (https://arxiv.org/abs/2105.01601), in which an MLP over the tokens replaces attention.

Heads, losses and pooler are those of BERT. Importing this module registers the models with the Auto classes and adds
their presets to those of hf_gmlp.

Shapes: B batch, m tokens, n config.max_position_embeddings, D hidden_size, H heads.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    PreTrainedTokenizerFast,
)
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions, MaskedLMOutput
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertLayer,
    BertModel,
    BertPooler,
    BertPreTrainedModel,
    BertSelfAttention,
)
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.roberta_prelayernorm.modeling_roberta_prelayernorm import (
    RobertaPreLayerNormIntermediate,
    RobertaPreLayerNormLayer,
    RobertaPreLayerNormOutput,
)

from hf_gmlp.presets import PRESETS


@strict
class BertRelposConfig(BertConfig):
    model_type = "bert_relpos"

    content_attention: bool = True  # whether to use queries and keys; values and output projection are always used
    pre_norm: bool = False  # normalize before each sublayer and after the last layer, instead of after each sublayer
    relative_attention_num_buckets: int = 32  # biases per head, half of them per direction
    relative_attention_max_distance: int = 128  # all distances from here on share a bias
    sparse_prediction: bool = False  # compute the logits of a training only where a token is predicted, as gMLPs can


@strict
class TextMixerConfig(BertConfig):
    model_type = "text_mixer"

    spatial_intermediate_size: int = 384  # d_spatial, the width inside the MLP over the tokens
    num_attention_heads: int = 1  # unused, but BERT's classes check that it divides `hidden_size`


# ---------------------------------------------------------------------------------------------------------------------
# Layers


class BaselineEmbeddings(BertEmbeddings):
    """BERT's embeddings without positions."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        del self.position_embeddings

    def forward(self, input_ids=None, token_type_ids=None, inputs_embeds=None, **kwargs) -> torch.Tensor:
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(input_ids)
        if token_type_ids is None:
            token_type_ids = torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
        return self.dropout(self.LayerNorm(inputs_embeds + self.token_type_embeddings(token_type_ids)))


class RelativeSelfAttention(BertSelfAttention):
    """BERT's self-attention with relative position biases, with or without queries and keys: [B, m, D] -> [B, m, D]"""

    def __init__(self, config: BertRelposConfig) -> None:
        super().__init__(config)
        self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)
        if not config.content_attention:
            del self.query, self.key

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.position_bias(hidden_states.shape[1])
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        elif attention_mask is not None:
            scores = scores + attention_mask
        if self.config.content_attention:
            # Pass the biases as a float mask, which every attention function adds to the scores.
            return super().forward(hidden_states, attention_mask=scores, **kwargs)
        # Biases are shared by all samples, but dropout differs between them.
        weights = self.dropout(scores.softmax(-1).expand(len(hidden_states), -1, -1, -1))
        value = self.value(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2), weights

    def position_bias(self, length: int) -> torch.Tensor:
        """Return the bias of every query and key: m -> [1, H, m, m]"""
        index = torch.arange(length, device=self.relative_attention_bias.weight.device)
        # MPNet's function is the bidirectional case of T5's.
        buckets = MPNetEncoder.relative_position_bucket(
            index - index[:, None],
            num_buckets=self.config.relative_attention_num_buckets,
            max_distance=self.config.relative_attention_max_distance,
        )
        return self.relative_attention_bias(buckets).permute(2, 0, 1)[None].contiguous()


class TextMixerLayer(GradientCheckpointingLayer):
    """Mixer's layer, an MLP over the tokens and one over the channels, both pre-norm: [B, m, D] -> [B, m, D]"""

    def __init__(self, config: TextMixerConfig) -> None:
        super().__init__()
        self.max_length = n = config.max_position_embeddings
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp_tokens = nn.Sequential(
            nn.Linear(n, config.spatial_intermediate_size),
            ACT2FN[config.hidden_act],
            nn.Linear(config.spatial_intermediate_size, n),
        )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.intermediate = RobertaPreLayerNormIntermediate(config)
        self.output = RobertaPreLayerNormOutput(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        mixed = self.mix_tokens(self.LayerNorm(hidden_states), attention_mask)
        hidden_states = hidden_states + self.dropout(mixed)
        return self.output(self.intermediate(hidden_states), hidden_states)

    def mix_tokens(self, x: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Apply the MLP over the tokens, with padding masked for all tokens: [B, m, D] -> [B, m, D]"""
        length, n = x.shape[1], self.max_length
        if length > n:
            raise ValueError(f"The sequences have {length} tokens, but the model accepts up to {n}: truncate them.")
        if attention_mask is not None:
            # [B, 1, m, m], the same keys for all queries: boolean, or float with 0 for visible keys.
            visible = attention_mask[:, 0, 0] if attention_mask.dtype == torch.bool else attention_mask[:, 0, 0] == 0
            # Move left padding to the right, so that a text begins at the first row and column of both matrices.
            order = (torch.arange(length, device=x.device) + visible.long().argmax(-1, keepdim=True)) % length
            rows = torch.arange(len(x), device=x.device)[:, None]
            # Mask after the LayerNorm, whose bias would otherwise replace the zeros.
            x = (x * visible[..., None])[rows, order]
        # Zero-padding to n is equivalent to using the leading part of both matrices.
        x = self.mlp_tokens(F.pad(x.transpose(1, 2), (0, n - length)))[..., :length].transpose(1, 2)
        return x if attention_mask is None else x[rows, order.argsort(-1)]


# ---------------------------------------------------------------------------------------------------------------------
# Models


class BaselineEncoder(nn.Module):
    """The layers, followed by `norm`: [B, m, D] -> [B, m, D]"""

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.layer = nn.ModuleList(layers)
        self.LayerNorm = norm

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        for name in ("position_ids", "seq_idx", "cache", "past_key_values"):
            if kwargs.get(name) is not None:
                raise ValueError(f"This model treats a row as one document from its first token on: omit {name}.")
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.LayerNorm(hidden_states))


class BaselinePreTrainedModel(BertPreTrainedModel):
    """Common behavior of the models and heads below. List it as the first base, before a class of BERT."""

    _supports_flash_attn = False  # neither accepts a float mask
    _supports_flex_attn = False
    _no_split_modules = ["BertLayer", "RobertaPreLayerNormLayer", "TextMixerLayer"]
    _can_record_outputs = {"hidden_states": GradientCheckpointingLayer, "attentions": BertSelfAttention}


class BertRelposModel(BaselinePreTrainedModel, BertModel):
    """BERT with relative position biases. The pooler uses the first token of a row, so pad on the right."""

    config: BertRelposConfig

    def __init__(self, config: BertRelposConfig, add_pooling_layer: bool = True) -> None:
        BertPreTrainedModel.__init__(self, config)
        self.embeddings = BaselineEmbeddings(config)
        layer_class = RobertaPreLayerNormLayer if config.pre_norm else BertLayer
        layers = [layer_class(config) for _ in range(config.num_hidden_layers)]
        for layer in layers:
            layer.attention.self = RelativeSelfAttention(config)
        norm: nn.Module = nn.Identity()
        if config.pre_norm:
            norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.embeddings.LayerNorm = nn.Identity()
        self.encoder = BaselineEncoder(layers, norm)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()


class TextMixerModel(BaselinePreTrainedModel, BertModel):
    """MLP-Mixer. The pooler uses the first token of a row, so pad on the right."""

    config: TextMixerConfig

    def __init__(self, config: TextMixerConfig, add_pooling_layer: bool = True) -> None:
        BertPreTrainedModel.__init__(self, config)
        self.embeddings = BaselineEmbeddings(config)
        self.embeddings.LayerNorm = nn.Identity()
        layers = [TextMixerLayer(config) for _ in range(config.num_hidden_layers)]
        self.encoder = BaselineEncoder(layers, nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps))
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()


class BaselineHead(BaselinePreTrainedModel):
    """Mixin that turns a head of BERT, the next base class, into a head of `model_class`."""

    bert: BertModel
    model_class: type[BertModel]

    def __init__(self, config: BertConfig) -> None:
        # This also builds a BERT, which is replaced below.
        super().__init__(config)
        self.bert = self.model_class(config, add_pooling_layer=self.bert.pooler is not None)
        self.post_init()


class BertRelposHead(BaselineHead):
    config: BertRelposConfig
    model_class = BertRelposModel


class BertRelposForMaskedLM(BertRelposHead, BertForMaskedLM):
    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, *, labels=None, masked_positions=None, **kwargs
    ) -> MaskedLMOutput:
        """With `sparse_prediction`, labels and `masked_positions` have the meaning they have in GMLPForMaskedLM."""
        kwargs |= {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        if labels is None or not (self.config.sparse_prediction and self.training):
            return super().forward(input_ids, labels=labels, **kwargs)
        hidden_states = self.bert(input_ids, **kwargs).last_hidden_state
        if masked_positions is not None:
            hidden_states = hidden_states.take_along_dim(masked_positions[..., None], 1)
            labels = labels.gather(1, masked_positions)
        else:
            is_labeled = labels != -100
            hidden_states, labels = hidden_states[is_labeled], labels[is_labeled]
        logits = self.cls(hidden_states)
        loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(loss, logits)


class BertRelposForSequenceClassification(BertRelposHead, BertForSequenceClassification): ...


class TextMixerHead(BaselineHead):
    config: TextMixerConfig
    model_class = TextMixerModel


class TextMixerForMaskedLM(TextMixerHead, BertForMaskedLM): ...


class TextMixerForSequenceClassification(TextMixerHead, BertForSequenceClassification): ...


for _config in (BertRelposConfig, TextMixerConfig):
    AutoConfig.register(_config.model_type, _config)
    AutoTokenizer.register(_config, tokenizer_class=PreTrainedTokenizerFast)
AutoModel.register(BertRelposConfig, BertRelposModel)
AutoModel.register(TextMixerConfig, TextMixerModel)
AutoModelForMaskedLM.register(BertRelposConfig, BertRelposForMaskedLM)
AutoModelForMaskedLM.register(TextMixerConfig, TextMixerForMaskedLM)
AutoModelForSequenceClassification.register(BertRelposConfig, BertRelposForSequenceClassification)
AutoModelForSequenceClassification.register(TextMixerConfig, TextMixerForSequenceClassification)

PRESETS.update((path.parent.name, path.parent) for path in Path(__file__).parent.glob("presets/*/config.json"))
