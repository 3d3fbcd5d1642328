"""The output folder of a run: who may write to it, where a run resumes, and files that are whole or not there."""

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
# The settings of a run: tables read them, and other commands are compared with them.
SETTINGS = "settings.json"
# The files of a checkpoint and the settings of its run; written last.
MANIFEST = "manifest.json"
# Names with an underscore are not pushed to the Hub.
LOCK, SAVING = "_run.lock", "_saving"
# What a run leaves in its folder besides checkpoints, and its results.
LEFT = ("config.json", "model*", "tokenizer*", "special_tokens_map.json", "preprocessor_config.json", "README.md")
RESULTS = ("predictions.tsv", *(f"{name}.tsv" for task in TASKS.values() for name in task.tests.values()))
RESULTS += tuple(
    f"{split}_{name}.json"
    for split in ("eval", "predict")
    for name in ("predictions", "nbest_predictions", "null_odds")
)
RESULTS += ("summary.json", FINISHED)

# Flags that change the output, place or speed of a run, but not its weights.
ELSEWHERE = set(
    """
    output_dir overwrite_output_dir resume_from_checkpoint do_train do_eval cache_dir token trust_remote_code
    overwrite_cache preprocessing_num_workers license language disable_tqdm report_to seeds sweep_batch_sizes
    sweep_learning_rates run_name project debug local_rank use_cpu per_device_train_batch_size
    gradient_accumulation_steps auto_find_batch_size include_for_metrics prediction_loss_only batch_eval_metrics
    bf16_full_eval fp16_full_eval per_device_eval_batch_size push_to_hub ignore_data_skip remove_unused_columns
    label_names skip_memory_metrics tf32 activation_checkpointing activation_checkpointing_kwargs
    gradient_checkpointing gradient_checkpointing_kwargs selective_checkpointing full_determinism use_cache
    include_num_input_tokens_seen enable_jit_checkpoint restore_callback_states_from_checkpoint
    torch_empty_cache_steps accelerator_config
    """.split()
)
ELSEWHERE_PREFIXES = ("_", "logging_", "log_", "eval_", "save_", "hub_", "trackio_", "ddp_", "torch_compile")
ELSEWHERE_PREFIXES += ("dataloader_num", "dataloader_p", "dataloader_m", "dataloader_in_order")
# Settings that may differ between equal runs: names of files, whose contents are compared instead.
PLACES = {"train_file", "validation_file", "test_file", "train_dir", "validation_dir"}
# Settings that may also change when a run is resumed: what is predicted afterwards.
FREE = PLACES | {"do_predict", "max_predict_samples", "test_split_name", "test"}
# Settings in which the runs of a series differ.
SWEPT = ("global_batch_size", "learning_rate", "seed")
# Flags that may name a folder; of its files, all but those that a run wrote about itself are compared.
NAMES = ("model_name_or_path", "config_name", "tokenizer_name", "image_processor_name")
GIVEN = (".json", ".txt", ".model", ".safetensors", ".bin")
NOT_GIVEN = ("trainer_state.json", "training_args.bin", MANIFEST, SETTINGS, FINISHED)
# Above this many bytes, files are compared by name and size only: reading them takes minutes.
LARGEST_HASHED = 32 << 30

_locks: dict[str, object] = {}


def claim(folder: Path):
    """Makes the output folder, and keeps other runs out until this process ends; raises InputError if it cannot."""
    if os.path.lexists(folder) and not folder.is_dir():
        kind = "a link to nothing" if folder.is_symlink() and not folder.exists() else "a file"
        raise InputError(f"--output_dir {folder} is {kind}: name a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key = os.path.realpath(folder)
        if key not in _locks:
            _locks[key] = _lock(folder / LOCK)
    except BlockingIOError as error:
        raise InputError(f"Another run is writing to {folder}: wait, or choose another --output_dir.") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"--output_dir {folder} cannot be written to ({why}): choose another.") from error


def _lock(path: Path) -> object:
    file = open(path, "a")
    try:
        # Not flock, which forked processes would hold on to.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, AttributeError) as error:
        if getattr(error, "errno", None) in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError from error
        # Windows, and some network file systems.
        logger.warning("%s cannot be locked: make sure that no other run writes there", path.parent)
    return file


