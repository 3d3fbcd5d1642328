"""`hf-gmlp predict`: classify texts or pictures, or answer questions, and write the results to a file.

`hf-gmlp export --eval_file` measures accuracies with the same class.
"""

import csv
import json
import math
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from scipy.special import expit, softmax
from scipy.stats import pearsonr, spearmanr
from tqdm import tqdm
from transformers import PreTrainedModel

from ..data.files import row_schema, stream_rows
from ..data.images import find_images
from ..data.labels import CLASSES, NUMBER, ONE_CLASS, REGRESSION, label_names
from ..data.questions import known_answers, read_questions
from ..data.sentences import LABEL_COLUMNS, check_text_columns, find_label_column, find_text_columns
from ..errors import InputError, listed
from ..loading import (
    check_vocabulary,
    extend_context,
    open_config,
    open_image_processor,
    open_runnable,
    open_tokenizer,
    program_of,
)
from ..metrics.calibration import accuracy_in_words
from ..metrics.squad import squad_scores, squad_v2_scores
from ..tokenizer import padding_for, text_length
from .question_answering import QuestionAnswerer

# Rows that are read, sorted by length, predicted and written together.
CHUNK = 2048
FORMATS = (".csv", ".jsonl", ".parquet")

# A row as it was read, and the names and probabilities of its results, best first: none for a row without input.
Row = dict[str, Any]
Results = list[tuple[str, float]]


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
    """Write the rows of a file, or of a folder of pictures, to a csv, jsonl or parquet file, with the `top_k` best
    classes or answers of each row and their probabilities. If there are labels, print the score. Texts are classified
    by their first `max_seq_length` tokens, which for a Toeplitz W may be more than those of training. With
    `version_2_with_negative`, the answer to a question may be "", no answer.

    Rows are read, predicted and written in chunks, so that memory does not grow with the file. An interrupted command
    leaves the finished chunks in the file "OUTPUT.partial".
    """
    target = Path(output).resolve()
    if target.suffix not in FORMATS:
        raise InputError(f"--output {output} must end in {', '.join(FORMATS)}.")
    if target.is_dir() or target == Path(data).resolve() or not os.access(target.parent, os.W_OK):
        raise InputError(f"--output {output} cannot be written: name a new file in a folder that you may write to.")
    if min(top_k, batch_size) < 1:
        raise InputError("--top_k and --batch_size must be at least 1.")
    task = ((open_config(model).architectures or ["Model"])[0]).partition("For")[2]
    if max_seq_length is not None and (task != "SequenceClassification" or max_seq_length < 5):
        raise InputError("--max_seq_length is for texts to classify, and at least 5.")
    predictor: Answerer | Classifier
    rows: Iterable[Row]
    if task == "QuestionAnswering":
        answerer = QuestionAnswerer(open_runnable(model, task), open_tokenizer(model))
        predictor, rows = Answerer(answerer, data, top_k, version_2_with_negative, batch_size), read_questions(data)
    elif task in ("ImageClassification", "SequenceClassification"):
        columns = text_column_names, label_column_name
        predictor = open_classifier(open_runnable(model, task), model, data, *columns, max_seq_length, batch_size)
        rows = read_rows(data)
    else:
        raise InputError(f"{model} is neither a classifier nor a model that answers questions: fine-tune it first.")
    with Writer(target, min(top_k, predictor.most_results), row_schema(data)) as writer, tqdm(unit=" rows") as bar:
        for chunk in chunks(rows):
            writer.start(chunk, predictor.has_probabilities)
            writer.write(chunk, predictor(chunk))
            bar.update(len(chunk))
        if writer.rows == 0:
            raise InputError(f"There are no rows, or no pictures, in {data}.")
        if writer.predictions == 0:
            raise InputError(f"No row can be predicted: {predictor.skipped[0]}.")
    print(f"{writer.predictions} predictions are in {output}")
    for line in predictor.notes():
        print(line)


