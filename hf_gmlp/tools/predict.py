"""`hf-gmlp predict`: classify texts or pictures, or answer questions, and write the results to a file."""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from scipy.special import expit, softmax
from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedModel

from ..data.files import stream_rows
from ..data.images import check_kind, find_images
from ..data.labels import CLASSES, config_labels, label_converter, label_names
from ..data.sentences import LABEL_COLUMNS, check_text_columns, find_label_column, find_text_columns, text_parts
from ..errors import InputError, listed
from ..loading import (
    check_vocabulary,
    extend_context,
    open_config,
    open_image_processor,
    open_runnable,
    open_tokenizer,
    program_of,
    task_of,
)
from ..metrics.calibration import accuracy_in_words, correlation_in_words
from ..tokenizer import language_note, padding_for, text_length
from . import EMBEDDINGS
from .question_answering import QuestionAnswerer

# Rows that are read, sorted by length, predicted and written together.
CHUNK = 2048
FORMATS = (".csv", ".jsonl")
as_json = partial(json.dumps, ensure_ascii=False, default=str)

# A row as it was read, and its results, best first: each a class or an answer with its probability, or only a number.
Row = dict[str, Any]
Results = list[tuple]
# Yields the index and the input of each row that has one, in the order in which to predict them.
Inputs = Callable[[list[Row]], Iterator[tuple[int, Any]]]


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
    encoding: str | None = None,
    dtype: str = "auto",
) -> None:
    """Write the rows of a file, or of a folder of pictures, to a csv or jsonl file, with the `top_k` best classes or
    answers of each row and their probabilities. If there are labels, print the score.

    Rows are read, predicted and written in chunks, so that memory does not grow with the file. An interrupted command
    leaves the finished chunks in the file "OUTPUT.partial".
    """
    target = Path(output).resolve()
    is_new = target.suffix in FORMATS and not target.is_dir() and target != Path(data).resolve()
    if not (is_new and os.access(target.parent, os.W_OK)):
        raise InputError(f"--output {output} must be a new {' or '.join(FORMATS)} file in a folder you may write to.")
    task, is_folder = find_task(model, data), Path(data).is_dir()
    is_text = task == "SequenceClassification"
    if min(top_k, batch_size) < 1 or (max_seq_length is not None and (max_seq_length < 5 or not is_text)):
        raise InputError("--top_k and --batch_size must be at least 1, and --max_seq_length, for texts, at least 5.")
    rows = partial(iter, read_pictures(data)) if is_folder else partial(stream_rows, data, encoding)
    # A file is read twice, since the header of a csv file needs the fields of all rows.
    names = list(dict.fromkeys(chain.from_iterable(rows())))
    if not names:
        raise InputError(f"There are no rows in {data}.")
    runnable, scorer, notes = open_runnable(model, task, dtype), None, Counter[str]()
    config = runnable.config
    if task == "QuestionAnswering":
        options = {"batch_size": batch_size, "handle_impossible_answer": version_2_with_negative}
        # With `top_k=1`, the answerer would not return lists.
        inputs, results = open_questions(runnable, model, names, notes, top_k=max(2, top_k), **options)
    else:
        scorer = Scorer(config, list(islice(rows(), CHUNK)), label_column_name, is_folder)
        if is_folder:
            inputs, collate = open_pictures(model, data, notes)
        else:
            label = scorer.column or find_label_column(names)
            columns = choose_columns(config, model, names, label, text_column_names)
            inputs, collate = open_texts(runnable, model, columns, max_seq_length, notes)
        results, top_k = partial(classes, runnable, collate), min(top_k, config.num_labels)
    kinds = ["prediction"] if scorer and scorer.labels.names is None else ["prediction", "probability"]
    fields = [f"{kind}_{rank}".removesuffix("_1") for rank in range(1, top_k + 1) for kind in kinds]
    if taken := [name for name in fields if name in names]:
        raise InputError(f"The data have a column {taken[0]!r}, whose name the results need: rename it.")
    unfinished, counts = target.with_name(f"{target.name}.partial"), Counter[str]()
    with open(unfinished, "w", encoding="utf-8", newline="") as file, tqdm(unit=" rows") as bar:
        write = open_writer(file, target.suffix, [*names, *fields])
        for chunk in chunks(rows(), CHUNK):
            predicted = predict_rows(chunk, inputs, results, batch_size)
            for row, result in zip(chunk, predicted):
                values = (round(x, 4) if isinstance(x, float) else x for x in chain(*result, repeat(None)))
                write(row | dict(zip(fields, values)))
            counts += Counter(rows=len(chunk), predictions=sum(map(bool, predicted)))
            bar.update(len(chunk))
            if scorer:
                scorer.compare(chunk, predicted)
    if not counts["predictions"]:
        raise InputError(f"No row of {data} can be predicted: all rows {next(iter(notes))}.")
    os.replace(unfinished, target)
    lines = scorer.report() if scorer else []
    folders = sorted({str(Path(row["file"]).parent.parent) for row in rows()}) if is_folder else []
    if scorer and scorer.truths and len(folders) > 1:
        lines.append(f"The folders {listed(folders)} are scored together: pass one of them to score it alone.")
    lines += [f"{count} of {counts['rows']} rows {note}" for note, count in notes.items() if count]
    dtype = str(runnable.dtype).removeprefix("torch.")
    print(f"{counts['predictions']} predictions are in {output} (computed in {dtype})", *lines, sep="\n")


