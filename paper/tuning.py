"""Choose the settings of recipes/classify.yaml and of fine-tuning on photos. The protocols are in docs/log/text.md.

The first round runs short trainings that each change one setting, and the second runs full trainings of the best
settings. Both choose by rows held out of the training data. The test data are used once, for the final model.
"""

import gzip
import random
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from .baselines import sentence_accuracy
from .experiments import finish
from .trainings import train

Settings = dict[str, float]
# Training and test files below the data folder. Test files are not used for choosing.
TEXTS = {
    "sst2": ("sst2/train.jsonl", "sst2/validation.jsonl"),
    "banking77": ("banking77/train.csv", "banking77/test.csv"),
    "rte": ("rte/train.jsonl", "rte/validation.jsonl"),
    "imdb": ("imdb/train.jsonl.gz", "imdb/test.jsonl.gz"),
}
# Use only part of IMDB, to match the size of data sets that users label themselves.
IMDB_ROWS = 5000
# Data sets that are small enough to be trained twice as long within the budget.
LONGER = ("sst2", "rte")
START: Settings = {"learning_rate": 1.5e-3, "spatial_lr_multiplier": 5, "dropout": 0.0, "epochs": 4}
CHANGES: tuple[Settings, ...] = (
    {"learning_rate": 7.5e-4},
    {"learning_rate": 3e-3},
    {"spatial_lr_multiplier": 1},
    {"spatial_lr_multiplier": 25},
    {"dropout": 0.1},
    {"dropout": 0.3},
)
PHOTOS = (30, 300, 3000)
PHOTO_START: Settings = {"learning_rate": 3e-4, "spatial_lr_multiplier": 1, "dropout": 0.0, "epochs": 30}
PHOTO_CHANGES: tuple[Settings, ...] = (
    {"learning_rate": 1e-4},
    {"learning_rate": 1e-3},
    {"learning_rate": 3e-3},
    {"spatial_lr_multiplier": 5},
    {"dropout": 0.1},
    {"epochs": 10},
)


def flags_of(settings: Settings) -> dict[str, object]:
    """Convert settings to flags of the scripts."""
    rates = {name: settings[name] for name in ("learning_rate", "spatial_lr_multiplier")}
    epochs = settings["epochs"]
    dropout = f"hidden_dropout_prob={settings['dropout']},attention_probs_dropout_prob={settings['dropout']}"
    return rates | {"config_overrides": dropout, "num_train_epochs": epochs, "seed": 1}


def folder_of(settings: Settings) -> str:
    return "-".join(f"{name.partition('_')[0]}-{value:g}" for name, value in settings.items())


def combine(scores: Mapping[str, float], settings: Mapping[str, Settings], start: Settings) -> list[Settings]:
    """Return the start, the best change, and all improving changes combined (the best per setting), deduplicated."""
    base = scores[folder_of(start)]
    better = sorted((name for name in scores if scores[name] > base), key=lambda name: scores[name])
    together = dict(start)
    # The best change comes last, so it overrides others of the same setting.
    for name in better:
        together |= {key: value for key, value in settings[name].items() if value != start[key]}
    kept = [start, *(settings[name] for name in better[-1:]), together]
    return [candidate for index, candidate in enumerate(kept) if candidate not in kept[:index]]


def choose(
    first_round: Callable[[Settings], float],
    second_round: Callable[[Settings], float],
    start: Settings,
    changes: Sequence[Settings],
) -> tuple[dict[str, float], dict[str, float], Settings]:
    """Return the accuracies of both rounds by the names of the settings, and the best settings of the second round."""
    tried = {folder_of(start | change): start | change for change in ({}, *changes)}
    scores = {name: first_round(settings) for name, settings in tried.items()}
    finalists = {folder_of(settings): settings for settings in combine(scores, tried, start)}
    final_scores = {name: second_round(settings) for name, settings in finalists.items()}
    return scores, final_scores, finalists[max(finalists, key=lambda name: final_scores[name])]


