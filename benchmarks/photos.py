"""Image encoders: classification of photos with few labeled ones.

    python -m benchmarks.photos pixels colors checkpoints/gmlp-mini-photos timm:tf_efficientnet_lite0:128:64 \
        --weights efficientnet-lite0.pth --photos ants_bees trash

A model is a folder for `AutoModel`, with its image processor, whose features are its `pooler_output`, or else the mean
of its tokens; "timm:NAME:SIZE" is a model of timm, at SIZE pixels, and "timm:NAME:SIZE:SMALL" reads photos that were
first reduced to SMALL pixels. "FOLDER:SIZE" is a gMLP resized to SIZE pixels. Baselines are "pixels", of 32 x 32, and
"colors", the histogram of `hf-gmlp classify`. Features are scaled to length 1, and "A+B" joins those of both. Scores
are accuracies of logistic regression (C = 10) on 8, 16 and 60 rows per class of the folder `train`, the mean of several
random samples, on the folder `test`; or, to select models, on the other rows of `train` (--select). "nearest 5" is how
many of the five nearest photos of `train` have the class of a photo. Photos are cut to a square. Those that an encoder
was trained on can be left out (--leave_out tiny_imagenet/train.parquet).
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import datasets
import PIL.Image

import hf_gmlp  # noqa: F401 (registers the models)
from common.pictures import (
    BATCH,
    NEAREST,
    ROWS,
    SAMPLES,
    SELECTION_ROWS,
    SELECTION_SAMPLES,
    Features,
    make_features,
    read_photos,
    set_scores,
    thumbnails,
    unlike,
)
from hf_gmlp import errors
from hf_gmlp.cards import markdown_table
from hf_gmlp.processor import decode_image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders, pixels, colors, or timm:NAME:SIZE")
    parser.add_argument("--photos", type=Path, nargs="+", required=True, help="folders with train and test")
    parser.add_argument("--weights", type=Path, help="file of the weights of timm's models (default: random weights)")
    parser.add_argument(
        "--leave_out", type=Path, help="parquet file of pictures; photos nearly equal to one do not count"
    )
    parser.add_argument("--samples", type=int, help="random samples (default: 3, and 10 to select)")
    parser.add_argument("--select", action="store_true", help="score on other rows of train, never on test")
    errors.run_command(lambda: compare(parser.parse_args()))


def compare(arguments: argparse.Namespace) -> None:
    """Print a table of scores and times."""
    counts = SELECTION_ROWS if arguments.select else ROWS
    samples = arguments.samples or (SELECTION_SAMPLES if arguments.select else SAMPLES)
    if len({folder.name for folder in arguments.photos}) < len(arguments.photos):
        raise errors.InputError("Two folders of --photos have the same name: rename one of them.")
    sets = {folder.name: read_photos(folder) for folder in arguments.photos}
    if arguments.leave_out is not None:
        images = datasets.Dataset.from_parquet(str(arguments.leave_out)).cast_column(
            "image", datasets.Image(decode=False)
        )
        known = thumbnails([decode_image(image) for image in images["image"]])
        sets = {name: {split: unlike(*rows, known) for split, rows in splits.items()} for name, splits in sets.items()}
        for name, splits in sets.items():
            print(f"{name}: " + ", ".join(f"{len(labels)} photos in {split}" for split, (_, labels) in splits.items()))
    columns = [f"{name}, {column}" for name in sets for column in (*counts, f"nearest {NEAREST}")]
    table = [["model", *columns, "ms per picture"]]
    for name in arguments.models:
        features = make_features(name, arguments.weights)
        row = [f"{name} (random weights)" if "timm:" in name and arguments.weights is None else name]
        for pictures in sets.values():
            row += [f"{score:.3f}" for score in set_scores(features, pictures, counts, samples, arguments.select)]
        some = next(iter(sets.values()))["train"][0][:BATCH]
        table.append([*row, f"{1000 * seconds(features, some) / len(some):.2f}"])
    print(markdown_table(table))


def seconds(features: Features, pictures: Sequence[PIL.Image.Image], repeats: int = 5) -> float:
    """Return the processor time of the features of decoded pictures, the least of several repeats."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        features(pictures)
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