class Writer:
    """Writes rows with their results to a csv, jsonl or parquet file.

    Until the end of the `with` block, and after an error or Ctrl-C, the name of the file is OUTPUT.partial.

    Args:
        ranks: Number of results of a row.
        schema: The types of the columns of the rows, for parquet; by default those of the first rows.
    """

    def __init__(self, path: Path, ranks: int, schema: pyarrow.Schema | None = None):
        self.path, self.partial, self.schema, self.ranks = path, path.with_name(f"{path.name}.partial"), schema, ranks
        self.rows, self.predictions, self.names = 0, 0, list[tuple[str, ...]]()
        self.columns: list[str] = []
        self.file: Any = None

    def __enter__(self) -> "Writer":
        return self

    def start(self, rows: list[Row], has_probabilities: bool):
        """Open the file before the first rows, and check the names of their columns."""
        if self.columns:
            return
        kinds = ("prediction", "probability") if has_probabilities else ("prediction",)
        self.names = [tuple(f"{kind}_{rank}".removesuffix("_1") for kind in kinds) for rank in range(1, self.ranks + 1)]
        results = [name for names in self.names for name in names]
        if taken := [name for name in results if name in rows[0]]:
            raise InputError(f"The data have a column {taken[0]!r}, whose name the results need: rename it.")
        self.columns = [*rows[0], *results]
        if self.path.suffix != ".parquet":
            self.file = open(self.partial, "w", encoding="utf-8", newline="")
            if self.path.suffix == ".csv":
                csv.writer(self.file, lineterminator="\n").writerow(self.columns)
            return
        schema = pyarrow.Table.from_pylist(rows).schema if self.schema is None else self.schema
        # A column without values in the first rows may have some later.
        fields = [field.with_type(pyarrow.string()) if field.type == pyarrow.null() else field for field in schema]
        types = {"prediction": pyarrow.string(), "probability": pyarrow.float64()}
        fields += [pyarrow.field(name, types[name.partition("_")[0]]) for name in results]
        self.file = pyarrow.parquet.ParquetWriter(self.partial, pyarrow.schema(fields))

    def write(self, rows: list[Row], results: list[Results]):
        records = []
        for row, result in zip(rows, results):
            for names, (text, probability) in zip(self.names, [*result, *[("", math.nan)] * self.ranks]):
                score = None if math.isnan(probability) else round(probability, 4)
                row = row | dict(zip(names, (text, score)))
            records.append(row)
        if other := next((name for row in records for name in row if name not in self.columns), None):
            raise InputError(f"A row after the first {self.rows} has a field {other!r}, which the first ones lack.")
        if self.path.suffix == ".parquet":
            self.file.write_table(pyarrow.Table.from_pylist(records, schema=self.file.schema))
        elif self.path.suffix == ".jsonl":
            self.file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in records)
        else:
            table = csv.DictWriter(self.file, self.columns, lineterminator="\n")
            table.writerows({name: as_cell(value) for name, value in row.items()} for row in records)
        self.rows += len(rows)
        self.predictions += sum(map(bool, results))

    def __exit__(self, kind: type | None, *_):
        if self.file is not None:
            self.file.close()
        if kind is None:
            os.replace(self.partial, self.path)
        elif self.predictions:
            tqdm.write(f"The results of the first {self.rows} rows are in {self.partial}.")
        else:
            self.partial.unlink(missing_ok=True)


