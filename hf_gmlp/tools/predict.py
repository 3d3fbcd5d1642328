"""`hf-gmlp predict`: classify texts or pictures, or answer questions, and write the results to a file."""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.files import stream_rows
from ..data.images import find_images
from ..data.labels import CLASSES, NUMBER, ONE_CLASS, REGRESSION, label_names, similar_name
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
    answers of each row and their probabilities. If there are labels, print the score. Texts are classified by their
    first `max_seq_length` tokens, which for a Toeplitz W may be more than those of training. With
    `version_2_with_negative`, the answer to a question may be "", no answer.

    Rows are read, predicted and written in chunks, so that memory does not grow with the file. An interrupted command
    leaves the finished chunks in the file "OUTPUT.partial".
    """
    target = Path(output).resolve()
    is_new = target.suffix in FORMATS and not target.is_dir() and target != Path(data).resolve()
    if not (is_new and os.access(target.parent, os.W_OK)):
        raise InputError(f"--output {output} must be a new {' or '.join(FORMATS)} file in a folder you may write to.")
    task = task_of(open_config(model))
    is_text = task == "SequenceClassification"
    if min(top_k, batch_size) < 1 or (max_seq_length is not None and (max_seq_length < 5 or not is_text)):
        raise InputError("--top_k and --batch_size must be at least 1, and --max_seq_length, for texts, at least 5.")
    scorer = None
    if task == "QuestionAnswering":
        answerer = QuestionAnswerer(runnable := open_runnable(model, task, dtype), open_tokenizer(model))
        options: dict[str, Any] = {"handle_impossible_answer": version_2_with_negative, "batch_size": batch_size}
        results = partial(answer, answerer, top_k=top_k, **options)
        predictor = Predictor(question_inputs, results, top_k, batch_size)
        rows = chunks(stream_rows(data, encoding), CHUNK)
    elif is_text or task == "ImageClassification":
        columns, runnable = (text_column_names, label_column_name), open_runnable(model, task, dtype)
        predictor, scorer, rows = open_classifier(runnable, model, data, *columns, max_seq_length, batch_size, encoding)
    elif not task:
        raise InputError(f"{model} {EMBEDDINGS}")
    else:
        raise InputError(f"{model} is neither a classifier nor a model that answers questions: fine-tune it first.")
    ranks, has_probabilities = min(top_k, predictor.most_results), scorer is None or scorer.problem_type != REGRESSION
    with Writer(target, ranks, has_probabilities) as writer, tqdm(unit=" rows") as bar:
        for chunk in rows:
            predicted = predictor(chunk)
            writer.write(chunk, predicted)
            bar.update(len(chunk))
            if scorer is not None:
                scorer.compare(chunk, predicted)
        if writer.predictions == 0:
            reason = next(iter(predictor.notes), "are missing")
            raise InputError(f"No row of {data} can be predicted: all rows {reason}.")
    print(
        f"{writer.predictions} predictions are in {output} (computed in {str(runnable.dtype).removeprefix('torch.')})"
    )
    if scorer is not None:
        print(*scorer.report(), sep="\n")
    for note, count in predictor.notes.items():
        if count:
            print(f"{count} of {writer.rows} rows {note}")


class Writer:
    """Writes rows with their results to a csv or jsonl file.

    Until the end of the `with` block, and after an error or Ctrl-C, the name of the file is OUTPUT.partial.

    Args:
        ranks: Number of results of a row.
        has_probabilities: Whether each result has a probability.
    """

    def __init__(self, path: Path, ranks: int, has_probabilities: bool) -> None:
        self.path, self.partial = path, path.with_name(f"{path.name}.partial")
        kinds = ("prediction", "probability") if has_probabilities else ("prediction",)
        self.results = [f"{kind}_{rank}".removesuffix("_1") for rank in range(1, ranks + 1) for kind in kinds]
        self.rows, self.predictions, self.columns = 0, 0, list[str]()
        self.file: Any = None

    def __enter__(self) -> "Writer":
        return self

    def open(self, columns: list[str]) -> None:
        """Open the file for rows with these columns. Rows that are in a csv file already get empty cells."""
        self.columns, older = columns, self.partial.with_suffix(".older")
        if self.file is not None:
            self.file.close()
            os.replace(self.partial, older)
        self.file = open(self.partial, "w", encoding="utf-8", newline="")
        if self.path.suffix == ".csv":
            self.table = csv.DictWriter(self.file, [*columns, *self.results], lineterminator="\n")
            self.table.writeheader()
        if older.exists():
            # By default, a cell may have at most 131,072 characters.
            csv.field_size_limit(2**31 - 1)
            with open(older, encoding="utf-8", newline="") as file:
                self.table.writerows(csv.DictReader(file))
            older.unlink()

    def write(self, rows: list[Row], results: list[Results]) -> None:
        columns = list(dict.fromkeys(chain(self.columns, *rows)))
        if taken := [name for name in self.results if name in columns]:
            raise InputError(f"The data have a column {taken[0]!r}, whose name the results need: rename it.")
        if self.file is None or (columns != self.columns and self.path.suffix == ".csv"):
            self.open(columns)
        records = []
        for row, result in zip(rows, results):
            values = (round(value, 4) if isinstance(value, float) else value for value in chain(*result, repeat(None)))
            records.append(row | dict(zip(self.results, values)))
        if self.path.suffix == ".jsonl":
            self.file.writelines(as_json(row) + "\n" for row in records)
        else:
            for row in records:
                self.table.writerow({name: as_json(x) if isinstance(x, list | dict) else x for name, x in row.items()})
        self.rows += len(rows)
        self.predictions += sum(map(bool, results))

    def __exit__(self, kind: type | None, *_: object) -> None:
        if self.file is not None:
            self.file.close()
        if kind is None:
            os.replace(self.partial, self.path)
        elif self.predictions:
            tqdm.write(f"The results of the first {self.rows} rows are in {self.partial}.")
        else:
            self.partial.unlink(missing_ok=True)


def chunks(items: Iterable, size: int) -> Iterator[list]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class Scorer:
    """Compares the predictions of a classifier with the labels of the rows, if they have any.

    Args:
        config: The config of the classifier.
        rows: The first rows, which determine the column of labels.
        asked: The column of labels; by default the one that the model was trained on, or the first of the `usual` ones
            that holds only labels of the model.
    """

    def __init__(
        self, config: PreTrainedConfig, rows: list[Row], asked: str | None = None, usual: Sequence[str] = LABEL_COLUMNS
    ) -> None:
        self.names = [name for _, name in sorted(config.id2label.items())]
        self.problem_type = config.problem_type or (REGRESSION if len(self.names) == 1 else ONE_CLASS)
        # Numbers of rows by what the label says and what the model predicts.
        self.pairs = Counter[tuple]()
        self.other_labels, self.column, self.reason = Counter[str](), None, ""
        columns, trained = dict.fromkeys(chain(*rows)), str(getattr(config, "label_column", None))
        for name in [asked] if asked else [trained] if trained in columns else usual:
            labels = [label for label in self.read(rows, name) if label is not None]
            other = [label for label in labels if self.truth(label) is None]
            if len(other) < len(labels) and (name in (asked, trained) or not other):
                self.column, self.reason = name, ""
                return
            if other and not self.reason:
                examples = listed([*dict.fromkeys(map(self.describe, other))])
                self.reason = f" of the model ({listed(self.names)}) in the column {name!r}, but {examples}"
        if asked:
            raise InputError(
                f"The column {asked!r} has no label{self.reason or ' of the model'}: pass another --label_column_name, "
                f"one of {', '.join(columns)}."
            )

    def describe(self, label: object) -> str:
        """Return a label that the model does not have in words, with the name that it resembles."""
        similar = similar_name(label, [*self.names, *map(str, range(len(self.names)))])
        return f"{label!r}{f' (write it as {similar!r})' if similar else ''}"

    def read(self, rows: list[Row], column: str) -> list:
        numbered = [] if self.problem_type == REGRESSION else self.names
        return label_names([row.get(column) for row in rows], numbered)

    def truth(self, label: str | list) -> Any:
        """Return what the model should predict; None if it cannot predict this label."""
        if self.problem_type == REGRESSION:
            return float(label) if isinstance(label, str) and NUMBER.fullmatch(label) else None
        if self.problem_type == CLASSES:
            return frozenset(label) if isinstance(label, list) and {*label} <= {*self.names} else None
        return label if label in self.names else None

    def prediction(self, results: Results) -> Any:
        """Return what the results predict, to be compared with a `truth`."""
        if self.problem_type == CLASSES:
            return frozenset(name for name, probability in results if probability > 0.5)
        return float(results[0][0]) if self.problem_type == REGRESSION else results[0][0]

    def compare(self, rows: list[Row], results: list[Results]) -> None:
        for label, result in zip(self.read(rows, self.column) if self.column else (), results):
            if label is None or not result:
                continue
            truth = self.truth(label)
            if truth is None:
                self.other_labels[self.describe(label)] += 1
            else:
                self.pairs[truth, self.prediction(result)] += 1

    def report(self) -> list[str]:
        """Return the score, or why there is none, and the labels that the model does not have."""
        lines = [self.score() or f"No score: there are no labels{self.reason}."]
        if count := self.other_labels.total():
            lines += [f"{count} rows have labels that the model does not have: {listed([*self.other_labels])}"]
        return lines

    def score(self) -> str | None:
        """Return the score of all rows in words; None without labels."""
        rows, is_number = self.pairs.total(), self.problem_type == REGRESSION
        if rows and is_number and (rows < 4 or min(len({*side}) for side in zip(*self.pairs)) < 2):
            self.reason = " and predictions of four or more rows with different numbers"
        if not rows or self.reason:
            return None
        right = sum(count for (truth, prediction), count in self.pairs.items() if truth == prediction)
        words, most = f"Accuracy {accuracy_in_words(right, rows)}", ""
        if is_number:
            truths, predictions = np.array([*self.pairs.elements()]).T
            words = f"Pearson's correlation {correlation_in_words(predictions, truths)}"
        elif self.problem_type == CLASSES:
            both = sum(count * len(x & y) for (x, y), count in self.pairs.items())
            total = sum(count * (len(x) + len(y)) for (x, y), count in self.pairs.items())
            words = f"F1 {2 * both / max(total, 1):.4f} of all classes; {words} with all classes right"
        else:
            truths = Counter(truth for truth, _ in self.pairs.elements())
            ((name, count),) = truths.most_common(1)
            most = f"; always {name!r}, the most frequent class, would have {count / rows:.3f}"
        return f"{words}, by the column {self.column!r}{most}"


@dataclass
class Predictor:
    """Predicts the classes or answers of rows.

    Args:
        inputs: Yields the index and the input of each row that has one, in the order in which to predict them. It
            counts what is to be said about rows in `notes`.
        results: Returns the results of a batch of inputs.
        most_results: The largest number of results per row.
    """

    inputs: Callable[[list[Row], Counter[str]], Iterator[tuple[int, Any]]]
    results: Callable[[list], list[Results]]
    most_results: int
    batch_size: int
    notes: Counter[str] = field(default_factory=Counter)

    def __call__(self, rows: list[Row]) -> list[Results]:
        """Return the results of each row, none for a row without input."""
        results: list[Results] = [[] for _ in rows]
        for batch in chunks(self.inputs(rows, self.notes), self.batch_size):
            numbers, inputs = zip(*batch)
            for number, result in zip(numbers, self.results(list(inputs))):
                results[number] = result
        return results


def open_classifier(
    model: PreTrainedModel,
    checkpoint: str,
    data: str,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    length: int | None = None,
    batch_size: int = 32,
    encoding: str | None = None,
) -> tuple[Predictor, Scorer, Iterator[list[Row]]]:
    """Return the predictor and the scorer of a classifier for a file of texts or a folder of pictures, and the rows of
    the data in chunks."""
    is_folder = Path(data).is_dir()
    if is_folder != (model.main_input_name == "pixel_values"):
        kind = "a file of texts" if is_folder else "a folder of pictures"
        raise InputError(f"{checkpoint} classifies {kind}, which {data} is not: pass another model or other data.")
    parts = chunks(read_pictures(data) if is_folder else stream_rows(data, encoding), CHUNK)
    if (first := next(parts, None)) is None:
        raise InputError(f"There are no rows, or no pictures, in {data}.")
    scorer = Scorer(model.config, first, label_column, ("folder",) if is_folder else LABEL_COLUMNS)
    if is_folder:
        inputs: Callable = partial(picture_inputs, folder=data)
        prepare: Callable = partial(open_image_processor(checkpoint), return_tensors="pt")
    else:
        names = list(dict.fromkeys(chain(*first)))
        inputs, prepare = open_texts(model, checkpoint, names, text_columns, scorer, length)
    results = partial(classes, model=model, prepare=prepare, scorer=scorer)
    return Predictor(inputs, results, len(scorer.names), batch_size), scorer, chain([first], parts)


def open_texts(
    model: PreTrainedModel,
    checkpoint: str,
    names: list[str],
    text_columns: Sequence[str] | None,
    scorer: Scorer,
    length: int | None,
) -> tuple[Callable, Callable]:
    """Return the inputs and results of a `Predictor` for texts in columns of these `names`. Without `text_columns`, the
    columns are those of the training, if the rows have them or only one column."""
    joins = getattr(model.config, "text_separator", None) is not None
    if not joins:
        check_text_columns(text_columns or [])
    tokenizer, n = open_tokenizer(checkpoint), getattr(model.config, "max_position_embeddings", None)
    check_vocabulary(model.config, tokenizer, checkpoint)
    if tokenizer.pad_token is None:
        raise InputError(f"The tokenizer of {checkpoint} has no padding token: copy its tokenizer_config.json, too.")
    longest = length or text_length(model.config, tokenizer)
    if n is not None and longest > n:
        if not getattr(model.config, "toeplitz", False) or program_of(checkpoint):
            raise InputError(f"--max_seq_length {length} is above the model's n = {n}, which is fixed: lower it.")
        extend_context(model, tokenizer, longest)
    label, trained = scorer.column or find_label_column(names), getattr(model.config, "text_columns", None) or ()
    others = [name for name in names if name not in ("id", "idx", label)]
    if len(trained) == 1 < len(text_columns or ()):
        raise InputError(f"{checkpoint} classifies single texts, not pairs: pass one column to --text_column_names.")
    if not {*trained} <= {*names} and len(trained) == len(others) == 1:
        trained = others
    columns = find_text_columns(names, label if label in names else None, text_columns or trained)
    separator = model.config.text_separator if joins and len(columns) > 1 else None
    how = "" if separator is None else " (joined)"
    tqdm.write(f"Texts: {' and '.join(columns)}{how}")
    inputs = partial(text_inputs, columns=columns, separator=separator, tokenizer=tokenizer, longest=longest)
    padding: dict[str, Any] = {"padding": padding_for(model.config), "max_length": longest, "return_tensors": "pt"}
    return inputs, partial(tokenizer.pad, **padding)


@torch.inference_mode()
def classes(inputs: list, model: PreTrainedModel, prepare: Callable, scorer: Scorer) -> list[Results]:
    """Return the results of tokenized texts or decoded pictures, of which `prepare` makes a batch."""
    batch = {name: tensor.to(model.device) for name, tensor in prepare(inputs).items()}
    if "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].to(model.dtype)
    logits = model(**batch).logits.float().cpu().numpy()
    if scorer.problem_type == REGRESSION:
        return [[(f"{number:.9g}",)] for (number,) in logits]
    scores = expit(logits) if scorer.problem_type == CLASSES else softmax(logits, axis=1)
    ranks = np.argsort(-scores, axis=1, kind="stable")
    return [[(scorer.names[i], float(row[i])) for i in ranked] for row, ranked in zip(scores, ranks)]


def text_inputs(
    rows: list[Row],
    notes: Counter[str],
    *,
    columns: Sequence[str],
    separator: str | None,
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
) -> Iterator[tuple[int, dict[str, list[int]]]]:
    texts, is_first = [text_parts(row, columns, separator) for row in rows], not notes
    filled = [number for number, parts in enumerate(texts) if all(map(str.strip, parts))]
    notes["have no text"] += len(rows) - len(filled)
    if filled:
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


def read_pictures(folder: str) -> list[Row]:
    """Return "file" and "folder" of the pictures in a folder."""
    images, left_out = find_images(Path(folder))
    if left_out:
        print(f"Left out of {folder}: {'; '.join(f'{count} {reason}' for reason, count in left_out.items())}")
    return [{"file": str(image), "folder": image.parent.name} for image in images]


def picture_inputs(rows: list[Row], notes: Counter[str], *, folder: str) -> Iterator[tuple[int, Any]]:
    # Texts are classified without Pillow, which this import needs.
    from ..processor import decode_image

    for number, row in enumerate(rows):
        try:
            yield number, decode_image({"bytes": None, "path": f"{folder}/{row['file']}"})
        except InputError as error:
            tqdm.write(str(error))
            notes["cannot be read as pictures"] += 1


def question_inputs(rows: list[Row], notes: Counter[str]) -> Iterator[tuple[int, tuple[str, str]]]:
    names = dict.fromkeys(chain(*rows))
    if not {"question", "context"} <= names.keys():
        raise InputError(f"Questions need the columns question and context: the columns are {', '.join(names)}.")
    for number, row in enumerate(rows):
        question, context = (str(row.get(name) or "") for name in ("question", "context"))
        if question.strip() and context.strip():
            yield number, (question, context)
        else:
            notes["have no question, or no context"] += 1


def answer(answerer: QuestionAnswerer, inputs: list, top_k: int, **options: Any) -> list[Results]:
    questions, contexts = zip(*inputs)
    # With `top_k=1`, the answerer would not return lists.
    answers: Any = answerer(questions, contexts, top_k=max(2, top_k), **options)
    return [[(x["answer"], x["score"]) for x in ranked] for ranked in answers]
