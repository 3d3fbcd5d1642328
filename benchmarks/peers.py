"""The systems that the benchmarks compare: gMLP and its peers, each with its inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hf_gmlp.training.checkpointing import enable_selective_checkpointing

# Noise added to the spatial weights, which start so near zero that a wrong W would go unnoticed.
SPATIAL_NOISE = 0.02
SPATIAL_WEIGHTS = ("spatial_gating_unit.proj.weight", "gate.proj.weight", "sgu.weight")
VOCABULARY = 32
OWN, AMLP, TIMM, VIT, BERT = "hf_gmlp", "hf_gmlp, aMLP", "timm", "ViT", "BERT"
MODERN, LUCIDRAINS = "ModernBERT", "g-mlp-pytorch"
# Blocks or layers of the published text models.
PUBLISHED = {OWN: 48, AMLP: 36, LUCIDRAINS: 48, BERT: 12, MODERN: 22}
# Suffixes of the name of a system, which select how it is trained or run.
SELECTIVE, FULL, COMPILED = " + selective checkpointing", " + full checkpointing", " + torch.compile"


@dataclass
class System:
    """A model and its inputs.

    Attributes:
        labels: Classes of images. Without them, the loss is the mean of the cubed outputs.
    """

    name: str
    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor | None = None

    def run(self, count: int | None = None) -> torch.Tensor:
        """Return the output for all samples, or for the first `count`."""
        result = self.model(self.inputs[:count])
        return result if isinstance(result, torch.Tensor) else result[0]

    def loss(self, count: int | None = None) -> torch.Tensor:
        output = self.run(count).float()
        # The mean square would be constant after a LayerNorm, and its gradients rounding errors.
        return output.pow(3).mean() if self.labels is None else F.cross_entropy(output, self.labels[:count])


def parameters_of(model: nn.Module) -> int:
    """Return the number of parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def base_of(name: str) -> str:
    """Return the name of a system without its suffix."""
    return name.partition(" + ")[0]


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith(SPATIAL_WEIGHTS):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
            parameter.add_(noise.to(parameter.device), alpha=SPATIAL_NOISE)


def build(make: Callable[..., System], name: str, device: str | torch.device = "cpu", **sizes) -> System:
    """Build a system with `make`, `image_model` or `text_model`, from a name that may have a suffix."""
    torch.manual_seed(0)
    with torch.device(device):
        system = make(base_of(name), **sizes)
    perturb(system.model)
    system.name = name
    if name.endswith(SELECTIVE):
        enable_selective_checkpointing(system.model)
    elif name.endswith(FULL):
        enable: Any = getattr(
            system.model, "activation_checkpointing_enable", system.model.gradient_checkpointing_enable
        )
        enable()
    elif name.endswith(COMPILED):
        # Blocks of all models share code objects, so every compiled size counts toward one limit.
        torch._dynamo.config.recompile_limit = 256
        for block in blocks_of(system.model):
            # Products with dynamic sizes would be slower.
            block.compile(dynamic=False)
    return system


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the longest list of modules of the same kind."""
    lists = [
        module
        for module in model.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len({type(child) for child in module}) == 1
    ]
    return list(max(lists, key=parameters_of))


# No model has dropout. Peers are imported where they are built, since no benchmark needs all of them.


def image_model(name: str, layers: int, batch: int, large: bool = False) -> System:
    """Build a gMLP-S with `layers` blocks, a multiple of five, or a ViT-S of the same size for 224-pixel images, or
    those of size B."""
    width = 512 if large else 256
    if name == OWN:
        from hf_gmlp.models.configuration_gmlp import GMLPVisionConfig
        from hf_gmlp.models.modeling_gmlp import GMLPForImageClassification

        sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 6 * width}
        model = GMLPForImageClassification(GMLPVisionConfig(**sizes, pooling="mean", num_labels=1000))
    elif name == TIMM:
        import timm

        model = timm.create_model("gmlp_b16_224" if large else "gmlp_s16_224")
        model.blocks = model.blocks[:layers]
        # The head of a new model is initialized to zero, so all outputs would be zero.
        nn.init.normal_(model.head.weight, std=0.02)
    else:
        from transformers import ViTConfig, ViTForImageClassification

        width = 768 if large else 384
        sizes = {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 4 * width}
        # The published models have 12 layers and 30 blocks, the same ratio.
        sizes |= {"num_hidden_layers": 2 * layers // 5, "num_labels": 1000}
        model = ViTForImageClassification(ViTConfig(**sizes))
    return System(name, model, torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,)))


def text_model(name: str, layers: int, batch: int, tokens: int, reach: int | None = None) -> System:
    """Build a gMLP-base, or a peer of its size: three of its blocks have as many parameters as a layer of BERT-base.
    With 48 blocks, as in gMLP-base, the peers are the published models: aMLP-base, BERT-base and ModernBERT-base."""
    ids = torch.randint(VOCABULARY, (batch, tokens), device="cpu", generator=torch.Generator("cpu").manual_seed(1))
    is_published = layers == PUBLISHED[OWN]
    depth = PUBLISHED[name] if is_published else layers // 3 if name in (BERT, MODERN) else layers
    if name in (OWN, AMLP):
        from hf_gmlp.models.configuration_gmlp import GMLPConfig
        from hf_gmlp.models.modeling_gmlp import GMLPModel

        # Shorter texts use a part of W, and longer ones use a W that was trained on 128 tokens.
        sizes = {"num_hidden_layers": depth, "max_position_embeddings": max(512, tokens), "vocab_size": VOCABULARY}
        sizes |= {"spatial_reach": reach or 128} if reach or tokens > 512 else {}
        sizes |= {"attention_size": 64 if name == AMLP else 0, "type_vocab_size": 0}
        model = GMLPModel(GMLPConfig(**sizes), add_pooling_layer=False)
    elif name == BERT:
        from transformers import BertConfig, BertModel

        sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": depth}
        sizes |= {"max_position_embeddings": max(512, tokens)}
        config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = BertModel(config, add_pooling_layer=False)
    elif name == MODERN:
        from transformers import ModernBertConfig, ModernBertModel

        # Three layers, of which one is global, have as many parameters as five blocks of gMLP-base.
        width = 1152 if is_published else 672
        sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": depth, "intermediate_size": width}
        special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
        model = ModernBertModel(ModernBertConfig(**sizes, **special, max_position_embeddings=tokens))
    else:
        import g_mlp_pytorch

        # g-mlp-pytorch accepts texts of one length only.
        sizes = {"num_tokens": VOCABULARY, "dim": 512, "depth": depth, "seq_len": tokens, "ff_mult": 6}
        model = g_mlp_pytorch.gMLP(**sizes)
    return System(name, model, ids.to(torch.get_default_device()))