def find_task(checkpoint: str, data: str) -> str:
    """Return the task of a model, such as "SequenceClassification"; an InputError if it is not for such data."""
    task = task_of(open_config(checkpoint))
    if task not in ("ImageClassification", "SequenceClassification", "QuestionAnswering"):
        reason = "neither classifies nor answers questions: fine-tune it first." if task else EMBEDDINGS
        raise InputError(f"{checkpoint} {reason}")
    check_kind(checkpoint, data, task == "ImageClassification")
    return task


def open_writer(file: TextIO, ending: str, fields: list[str]) -> Callable[[Row], object]:
    """Return a function that writes a row as a line of a jsonl file, or of a csv file with these fields."""
    if ending == ".jsonl":
        return lambda row: file.write(as_json(row) + "\n")
    table = csv.DictWriter(file, fields, lineterminator="\n")
    table.writeheader()
    return lambda row: table.writerow(
        {name: as_json(x) if isinstance(x, list | dict) else x for name, x in row.items()}
    )


def chunks(items: Iterable, size: int) -> Iterator[list]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class Scorer:
    """Compares the predictions of a classifier with the labels of the rows, if they have any: those in the column that
    is `asked` for, or that the model was trained on, or the first of the usual ones that, in the first `rows`, holds
    only labels of the model; for pictures, that of their folders.
    """

    def __init__(
        self, config: PreTrainedConfig, rows: list[Row], asked: str | None = None, is_folder: bool = False
    ) -> None:
        self.missing = "the pictures are not in class folders" if is_folder else "there are no labels of the model"
        usual = ("folder",) if is_folder else LABEL_COLUMNS
        self.labels, self.column, self.reason = config_labels(config), "", ""
        self.convert = label_converter(self.labels)
        # Class ids, vectors of 0 and 1 or numbers, of the rows with a label and a prediction.
        self.truths, self.predictions, self.other_labels = list[Any](), list[Any](), Counter[str]()
        trained = str(getattr(config, "label_column", None))
        is_known = any(trained in row for row in rows)
        for name in [asked] if asked else [trained] if is_known else usual:
            labels = [label for label in self.read(rows, name) if label is not None]
            others = [repr(label) for label in labels if self.convert(label) is None]
            if len(others) < len(labels) and (name in (asked, trained) or not others):
                self.column = name
                return
            if others and not self.reason:
                self.reason = f", but the column {name!r} has {listed([*dict.fromkeys(others)])}"
        if asked:
            names = listed(self.labels.names or ["numbers"])
            raise InputError(f"The column {asked!r} has no label of the model ({names}){self.reason}: name another.")

    def read(self, rows: list[Row], column: str) -> list:
        return label_names([row.get(column) for row in rows], self.labels.names or ())

    def compare(self, rows: list[Row], results: list[Results]) -> None:
        for label, result in zip(self.read(rows, self.column) if self.column else (), results):
            truth = self.convert(label)
            if truth is not None and result:
                is_several = self.labels.problem_type == CLASSES
                prediction = [x[0] for x in result if x[1] > 0.5] if is_several else result[0][0]
                self.truths.append(truth)
                self.predictions.append(self.convert(prediction))
            elif label is not None and result:
                self.other_labels[repr(label)] += 1

    def report(self) -> list[str]:
        """Return the score, or why there is none, and the labels that the model does not have."""
        names = listed(self.labels.names or ["numbers"])
        if not self.truths:
            lines = [f"No score: {self.missing} ({names}){self.reason}."]
        else:
            lines = [self.score(), "If the model was trained on some of these rows, the score is too high."]
        if count := self.other_labels.total():
            lines += [f"{count} rows have labels that the model does not have: {listed([*self.other_labels])}"]
        return lines

    def score(self) -> str:
        """Return the score of all rows in words."""
        truths, predictions = np.array(self.truths), np.array(self.predictions)
        by = f"by the column {self.column!r}"
        if self.labels.names is None:
            return f"Pearson's correlation {correlation_in_words(predictions, truths)}, {by}"
        right = (truths == predictions).reshape(len(truths), -1).all(axis=1).sum()
        words = f"Accuracy {accuracy_in_words(right, len(truths))}"
        if self.labels.problem_type == CLASSES:
            f1 = 2 * (truths * predictions).sum() / max((truths + predictions).sum(), 1)
            return f"F1 {f1:.4f} of all classes; {words} with all classes right, {by}"
        counts = np.bincount(truths)
        name, most = self.labels.names[counts.argmax()], counts.max() / len(truths)
        return f"{words}, {by}; always {name!r}, the most frequent class, would have {most:.3f}"


