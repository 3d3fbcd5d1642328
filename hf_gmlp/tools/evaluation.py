"""What `hf-gmlp predict` and `hf-gmlp export --eval_file` share: known classes, and exported programs as models."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pandas
import torch
import transformers
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..errors import InputError, listed, need
from ..loading import open_config, open_model


def load(checkpoint: str, task: str) -> PreTrainedModel:
    """Open a model for a task, with the program that `hf-gmlp export` wrote if its folder has one."""
    auto_class, file = getattr(transformers, f"AutoModelFor{task}"), Path(checkpoint, "onnx", "model.onnx")
    if not file.is_file():
        return open_model(auto_class, checkpoint)
    need("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def program(**inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        arrays = session.run(names, {name: value.cpu().numpy() for name, value in inputs.items()})
        return dict(zip(names, map(torch.from_numpy, arrays)))

    # A pipeline needs a model; its weights are not used.
    model = auto_class.from_config(open_config(checkpoint)).eval()
    model.forward = as_forward(program, [tensor.name for tensor in session.get_inputs()])
    print(f"Running {file}")
    return model


def as_forward(program: Callable[..., Mapping], names: Collection[str]) -> Callable[..., ModelOutput]:
    """Return a forward method that runs an exported program, with zeros for inputs that are missing."""

    def forward(**inputs: torch.Tensor) -> ModelOutput:
        zeros = torch.zeros_like(next(iter(inputs.values())))
        return ModelOutput(program(**{name: inputs.get(name, zeros) for name in names}))

    return forward


def true_classes(model: PreTrainedModel, rows: pandas.DataFrame, column: str | None = None) -> pandas.Series | None:
    """Return the class of each row by name, "" for a row without; None if there are no labels to compare.

    Args:
        model: A classifier. One that gives several classes or a number has no accuracy.
        column: The column of labels, which are names or numbers of classes. By default, the first column with only
            names of classes, or "label".

    Raises:
        InputError: If the column that is named is missing, or has other labels.
    """
    classes = model.config.id2label
    if len(classes) == 1 or model.config.problem_type == "multi_label_classification":
        return None
    if column is not None and column not in rows:
        raise InputError(f"The data have no column {column!r} but {', '.join(rows.columns)}.")
    numbers = {str(number): name for number, name in classes.items()}
    for name in rows if column is None else [column]:
        values = rows[name].map(lambda value: "" if value is None else str(value))
        labels = set(values) - {""}
        if labels and labels <= set(classes.values()):
            return values
        if labels and labels <= set(numbers) and name in ("label", column):
            return values.map(numbers).fillna("")
    if column is not None:
        others = listed(sorted(labels - set(classes.values())))
        raise InputError(f"The column {column!r} has the labels {others}, and the model {listed([*classes.values()])}.")
    return None
