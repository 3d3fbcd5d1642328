"""Compare a gMLP with and without a prior for images with a small CNN and a ViT, at equal processor time.

    python -m paper images train TRAIN TEST paper/images.jsonl --models all --epochs 43 --seeds 1 2 3
    python -m paper images table paper/images.jsonl

TRAIN and TEST are zip files of class folders with images of 32 pixels; TEST may be "held-out", the last 75 training
images of every class, for choices. Models (four gMLP blocks of 96 channels, patches of 4 pixels): "plain" as in the
paper, with mean pooling; "stem", "toeplitz" and "heads" with one part of the prior each; "all" with all three; "cnn";
and "vit", transformers' ViT of the same sizes with its [CLS] token. All have AdamW (weight decay 0.05 on matrices),
10 % warm-up and a cosine, batches of 64, label smoothing 0.1, flips, and one of three augmentations: "crops" after
padding by four pixels; "resized", random crops of 0.4 to 1 of the area; "mixed", the same with CutMix in half of the
batches. Every training is a line of the results, with its seconds of processor time; one that is there already is not
repeated.
"""

import io
import itertools
import json
import math
import statistics
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import v2
from transformers import ViTConfig, ViTForImageClassification

from hf_gmlp.markdown import markdown_table
from hf_gmlp.models.configuration_gmlp import GMLPVisionConfig
from hf_gmlp.models.modeling_gmlp import GMLPForImageClassification

PRIOR: dict[str, dict] = {"stem": {"stem": "conv"}, "toeplitz": {"toeplitz": True}, "heads": {"spatial_heads": 4}}
GMLPS = {"plain": {}, **PRIOR, "all": {name: value for part in PRIOR.values() for name, value in part.items()}}
SIZES = {"image_size": 32, "patch_size": 4, "hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 4}
HELD_OUT = 75


def build(name: str, classes: int, initializer_range: float = 0.02) -> nn.Module:
    """Return a new model that maps images [B, 3, 32, 32] to logits [B, classes], or to an output that has them."""
    if name == "cnn":
        return small_cnn(classes)
    shared = SIZES | {"num_labels": classes, "initializer_range": initializer_range}
    if name == "vit":
        return ViTForImageClassification(ViTConfig(num_attention_heads=4, **shared))
    return GMLPForImageClassification(GMLPVisionConfig(pooling="mean", **shared, **GMLPS[name]))


def small_cnn(classes: int) -> nn.Sequential:
    """Return six 3 x 3 convolutions in three stages of 48, 96 and 160 channels: 0.52 M parameters with ten classes."""
    channels, layers = 3, []
    for width in (48, 96, 160):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def logits_of(model: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    output = model(pixels)
    return output if torch.is_tensor(output) else output.logits


def read_images(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels [N, 3, 32, 32] around 0 and classes [N], in the order of the names, so that classes are grouped."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        pictures = [Image.open(io.BytesIO(archive.read(name))).convert("RGB") for name in names]
    folders = [name.split("/")[-2] for name in names]
    classes = {folder: number for number, folder in enumerate(sorted(set(folders)))}
    pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2)
    return (pixels / 255 - 0.5) / 0.25, torch.tensor([classes[folder] for folder in folders])


def optimizer_of(model: nn.Module, learning_rate: float, multiplier: float = 1.0) -> torch.optim.Optimizer:
    """Return AdamW with weight decay on matrices, none on vectors and spatial weights."""
    spatial = [p for name, p in model.named_parameters() if "spatial_gating_unit.proj" in name]
    others = [p for name, p in model.named_parameters() if "spatial_gating_unit.proj" not in name]
    groups = [
        {"params": [p for p in others if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0},
        {"params": spatial, "weight_decay": 0.0, "lr": learning_rate * multiplier},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], learning_rate)


def fit(
    model: nn.Module,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    epochs: int,
    learning_rate: float,
    multiplier: float = 1.0,
    augmentation: str = "crops",
    batch: int = 64,
) -> tuple[float, float]:
    """Train a model; return the loss of the last epoch and the seconds of processor time."""
    optimizer, steps = optimizer_of(model, learning_rate, multiplier), epochs * (len(pixels) // batch)
    warmup = steps / 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            (step + 1) / warmup if step < warmup else 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (steps - warmup))
        ),
    )
    size, flip = pixels.shape[-1], v2.RandomHorizontalFlip()
    crop = v2.RandomCrop(size, padding=size // 8)
    if augmentation != "crops":
        crop = v2.RandomResizedCrop(size, scale=(0.4, 1.0))
    cutmix = v2.CutMix(num_classes=int(labels.max()) + 1)
    started = time.process_time()
    for _ in range(epochs):
        losses: list[float] = []
        for chosen in torch.randperm(len(pixels))[: len(pixels) // batch * batch].split(batch):
            images = torch.stack([flip(crop(image)) for image in pixels[chosen]])
            classes = labels[chosen]
            if augmentation == "mixed" and torch.rand(()) < 0.5:
                images, classes = cutmix(images, classes)
            loss = F.cross_entropy(logits_of(model, images), classes, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return statistics.mean(losses), time.process_time() - started


@torch.no_grad()
def accuracy(model: nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    right = torch.cat([logits_of(model, part).argmax(1) for part in pixels.split(250)]) == labels
    return right.float().mean().item()


def hold_out(labels: torch.Tensor) -> torch.Tensor:
    """Return which images are held out for choices, [N]: the last 75 of every class."""
    held = torch.zeros_like(labels, dtype=torch.bool)
    for label in labels.unique():
        held[(labels == label).nonzero()[-HELD_OUT:, 0]] = True
    return held


def train(train: str, test: str, results: str, models: list[str], seeds: list[int], **options):
    """Train models and add a line to the results for each. `options`: epochs, rates, augmentation and so on."""
    path = Path(results)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    pixels, labels = read_images(train)
    if test == "held-out":
        held = hold_out(labels)
        test_pixels, test_labels, pixels, labels = pixels[held], labels[held], pixels[~held], labels[~held]
    else:
        test_pixels, test_labels = read_images(test)
    for seed, name in itertools.product(seeds, models):
        settings = {"model": name, "seed": seed, "test": Path(test).name, "images": len(pixels), **options}
        if any(settings.items() <= line.items() for line in done):
            continue
        torch.manual_seed(seed)
        model = build(name, int(labels.max()) + 1, options["initializer_range"])
        recipe = (options[key] for key in ("epochs", "learning_rate", "multiplier", "augmentation"))
        loss, seconds = fit(model, pixels, labels, *recipe)
        result = {"accuracy": accuracy(model, test_pixels, test_labels), "loss": loss, "seconds": round(seconds)}
        line = settings | result | {"threads": torch.get_num_threads(), "torch": torch.__version__}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name}, seed {seed}: accuracy {100 * result['accuracy']:.1f} %, loss {loss:.3f}, {seconds:.0f} s")


def print_table(results: str):
    """Print RESULTS as a Markdown table: a row for each setting, over its seeds."""
    runs = pd.read_json(results, lines=True)
    runs["accuracy"] *= 100
    keys = ["test", "model", "images", "augmentation", "epochs", "learning_rate", "multiplier", "initializer_range"]
    table = runs.groupby(keys)[["accuracy", "loss", "seconds"]].median().round(2)
    table["seeds"] = runs.groupby(keys).size()
    print(markdown_table([[*keys, *table.columns], *table.reset_index().values.tolist()]))
