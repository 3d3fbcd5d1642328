"""The output folder of a run: who may write to it, what a run goes on from, and files that are whole or not there."""

import dataclasses
import errno
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash
from transformers import TrainingArguments

from ..data.classification import TASKS
from ..data.files import content_hash
from ..errors import InputError
from .arguments import BaseModelArguments, DataArguments, RunArguments

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = logging.getLogger(__name__)

# Written last, when a run is over.
FINISHED = "all_results.json"
# What a run was made with, so that tables know whose result it is, and another command does not take it for its own.
SETTINGS = "settings.json"
# What a checkpoint consists of, and the settings of its run; written last.
MANIFEST = "manifest.json"
# Names that begin so are not pushed to the Hub.
LOCK, SAVING = "_run.lock", "_saving"
# What a run leaves in its folder, besides checkpoints.
LEFT = ("config.json", "model*", "tokenizer*", "special_tokens_map.json", "preprocessor_config.json", "README.md")
# And what it found.
RESULTS = ("predictions.tsv", *(f"{name}.tsv" for task in TASKS.values() for name in task.tests.values()))
RESULTS += tuple(
    f"{a}_{b}.json" for a in ("eval", "predict") for b in ("predictions", "nbest_predictions", "null_odds")
)
RESULTS += ("summary.json", "summary.csv", FINISHED)

