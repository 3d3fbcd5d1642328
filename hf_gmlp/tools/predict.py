"""Classify the texts or pictures, or answer the questions, of a file or folder, and write them to a csv file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
from tqdm import tqdm
from transformers import PreTrainedModel, pipeline

from ..errors import InputError
from ..image_files import find_images
from ..loading import open_config, open_image_processor, open_tokenizer
from ..metrics.squad.squad import squad_scores
from ..tokenizer import padding_for
from .evaluation import load, true_classes
from .question_answering import QuestionAnswerer

# Names of the text column, and of the two of a pair.
USUAL = [["text"], ["sentence"], ["sentence1", "sentence2"], ["question1", "question2"], ["premise", "hypothesis"]]


def predict(
    model: str,
    data: str,
    output: str,
    text_column_names: list[str] | None = None,
    label_column_name: str | None = None,
    top_k: int = 3,
    batch_size: int = 32,
):
    """Write the rows of a csv, tsv, json(l) or text file, or of a folder of pictures, to the csv file `output`, with
    the `top_k` best classes or answers of each and their probabilities; print the accuracy if there are labels.
    """
    if not Path(output).resolve().parent.is_dir() or Path(output).resolve() == Path(data).resolve():
        raise InputError(f"--output {output} cannot be written: name a csv file in a folder that exists.")
    if min(top_k, batch_size) < 1:
        raise InputError("--top_k and --batch_size must be at least 1.")
    rows, task = read_rows(data), ((open_config(model).architectures or ["Model"])[0]).partition("For")[2]
    if task == "QuestionAnswering":
        check_text(rows, ["question", "context"])
        return answer(QuestionAnswerer(load(model, task), open_tokenizer(model)), rows, output, top_k, batch_size)
    if task not in ("ImageClassification", "SequenceClassification"):
        raise InputError(f"{model} is neither a classifier nor a model that answers questions: fine-tune it first.")
    results, accuracy = classify(
        load(model, task), model, rows, data, text_column_names, label_column_name, top_k, batch_size
    )
    write(rows, results, output)
    if accuracy is not None:
        print(f"Accuracy {accuracy}")


def classify(
    classifier: PreTrainedModel,
    checkpoint: str,
    rows: pandas.DataFrame,
    folder: str,
    text_columns: list[str] | None = None,
    label_column: str | None = None,
    top_k: int = 1,
    batch_size: int = 8,
) -> tuple[list[list[tuple]], str | None]:
    """Classify texts, or the pictures of a folder.

    Args:
        checkpoint: Where the tokenizer or image processor is.
        text_columns: The text column, or the two of a pair; by default "text", the usual names of pairs, or the only
            other column.
        label_column: The column to compare with, by default one with only names of classes, or "label".

    Returns:
        The `top_k` best classes of each row with their probabilities, best first; and the accuracy in words, or None.
    """
    options: dict[str, Any] = {"top_k": top_k, "batch_size": batch_size}
    labels = true_classes(classifier, rows, label_column)
    if classifier.main_input_name == "pixel_values":
        # It needs Pillow.
        from ..processor import decode

        names = rows[check_text(rows, ["file"])[0]]
        inputs: Iterator = (decode({"bytes": None, "path": f"{folder}/{name}"}) for name in names)
        pipe = pipeline("image-classification", classifier, image_processor=open_image_processor(checkpoint))
    else:
        columns = text_columns or next((usual for usual in USUAL if {*usual} <= {*rows}), None)
        if columns is None:
            columns = [name for name in rows if name not in ("id", "idx", "label", getattr(labels, "name", None))]
            if len(columns) != 1:
                raise InputError(f"Name the text column with --text_column_names: there are {', '.join(rows.columns)}.")
        tokenizer, texts = open_tokenizer(checkpoint), rows[check_text(rows, columns)].astype(str)
        longest = min(tokenizer.model_max_length, getattr(classifier.config, "max_position_embeddings", None) or 512)
        options |= {"truncation": True, "max_length": longest, "padding": padding_for(classifier.config)}
        inputs = (dict(zip(("text", "text_pair"), row)) for row in texts.to_numpy())
        pipe = pipeline("text-classification", classifier, tokenizer=tokenizer)
    outputs = tqdm(pipe(inputs, **options), total=len(rows), desc="Predicting")
    results = [[(entry["label"], entry["score"]) for entry in output] for output in outputs]
    if labels is None:
        return results, None
    right = [label == result[0][0] for label, result in zip(labels, results) if label]
    return results, f"{sum(right) / len(right):.4f}: {sum(right)} of {len(right)} are as in the column {labels.name!r}"


def answer(answerer: QuestionAnswerer, rows: pandas.DataFrame, output: str, top_k: int, batch_size: int):
    """Answer the questions, and print exact match and F1 if there are known answers."""
    results: list[list[tuple]] = []
    for start in tqdm(range(0, len(rows), batch_size), desc="Answering"):
        questions, contexts = (list(rows[name][start : start + batch_size]) for name in ("question", "context"))
        # For a single answer, the answerer would return no list.
        answers: Any = answerer(questions, contexts, top_k=max(2, top_k))
        results += [[(entry["answer"], entry["score"]) for entry in ranked[:top_k]] for ranked in answers]
    write(rows, results, output)
    if "answers" in rows:
        known = (one["text"] if isinstance(one, dict) else [each["text"] for each in one] for one in rows["answers"])
        texts = {str(row): result[0][0] for row, result in enumerate(results)}
        scores = squad_scores(texts, {str(row): answers or [""] for row, answers in enumerate(known)})
        print(", ".join(f"{name} {score:.2f}" for name, score in scores.items()))


def read_rows(path: str) -> pandas.DataFrame:
    """Return the rows of a file, questions as SQuAD is published a row each, or the "file" and "folder" of pictures."""
    name = path.lower().removesuffix(".gz")
    try:
        if Path(path).is_dir():
            files = find_images(Path(path))
            rows = pandas.DataFrame({"file": files, "folder": [Path(file).parent.name for file in files]})
        elif name.endswith((".csv", ".tsv")):
            options: dict[str, Any] = {"dtype": str, "keep_default_na": False, "encoding": "utf-8-sig"}
            rows = pandas.read_csv(path, sep="\t" if name.endswith(".tsv") else ",", **options)
        elif name.endswith((".jsonl", ".json")):
            rows = pandas.read_json(path, lines=name.endswith(".jsonl"), dtype=False, convert_dates=False)
            if "data" in rows.columns:
                parts = [part for article in rows["data"] for part in article.get("paragraphs", [article])]
                rows = pandas.DataFrame([{**part, **row} for part in parts for row in part.pop("qas", [part])])
        else:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
            rows = pandas.DataFrame({"text": [line for line in lines if line.strip()]})
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if rows.empty:
        raise InputError(f"There are no rows, or no pictures, in {path}.")
    return rows


def check_text(rows: pandas.DataFrame, columns: list[str]) -> list[str]:
    """Return the columns; an InputError if one is missing, or a row has no text there."""
    for column in columns:
        if column not in rows:
            raise InputError(f"The data have no column {column!r} but {', '.join(rows.columns)}.")
        for row, value in enumerate(rows[column], start=1):
            if value is None or str(value).strip() in ("", "nan"):
                raise InputError(f"Row {row} has no text in the column {column!r}.")
    return columns


def write(rows: pandas.DataFrame, results: list[list[tuple]], output: str):
    for rank in range(max(map(len, results))):
        suffix = f"_{rank + 1}" if rank else ""
        names, scores = zip(*(result[rank] if rank < len(result) else ("", 0.0) for result in results))
        rows = rows.assign(**{f"prediction{suffix}": names, f"probability{suffix}": pandas.Series(scores).round(4)})
    rows.to_csv(output, index=False)
    print(f"{len(rows)} predictions are in {output}")
