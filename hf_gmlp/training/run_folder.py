"""The start of a run: checks of its flags, and the output folder with its lock, settings and checkpoints."""

import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.compute
from datasets import Dataset
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, set_seed
from transformers.trainer import TRAINER_STATE_NAME

from ..errors import InputError
from . import xla
from .arguments import BaseModelArguments, DataArguments, LabeledTextArguments, RunArguments

logger = logging.getLogger(__name__)

# Flags of Trainer that determine the weights. They must be equal to resume a run, and the model card lists them. This
# project's own flags say in their declaration whether they may change.
HYPERPARAMETERS = """
    max_steps num_train_epochs learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps
    optim optim_args optim_target_modules adam_beta1 adam_beta2
    adam_epsilon weight_decay max_grad_norm label_smoothing_factor neftune_noise_alpha seed data_seed bf16 fp16
    use_liger_kernel liger_kernel_config average_tokens_across_devices train_sampling_strategy dataloader_drop_last
    load_best_model_at_end metric_for_best_model greater_is_better
""".split()
# The last file that a run writes.
FINISHED = "all_results.json"
SETTINGS = "settings.json"
# Files that a push publishes: card, config, weights, code, and tokenizer or processor. Others have texts or paths.
PUBLISHED = (
    *("README.md", "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *("*.py", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model"),
    *("chat_template*", "preprocessor_config.json", "processor_config.json"),
)
# Files that a run would overwrite.
OUTPUTS = ("config.json", "model*", "tokenizer*", "checkpoint-*")
_locks: dict[str, FileLock] = {}


def start_run(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments) -> str | None:
    """Check the flags, prepare the output folder, and return the checkpoint to resume from, if there is one; raise
    InputError if there is nothing to do, flags contradict each other, or the folder holds another run.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO if args.should_log else logging.WARNING)
    # Older and newer versions of huggingface_hub would log every request.
    for name in ("httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if not (args.do_train or args.do_eval or args.do_predict):
        raise InputError("Nothing to do: pass --do_train, --do_eval or, in scripts that predict, --do_predict.")
    processes = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
    if processes > args.world_size:
        raise InputError(f"The {processes} processes of this run cannot work together: without GPUs, add --use_cpu.")
    if args.do_predict and not isinstance(data_args, LabeledTextArguments):
        raise InputError("This script does not predict: leave --do_predict out, and use the model in a pipeline.")
    if model_args.config_name is not None and not args.do_train:
        raise InputError("A new model (--config_name) is untrained: pass --do_train, or --model_name_or_path.")
    checkpoint = resume_point(args, run_settings(model_args, data_args, args))
    # The settings are compared before the shapes are fixed, so that a run can resume on another device.
    xla.fix_shapes(data_args, args)
    set_seed(args.seed)
    return checkpoint


def claim(folder: Path) -> None:
    """Create the output folder, and keep other runs out until this process ends; raise InputError if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    # Files that begin with an underscore are not pushed to the Hub.
    lock = _locks.setdefault(os.path.realpath(folder), FileLock(folder / "_run.lock"))
    try:
        # Workers of a killed run hold its lock until they notice: they check every five seconds.
        lock.acquire(timeout=10)
    except Timeout as error:
        raise InputError(f"Another run is writing to {folder}: wait, or choose another --output_dir.") from error


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8 atomically."""
    partial = path.with_name(f"_saving-{path.name}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextmanager
def saved_atomically(folder: Path) -> Iterator[Path]:
    """Yield a folder to save files in, which then replace those in `folder`. After an error, such as a full disk, or if
    the process is killed, `folder` has no incomplete file.
    """
    # Folders that begin with an underscore are not pushed.
    partial = folder / "_saving"
    partial.mkdir(parents=True, exist_ok=True)
    yield partial
    for path in partial.iterdir():
        os.replace(path, folder / path.name)
    partial.rmdir()


def published_files(folder: Path) -> list[str]:
    """Return the names of the files that a push publishes."""
    return sorted({path.name for pattern in PUBLISHED for path in folder.glob(pattern)})


def upload_command(repository: str | None, folder: Path) -> str:
    """Return the command that publishes a finished run."""
    names = " ".join(f"--include {name}" for name in published_files(folder))
    return f"hf upload {repository or 'NAME/REPOSITORY'} {folder} . {names}"


def hyperparameters(args: RunArguments) -> dict[str, object]:
    """Return the `HYPERPARAMETERS` of a run that this version of transformers has, and this project's own."""
    values = {name: getattr(args, name) for name in HYPERPARAMETERS if hasattr(args, name)} | args.fixed_flags()
    values["global_batch_size"] = args.world_size * args.train_batch_size * args.gradient_accumulation_steps
    # Round-trip through JSON so that values compare equal.
    return json.loads(json.dumps(values, default=str))