def predict_rows(rows: list[Row], inputs: Inputs, results: Callable[[list], list[Results]], size: int) -> list[Results]:
    """Return the results of each row, none for a row without input."""
    all_results: list[Results] = [[] for _ in rows]
    for batch in chunks(inputs(rows), size):
        for (number, _), result in zip(batch, results([value for _, value in batch])):
            all_results[number] = result
    return all_results


@torch.inference_mode()
def classes(model: PreTrainedModel, collate: Callable, inputs: list) -> list[Results]:
    """Return all classes with their probabilities, or the number, of each input."""
    batch = {name: tensor.to(model.device) for name, tensor in collate(inputs).items()}
    if "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].to(model.dtype)
    logits = model(**batch).logits.float().cpu().numpy()
    names, problem_type = config_labels(model.config)
    if names is None:
        return [[(f"{number:.9g}",)] for (number,) in logits]
    scores = expit(logits) if problem_type == CLASSES else softmax(logits, axis=1)
    ranks = np.argsort(-scores, axis=1, kind="stable")
    return [[(names[i], float(row[i])) for i in ranked] for row, ranked in zip(scores, ranks)]


# Each of the following functions opens what a task needs, and counts in `notes` what is to be said about rows.


def open_texts(
    model: PreTrainedModel,
    checkpoint: str,
    columns: tuple[Sequence[str], str | None],
    max_seq_length: int | None,
    notes: Counter[str],
) -> tuple[Inputs, Callable]:
    """Return the inputs of rows with text in some `columns`, see `choose_columns`, and what makes a batch of them."""
    tokenizer, n = open_tokenizer(checkpoint), getattr(model.config, "max_position_embeddings", None)
    check_vocabulary(model.config, tokenizer, checkpoint)
    if tokenizer.pad_token is None:
        raise InputError(f"The tokenizer of {checkpoint} has no padding token: copy its tokenizer_config.json, too.")
    longest = max_seq_length or text_length(model.config, tokenizer)
    if n is not None and longest > n:
        if not getattr(model.config, "toeplitz", False) or program_of(checkpoint):
            raise InputError(f"--max_seq_length {longest} is above the model's n = {n}, which is fixed: lower it.")
        extend_context(model, tokenizer, longest)

    def inputs(rows: list[Row]) -> Iterator[tuple[int, dict[str, list[int]]]]:
        texts, is_first = [text_parts(row, *columns) for row in rows], not notes
        filled = [number for number, parts in enumerate(texts) if all(map(str.strip, parts))]
        notes["have no text"] += len(rows) - len(filled)
        if not filled:
            return
        parts = [list(column) for column in zip(*(texts[number] for number in filled))]
        encoded = tokenizer(*parts, verbose=False, truncation=True, max_length=longest)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        for line in language_note(zip(*parts), encoded["input_ids"], tokenizer) if is_first else ():
            tqdm.write(line)
        note = f"have {longest} tokens or more, of which the first {longest} are used (--max_seq_length)"
        notes[note] += sum(length >= longest for length in lengths)
        # Batches of similar length need little padding.
        for index in sorted(range(len(filled)), key=lengths.__getitem__, reverse=True):
            yield filled[index], {name: column[index] for name, column in encoded.items()}

    options: dict[str, Any] = {"padding": padding_for(model.config), "max_length": longest, "return_tensors": "pt"}
    return inputs, partial(tokenizer.pad, **options)


