"""The accuracy of a classifier and of the programs exported from it, on the data of a user."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from datasets import Image, load_dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from ..errors import InputError, listed
from ..loading import open_image_processor, open_tokenizer
from ..tokenizer import padding_for
from ..training.files import load_data


def evaluation_batches(model: PreTrainedModel, checkpoint: str, path: str) -> DataLoader:
    """Return batches with class ids as "labels" [B].

    Args:
        checkpoint: Where the model's tokenizer or image processor is.
        path: For a text classifier a file of one or two columns of text, and "label"; for an image classifier a folder
            with a folder of images for each class.

    Raises:
        InputError: If it is another model, the data cannot be read, or their labels are not those of the model.
    """
    encode: Callable[[Sequence], Mapping[str, torch.Tensor]]
    if type(model).__name__.endswith("ForImageClassification"):
        from ..processor import decode

        processor = open_image_processor(checkpoint)
        data = load_dataset("imagefolder", data_dir=path, split="train", drop_labels=False)
        labels = map(data.features["label"].int2str, data["label"])
        inputs = data.cast_column("image", Image(decode=False))["image"]

        def encode(images: Sequence[dict]) -> Mapping[str, torch.Tensor]:
            return processor(list(map(decode, images)), return_tensors="pt")

    elif type(model).__name__.endswith("ForSequenceClassification"):
        tokenizer, data = open_tokenizer(checkpoint), load_data(files={"validation": [path]})["validation"]
        columns = [name for name in data.column_names if name not in ("label", "idx")]
        if "label" not in data.column_names or not 1 <= len(columns) <= 2:
            fault = f"{path} must have a column 'label', and one or two of text"
            raise InputError(f"{fault}, not {listed(data.column_names)}.")
        labels, inputs = map(str, data["label"]), list(zip(*(map(str, data[column]) for column in columns)))
        options = {"padding": padding_for(model.config), "max_length": model.config.max_position_embeddings}

        def encode(texts: Sequence[tuple]) -> Mapping[str, torch.Tensor]:
            parts = map(list, zip(*texts))
            return tokenizer(*parts, truncation=True, return_token_type_ids=True, return_tensors="pt", **options)

    else:
        raise InputError(f"--eval_file is for classifiers, not for a {type(model).__name__}: leave it out.")

    def collate(rows: Sequence[tuple]) -> dict[str, torch.Tensor]:
        batch, labels = zip(*rows)
        return {**encode(batch), "labels": torch.tensor(labels)}

    rows: Any = list(zip(inputs, class_ids(model, labels, path)))
    return DataLoader(rows, batch_size=8, collate_fn=collate)


def class_ids(model: PreTrainedModel, labels: Iterable[str], path: str) -> list[int]:
    """Return the class ids of labels, which are names of the model's classes or all numbers of them."""
    names, classes = list(labels), model.config.id2label
    for ids in ({name: number for number, name in classes.items()}, {str(number): number for number in classes}):
        if set(names) <= ids.keys() and len(classes) > 1:
            return [ids[name] for name in names]
    others = sorted(set(names) - set(classes.values()))
    raise InputError(f"{path} has the labels {listed(others)}, but the model has {listed([*classes.values()])}.")


@torch.no_grad()
def accuracies(
    runs: Mapping[str, Callable[..., Any]], batches: Iterable[dict[str, torch.Tensor]], inputs: Sequence[str]
) -> dict[str, float]:
    """Return for each model or program, which has these inputs, the fraction of labels with the largest logit."""
    right: dict[str, list[bool]] = {name: [] for name in runs}
    for batch in batches:
        for name, run in runs.items():
            predicted = run(**{key: batch[key] for key in inputs})["logits"].argmax(-1)
            right[name] += (predicted == batch["labels"]).tolist()
    return {name: sum(values) / len(values) for name, values in right.items()}