# Flags that change what is seen of a run, where it is, or how fast it goes, but not its weights.
ELSEWHERE = {
    *("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "do_train", "do_eval", "cache_dir", "token"),
    *(
        "trust_remote_code",
        "overwrite_cache",
        "preprocessing_num_workers",
        "license",
        "language",
        "disable_tqdm",
        "report_to",
    ),
    *("seeds", "sweep_batch_sizes", "sweep_learning_rates", "run_name", "project", "debug", "local_rank", "use_cpu"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "auto_find_batch_size", "include_for_metrics"),
    *("prediction_loss_only", "batch_eval_metrics", "bf16_full_eval", "fp16_full_eval", "per_device_eval_batch_size"),
    *("push_to_hub", "ignore_data_skip", "remove_unused_columns", "label_names", "skip_memory_metrics", "tf32"),
    *("activation_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing", "full_determinism"),
    *("gradient_checkpointing_kwargs", "use_cache", "include_num_input_tokens_seen", "enable_jit_checkpoint"),
    *("restore_callback_states_from_checkpoint", "torch_empty_cache_steps", "accelerator_config"),
}
ELSEWHERE_PREFIXES = ("logging_", "log_", "eval_", "save_", "hub_", "trackio_", "ddp_", "torch_compile")
ELSEWHERE_PREFIXES += ("dataloader_num", "dataloader_p", "dataloader_m", "dataloader_in_order")
# Of the settings, what may differ between two runs that are the same: the names of files whose contents are compared.
PLACES = {"train_file", "validation_file", "test_file", "train_dir", "validation_dir"}
# And what besides may be another when a run goes on: what is predicted afterwards.
FREE = PLACES | {"do_predict", "max_predict_samples", "test_split_name", "test"}
# What the runs of a series do not share.
SWEPT = ("global_batch_size", "learning_rate", "seed")
# Flags that may name a folder, and what of it counts: not what a run wrote about itself.
NAMES = ("model_name_or_path", "config_name", "tokenizer_name", "image_processor_name")
GIVEN = (".json", ".txt", ".model", ".safetensors", ".bin")
NOT_GIVEN = ("trainer_state.json", "training_args.bin", MANIFEST, SETTINGS, FINISHED)
# Above this, files are known by name and size: reading them takes minutes.
LARGEST_HASHED = 32 << 30

_locks: dict[str, object] = {}


def claim(folder: Path):
    """
    Makes the output folder, tries whether it can be written to, and keeps other runs out of it until this process
    ends, however it ends.

    Raises:
        InputError: If it is no folder, cannot be written to, or another run is at work in it.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        kind = "a link to nothing" if folder.is_symlink() and not folder.exists() else "a file"
        raise InputError(f"--output_dir {folder} is {kind}: name a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key = os.path.realpath(folder)
        if key not in _locks:
            _locks[key] = _lock(folder / LOCK)
    except BlockingIOError as error:
        raise InputError(
            f"Another run is at work in {folder}: wait until it is over, or choose another --output_dir."
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"--output_dir {folder} cannot be written to ({getattr(error, 'strerror', None) or error}): choose another."
        ) from error


def _lock(path: Path) -> object:
    file = open(path, "a")
    try:
        # Not flock, which processes that this one has forked would hold on to.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, AttributeError) as error:
        if getattr(error, "errno", None) in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError from error
        # Windows, and some network file systems.
        logger.warning("%s cannot be locked: see to it that no other run writes there", path.parent)
    return file


def write_text(path: str | Path, text: str):
    """Writes a file in UTF-8, whole or not at all."""
    path = Path(path)
    partial = path.with_name(f"{SAVING}-{path.name}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


@contextmanager
def whole_files(folder: str | Path, main: bool = True) -> Iterator[Path]:
    """
    A folder to write into, whose files go to `folder` when all of them are written.

    Args:
        main: Whether this process moves the files; the others only learn where to write.
    """
    folder = Path(folder)
    partial = folder / SAVING
    if main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    yield partial
    if main:
        # Of a tokenizer, tokenizer.json says that it is there.
        for path in sorted(partial.iterdir(), key=lambda path: path.name == "tokenizer.json"):
            if path.is_dir():
                shutil.rmtree(folder / path.name, ignore_errors=True)
            os.replace(path, folder / path.name)
        partial.rmdir()


def total_batch_size(args: RunArguments) -> int:
    """Samples per optimizer step over all devices."""
    devices = args.world_size * max(1, args.n_gpu)
    return devices * args.per_device_train_batch_size * args.gradient_accumulation_steps


def run_settings(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments) -> dict:
    """
    All that decides the result of a run: by the names of the flags, and the contents of the files that they name
    ("data" by split, and "given": configs and tokenizers in local folders).
    """
    arguments = (model_args, data_args, args)
    flags = [(field.name, getattr(one, field.name)) for one in arguments for field in dataclasses.fields(one)]
    settings = {
        name: value
        for name, value in flags
        if name not in ELSEWHERE and not name.startswith(ELSEWHERE_PREFIXES) and not name.startswith("_")
    }
    settings["global_batch_size"] = total_batch_size(args)
    settings["data"] = {split: fingerprint(paths) for split, paths in data_args.files().items()}
    if data_args.dataset_name is not None and not settings["data"] and Path(data_args.dataset_name).exists():
        settings["data"]["dataset_name"] = fingerprint([data_args.dataset_name])
    named = {name: Path(getattr(model_args, name, None) or "") for name in NAMES}
    settings["given"] = {
        name: fingerprint(sorted(p for p in folder.iterdir() if p.suffix in GIVEN and p.name not in NOT_GIVEN))
        for name, folder in named.items()
        if folder.name and folder.is_dir()
    }
    # As it is read back.
    return json.loads(json.dumps(settings, default=str))


def fingerprint(paths: Iterable[str | Path]) -> str:
    """
    What tells the data in files and folders from others: a hash of their contents or, above 32 GiB, of their sizes.

    Raises:
        InputError: If a file is missing or cannot be read.
    """
    files, names = [], []
    try:
        for path in map(Path, paths):
            found = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
            if path.exists() and not path.is_dir() and not path.is_file():
                # A pipe may be waited for, and a device read, for ever.
                raise InputError(f"{path} is a pipe or a device: save what comes from it as a file.")
            files += found
            # The name of a file does not count, but that of a class does.
            names += [str(one.relative_to(path)) for one in found]
        sizes = [path.stat().st_size for path in files]
        # Not their times, which a copy of them does not have.
        known = f"{len(files)} files, {xxhash.xxh3_64_hexdigest(json.dumps([names, sizes]).encode())}"
        return f"{known}, {content_hash(files)}" if sum(sizes) <= LARGEST_HASHED else known
    except FileNotFoundError as error:
        raise InputError(f"There is no file {error.filename}.") from error
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from error


def changes(earlier: dict, now: dict, free: Collection[str] = FREE) -> list[str]:
    """In words, which of the settings are others than before. More steps than before are no change: a run may go on."""
    found = []
    for name in sorted((earlier.keys() & now.keys()) - free):
        before, after = earlier[name], now[name]
        if name == "max_steps" and 0 < before < after:
            continue
        if name in ("data", "given", "training_rows"):
            parts = [part for part in sorted({*before, *after} - free) if before.get(part) != after.get(part)]
            if not parts:
                continue
            title = {
                "data": "the {} data have",
                "given": "what is in --{} has",
                "training_rows": "the training rows have",
            }
            found += list({f"{title[name].format(part)} changed": None for part in parts})
        elif before != after:
            found.append(f"{name} was {_short(before)} and is {_short(after)}")
    return found


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_same(folder: Path, earlier: dict, now: dict, free: Collection[str] = FREE):
    """
    Raises:
        InputError: If the run in a folder was made with other settings; those of the names `free` do not count.
    """
    found = changes(earlier, now, free)
    if found:
        listed = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise InputError(
            f"{folder} holds a run of another command: {listed}. Give that command again, choose another --output_dir, "
            f"or start anew by --overwrite_output_dir."
        )


def read_settings(folder: Path) -> dict | None:
    """The settings of the run in a folder; None if there are none that can be read."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) else None


def resume_point(args: RunArguments, settings: dict) -> str | None:
    """
    Makes the output folder ready for a run, notes its settings there, and finds the checkpoint that it goes on from.

    Args:
        settings: What `run_settings` gave.

    Returns:
        The last whole checkpoint of an earlier run with the same settings that was cut off; None for a fresh start.

    Raises:
        InputError: If the folder cannot be had, holds a finished run, a run with other settings, or something else that
            would be overwritten; or if `resume_from_checkpoint` names no whole checkpoint.
    """
    folder = Path(args.output_dir)
    checkpoint = None
    # The others find what the first one leaves.
    with args.main_process_first(local=False, desc="output folder"):
        if args.process_index == 0:
            claim(folder)
            if args.overwrite_output_dir:
                clear(folder)
        check_unfinished(folder)
        if not args.do_train and (folder / SETTINGS).is_file():
            if any(folder.glob("checkpoint-*")):
                raise InputError(f"{folder} holds a run that was cut off: finish it, or choose another --output_dir.")
            # Of a training that never began: the results to come are not its own.
            (folder / SETTINGS).unlink()
        if args.do_train:
            checkpoint = checkpoint_to_resume(args)
        if checkpoint is not None:
            check_same(Path(checkpoint).parent, read_manifest(Path(checkpoint))["settings"], settings)
            if args.process_index == 0:
                # Where the tokenizer was trained by the run, this is it, and known to be whole.
                with whole_files(folder) as partial:
                    for path in Path(checkpoint).glob("tokenizer*"):
                        shutil.copy(path, partial)
                write_text(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")
        elif args.do_train and args.process_index == 0:
            _take_room(folder, settings)
    return checkpoint


def open_series(args: RunArguments, settings: dict):
    """
    Makes the output folder ready for several runs, each of which has a folder of its own in it: what they share there,
    a tokenizer, is that of these settings.

    Raises:
        InputError: As `resume_point`.
    """
    folder = Path(args.output_dir)
    shared = {name: value for name, value in settings.items() if name not in SWEPT}
    with args.main_process_first(local=False, desc="output folder"):
        if args.process_index == 0:
            claim(folder)
            if args.overwrite_output_dir:
                clear(folder)
            _take_room(folder, shared)


def _take_room(folder: Path, settings: dict):
    """Notes the settings in a folder where nothing is from elsewhere, and what is of a run with others is removed."""
    earlier = read_settings(folder)
    left = [path.name for pattern in (*LEFT, "checkpoint-*") for path in sorted(folder.glob(pattern))]
    if left and earlier is None:
        raise InputError(
            f"{folder} already holds {', '.join(left[:5])}, from elsewhere: choose another --output_dir"
            + (", or name the tokenizer by --tokenizer_name." if "tokenizer.json" in left else ".")
        )
    if earlier is not None and changes(earlier, settings):
        # There is no checkpoint, so that only a tokenizer is lost.
        logger.info("Starting anew in %s, where a run with other settings left no checkpoint", folder)
        _remove_left(folder)
    if earlier != settings:
        write_text(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")


def clear(folder: Path):
    """Removes a run from its folder: what is known to be of a run, and nothing else."""
    if not (folder / SETTINGS).is_file() and not (folder / FINISHED).is_file():
        return
    for path in folder.glob("checkpoint-*"):
        if path.name.removeprefix("checkpoint-").isdigit():
            shutil.rmtree(path)
    _remove_left(folder)
    for name in (SETTINGS, "trainer_state.json", *RESULTS):
        (folder / name).unlink(missing_ok=True)


def _remove_left(folder: Path):
    for path in [path for pattern in LEFT for path in folder.glob(pattern)]:
        if path.is_file():
            path.unlink()


def check_unfinished(folder: Path):
    """
    Raises:
        InputError: If the folder holds a finished run.
    """
    if (folder / FINISHED).is_file():
        raise InputError(
            f"{folder} holds a finished run. Choose another --output_dir, or start anew by --overwrite_output_dir."
        )


def checkpoint_to_resume(args: TrainingArguments) -> str | None:
    """
    The last whole checkpoint in the output folder, that a cut-off run goes on from; None for a fresh start.

    Raises:
        InputError: If `resume_from_checkpoint` names no whole checkpoint.
    """
    folder = Path(args.output_dir)
    if args.resume_from_checkpoint not in (None, "true", "True"):
        fault = checkpoint_fault(Path(args.resume_from_checkpoint)) or _best_fault(
            Path(args.resume_from_checkpoint), args
        )
        if fault is not None:
            raise InputError(f"{args.resume_from_checkpoint} is no whole checkpoint of these scripts: {fault}.")
        return args.resume_from_checkpoint
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    for checkpoint in sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        fault = checkpoint_fault(checkpoint) or _best_fault(checkpoint, args)
        if fault is None:
            logger.info("Going on from %s", checkpoint)
            return str(checkpoint)
        logger.warning("Skipping %s, which cannot be gone on from: %s", checkpoint, fault)
    if found:
        logger.warning("No checkpoint in %s can be gone on from: starting from the beginning", folder)
    return None


def write_manifest(checkpoint: Path, settings: dict, resumable: bool):
    """
    Says what a checkpoint consists of, when all of it is written.

    Args:
        resumable: Whether optimizer, schedule and random state are part of it.
    """
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    manifest = {
        "settings": settings,
        "resumable": resumable,
        "files": {
            path.relative_to(checkpoint).as_posix(): {"size": path.stat().st_size, "xxh3_128": content_hash([path])}
            for path in files
        },
    }
    write_text(checkpoint / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def read_manifest(checkpoint: Path) -> dict:
    """What `write_manifest` wrote."""
    return json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))


def checkpoint_fault(checkpoint: Path) -> str | None:
    """Why a run cannot go on from a checkpoint; None if it can."""
    try:
        manifest = read_manifest(checkpoint)
        files, resumable, _ = manifest["files"], manifest["resumable"], manifest["settings"]
    except OSError:
        return f"{MANIFEST} is missing, which is written last"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is damaged"
    if not resumable:
        return "it was saved by --save_only_model, without optimizer, schedule and random state"
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size"] or content_hash([path]) != expected["xxh3_128"]:
            return f"{name} is damaged"
    return None


def _best_fault(checkpoint: Path, args: TrainingArguments) -> str | None:
    """Why the best checkpoint until then, which the run may end with, is lost; None if it is not or not wanted."""
    if not args.load_best_model_at_end:
        return None
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    best = Path(state["best_model_checkpoint"] or checkpoint)
    if best.name == checkpoint.name:
        return None
    best = best if best.is_dir() else Path(args.output_dir, best.name)
    fault = checkpoint_fault(best)
    return None if fault is None else f"of {best}, the best so far, {fault}"
