"""`hf-gmlp predict`: classify texts or pictures, or answer questions, and write the results to a csv file.

`hf-gmlp export --eval_file` measures accuracies with the same functions.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pandas
import torch
import transformers
from tqdm import tqdm
from transformers import PreTrainedModel, pipeline
from transformers.utils import ModelOutput

from ..context import extend_context
from ..data.files import LABEL_COLUMNS, check_text_columns, known_text_columns, read_files
from ..data.images import is_image, reason_left_out, walk_files
from ..data.labels import REGRESSION, names_by_number
from ..errors import InputError, first_line, listed
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
    rows = (read_questions if task == "QuestionAnswering" else read_rows)(data)
    if taken := [name for name in ("prediction", "probability") if name in rows]:
        raise InputError(f"The data have a column {taken[0]!r}, whose name the results need: rename it.")
    if max_seq_length is not None and (task != "SequenceClassification" or max_seq_length < 5):
        raise InputError("--max_seq_length is for texts to classify, and at least 5.")
    if task == "QuestionAnswering":
        if blank := blank_rows(rows, ["question", "context"]):
            raise InputError(f"Row {blank[0] + 1} has no question, or no context: remove it.")
        answerer = QuestionAnswerer(load(model, task), open_tokenizer(model))
        return answer(answerer, rows, output, top_k, batch_size, version_2_with_negative)
    if task not in ("ImageClassification", "SequenceClassification"):
        raise InputError(f"{model} is neither a classifier nor a model that answers questions: fine-tune it first.")
    columns = (text_column_names, label_column_name)
    classifier = load(model, task)
    results, accuracy = classify(classifier, model, rows, data, *columns, top_k, batch_size, max_seq_length)
    if classifier.config.problem_type == REGRESSION:
        # The pipeline returns the predicted number as a score.
        return write(rows, [[(score, math.nan) for _, score in result] for result in results], output)
    write(rows, results, output)
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
    rows: pandas.DataFrame,
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
        columns = text_columns or list(known_text_columns(rows) or ())
        if not columns:
            columns = [name for name in rows if name not in ("id", "idx", "label", getattr(labels, "name", None))]
            if len(columns) != 1:
                raise InputError(f"Name the text column with --text_column_names: there are {', '.join(rows.columns)}.")
        missing |= {row: f"row {row + 1} has no text." for row in blank_rows(rows, columns)}
        print(f"Texts: {' and '.join(columns)}")
        tokenizer, texts = open_tokenizer(checkpoint), enumerate(rows[columns].astype(str).to_numpy().tolist())
        check_vocabulary(classifier.config, tokenizer, checkpoint)
        n = getattr(classifier.config, "max_position_embeddings", None)
        length = max_seq_length or min(tokenizer.model_max_length, n or 512)
        if n is not None and length > n:
            if not getattr(classifier.config, "toeplitz", False) or Path(checkpoint, PROGRAM).is_file():
                raise InputError(f"--max_seq_length {length} is above the model's n = {n}, which is fixed: lower it.")
            extend_context(classifier, tokenizer, length)
        truncation = {"truncation": True, "max_length": length}
        samples = [dict(zip(("text", "text_pair"), values)) for row, values in texts if row not in missing]
        if count := sum(len(tokenizer(**sample, **truncation)["input_ids"]) >= length for sample in samples):
            fact = f"with {length} tokens or more, of which the first {length} are used (--max_seq_length)"
            print(f"Rows {fact}: {count} of {len(samples)}")
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
    right = [] if labels is None else [x == result[0][0] for x, result in zip(labels, results) if x and result]
    if labels is None or not right:
        return results, None
    return results, f"{sum(right) / len(right):.4f}: {sum(right)} of {len(right)} are as in the column {labels.name!r}"


def true_classes(model: PreTrainedModel, rows: pandas.DataFrame, column: str | None = None) -> pandas.Series | None:
    """Return the name of each row's class, "" for rows without a label; None if there are no labels to compare.

    Args:
        model: A classifier. Models of several classes per row and regressions have no accuracy.
        column: The column of labels, which are names or numbers of classes. By default, the first column that holds
            only names of classes, or "label"; the usual names of such columns come first.

    Raises:
        InputError: If `column` is missing, or has other labels.
    """
    classes = model.config.id2label
    if len(classes) == 1 or model.config.problem_type == "multi_label_classification":
        return None
    if column is not None and column not in rows:
        raise InputError(f"The data have no column {column!r}, only {', '.join(rows.columns)}.")
    numbers = names_by_number([name for _, name in sorted(classes.items())])
    usual_first = dict.fromkeys([*(name for name in LABEL_COLUMNS if name in rows), *rows])
    for name in usual_first if column is None else [column]:
        values = rows[name].map(lambda value: "" if value is None else str(value).strip())
        labels = set(values) - {""}
        if labels and labels <= set(classes.values()):
            return values
        if labels and labels <= set(numbers) and name in ("label", column):
            return values.map(numbers).fillna("")
    if column is not None:
        others = listed(sorted(labels - set(classes.values())))
        raise InputError(f"The column {column!r} has the labels {others}, and the model {listed([*classes.values()])}.")
    return None


def answer(
    answerer: QuestionAnswerer,
    rows: pandas.DataFrame,
    output: str,
    top_k: int,
    batch_size: int,
    version_2_with_negative: bool,
):
    """Answer the questions, and print exact match and F1 if a json file has the answers too."""
    references: dict[str, list[str]] = {}
    if "answers" in rows and not isinstance(rows["answers"].iloc[0], str):
        for row, answers in enumerate(rows["answers"]):
            references[str(row)] = answers["text"] if isinstance(answers, dict) else [a["text"] for a in answers or []]
            if not references[str(row)] and not version_2_with_negative:
                raise InputError(f"Question {row + 1} has no answer: pass --version_2_with_negative.")
    results: list[list[tuple]] = []
    for start in tqdm(range(0, len(rows), batch_size), desc="Answering"):
        questions, contexts = (list(rows[name][start : start + batch_size]) for name in ("question", "context"))
        # With `top_k=1`, the answerer would not return lists.
        options: dict[str, Any] = {"top_k": max(2, top_k), "handle_impossible_answer": version_2_with_negative}
        ranked: Any = answerer(questions, contexts, **options)
        results += [[(entry["answer"], entry["score"]) for entry in entries[:top_k]] for entries in ranked]
    write(rows, results, output)
    if references:
        texts = {str(row): result[0][0] for row, result in enumerate(results)}
        scores = (squad_v2_scores if version_2_with_negative else squad_scores)(texts, references)
        names = ("exact", "f1") if version_2_with_negative else ("exact_match", "f1")
        print(", ".join(f"{name} {scores[name]:.2f}" for name in names))


def read_rows(path: str) -> pandas.DataFrame:
    """Return the rows of a file, or "file" and "folder" of the pictures in a folder."""
    if Path(path).is_dir():
        paths = walk_files(Path(path))
        files = [file for file in paths if is_image(file)]
        rows = pandas.DataFrame({"file": map(str, files), "folder": [file.parent.name for file in files]})
        if left_out := Counter(reason_left_out(file) for file in paths if not is_image(file)):
            print(f"Left out of {path}: {'; '.join(f'{count} {reason}' for reason, count in left_out.items())}")
    else:
        datasets.disable_progress_bars()
        # As objects, integers beside missing values stay integers.
        rows = pandas.DataFrame(read_files([path], lines=True, text_columns=None).to_list(), dtype=object)
    if rows.empty:
        raise InputError(f"There are no rows, or no pictures, in {path}.")
    return rows


def read_questions(path: str) -> pandas.DataFrame:
    """Return the rows of a file, where SQuAD's nested json has one for each question."""
    name = path.lower().removesuffix(".gz")
    if not name.endswith((".jsonl", ".json")):
        return read_rows(path)
    try:
        rows = pandas.read_json(path, lines=name.endswith(".jsonl"), dtype=False, convert_dates=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}.") from error
    if "data" in rows.columns:
        parts = [part for article in rows["data"] for part in article.get("paragraphs", [article])]
        rows = pandas.DataFrame([{**part, **row} for part in parts for row in part.pop("qas", [part])])
    return rows