def tune_texts(checkpoint: Path, data: Path, output_dir: Path):
    """Tune `hf-gmlp classify` on four text data sets, and compare it with tf-idf, whose settings are also searched."""
    files = {name: (data / train_file, data / test_file) for name, (train_file, test_file) in TEXTS.items()}
    output_dir.mkdir(parents=True, exist_ok=True)
    with gzip.open(files["imdb"][0], "rt", encoding="utf-8") as lines:
        (output_dir / "imdb.jsonl").write_text("".join(islice(lines, IMDB_ROWS)), encoding="utf-8")
    files["imdb"] = output_dir / "imdb.jsonl", files["imdb"][1]

    def fine_tune(part: str, settings: Settings, name: str, **flags: object) -> float:
        own = {"model_name_or_path": checkpoint, "train_file": files[name][0], "baseline": False, "max_seq_length": 128}
        own |= flags_of(settings) | {"use_cpu": True} | flags
        folder = output_dir / part / name / folder_of(settings)
        return train(folder, "glue", "recipes/classify.yaml", own)["eval_accuracy"]

    def mean(part: str, settings: Settings, **flags: object) -> float:
        return statistics.fmean(fine_tune(part, settings, name, **flags) for name in TEXTS)

    # The default of ten evaluations would take longer than the training steps.
    brief: dict[str, Any] = {"max_steps": 120, "eval_steps": 0.5, "save_steps": 0.5}
    rounds = partial(mean, "short", **brief), partial(mean, "full")
    short, full, best = choose(*rounds, START, CHANGES)
    doubled = best | {"epochs": 2 * best["epochs"]}
    longer = {
        name: [fine_tune("full", best, name), fine_tune("longer", doubled, name, min_train_steps=600)]
        for name in LONGER
    }
    test = {}
    for name, (train_file, test_file) in files.items():
        model = output_dir / "full" / name / folder_of(best)
        flags = {"model_name_or_path": model, "validation_file": test_file, "do_eval": True, "max_seq_length": 128}
        flags |= {"per_device_eval_batch_size": 128, "use_cpu": True}
        accuracy = train(output_dir / "test" / name, "glue", "", flags)["eval_accuracy"]
        test[name] = {"gMLP": accuracy, "tf-idf": sentence_accuracy(train_file, test_file)}
    result = {"short": short, "full": full, "best": best, "epochs and twice as many": longer, "test": test}
    finish(output_dir, result)


def tune_photos(checkpoint: Path, data: Path, output_dir: Path):
    """Tune recipes/finetune-images.yaml on 30, 300 and 3,000 photos."""
    folders = write_photos(data / "cifar10_full" / "test.zip", output_dir / "photos")

    def fine_tune(settings: Settings, count: int, part: str, validation: str) -> float:
        flags = {"model_name_or_path": checkpoint, "train_dir": folders[str(count)], "use_cpu": True}
        flags |= {"validation_dir": folders[validation], "dataloader_num_workers": 0, "save_strategy": "no"}
        flags |= {"dataloader_persistent_workers": False, "eval_strategy": "no"} | flags_of(settings)
        flags["config_overrides"] = f"hidden_dropout_prob={settings['dropout']}"
        folder = output_dir / part / str(count) / folder_of(settings)
        return train(folder, "image_classification", "recipes/finetune-images.yaml", flags)["eval_accuracy"]

    result: dict[str, object] = {}
    for count in PHOTOS:
        score = partial(fine_tune, count=count, part="chosen", validation="development")
        first, second, best = choose(score, score, PHOTO_START, PHOTO_CHANGES)
        test = fine_tune(best, count, "test", "test")
        result[str(count)] = {"tried": first | second, "best": best, "test": test}
    finish(output_dir, result)


def write_photos(archive: Path, folder: Path) -> dict[str, Path]:
    """Unpack 30, 300 and 3,000 training, 900 development and 1,800 test photos, evenly from nine classes."""
    counts = {**{str(count): round(count / 9) for count in PHOTOS}, "development": 100, "test": 200}
    if not folder.is_dir():
        with ZipFile(archive) as photos:
            classes: dict[str, list[str]] = {}
            for name in sorted(name for name in photos.namelist() if name.endswith(".jpg")):
                classes.setdefault(Path(name).parent.name, []).append(name)
            # Drop a class and rename the others, so that they do not match the checkpoint and its classifier is new.
            classes.pop(max(classes))
            for label, names in classes.items():
                random.Random(0).shuffle(names)
                # The training sets are nested: each uses the first photos of a class, before development and test.
                starts = dict.fromkeys(map(str, PHOTOS), 0) | {"development": counts[str(PHOTOS[-1])]}
                starts["test"] = starts["development"] + counts["development"]
                for part, start in starts.items():
                    target = folder.with_name("_unpacking") / part / f"photos of {label}"
                    target.mkdir(parents=True, exist_ok=True)
                    for name in names[start : start + counts[part]]:
                        with photos.open(name) as source, open(target / Path(name).name, "wb") as copy:
                            shutil.copyfileobj(source, copy)
        folder.with_name("_unpacking").rename(folder)
    return {part: folder / part for part in counts}


def tune(kind: str, checkpoint: Path, data: Path, output_dir: Path):
    """Tune for texts or photos; the arguments are the flags of `python -m paper tune`."""
    (tune_texts if kind == "texts" else tune_photos)(checkpoint, data, output_dir)
