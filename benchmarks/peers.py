"""What the benchmarks compare: gMLP in its forms, and its peers, each with the inputs that it is given."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Finds the package where it is not installed.
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# How far from their initial values the spatial weights are while outputs are compared and times taken.
SPATIAL_NOISE = 0.02
SPATIAL_WEIGHTS = ("spatial_gating_unit.proj.weight", "gate.proj.weight", "sgu.weight")
# Name of a form -> its `gating_implementation`.
FORMS = {"hf_gmlp, plain": "naive", "hf_gmlp, lean": "lean", "hf_gmlp, triton": "triton"}
PLAIN, LEAN, TRITON = FORMS
TIMM, VIT = "timm gmlp_s16", "ViT-S"
CIRCULANT, DENSE, ANNOTATED = "lucidrains, circulant", "lucidrains, dense", "annotated (labml's form)"
BERT = "BERT"
VISION = [LEAN, PLAIN, TIMM, VIT]
TEXT = [LEAN, PLAIN, CIRCULANT, DENSE, ANNOTATED, BERT]
# The share of tokens that is masked, as in BERT.
MASKED = 0.15
IGNORED = -100


@dataclass
class System:
    """
    A model and what it is fed with.

    Attributes:
        run: run() is the output, run(count) the output for the first `count` samples.
        layers, tokens: The number of layers of the model, and of tokens in a sample.
        loss: loss() or loss(count) is what a training step differentiates; `objective` of the output by default.
        cotangent: The gradient of `loss()`, where that is not a scalar.
        inputs: What `model` is called with, where that is all that `run` does.
    """

    name: str
    model: nn.Module
    run: Callable[..., torch.Tensor]
    layers: int
    tokens: int
    loss: Callable[..., torch.Tensor] | None = None
    cotangent: torch.Tensor | None = None
    inputs: torch.Tensor | None = None

    def __post_init__(self):
        if self.loss is None:
            self.loss = lambda count=None: objective(self.run(count))

    def backward(self, loss: torch.Tensor, count: int | None = None):
        loss.backward(None if self.cotangent is None else self.cotangent[:count])

    @property
    def parameters(self) -> int:
        return parameters_of(self.model)

    def row(self, batch: int) -> dict:
        """The columns of a result that describe the system."""
        base = base_of(self.name)
        mode = "eager" if base == self.name else "compiled"
        sizes = {"layers": self.layers, "parameters": self.parameters, "batch": batch, "tokens": self.tokens}
        return {"mode": mode, "system": base} | sizes


def objective(output: torch.Tensor) -> torch.Tensor:
    """A loss. Not the mean square: after a LayerNorm that is constant, and its gradients are rounding errors."""
    return output.pow(3).mean()


def parameters_of(model: nn.Module) -> int:
    """The number of parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def base_of(name: str) -> str:
    return name.removesuffix(", compiled")


def output_of(result) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


def fixed(*shape: int, device: str | torch.device = "cpu") -> torch.Tensor:
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(1))


def fixed_ids(batch: int, tokens: int, vocabulary: int = 32) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def far(model: nn.Module) -> nn.Module:
    """Moves spatial weights away from zero, where they start: there, a wrong W would not be seen."""
    for name, parameter in model.named_parameters():
        if name.endswith(SPATIAL_WEIGHTS):
            generator = torch.Generator(parameter.device).manual_seed(3)
            noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
            parameter.add_(noise, alpha=SPATIAL_NOISE)
    return model


def system_of(name: str, model: nn.Module, inputs: torch.Tensor, layers: int, tokens: int) -> System:
    return System(name, far(model), lambda count=None: output_of(model(inputs[:count])), layers, tokens, inputs=inputs)


# ------------------------------------------------------------------------------------------- models, without dropout
# Each branch imports what it needs and nothing else, since the imports count in the memory of a process.


def build_vision(name: str, layers: int, batch: int, device: str = "cpu") -> System:
    """One of VISION or FORMS for images of 224 pixels."""
    tokens = 196
    with torch.device(device):
        if name in FORMS:
            from hf_gmlp import GMLPForImageClassification, GMLPVisionConfig

            sizes = {"num_hidden_layers": layers, "pooling": "mean", "num_labels": 1000}
            model = GMLPForImageClassification(GMLPVisionConfig(**sizes, gating_implementation=FORMS[name]))
        elif name == TIMM:
            import timm

            model = timm.create_model("gmlp_s16_224")
            model.blocks = model.blocks[:layers]
            # The head of a new model is zero, and so would be all outputs.
            nn.init.normal_(model.head.weight, std=0.02)
        else:
            from transformers import ViTConfig, ViTForImageClassification

            # ViT-S has 12 layers where gMLP-S has 30.
            layers, tokens = max(1, round(layers * 12 / 30)), 197
            sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "num_labels": 1000}
            model = ViTForImageClassification(ViTConfig(num_hidden_layers=layers, **sizes))
    system = system_of(name, model, fixed(batch, 3, 224, 224, device=device), layers, tokens)
    labels = torch.randint(1000, (batch,), generator=torch.Generator().manual_seed(2)).to(device)
    system.loss = lambda count=None: F.cross_entropy(system.run(count).float(), labels[:count])
    return system