def write_text(path: str | Path, text: str):
    """Writes a file in UTF-8, whole or not at all."""
    path = Path(path)
    partial = path.with_name(f"{SAVING}-{path.name}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: Path, content: object):
    """Writes a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextmanager
def whole_files(folder: str | Path, main: bool = True) -> Iterator[Path]:
    """Yields a folder whose files the `main` process moves to `folder` once all of them are written."""
    folder = Path(folder)
    partial = folder / SAVING
    if main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    yield partial
    if main:
        # tokenizer.json comes last: it says that a tokenizer is there.
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
    """Everything that decides the result of a run: flags, and the contents of local data and models ("given")."""
    settings = {
        field.name: getattr(arguments, field.name)
        for arguments in (model_args, data_args, args)
        for field in dataclasses.fields(arguments)
        if field.name not in ELSEWHERE and not field.name.startswith(ELSEWHERE_PREFIXES)
    }
    settings["global_batch_size"] = total_batch_size(args)
    settings["data"] = {split: fingerprint(paths) for split, paths in data_args.files().items()}
    if data_args.dataset_name is not None and Path(data_args.dataset_name).exists():
        settings["data"]["dataset_name"] = fingerprint([data_args.dataset_name])
    named = {name: Path(getattr(model_args, name, None) or "") for name in NAMES}
    settings["given"] = {
        name: fingerprint(sorted(p for p in folder.iterdir() if p.suffix in GIVEN and p.name not in NOT_GIVEN))
        for name, folder in named.items()
        if folder.name and folder.is_dir()
    }
    # As it will be read back.
    return json.loads(json.dumps(settings, default=str))


def fingerprint(paths: Iterable[str | Path]) -> str:
    """A hash of the contents of files and folders or, above 32 GiB, of their sizes; raises InputError on failure."""
    files, names = [], []
    try:
        for path in map(Path, paths):
            found = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
            if path.exists() and not path.is_dir() and not path.is_file():
                # Reading it might never end.
                raise InputError(f"{path} is a pipe or a device: save its content as a file.")
            files += found
            # The name of a file does not count, but its place in a folder, the name of a class, does.
            names += [str(one.relative_to(path)) for one in found]
        sizes = [path.stat().st_size for path in files]
        # Times would differ between copies.
        known = f"{len(files)} files, {xxhash.xxh3_64_hexdigest(json.dumps([names, sizes]).encode())}"
        return f"{known}, {content_hash(files)}" if sum(sizes) <= LARGEST_HASHED else known
    except FileNotFoundError as error:
        raise InputError(f"There is no file {error.filename}.") from error
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from error


def changes(earlier: dict, now: dict, free: Collection[str] = FREE) -> list[str]:
    """The settings that have changed, in words. A larger `max_steps` is not a change: a run may go on."""
    found = []
    titles = {"data": "the {} data have", "given": "what is in --{} has", "training_rows": "the training rows have"}
    for name in sorted((earlier.keys() & now.keys()) - free):
        before, after = earlier[name], now[name]
        if before == after or (name == "max_steps" and 0 < before < after):
            continue
        if name not in titles:
            found.append(f"{name} was {json.dumps(before):.80} and is {json.dumps(after):.80}")
            continue
        parts = [part for part in sorted({*before, *after} - free) if before.get(part) != after.get(part)]
        found += dict.fromkeys(f"{titles[name].format(part)} changed" for part in parts)
    return found


def check_same(folder: Path, earlier: dict, now: dict, free: Collection[str] = FREE):
    """Raises InputError if the run in a folder has other settings; those named in `free` do not count."""
    if found := changes(earlier, now, free):
        listed = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise InputError(
            f"{folder} holds a run of another command: {listed}. Repeat that command, choose another --output_dir, or "
            f"start over with --overwrite_output_dir."
        )


def read_settings(folder: Path) -> dict | None:
    """The settings of the run in a folder; None if they are missing or unreadable."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) else None


def resume_point(args: RunArguments, settings: dict) -> str | None:
    """
    Prepares the output folder of a run, writes there its settings (from `run_settings`), and returns the last whole
    checkpoint of an interrupted run with the same settings; None for a fresh start.

    Raises:
        InputError: If the folder cannot be used, holds a finished run, a run with other settings, or files that would
            be overwritten; or if `resume_from_checkpoint` is not a whole checkpoint.
    """
    folder, checkpoint = Path(args.output_dir), None
    # The first process prepares the folder for the others.
    with args.main_process_first(local=False, desc="output folder"):
        if args.process_index == 0:
            claim(folder)
            if args.overwrite_output_dir:
                clear(folder)
        if (folder / FINISHED).is_file():
            raise InputError(f"{folder} holds a finished run: give another --output_dir, or --overwrite_output_dir.")
        if not args.do_train and (folder / SETTINGS).is_file():
            if any(folder.glob("checkpoint-*")):
                raise InputError(f"{folder} holds an interrupted run: finish it, or choose another --output_dir.")
            # The settings of a training that never began.
            (folder / SETTINGS).unlink()
        if args.do_train:
            checkpoint = checkpoint_to_resume(args)
        if checkpoint is not None:
            check_same(Path(checkpoint).parent, read_manifest(Path(checkpoint))["settings"], settings)
            if args.process_index == 0:
                # If the run trained a tokenizer, the checkpoint has it whole.
                with whole_files(folder) as partial:
                    for path in Path(checkpoint).glob("tokenizer*"):
                        shutil.copy(path, partial)
                write_json(folder / SETTINGS, settings)
        elif args.do_train and args.process_index == 0:
            _start_in(folder, settings)
    return checkpoint


def open_series(args: RunArguments, settings: dict):
    """Prepares the output folder of several runs, each in its own folder there, with a shared tokenizer."""
    folder = Path(args.output_dir)
    with args.main_process_first(local=False, desc="output folder"):
        if args.process_index == 0:
            claim(folder)
            if args.overwrite_output_dir:
                clear(folder)
            _start_in(folder, {name: value for name, value in settings.items() if name not in SWEPT})


def _start_in(folder: Path, settings: dict):
    """Writes the settings, and removes what a run with other settings left; refuses files of unknown origin."""
    earlier = read_settings(folder)
    left = [path.name for pattern in (*LEFT, "checkpoint-*") for path in sorted(folder.glob(pattern))]
    if left and earlier is None:
        advice = ", or name the tokenizer with --tokenizer_name" if "tokenizer.json" in left else ""
        raise InputError(
            f"{folder} already holds {', '.join(left[:5])} from another source: choose another --output_dir{advice}."
        )
    if earlier is not None and changes(earlier, settings):
        # There is no checkpoint: only a tokenizer is lost.
        logger.info("Starting over in %s, where a run with other settings left no checkpoint", folder)
        _remove_left(folder)
    if earlier != settings:
        write_json(folder / SETTINGS, settings)


def clear(folder: Path):
    """Removes the files of a run from its folder, and nothing else."""
    if not (folder / SETTINGS).is_file() and not (folder / FINISHED).is_file():
        return
    for path in _checkpoints(folder):
        shutil.rmtree(path)
    _remove_left(folder)
    for name in (SETTINGS, "trainer_state.json", *RESULTS):
        (folder / name).unlink(missing_ok=True)


def _remove_left(folder: Path):
    for path in [path for pattern in LEFT for path in folder.glob(pattern)]:
        if path.is_file():
            path.unlink()


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the latest first."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    return sorted((path for path in steps if steps[path].isdigit()), key=lambda path: int(steps[path]), reverse=True)


def checkpoint_to_resume(args: TrainingArguments) -> str | None:
    """The checkpoint named by flag (InputError if it is not whole), else the last whole one in the folder, if any."""
    named, folder = args.resume_from_checkpoint, Path(args.output_dir)
    if named not in (None, "true", "True"):
        if fault := _resume_fault(Path(named), args):
            raise InputError(f"{named} is not a whole checkpoint of these scripts: {fault}.")
        return named
    found = _checkpoints(folder)
    for checkpoint in found:
        fault = _resume_fault(checkpoint, args)
        if fault is None:
            logger.info("Resuming from %s", checkpoint)
            return str(checkpoint)
        logger.warning("Skipping %s: %s", checkpoint, fault)
    if found:
        logger.warning("No checkpoint in %s can be resumed: starting from the beginning", folder)
    return None


def write_manifest(checkpoint: Path, settings: dict, resumable: bool):
    """Lists the files of a checkpoint; `resumable` with optimizer, schedule and random state. Call it last."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    listed = {
        path.relative_to(checkpoint).as_posix(): {"size": path.stat().st_size, "xxh3_128": content_hash([path])}
        for path in files
    }
    write_json(checkpoint / MANIFEST, {"settings": settings, "resumable": resumable, "files": listed})


def read_manifest(checkpoint: Path) -> dict:
    """The manifest that `write_manifest` wrote."""
    return json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))


def checkpoint_fault(checkpoint: Path) -> str | None:
    """Why a run cannot be resumed from a checkpoint; None if it can."""
    try:
        manifest = read_manifest(checkpoint)
        files, resumable, _ = manifest["files"], manifest["resumable"], manifest["settings"]
    except OSError:
        return f"{MANIFEST}, which is written last, is missing"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is damaged"
    if not resumable:
        return "it was saved with --save_only_model, without optimizer, schedule and random state"
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size"] or content_hash([path]) != expected["xxh3_128"]:
            return f"{name} is damaged"
    return None


def _resume_fault(checkpoint: Path, args: TrainingArguments) -> str | None:
    """The fault of a checkpoint, or of the best one so far if the run may end with that."""
    fault = checkpoint_fault(checkpoint)
    if fault is not None or not args.load_best_model_at_end:
        return fault
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    best = Path(state["best_model_checkpoint"] or checkpoint)
    if best.name == checkpoint.name:
        return None
    best = best if best.is_dir() else Path(args.output_dir, best.name)
    fault = checkpoint_fault(best)
    return None if fault is None else f"in {best}, the best checkpoint so far, {fault}"
