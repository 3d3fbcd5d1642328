"""What the scripts share that teach a small model by a larger one: the teacher's outputs in files, a training that can
be resumed, and weights in half precision."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from hf_gmlp.training.run_folder import write_json

FAST_BF16 = torch.cuda.is_available() or torch.backends.cpu.get_cpu_capability() == "AVX512"  # else ten times slower


def compute_in_files(compute: Callable[[slice], np.ndarray], count: int, size: int, folder: Path) -> np.ndarray:
    """Return `compute(rows)` for all `count` rows [count, ...], computed `size` rows at a time and kept in half
    precision in files of `folder`, which are not computed again. Several processes share the work."""
    process = PartialState()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(process.process_index * size, count, process.num_processes * size):
        path, partial = folder / f"{start // size:03d}.npy", folder / f"partial-{process.process_index}.npy"
        end = min(start + size, count)
        if not path.is_file() or len(np.load(path, mmap_mode="r")) < end - start:
            np.save(partial, compute(slice(start, end)).astype(np.float16))
            partial.replace(path)
            print(f"Teacher: {end:,} of {count:,} rows", flush=True)
    process.wait_for_everyone()
    return np.concatenate([np.load(folder / f"{i:03d}.npy") for i in range(-(-count // size))])[:count]


def train(
    model: torch.nn.Module,
    plan: Sequence[Any],
    load: Callable[[list[Any]], dict[str, Any]],
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float],
    folder: Path,
    *,
    start: Path | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **options: Any,
) -> None:
    """Train a model in place, or resume its training.

    Args:
        model: The model, on its device.
        plan: The batches in their order, in a form that `load` reads; processes take them in turn.
        load: Makes a batch of tensors, with "labels", from a list of one item of the plan.
        loss: The loss of `(outputs, labels, num_items_in_batch=None)`.
        optimizer: The optimizer of the model's weights.
        schedule: Factor of the learning rates at a step.
        folder: The folder of checkpoints. The last one in it is resumed.
        start: A checkpoint of another training, resumed if `folder` has none.
        callbacks: Callbacks of the `Trainer`.
        options: More fields of `TrainingArguments`.
    """
    device = next(model.parameters()).device
    arguments = TrainingArguments(
        str(folder), max_steps=len(plan) // PartialState().num_processes, per_device_train_batch_size=1, bf16=FAST_BF16,
        use_cpu=device.type == "cpu", train_sampling_strategy="sequential", disable_tqdm=True, report_to=[],
        ddp_find_unused_parameters=False, average_tokens_across_devices=False, **options,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, data_collator=load, train_dataset=plan, compute_loss_func=loss, callbacks=list(callbacks),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)),
    )  # fmt: skip
    last = get_last_checkpoint(folder) if folder.is_dir() else None
    trainer.train(resume_from_checkpoint=last or (str(start) if start else None))


def save_halved(model: PreTrainedModel, folder: Path) -> None:
    """Save a model with weights in half precision that load in single precision."""
    model.half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # In half precision, the model would be slow on most CPUs and could not be trained.
    write_json(folder / "config.json", config | {"dtype": "float32"})
