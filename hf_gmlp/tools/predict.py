"""`hf-gmlp predict`: classify texts or pictures, or answer questions, and write the results to a csv file.

`hf-gmlp export --eval_file` measures accuracies with the same functions.
"""

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import torch
import transformers
from datasets import ClassLabel, Dataset, Value
from tqdm import tqdm
from transformers import PreTrainedModel, pipeline
from transformers.utils import ModelOutput

from ..context import extend_context
from ..data.files import read_files
from ..data.images import find_images
from ..data.labels import CLASSES, REGRESSION, check_columns, read_labels
from ..data.questions import known_answers, read_questions
from ..data.sentences import (
    LABEL_COLUMNS,
    blank_rows,
    check_text_columns,
    find_text_columns,
    name_columns,
    text_columns_of,
    truncation_note,
)
from ..errors import InputError, listed
from ..loading import check_vocabulary, open_config, open_image_processor, open_model, open_tokenizer
from ..metrics.squad.squad import squad_scores, squad_v2_scores
from ..tokenizer import padding_for
from .question_answering import QuestionAnswerer

# The ONNX program in the folder of a model.
PROGRAM = "onnx/model.onnx"


def predict(
    model: str,
    data: str,
    output: str,
    text_column_names: list[str] | None = None,
    label_column_name: str | None = None,
    top_k: int = 3,
    batch_size: int = 32,
    max_seq_length: int | None = None,
    version_2_with_negative: bool = False,
):
    """Write the rows of a file, or of a folder of pictures, to the csv file `output`, with the `top_k` best classes or
    answers of each row and their probabilities. If there are labels, print the accuracy. Texts are classified by their
    first `max_seq_length` tokens, which for a Toeplitz W may be more than those of training. With
    `version_2_with_negative`, the answer to a question may be "", no answer.
    """
    target = Path(output).resolve()
    if target.is_dir() or target == Path(data).resolve() or not os.access(target.parent, os.W_OK):
        raise InputError(f"--output {output} cannot be written: name a new csv file in a folder that you may write to.")
    if min(top_k, batch_size) < 1:
        raise InputError("--top_k and --batch_size must be at least 1.")
    task = ((open_config(model).architectures or ["Model"])[0]).partition("For")[2]
    rows: Any = (read_questions if task == "QuestionAnswering" else read_rows)(data)
    if not len(rows):
        raise InputError(f"There are no rows, or no pictures, in {data}.")
    if taken := rows[0].keys() & {"prediction", "probability"}:
        raise InputError(f"The data have a column {min(taken)!r}, whose name the results need: rename it.")
    if max_seq_length is not None and (task != "SequenceClassification" or max_seq_length < 5):
        raise InputError("--max_seq_length is for texts to classify, and at least 5.")
    if task == "QuestionAnswering":
        answerer = QuestionAnswerer(load(model, task), open_tokenizer(model))
        return answer(answerer, rows, data, output, top_k, batch_size, version_2_with_negative)
    if task not in ("ImageClassification", "SequenceClassification"):
        raise InputError(f"{model} is neither a classifier nor a model that answers questions: fine-tune it first.")
    columns = (text_column_names, label_column_name)
    classifier = load(model, task)
    results, accuracy = classify(classifier, model, rows, data, *columns, top_k, batch_size, max_seq_length)
    if classifier.config.problem_type == REGRESSION:
        # The pipeline returns the predicted number as a score.
        return write(rows.to_list(), [[(score, math.nan) for _, score in result] for result in results], output)
    write(rows.to_list(), results, output)
    print(f"Accuracy {accuracy}" if accuracy else "No accuracy: no column holds only classes of the model.")