def run_settings(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments) -> dict[str, object]:
    """Return the flags that affect the result of a run."""
    return model_args.fixed_flags() | data_args.fixed_flags() | {"do_predict": args.do_predict} | hyperparameters(args)


def check_same(folder: Path, earlier: dict, settings: dict) -> None:
    """Raise InputError if the `earlier` run in a folder had other settings. A larger `max_steps` is allowed."""
    changed = [
        f"{name} was {json.dumps(earlier[name]):.80} and is {json.dumps(settings[name]):.80}"
        for name in sorted(earlier.keys() & settings.keys())
        if earlier[name] != settings[name] and not (name == "max_steps" and 0 < earlier[name] < settings[name])
    ]
    if changed:
        raise InputError(f"{folder} holds a run of another command: {'; '.join(changed)}. Choose another --output_dir.")


def check_rows(args: RunArguments, rows: Dataset, config: PreTrainedConfig) -> None:
    """Add facts about the training rows to the settings: their hash, and of a classifier the names of the classes.
    Raise InputError if a run resumes with others.
    """
    folder = Path(args.output_dir)
    settings = read_settings(folder)
    if not settings or args.process_index != 0:
        return
    facts: dict[str, object] = {"rows_sha256": hash_rows(rows)}
    if "labels" in rows.column_names:
        facts["classes"] = list(config.id2label.values())
        check_same(folder, settings, settings | {"classes": facts["classes"]})
    if settings.get("rows_sha256") not in (None, facts["rows_sha256"]):
        raise InputError(
            f"{folder} holds a run on other training rows: restore the data (and --preprocessing_num_workers, which "
            "packs text in parts), or choose another --output_dir."
        )
    write_json(folder / SETTINGS, settings | facts)


def hash_rows(rows: Dataset) -> str:
    """Return a hash of token ids, labels and other numbers, and of the sizes of pictures in bytes, in their order.

    It does not depend on the names, times and compression of files, or on how the rows are divided.
    """
    digest = hashlib.sha256()
    for table in rows.with_format("arrow").iter(1000):
        for name in sorted(table.column_names):
            column = table[name].combine_chunks()
            if pyarrow.types.is_struct(column.type):
                # A picture, of which only the size is read.
                sizes = pyarrow.compute.binary_length(column.field("bytes")).to_pylist()
                paths = column.field("path").to_pylist()
                column = pyarrow.array([size or os.stat(path).st_size for size, path in zip(sizes, paths)])
            while isinstance(column, pyarrow.ListArray | pyarrow.LargeListArray):
                digest.update(column.value_lengths().cast("int64").to_numpy().tobytes())
                column = column.flatten()
            kind = np.float64 if pyarrow.types.is_floating(column.type) else np.int64
            digest.update(column.to_numpy(zero_copy_only=False).astype(kind).tobytes())
    return digest.hexdigest()


