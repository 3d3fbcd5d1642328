"""Classify the texts or pictures, or answer the questions, of a file or folder, and write them to a csv file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import torch
import transformers
from tqdm import tqdm
from transformers import PreTrainedModel, pipeline

from ..errors import InputError
from ..image_files import find_images
from ..loading import open_config, open_image_processor, open_model, open_tokenizer
from ..processor import decode
from ..squad import squad_scores
from ..tokenizer import padding_for
from .question_answering import QuestionAnswerer


def predict(
    model: str,
    data: str,
    output: str,
    text_column_names: list[str] | None = None,
    label_column_name: str | None = None,
    top_k: int = 3,
    batch_size: int = 32,
    onnx: bool = False,
):
    """Write the rows of a csv, tsv, json(l) or text file, or of a folder of pictures, to the csv file `output`, with
    the `top_k` best classes or answers of each and their probabilities; print the accuracy if there are labels.
    """
    if not Path(output).resolve().parent.is_dir() or Path(output).resolve() == Path(data).resolve():
        raise InputError(f"--output {output} cannot be written: name a csv file in a folder that exists.")
    rows, task = read_rows(data), ((open_config(model).architectures or ["Model"])[0]).partition("For")[2]
    if task == "QuestionAnswering":
        check_text(rows, ["question", "context"])
        return answer(QuestionAnswerer(model), rows, output, top_k, batch_size)
    if task not in ("ImageClassification", "SequenceClassification"):
        raise InputError(f"{model} is neither a classifier nor a model that answers questions: fine-tune it first.")
    classifier = open_model(getattr(transformers, f"AutoModelFor{task}"), model)
    options: dict[str, Any] = {"top_k": top_k}
    names, several = classifier.config.id2label, classifier.config.problem_type == "multi_label_classification"
    # By default, the first column that has only names of classes.
    classes = (column for column in rows if set(rows[column].astype(str)) <= set(names.values()))
    labels = label_column_name or next(classes, "label" if "label" in rows else None)
    check_text(rows, [labels] if labels else [])
    if task == "ImageClassification":
        files = rows[check_text(rows, ["file"])[0]]
        inputs: Iterator = (decode({"bytes": None, "path": f"{data}/{name}"}) for name in files)
        pipe = pipeline("image-classification", classifier, image_processor=open_image_processor(model))
    else:
        tokenizer, others = open_tokenizer(model), [name for name in rows if name not in (labels, "id")]
        columns = text_column_names or (["text"] if "text" in rows else others)
        if len(columns) > 1 and not text_column_names:
            raise InputError(f"Name the text column with --text_column_names: there are {', '.join(rows.columns)}.")
        longest = min(tokenizer.model_max_length, getattr(classifier.config, "max_position_embeddings", None) or 512)
        options |= {"truncation": True, "max_length": longest, "padding": padding_for(classifier.config)}
        texts = rows[check_text(rows, columns)].astype(str)
        inputs = (dict(zip(("text", "text_pair"), row)) for row in texts.to_numpy())
        pipe = pipeline("text-classification", classifier, tokenizer=tokenizer)
    if onnx:
        use_onnx(classifier, Path(model, "onnx", "model.onnx"))
    results = list(tqdm(pipe(inputs, batch_size=batch_size, **options), total=len(rows), desc="Predicting"))
    write(rows, [[(entry["label"], entry["score"]) for entry in result] for result in results], output)
    if labels is not None and len(names) > 1 and not several:
        truth, numbers = rows[labels].astype(str), {str(number): name for number, name in names.items()}
        if set(truth) <= set(numbers) - set(names.values()):
            truth = truth.map(numbers)
        right = sum(truth == [result[0]["label"] for result in results])
        print(f"Accuracy {right / len(rows):.4f}: {right} of {len(rows)} are as in the column {labels!r}")


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
        if column not in rows.columns:
            raise InputError(f"The data have no column {column!r} but {', '.join(rows.columns)}.")
        for row, value in enumerate(rows[column], start=1):
            if value is None or str(value).strip() in ("", "nan"):
                raise InputError(f"Row {row} has no text in the column {column!r}.")
    return columns


def answer(answerer: QuestionAnswerer, rows: pandas.DataFrame, output: str, top_k: int, batch_size: int):
    """Answer the questions, and print exact match and F1 if there are known answers."""
    results: list[list[tuple]] = []
    for start in tqdm(range(0, len(rows), batch_size), desc="Answering"):
        questions, contexts = (list(rows[name][start : start + batch_size]) for name in ("question", "context"))
        answers: Any = answerer(questions, contexts, top_k=max(2, top_k))
        results += [[(entry["answer"], entry["score"]) for entry in ranked[:top_k]] for ranked in answers]
    write(rows, results, output)
    if "answers" in rows.columns:
        known = (one["text"] if isinstance(one, dict) else [each["text"] for each in one] for one in rows["answers"])
        texts = {str(row): result[0][0] for row, result in enumerate(results)}
        print(squad_scores(texts, {str(row): answers or [""] for row, answers in enumerate(known)}))


def write(rows: pandas.DataFrame, results: list[list[tuple[str, float]]], output: str):
    for rank in range(max(map(len, results))):
        suffix = f"_{rank + 1}" if rank else ""
        names, scores = zip(*(result[rank] if rank < len(result) else ("", 0.0) for result in results))
        rows = rows.assign(**{f"prediction{suffix}": names, f"probability{suffix}": pandas.Series(scores).round(4)})
    rows.to_csv(output, index=False)
    print(f"{len(rows)} predictions are in {output}")


def use_onnx(model: PreTrainedModel, file: Path):
    """Let a classifier run the ONNX program that `hf-gmlp export` wrote."""
    if not file.is_file():
        raise InputError(f"There is no {file}: make it with `hf-gmlp export MODEL MODEL --to onnx`.")
    import onnxruntime

    session = onnxruntime.InferenceSession(file)

    def forward(**inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        zeros = torch.zeros_like(next(iter(inputs.values())))
        feed = {one.name: inputs.get(one.name, zeros).numpy() for one in session.get_inputs()}
        return {"logits": torch.from_numpy(session.run(["logits"], feed)[0])}

    model.forward = forward
