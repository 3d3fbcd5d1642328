"""Training of all weights of a classifier, by Trainer, with settings for hundreds to thousands of rows."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel

from ..data.labels import ONE_CLASS, REGRESSION
from ..loading import choose_dtype
from ..metrics.scores import DEFAULT_METRICS
from ..tasks.classification import balanced_weights, classification_metrics, logits_only, weighted_loss
from ..training.arguments import RunArguments
from ..training.run_folder import resume_point
from ..training.trainer import GMLPTrainer
from .inputs import Pictures, Texts
from .plan import FITTED, NEW, Plan
from .training import Part

if TYPE_CHECKING:
    from .classifier import Classifier

# More tokens are computed in several parts of a step, in less memory.
MAX_TOKENS = 8192


def training_arguments(
    plan: Plan, options: "Classifier", encoded: list[dict], folder: Path, problem_type: str, evaluate: bool
) -> RunArguments:
    """Return Trainer's arguments. With `evaluate`, the best of ten evaluations is kept, else the model at the end."""
    is_text, rows = "input_ids" in encoded[0], len(encoded)
    batch = min(options.batch_size, rows)
    longest = max(len(row["input_ids"]) for row in encoded) if is_text else 1
    steps = math.ceil(rows / batch)
    epochs = max(plan.num_train_epochs, math.ceil(plan.min_steps / steps))
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "do_train": True,
        "num_train_epochs": epochs,
        "max_steps": plan.max_steps,
        "learning_rate": plan.learning_rate,
        "global_batch_size": batch,
        "per_device_train_batch_size": min(batch, max(1, MAX_TOKENS // longest)),
        "per_device_eval_batch_size": batch,
        "adam_epsilon": 1e-6,
        "logging_steps": 0.1,
        "save_steps": 0.1,
        "save_total_limit": 1,
        "report_to": "none",
        "bf16": choose_dtype(options.dtype) is torch.bfloat16,
        "use_cpu": not torch.accelerator.is_available(),
        "seed": options.random_state or 0,
        "remove_unused_columns": False,
    }
    if not is_text:
        # The values of recipes/finetune-images.yaml.
        settings |= {"lr_scheduler_type": "cosine", "warmup_steps": 0.05, "weight_decay": 0.05}
        settings |= {"label_smoothing_factor": 0.1 if problem_type == ONE_CLASS else 0.0}
    else:
        # Batches of texts of similar length halve the time. W needs a higher rate in short runs.
        settings |= {"warmup_steps": 0.1, "weight_decay": 0.01, "train_sampling_strategy": "group_by_length"}
        settings |= {"spatial_lr_multiplier": 5.0}
    if evaluate:
        settings |= {"eval_strategy": "steps", "eval_steps": 0.1, "load_best_model_at_end": True}
    return RunArguments(**settings)


def fine_tune(
    model: PreTrainedModel,
    inputs: Texts | Pictures,
    data: Part,
    held_out: Part | None,
    plan: Plan,
    options: "Classifier",
    folder: Path,
    settings: dict[str, object] | None = None,
) -> int:
    """Train all weights of a model, in place, and return the number of optimizer steps until the model that is kept.

    Args:
        held_out: Rows to choose the best of ten evaluations, for a `NEW` classifier.
        folder: Where to write checkpoints.
        settings: Facts that must stay the same for a run in this folder to be resumed; None for a new folder.
    """
    config = model.config
    evaluate = held_out is not None and plan.training == NEW
    args = training_arguments(plan, options, data.encoded, folder, config.problem_type, evaluate)
    checkpoint = None if settings is None else resume_point(args, settings)
    if plan.training == FITTED and inputs.kind == "text":
        # Their small updates would lose what the encoder learned about rare words.
        model.get_input_embeddings().requires_grad_(False)

    loss = None
    if config.problem_type == ONE_CLASS:
        weights = balanced_weights(data.labels.tolist(), config) if options.class_weights else None
        loss = weighted_loss(args.label_smoothing_factor, weights)
    callbacks = []
    if args.load_best_model_at_end:
        args.restore_callback_states_from_checkpoint = True
        # The loss of a regression depends on the unit of its numbers. Other losses creep towards zero.
        callbacks = [EarlyStoppingCallback(3, 0.0 if config.problem_type == REGRESSION else 0.001)]
    collate, hook = inputs.collate, None
    if inputs.kind == "picture":
        from ..tasks.image_classification import ImageCollator, image_size, training_transform

        processor = inputs.processing_class
        transform = training_transform(image_size(config, processor), processor.image_mean, auto_augment="imagenet")
        collate = ImageCollator(processor, transform, seed=args.seed)
        hook = model.register_forward_pre_hook(collate.before_forward, with_kwargs=True)
    trainer = GMLPTrainer(
        model=model,
        args=args,
        train_dataset=_dataset(data, inputs.kind),
        eval_dataset=None if held_out is None else _dataset(held_out, inputs.kind, train=False),
        processing_class=inputs.processing_class,
        data_collator=collate,
        compute_loss_func=loss,
        compute_metrics=classification_metrics(DEFAULT_METRICS[config.problem_type], config),
        preprocess_logits_for_metrics=logits_only,
        callbacks=callbacks,
        metric_names=("loss", *DEFAULT_METRICS[config.problem_type]),
        card={},
    )
    trainer.train_and_evaluate(checkpoint)
    model.requires_grad_(True)
    if hook is not None:
        hook.remove()
    return trainer.state.best_global_step or trainer.state.global_step


def _dataset(part: Part, kind: str, train: bool = True) -> Dataset:
    """Return encoded rows with their "labels"; pictures as "image", and for training with an "index"."""
    labels = part.labels.tolist()
    if kind == "text":
        return Dataset.from_list(part.encoded).add_column("labels", labels)
    columns: dict[str, Any] = {"image": part.encoded, "labels": labels}
    return Dataset.from_dict(columns | ({"index": list(range(len(labels)))} if train else {}))