def blank_rows(rows: pandas.DataFrame, columns: list[str]) -> list[int]:
    """Return the numbers, from 0, of the rows without text in a column, or raise an InputError if one is missing."""
    for column in columns:
        if column not in rows:
            raise InputError(f"The data have no column {column!r}, only {', '.join(rows.columns)}.")
        if rows[column].map(lambda value: isinstance(value, (list, dict))).any():
            raise InputError(f"The column {column!r} holds lists, not texts: name another with --text_column_names.")
    texts = rows[columns].fillna("").astype(str)
    return [row for row, values in enumerate(texts.to_numpy()) if not all(map(str.strip, values))]


def write(rows: pandas.DataFrame, results: list[list[tuple]], output: str):
    """Write the rows to a csv file, with two more columns for each rank of the results: the prediction, and its
    probability unless no result has one.
    """
    for rank in range(max(map(len, results))):
        suffix = f"_{rank + 1}" if rank else ""
        names, scores = zip(*(result[rank] if rank < len(result) else ("", math.nan) for result in results))
        rows = rows.assign(**{f"prediction{suffix}": names})
        if not all(map(math.isnan, scores)):
            rows = rows.assign(**{f"probability{suffix}": pandas.Series(scores).round(4)})
    rows.to_csv(output, index=False)
    print(f"{sum(map(bool, results))} predictions are in {output}")