def load(checkpoint: str, task: str) -> PreTrainedModel:
    """Load a model for a task. If the folder has an ONNX program from `hf-gmlp export`, that program computes."""
    auto_class, file = getattr(transformers, f"AutoModelFor{task}"), Path(checkpoint, PROGRAM)
    if not file.is_file():
        return open_model(auto_class, checkpoint)
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def program(**inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        arrays = session.run(names, {name: value.cpu().numpy() for name, value in inputs.items()})
        return dict(zip(names, map(torch.from_numpy, arrays)))

    # Pipelines need a model, although its weights are not used.
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


def classify(
    classifier: PreTrainedModel,
    checkpoint: str,
    rows: Dataset,
    folder: str,
    text_columns: list[str] | None = None,
    label_column: str | None = None,
    top_k: int = 1,
    batch_size: int = 8,
    max_seq_length: int | None = None,
) -> tuple[list[list[tuple]], str | None]:
    """Classify texts, or the pictures of a folder.

    Args:
        checkpoint: The folder or name of the tokenizer or image processor.
        text_columns: The text column, or the two of a pair; by default `known_text_columns`, or the only column
            that is neither an id nor a label.
        label_column: The column to compare with, by default the one that `true_classes` finds.
        max_seq_length: The number of tokens used of a text; by default that of the tokenizer, or n if it is smaller.

    Returns:
        The `top_k` best classes of each row with their probabilities, best first, and none for a row without text or
        with a picture that cannot be read; and the accuracy in words, or None.
    """
    options: dict[str, Any] = {"top_k": top_k, "batch_size": batch_size}
    missing: dict[int, str] = {}  # why rows have no prediction
    labels = true_classes(classifier, rows, label_column)
    if classifier.main_input_name == "pixel_values":
        if not Path(folder).is_dir():
            raise InputError(f"{folder} is not a folder of pictures: name one.")
        # Texts are classified without Pillow, which this import needs.
        from ..processor import decode

        def pictures() -> Iterator:
            for row, name in enumerate(rows["file"]):
                try:
                    yield decode({"bytes": None, "path": f"{folder}/{name}"})
                except InputError as error:
                    missing[row] = str(error)

        inputs = pictures()
        pipe = pipeline("image-classification", classifier, image_processor=open_image_processor(checkpoint))
    else:
        if Path(folder).is_dir():
            raise InputError(f"{folder} is a folder of pictures, but {checkpoint} classifies texts: name a file.")
        check_text_columns(text_columns or [])
        columns = find_text_columns(rows.column_names, labels and labels[0], text_columns)
        print(f"Texts: {' and '.join(columns)}")
        sentences = name_columns(rows, columns)
        missing |= {row: f"row {row + 1} has no text." for row in blank_rows(sentences)}
        tokenizer, texts = open_tokenizer(checkpoint), enumerate(zip(*text_columns_of(sentences)))
        check_vocabulary(classifier.config, tokenizer, checkpoint)
        n = getattr(classifier.config, "max_position_embeddings", None)
        length = max_seq_length or min(tokenizer.model_max_length, n or 512)
        if n is not None and length > n:
            if not getattr(classifier.config, "toeplitz", False) or Path(checkpoint, PROGRAM).is_file():
                raise InputError(f"--max_seq_length {length} is above the model's n = {n}, which is fixed: lower it.")
            extend_context(classifier, tokenizer, length)
        truncation = {"truncation": True, "max_length": length}
        samples = [dict(zip(("text", "text_pair"), values)) for row, values in texts if row not in missing]
        lengths = np.array([len(tokenizer(**sample, **truncation)["input_ids"]) for sample in samples])
        if note := truncation_note(lengths, length):
            print(f"{note} (--max_seq_length)")
        options |= truncation | {"padding": padding_for(classifier.config)}
        # A pipeline yields its outputs one by one only for a generator.
        inputs = (sample for sample in samples)
        pipe = pipeline("text-classification", classifier, tokenizer=tokenizer)
    outputs = tqdm(pipe(inputs, **options), total=len(rows) - len(missing), desc="Predicting")
    predictions = iter([[(entry["label"], entry["score"]) for entry in output] for output in outputs])
    if len(missing) == len(rows):
        raise InputError(f"No row can be predicted: {missing[0]}")
    if missing:
        print(f"Rows without a prediction: {len(missing)}, such as: {next(iter(missing.values()))}")
    results = [[] if row in missing else next(predictions) for row in range(len(rows))]
    if labels is None:
        return results, None
    right = [name == result[0][0] for name, result in zip(labels[1], results) if name is not None and result]
    if not right:
        return results, None
    return results, f"{sum(right) / len(right):.4f}: {sum(right)} of {len(right)} are as in the column {labels[0]!r}"


def true_classes(model: PreTrainedModel, rows: Dataset, column: str | None = None) -> tuple[str, list] | None:
    """Return a column of labels and the name of each row's class, None for rows without a label; or None if there are
    no labels to compare.

    Args:
        model: A classifier. Models of several classes per row and regressions have no accuracy.
        column: The column of labels, which are names or numbers of classes. By default, the first column that holds
            only names of classes, or "label"; the usual names of such columns come first.

    Raises:
        InputError: If `column` is missing, or has other labels.
    """
    classes = [name for _, name in sorted(model.config.id2label.items())]
    if len(classes) == 1 or model.config.problem_type == CLASSES:
        return None
    if column is not None:
        check_columns(rows, "new", [column])
    usual_first = dict.fromkeys([*(name for name in LABEL_COLUMNS if name in rows.features), *rows.features])
    for name in usual_first if column is None else [column]:
        if not isinstance(rows.features[name], ClassLabel | Value):
            continue
        values = read_labels(rows, name, classes if name in ("label", column) else ())
        labels = {*values} - {None}
        if labels and labels <= {*classes}:
            return name, values
    if column is not None:
        others = listed(sorted(labels.difference(classes)))
        raise InputError(f"The column {column!r} has the labels {others}, and the model {listed(classes)}.")
    return None


def answer(
    answerer: QuestionAnswerer,
    rows: list[dict],
    data: str,
    output: str,
    top_k: int,
    batch_size: int,
    version_2_with_negative: bool,
):
    """Answer the questions of `read_questions`, and print exact match and F1 if it has the answers too."""
    references: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=1):
        if not (isinstance(row.get("question"), str) and str(row.get("context") or "").strip()):
            raise InputError(f"Row {number} of {data} has no question, or no context: remove it.")
        if (answers := known_answers(row, data)) is not None:
            references[str(number)] = [text for text, _ in answers]
            if not answers and not version_2_with_negative:
                raise InputError(f"Question {number} of {data} has no answer: pass --version_2_with_negative.")
    results: list[list[tuple]] = []
    for start in tqdm(range(0, len(rows), batch_size), desc="Answering"):
        batch = rows[start : start + batch_size]
        questions, contexts = ([row[name] for row in batch] for name in ("question", "context"))
        # With `top_k=1`, the answerer would not return lists.
        options: dict[str, Any] = {"top_k": max(2, top_k), "handle_impossible_answer": version_2_with_negative}
        ranked: Any = answerer(questions, contexts, **options)
        results += [[(entry["answer"], entry["score"]) for entry in entries[:top_k]] for entries in ranked]
    write(rows, results, output)
    if len(references) == len(rows):
        texts = {str(number): result[0][0] for number, result in enumerate(results, start=1)}
        scores = (squad_v2_scores if version_2_with_negative else squad_scores)(texts, references)
        names = ("exact", "f1") if version_2_with_negative else ("exact_match", "f1")
        print(", ".join(f"{name} {scores[name]:.2f}" for name in names))


