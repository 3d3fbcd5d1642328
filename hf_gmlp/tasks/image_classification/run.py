"""Train or fine-tune a gMLP (or any AutoModelForImageClassification) on images. For example:

    hf-gmlp run image_classification --config_name gmlp-ti16-224 --train_dir photos --do_train --output_dir out
    hf-gmlp run image_classification paper/recipes/table2/gmlp-s16-224.yaml --output_dir out

Here, `photos` has a subfolder for each class, possibly inside folders such as "train" and "test".
--config_name timm/NAME is a model of timm. The flags have the names of transformers' own run_image_classification.py.
Recipes (YAML files of flags) may come first; flags override them, and later recipes override earlier ones.
"""

import logging
import math
from pathlib import Path

import pandas

from ...errors import InputError
from ...training.arguments import RunArguments, data_access, parse_arguments
from ...training.run_folder import total_batch_size
from ...training.start import start_run
from ...training.trainer import GMLPTrainer
from ..classification import (
    KeptEvaluation,
    balanced_weights,
    check_evaluation,
    classification_loss,
    logits_only,
    write_report,
)
from ..labels import set_labels, trained_labels
from .arguments import ImageArguments, ImageModelArguments
from .images import check_images, load_images
from .metrics import accuracies
from .models import image_size, load_image_config, load_image_model, load_processor
from .pixels import ImageCollator, mixing_transform, training_transform

logger = logging.getLogger(__name__)

HEAD = "ForImageClassification"


def main():
    dataclasses = (ImageModelArguments, ImageArguments, RunArguments)
    model_args, data_args, training_args = parse_arguments(dataclasses, __doc__)
    check_evaluation(training_args)
    callbacks = data_args.callbacks(training_args)
    for folder in filter(None, (data_args.train_dir, data_args.validation_dir)):
        if Path(folder).resolve() in Path(training_args.output_dir).resolve().parents:
            raise InputError(f"--output_dir is inside of {folder}, and its pictures would be a class: choose another.")
    checkpoint = start_run(model_args, data_args, training_args)
    config = load_image_config(model_args, data_args.size())
    processor = load_processor(model_args, config, data_args.size(), data_args.crop_pct)

    with training_args.main_process_first(desc="reading"):
        splits, labels = load_images(
            data_args,
            trained=trained_labels(config, HEAD),
            train=training_args.do_train,
            validate=training_args.do_eval,
            seed=training_args.seed,
            access=data_access(model_args, data_args, training_args),
        )
        if training_args.do_train and training_args.process_index == 0:
            check_images(splits)
    new_classifier = set_labels(
        config, labels, HEAD, train=training_args.do_train, new_classifier=model_args.ignore_mismatched_sizes
    )
    train_dataset, eval_dataset, weights = splits.get("train"), splits.get("validation"), None
    if train_dataset is not None:
        if data_args.class_weights is not None:
            weights = balanced_weights(train_dataset["labels"][:], config)
        data_args.lengthen(training_args, len(train_dataset))
        train_dataset = train_dataset.add_column("index", range(len(train_dataset)))
        images, batch = len(train_dataset), total_batch_size(training_args)
        if (updates := math.ceil(images / batch)) < 10:
            words = "An epoch of %d images has only %d update(s) of %d images: lower --global_batch_size."
            logger.warning(words, images, updates, batch)
    size = data_args.size() or image_size(config, processor)
    transform = training_transform(data_args, size, processor.image_mean)
    collator = ImageCollator(processor, transform, mixing_transform(data_args, config.num_labels), training_args.seed)

    options = {"train": training_args.do_train, "new_classifier": new_classifier}
    model = load_image_model(model_args, config, data_args.size(), **options)
    if collator.on_device:
        model.register_forward_pre_hook(collator.normalization.before_forward, with_kwargs=True)

    # The collator needs columns that are not inputs of the model.
    training_args.remove_unused_columns = False
    kept = KeptEvaluation(accuracies)
    trainer = GMLPTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=processor,
        data_collator=collator,
        compute_loss_func=classification_loss(training_args.label_smoothing_factor, weights),
        compute_metrics=kept,
        preprocess_logits_for_metrics=logits_only,
        callbacks=callbacks,
        metric_names=("loss", "accuracy", *(["top5_accuracy"] if config.num_labels >= 5 else [])),
        card=data_args.card_facts(model_args, data_args.description(splits, config.num_labels)),
        hyperparameters=data_args.augmentation(),
    )
    metrics = trainer.train_and_evaluate(checkpoint)
    if eval_dataset is not None and trainer.is_world_process_zero():
        write_report(trainer, kept, pandas.DataFrame({"file": [image["path"] for image in eval_dataset["image"]]}))
    # Trainer's FLOPs count pixels as tokens.
    metrics.pop("total_flos", None)
    trainer.finish(metrics)