def build_text(
    name: str, layers: int, batch: int, tokens: int, vocabulary: int = 32, device: str = "cpu", bert_share: int = 3
) -> System:
    """One of TEXT or FORMS. BERT has a layer of BERT-base for `bert_share` gMLP blocks; 3 have the same parameters."""
    with torch.device(device):
        if name in FORMS:
            from hf_gmlp import GMLPConfig, GMLPModel

            sizes = {"num_hidden_layers": layers, "max_position_embeddings": tokens, "vocab_size": vocabulary}
            config = GMLPConfig(**sizes, type_vocab_size=0, gating_implementation=FORMS[name])
            model = GMLPModel(config, add_pooling_layer=False)
        elif name in (CIRCULANT, DENSE):
            import g_mlp_pytorch

            sizes = {"num_tokens": vocabulary, "dim": 512, "depth": layers, "seq_len": tokens, "ff_mult": 6}
            model = g_mlp_pytorch.gMLP(**sizes, circulant_matrix=name == CIRCULANT)
        elif name == ANNOTATED:
            model = Annotated(layers, tokens, vocabulary)
        else:
            from transformers import BertConfig, BertModel

            layers = max(1, layers // bert_share)
            sizes = {"vocab_size": vocabulary, "num_hidden_layers": layers, "max_position_embeddings": tokens}
            config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
            model = BertModel(config, add_pooling_layer=False)
    return system_of(name, model, fixed_ids(batch, tokens, vocabulary).to(device), layers, tokens)


class Annotated(nn.Module):
    """Blocks in the form of labml.ai's annotated implementation, tokens first."""

    def __init__(self, layers: int, tokens: int, vocabulary: int):
        super().__init__()
        from tests.peers.annotated import AnnotatedGMLPBlock

        self.embed = nn.Embedding(vocabulary, 512)
        self.blocks = nn.Sequential(*(AnnotatedGMLPBlock(512, 3072, tokens) for _ in range(layers)))
        self.norm = nn.LayerNorm(512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.embed(ids.T))).transpose(0, 1)


class MaskedLM(nn.Module):
    """A peer's trunk with the masked language model's head of BERT and gMLP, at the labeled positions only."""

    def __init__(self, trunk: nn.Module):
        super().__init__()
        embeddings = next(module for module in trunk.modules() if isinstance(module, nn.Embedding))
        vocabulary, width = embeddings.weight.shape
        self.trunk = trunk
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = embeddings.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labeled = labels != IGNORED
        logits = self.decoder(self.head(output_of(self.trunk(ids))[labeled]))
        return F.cross_entropy(logits.float(), labels[labeled]), logits


def build_masked(name: str, layers: int, batch: int, tokens: int, vocabulary: int, device: str = "cpu") -> System:
    """gMLP-base, or a peer of its size, as a masked language model with logits at the masked positions only."""
    # BERT-base has 12 layers where gMLP-base has 48.
    trunk = None if name in FORMS else build_text(name, layers, batch, tokens, vocabulary, device, bert_share=4)
    with torch.device(device):
        if trunk is None:
            from hf_gmlp import GMLPConfig, GMLPForMaskedLM

            sizes = {"num_hidden_layers": layers, "max_position_embeddings": tokens, "vocab_size": vocabulary}
            options = {"sparse_prediction": True, "gating_implementation": FORMS[name]}
            config = GMLPConfig.from_preset("gmlp-base", **sizes, **options)
            model = far(GMLPForMaskedLM(config))
        else:
            layers = trunk.layers
            if name in (CIRCULANT, DENSE):
                # Keeps the final norm.
                trunk.model.to_logits = trunk.model.to_logits[0]
            model = MaskedLM(trunk.model)
    ids = fixed_ids(batch, tokens, vocabulary)
    labels = masked_labels(ids).to(device)
    ids = ids.to(device)

    def part(index: int) -> Callable[..., torch.Tensor]:
        """The loss (0) or the logits (1); either way, the model computes both."""
        return lambda count=None: model(ids[:count], labels=labels[:count])[index]

    return System("BERT-base" if name == BERT else name, model, part(1), layers, tokens, loss=part(0))


def masked_labels(ids: torch.Tensor) -> torch.Tensor:
    """Masks the same number of positions in each text, so that the work grows with the number of texts."""
    count = max(1, int(MASKED * ids.shape[1]))
    places = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)).argsort(1)[:, :count]
    return torch.full_like(ids, IGNORED).scatter(1, places, ids.gather(1, places))


def compiled(system: System, what: str = "model", backend: str = "inductor") -> System:
    """The system with its model, or with what="blocks" each of its blocks, compiled."""
    # Models share functions, and each size and precision is compiled separately.
    torch._dynamo.config.recompile_limit = 256
    for module in [system.model] if what == "model" else blocks_of(system.model):
        # With dynamic sizes, products would be slower.
        module.compile(backend=backend, dynamic=False)
    system.name = system.name.removesuffix(", plain") + ", compiled"
    return system


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The largest list of modules of one kind."""
    lists = [
        module
        for module in model.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len({type(child) for child in module}) == 1
    ]
    return list(max(lists, key=parameters_of))