def read_rows(path: str) -> Dataset:
    """Return the rows of a file, or "file" and "folder" of the pictures in a folder."""
    if not Path(path).is_dir():
        datasets.disable_progress_bars()
        return read_files([path], lines=True, text_columns=None)
    images, left_out = find_images(Path(path))
    if left_out:
        print(f"Left out of {path}: {'; '.join(f'{count} {reason}' for reason, count in left_out.items())}")
    return Dataset.from_dict({"file": list(map(str, images)), "folder": [image.parent.name for image in images]})


def write(rows: list[dict], results: list[list[tuple]], output: str):
    """Write the rows to a csv file, with two more columns for each rank of the results: the prediction, and its
    probability unless no result has one.
    """
    # As objects, integers beside missing values stay integers.
    table = pandas.DataFrame(rows, dtype=object)
    for rank in range(max(map(len, results))):
        suffix = f"_{rank + 1}" if rank else ""
        names, scores = zip(*(result[rank] if rank < len(result) else ("", math.nan) for result in results))
        table = table.assign(**{f"prediction{suffix}": names})
        if not all(map(math.isnan, scores)):
            table = table.assign(**{f"probability{suffix}": pandas.Series(scores).round(4)})
    table.to_csv(output, index=False)
    print(f"{sum(map(bool, results))} predictions are in {output}")