def choose_columns(
    config: PreTrainedConfig, checkpoint: str, names: list[str], label: str, asked: list[str] | None
) -> tuple[Sequence[str], str | None]:
    """Return the columns of text, and what joins several. Unless some are `asked` for, they are those of the training,
    if the rows have them or only one column."""
    trained, separator = getattr(config, "text_columns", None) or (), getattr(config, "text_separator", None)
    if separator is None:
        check_text_columns(asked or [])
    if len(trained) == 1 < len(asked or ()):
        raise InputError(f"{checkpoint} classifies single texts, not pairs: pass one column to --text_column_names.")
    others = [name for name in names if name not in ("id", "idx", label)]
    if not {*trained} <= {*names} and len(trained) == len(others) == 1:
        trained = others
    columns = find_text_columns(names, label, asked or trained)
    is_joined = separator is not None and len(columns) > 1
    tqdm.write(f"Texts: {' and '.join(columns)}{' (joined)' if is_joined else ''}")
    return columns, separator if is_joined else None


def read_pictures(folder: str) -> list[Row]:
    """Return "file" and "folder" of the pictures in a folder."""
    return [{"file": str(image), "folder": image.parent.name} for image in find_images(Path(folder))]


def open_pictures(checkpoint: str, folder: str, notes: Counter[str]) -> tuple[Inputs, Callable]:
    """Return the pictures of rows, decoded, and what makes a batch of them."""
    # Texts are classified without Pillow, which this import needs.
    from ..processor import decode_image

    def inputs(rows: list[Row]) -> Iterator[tuple[int, Any]]:
        for number, row in enumerate(rows):
            try:
                yield number, decode_image({"bytes": None, "path": f"{folder}/{row['file']}"})
            except InputError as error:
                tqdm.write(str(error))
                notes["cannot be read as pictures"] += 1

    return inputs, partial(open_image_processor(checkpoint), return_tensors="pt")


def open_questions(
    model: PreTrainedModel, checkpoint: str, names: list[str], notes: Counter[str], **options: Any
) -> tuple[Inputs, Callable]:
    """Return the questions and contexts of rows with the fields `names`, and what answers them, a `QuestionAnswerer`
    called with `options`."""
    if not {"question", "context"} <= {*names}:
        raise InputError(f"Questions need the columns question and context: the columns are {', '.join(names)}.")
    answerer = QuestionAnswerer(model, open_tokenizer(checkpoint))

    def inputs(rows: list[Row]) -> Iterator[tuple[int, tuple[str, ...]]]:
        for number, row in enumerate(rows):
            parts = text_parts(row, ("question", "context"))
            if all(map(str.strip, parts)):
                yield number, parts
            else:
                notes["have no question, or no context"] += 1

    def results(inputs: list) -> list[Results]:
        answers: Any = answerer(*zip(*inputs), **options)
        return [[(x["answer"], x["score"]) for x in ranked] for ranked in answers]

    return inputs, results