def read_settings(folder: Path) -> dict:
    """Return the settings of the run in a folder, which are empty if there is none or they cannot be read."""
    try:
        return json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def resume_point(args: RunArguments, settings: dict) -> str | None:
    """Prepare the output folder of a run, and return the checkpoint to resume from, if any. Raise InputError if the
    folder holds a finished or different run, or files from another source.
    """
    folder = Path(args.output_dir)
    # The first process prepares the folder for the others.
    with args.main_process_first(local=False, desc="output folder"):
        if args.process_index == 0:
            claim(folder)
        if (folder / FINISHED).is_file():
            raise InputError(
                f"{folder} holds a finished run: choose another --output_dir, delete it, or publish it: "
                f"{upload_command(args.hub_model_id, folder)}"
            )
        if not args.do_train:
            if checkpoints(folder):
                raise InputError(f"{folder} holds an interrupted run: finish it, or choose another --output_dir.")
            return None
        if args.process_index == 0:
            write_json(folder / SETTINGS, _check_files(folder, settings))
        checkpoint = checkpoint_to_resume(args)
    return None if checkpoint is None else str(checkpoint)


def _check_files(folder: Path, settings: dict) -> dict:
    """Refuse files of another run or source, and return the settings to write.

    If the run in the folder never reached a checkpoint, other settings are allowed, and its tokenizer is removed.
    """
    earlier = read_settings(folder)
    files = [path.name for pattern in OUTPUTS for path in sorted(folder.glob(pattern))]
    if files and not earlier:
        raise InputError(f"{folder} holds {', '.join(files)}, but no valid {SETTINGS}: choose another --output_dir.")
    if any(folder.glob("model*")) or any(map(is_complete, checkpoints(folder))):
        check_same(folder, earlier, settings)
        # The earlier settings include the hash of the rows.
        return earlier | settings
    if earlier | settings != earlier:
        for path in folder.glob("tokenizer*"):
            path.unlink()
    return settings


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the latest step first."""
    steps = {int(path.name[11:]): path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()}
    return [steps[step] for step in sorted(steps, reverse=True)]


def is_complete(checkpoint: Path) -> bool:
    """Return whether a run can resume from a checkpoint: it has all parts, and no file is truncated.

    Trainer's state is written last. --save_only_model leaves out the optimizer and the random states.
    """
    # DeepSpeed writes a folder global_step*; FSDP writes folders pytorch_model* and optimizer*.
    weights, optimizer = ("*.safetensors", "*pytorch_model*", "global_step*"), ("*optimizer*", "global_step*")
    parts = (weights, optimizer, ("rng_state*",), ("scheduler.pt", "global_step*"))
    try:
        for index in checkpoint.glob("*.index.json"):
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            parts += tuple((shard,) for shard in set(shards))
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        for path in checkpoint.iterdir():
            if path.suffix == ".safetensors":
                safe_open(path, "pt")
            elif path.suffix in (".pt", ".pth"):
                # torch saves zip archives, whose table of contents is at the end.
                zipfile.ZipFile(path).close()
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile):
        return False
    return all(any(any(checkpoint.glob(pattern)) for pattern in patterns) for patterns in parts)


def checkpoint_to_resume(args: RunArguments) -> Path | None:
    """Return the checkpoint that a flag names (InputError if it is incomplete), or the last complete one, if any."""
    folder, name = Path(args.output_dir), args.resume_from_checkpoint
    if name not in (None, "true", "True"):
        if Path(name).resolve().parent != folder.resolve() or not is_complete(Path(name)):
            raise InputError(f"{name} is not a complete checkpoint in {folder}: copy it there, or choose another.")
        return Path(name)
    for checkpoint in checkpoints(folder):
        if is_complete(checkpoint):
            logger.info("Resuming from %s", checkpoint)
            return checkpoint
        logger.warning("Skipping %s, which is incomplete or corrupted", checkpoint)
    if checkpoints(folder):
        logger.warning("No checkpoint in %s is complete: starting from step 0", folder)
    return None
