"""The accuracy of a model and of the programs exported from it, on the data of a user."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, PreTrainedModel

from ..errors import InputError
from ..loading import open_tokenizer
from ..tasks.labels import ONE_CLASS, set_labels, trained_labels
from ..tokenizer import padding_for


def evaluation_batches(model: PreTrainedModel, checkpoint: str, task: str, path: str) -> DataLoader:
    """Return the batches of a file of sentences or texts, or of a folder or zip file of images, with "labels".

    The labels are classes [B], or in masked language modeling tokens [B, m], -100 where nothing is masked.

    Args:
        checkpoint: Where the tokenizer or image processor is.
        task: "fill-mask", "text-classification" or "image-classification".

    Raises:
        InputError: If it is another task, the data cannot be read, or their labels are not those of the model.
    """
    config = model.config
    if task == "fill-mask":
        from ..tasks.mlm.arguments import MLMArguments
        from ..tasks.mlm.masking import MaskedOnce, MaskingCollator
        from ..tasks.text import load_texts, tokenize

        texts, tokenizer = MLMArguments(validation_file=[path]), open_tokenizer(checkpoint)
        masking = MaskingCollator(tokenizer, texts.mlm_probability)
        rows = tokenize(load_texts(texts, train=False), tokenizer, texts.sequence_length(config), texts)[1]
        return DataLoader(MaskedOnce(rows, masking), batch_size=8, collate_fn=masking)
    collator: Callable
    if task == "text-classification":
        from ..tasks.glue.arguments import GlueArguments
        from ..tasks.glue.sentences import load_sentences
        from ..tasks.glue.sentences import tokenize as tokenize_sentences

        sentences, tokenizer = GlueArguments(validation_file=[path]), open_tokenizer(checkpoint)
        head, length = "ForSequenceClassification", sentences.sequence_length(config)
        collator = DataCollatorWithPadding(tokenizer, padding_for(config), max_length=length)
        splits, labels = load_sentences(sentences, ["validation"], known=trained_labels(config, head))
        rows = tokenize_sentences(splits["validation"], tokenizer, length, sentences)
    elif task == "image-classification":
        from transformers import AutoImageProcessor

        from ..tasks.image_classification.arguments import ImageArguments
        from ..tasks.image_classification.images import ImageCollator, load_images

        head, collator = "ForImageClassification", ImageCollator(AutoImageProcessor.from_pretrained(checkpoint))
        images = ImageArguments(validation_dir=path)
        splits, labels = load_images(images, known=trained_labels(config, head), train=False)
        rows = splits["validation"]
    else:
        raise InputError(f"--eval_file is for classifiers and masked language models, not for {task}: leave it out.")
    if labels.problem_type != ONE_CLASS:
        raise InputError(f"--eval_file is for classifiers with one class per row, which those of {path} are not.")
    set_labels(copy.deepcopy(config), labels, head, train=False, new_classifier=False)
    return DataLoader(rows, batch_size=8, collate_fn=collator)


@torch.no_grad()
def accuracies(
    runs: Mapping[str, Callable[..., Any]], batches: Iterable[dict[str, torch.Tensor]], inputs: Sequence[str]
) -> dict[str, float]:
    """Return for each model or program the fraction of labels, -100 left out, with the largest logit.

    Args:
        inputs: The names of a program's inputs, all of which it needs.
    """
    correct, total = dict.fromkeys(runs, 0), 0
    for batch in batches:
        labels = batch.pop("labels")
        if "input_ids" in batch:
            ones = torch.ones_like(batch["input_ids"])
            batch = {"attention_mask": ones, "token_type_ids": 0 * ones, **batch}
        total += int((labels != -100).sum())
        for name, run in runs.items():
            predicted = run(**{key: batch[key] for key in inputs})["logits"].argmax(-1)
            correct[name] += int(((predicted == labels) & (labels != -100)).sum())
    return {name: count / total for name, count in correct.items()}