def as_cell(value: Any) -> Any:
    """Return a value for a csv file, with lists and dictionaries as JSON."""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file, or "file" and "folder" of the pictures in a folder."""
    if not Path(path).is_dir():
        yield from stream_rows(path)
        return
    images, left_out = find_images(Path(path))
    if left_out:
        print(f"Left out of {path}: {'; '.join(f'{count} {reason}' for reason, count in left_out.items())}")
    yield from ({"file": str(image), "folder": image.parent.name} for image in images)


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


class Classifier:
    """Classifies rows, and compares the results with their labels, if they have any.

    Args:
        model: A trained classifier.
        checkpoint: The folder or name of its tokenizer or image processor.
        label_column: The column to compare with; by default the one that the model was trained on, or the first of the
            usual names that holds only labels of the model.

    Attributes:
        most_results: The largest number of results per row.
        has_probabilities: Whether results have probabilities; those of a regression have none.
        skipped: Reasons why rows have no results.
    """

    usual_label_columns: Sequence[str] = LABEL_COLUMNS

    def __init__(self, model: PreTrainedModel, checkpoint: str, label_column: str | None = None, batch_size: int = 32):
        self.model, self.config, self.checkpoint, self.batch_size = model, model.config, checkpoint, batch_size
        self.names = [name for _, name in sorted(self.config.id2label.items())]
        default = REGRESSION if len(self.names) == 1 else ONE_CLASS
        self.problem_type, self.most_results = self.config.problem_type or default, len(self.names)
        self.has_probabilities = self.problem_type != REGRESSION
        self.asked_label_column, self.is_started = label_column, False
        self.label_column: str | None = None
        self.skipped, self.other_labels = list[str](), list[str]()
        # Pairs of what a label says and what the model predicts.
        self.pairs: list[tuple] = []

    def logits(self, rows: Sequence[Row]) -> np.ndarray:
        """Return the logits [rows, classes], NaN for a row without input."""
        raise NotImplementedError

    def __call__(self, rows: Sequence[Row]) -> list[Results]:
        """Return the names of all classes with their probabilities, best first; for a regression, the number."""
        if not self.is_started:
            self.start(rows)
            self.is_started = True
        logits = self.logits(rows)
        if self.label_column is not None:
            self.compare([row.get(self.label_column) for row in rows], logits)
        if self.problem_type == REGRESSION:
            return [[] if math.isnan(row[0]) else [(f"{row[0]:.9g}", math.nan)] for row in logits]
        scores = expit(logits) if self.problem_type == CLASSES else softmax(logits, axis=1)
        orders = np.argsort(-scores, axis=1, kind="stable")
        return [
            [] if math.isnan(row[0]) else [(self.names[number], float(row[number])) for number in order]
            for row, order in zip(scores, orders)
        ]

    def start(self, rows: Sequence[Row]):
        """Choose the column of labels by the first rows."""
        asked, trained = self.asked_label_column, getattr(self.config, "label_column", None)
        columns = list(rows[0])
        if asked is not None and asked not in columns:
            raise InputError(f"The data have no column {asked!r}, only {', '.join(columns)}.")
        for name in [asked] if asked else [trained] if trained in columns else self.usual_label_columns:
            if name not in columns:
                continue
            labels = self.read_labels([row.get(name) for row in rows])
            known = [label for label in labels if self.is_known(label)]
            others = list(dict.fromkeys(str(x) for x in labels if x is not None and not self.is_known(x)))
            if known and (name in (asked, trained) or not others):
                self.label_column = name
                return
            if name == asked:
                raise InputError(
                    f"The column {name!r} has the labels {listed(others):.200}, and the model {listed(self.names)}."
                )

    def read_labels(self, values: list) -> list:
        return label_names(values, [] if self.problem_type == REGRESSION else self.names)

    def is_known(self, label: str | list | None) -> bool:
        """Return whether a label is one that the model can predict."""
        if self.problem_type == REGRESSION:
            return isinstance(label, str) and NUMBER.fullmatch(label) is not None
        if self.problem_type == CLASSES:
            return isinstance(label, list) and set(label) <= set(self.names)
        return label in self.names

    def compare(self, values: list, logits: np.ndarray):
        for label, row in zip(self.read_labels(values), logits):
            if label is None or math.isnan(row[0]):
                continue
            if not self.is_known(label):
                self.other_labels.append(str(label))
            elif self.problem_type == REGRESSION:
                self.pairs.append((float(label), float(row[0])))
            elif self.problem_type == CLASSES:
                self.pairs.append((frozenset(label), frozenset(self.names[i] for i in np.flatnonzero(row > 0))))
            else:
                self.pairs.append((label, self.names[row.argmax()]))

    def score(self) -> str | None:
        """Return the score in words; None without labels."""
        if not self.pairs:
            return None
        truths, guesses = zip(*self.pairs)
        if self.problem_type == REGRESSION:
            if len(self.pairs) < 3:
                return None
            numbers = pearsonr(guesses, truths).statistic, spearmanr(guesses, truths).statistic
            return "Pearson {:.4f}, Spearman {:.4f}, {} rows".format(*numbers, len(self.pairs))
        words = f"Accuracy {accuracy_in_words(sum(map(operator.eq, truths, guesses)), len(truths))}"
        if self.problem_type == ONE_CLASS:
            return words
        both, total = sum(len(x & y) for x, y in self.pairs), sum(len(x) + len(y) for x, y in self.pairs)
        return f"F1 {2 * both / max(total, 1):.4f} of all classes; {words} with all classes right"

    def notes(self) -> list[str]:
        """Return lines about all rows: their score, and what has no prediction or is not compared."""
        score = self.score()
        lines = [f"{score}, by the column {self.label_column!r}" if score else "No score: there are no labels."]
        if self.skipped:
            lines.append(f"Rows without a prediction: {len(self.skipped)}, such as: {self.skipped[0]}")
        if self.other_labels:
            fact = f"{len(self.other_labels)}, such as {self.other_labels[0]!r}"
            lines.append(f"Rows with labels that the model does not have, which are not compared: {fact}")
        return lines


class TextClassifier(Classifier):
    """Classifies texts, or pairs of texts.

    Args:
        columns: The text column, or the two of a pair; by default those that the model was trained on, else
            `known_text_columns`, else the only column that is neither an id nor a label.
        length: The number of tokens used of a text; by default `text_length`.
    """

    def __init__(self, *args, columns: Sequence[str] | None = None, length: int | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        check_text_columns(columns or [])
        self.tokenizer, n = open_tokenizer(self.checkpoint), getattr(self.config, "max_position_embeddings", None)
        check_vocabulary(self.config, self.tokenizer, self.checkpoint)
        self.columns, self.rows, self.truncated = tuple(columns or ()), 0, 0
        self.length = length or text_length(self.config, self.tokenizer)
        if n is not None and self.length > n:
            if not getattr(self.config, "toeplitz", False) or program_of(self.checkpoint):
                raise InputError(f"--max_seq_length {length} is above the model's n = {n}, which is fixed: lower it.")
            extend_context(self.model, self.tokenizer, self.length)

    def start(self, rows: Sequence[Row]):
        super().start(rows)
        names, label = list(rows[0]), self.label_column or find_label_column(rows[0])
        trained = tuple(getattr(self.config, "text_columns", None) or ())
        others = [name for name in names if name not in ("id", "idx", label)]
        if trained and not self.columns and not {*trained} <= {*names} and (len(others), len(trained)) != (1, 1):
            fact = f"the model was trained on {' and '.join(trained)}, and the data have {', '.join(names)}"
            raise InputError(f"Name the text column with --text_column_names: {fact}.")
        asked = self.columns or (trained if {*trained} <= {*names} else others if trained else None)
        self.columns = tuple(find_text_columns(names, label if label in names else None, asked or None))
        if any(isinstance(row.get(name), list | dict) for row in rows for name in self.columns):
            raise InputError(
                f"The column {' or '.join(self.columns)} holds lists, not texts: pass --text_column_names."
            )
        tqdm.write(f"Texts: {' and '.join(self.columns)}")

    @torch.inference_mode()
    def logits(self, rows: Sequence[Row]) -> np.ndarray:
        texts = [["" if row.get(name) is None else str(row[name]) for name in self.columns] for row in rows]
        filled = [number for number, parts in enumerate(texts) if all(map(str.strip, parts))]
        self.skipped += ["no text"] * (len(rows) - len(filled))
        logits = np.full((len(rows), len(self.names)), np.nan)
        if not filled:
            return logits
        parts = [list(column) for column in zip(*(texts[number] for number in filled))]
        encoded = self.tokenizer(*parts, truncation=True, max_length=self.length, verbose=False)
        self.rows += len(filled)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        self.truncated += sum(length >= self.length for length in lengths)
        # Batches of similar length need little padding.
        order = sorted(range(len(filled)), key=lengths.__getitem__, reverse=True)
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            batch = self.tokenizer.pad(
                {name: [column[number] for number in numbers] for name, column in encoded.items()},
                padding=padding_for(self.config),
                max_length=self.length,
                return_tensors="pt",
            )
            outputs = self.model(**batch.to(self.model.device)).logits
            logits[[filled[number] for number in numbers]] = outputs.float().cpu().numpy()
        return logits

    def notes(self) -> list[str]:
        if not self.truncated:
            return super().notes()
        fact = f"have {self.length} tokens or more, of which the first {self.length} are used (--max_seq_length)"
        return [f"{self.truncated} of {self.rows} rows {fact}", *super().notes()]


class ImageClassifier(Classifier):
    """Classifies the pictures in a `folder`, whose rows have the column "file"."""

    usual_label_columns = ("folder",)

    def __init__(self, *args, folder: str, **kwargs):
        super().__init__(*args, **kwargs)
        self.folder, self.processor = folder, open_image_processor(self.checkpoint)

    @torch.inference_mode()
    def logits(self, rows: Sequence[Row]) -> np.ndarray:
        # Texts are classified without Pillow, which this import needs.
        from ..processor import decode_image

        logits = np.full((len(rows), len(self.names)), np.nan)
        for start in range(0, len(rows), self.batch_size):
            pictures = {}
            for number, row in enumerate(rows[start : start + self.batch_size], start=start):
                try:
                    pictures[number] = decode_image({"bytes": None, "path": f"{self.folder}/{row['file']}"})
                except InputError as error:
                    self.skipped.append(str(error))
            if pictures:
                batch = self.processor(list(pictures.values()), return_tensors="pt")
                outputs = self.model(pixel_values=batch["pixel_values"].to(self.model.device, self.model.dtype)).logits
                logits[list(pictures)] = outputs.float().cpu().numpy()
        return logits


def open_classifier(
    model: PreTrainedModel,
    checkpoint: str,
    source: str,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    length: int | None = None,
    batch_size: int = 32,
) -> Classifier:
    """Return the classifier of a model for the rows of a file of texts, or of a folder of pictures."""
    options: dict[str, Any] = {"label_column": label_column, "batch_size": batch_size}
    if model.main_input_name == "pixel_values":
        if not Path(source).is_dir():
            raise InputError(f"{source} is not a folder of pictures: name one.")
        return ImageClassifier(model, checkpoint, folder=source, **options)
    if Path(source).is_dir():
        raise InputError(f"{source} is a folder of pictures, but {checkpoint} classifies texts: name a file.")
    return TextClassifier(model, checkpoint, columns=text_columns, length=length, **options)


class Answerer:
    """Answers the questions of rows, and compares the results with their answers, if they have any.

    Attributes:
        most_results, has_probabilities: As in `Classifier`.
    """

    has_probabilities = True

    def __init__(
        self, answerer: QuestionAnswerer, source: str, top_k: int, version_2_with_negative: bool, batch_size: int
    ):
        self.answerer, self.source, self.most_results, self.batch_size = answerer, source, top_k, batch_size
        self.version_2_with_negative, self.skipped = version_2_with_negative, list[str]()
        self.predictions: dict[str, str] = {}
        self.references: dict[str, list[str]] = {}

    def __call__(self, rows: Sequence[Row]) -> list[Results]:
        """Return the best answers to each question with their probabilities, best first."""
        for name in ("question", "context"):
            if name not in rows[0]:
                raise InputError(f"The data have no column {name!r}, only {', '.join(rows[0])}.")
        filled = [
            i for i, row in enumerate(rows) if all(str(row.get(k) or "").strip() for k in ("question", "context"))
        ]
        references = {i: known_answers(rows[i], self.source) for i in filled}
        if not self.version_2_with_negative and [] in references.values():
            raise InputError("A question has no answer: pass --version_2_with_negative.")
        self.skipped += ["no question, or no context"] * (len(rows) - len(filled))
        results: list[Results] = [[] for _ in rows]
        # With `top_k=1`, the answerer would not return lists.
        options: dict[str, Any] = {"top_k": max(2, self.most_results), "batch_size": self.batch_size}
        options["handle_impossible_answer"] = self.version_2_with_negative
        for start in range(0, len(filled), self.batch_size):
            numbers = filled[start : start + self.batch_size]
            questions, contexts = ([str(rows[i][name]) for i in numbers] for name in ("question", "context"))
            for number, answers in zip(numbers, self.answerer(questions, contexts, **options)):
                results[number] = [(answer["answer"], answer["score"]) for answer in answers[: self.most_results]]
                if (pairs := references[number]) is not None:
                    key = str(len(self.references))
                    self.references[key] = [text for text, _ in pairs]
                    self.predictions[key] = answers[0]["answer"]
        return results

    def notes(self) -> list[str]:
        lines = [f"Rows without a prediction: {len(self.skipped)}, such as: {self.skipped[0]}"] if self.skipped else []
        if self.references:
            scores = (squad_v2_scores if self.version_2_with_negative else squad_scores)(
                self.predictions, self.references
            )
            names = ("exact", "f1") if self.version_2_with_negative else ("exact_match", "f1")
            words = ", ".join(f"{name} {scores[name]:.2f}" for name in names)
            lines.append(f"{words}, {len(self.references)} questions")
        return lines
