"""`hf-gmlp classify`: train a classifier on a file of texts or a folder of pictures, and report what it is worth."""

import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub
import pandas

from ..data.files import read_files
from ..data.images import check_kind, read_folder
from ..data.labels import ONE_CLASS, check_columns, read_labels
from ..data.sentences import KNOWN_PAIRS, find_label_column, find_text_columns, text_parts
from ..errors import InputError, hub_reason
from ..loading import open_config
from ..metrics.baseline import baseline_predictions
from ..training.arguments import public_command
from ..training.run_folder import FINISHED, OUTPUTS, SETTINGS, upload_command, write_json
from .classifier import Classifier
from .evaluation import NO_ESTIMATE
from .inputs import reads_pictures

logger = logging.getLogger(__name__)

# Between the texts of several columns of a row.
SEPARATOR = " "


class Rows(NamedTuple):
    """The rows of a file or a folder."""

    inputs: list  # tuples of one or two texts, or paths of pictures
    labels: list  # the label of each row, as text or a list of texts
    table: pandas.DataFrame  # what eval_predictions.csv shows of each row
    columns: dict[str, Any]  # fields of the model's config, with which `hf-gmlp predict` finds the texts


def classify(
    model: str,
    data: str,
    output: str,
    text_column_names: list[str] | None = None,
    pair_column_names: list[str] | None = None,
    label_column_name: str | None = None,
    validation_data: str | None = None,
    encoding: str | None = None,
    drop_unlabeled: bool = False,
    push_to_hub: bool = False,
    hub_model_id: str | None = None,
    argv: Sequence[str] = (),
    **options: Any,
) -> list[str]:
    """Train a `Classifier` with `options` on data, write it with a report to the folder `output`, and return what to
    print. An interrupted training continues when the command is repeated.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for name in ("httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if hub_model_id is not None and not push_to_hub:
        raise InputError("--hub_model_id has no effect without --push_to_hub: add it.")
    folder = check_output(Path(output), Path(data))
    is_folder = Path(data).is_dir()
    config = open_config(model, trust_remote_code=options.get("trust_remote_code", False))
    check_kind(model, data, reads_pictures(config))
    columns = (text_column_names, pair_column_names, label_column_name, encoding, drop_unlabeled)
    if is_folder and any(columns):
        raise InputError("Flags of columns and --encoding are for files of texts, but the data are a folder.")
    paths = [data, *filter(None, [validation_data])]
    train, *scored = [read_pictures(path) if is_folder else read_texts(path, *columns) for path in paths]
    classifier = Classifier(model, **options)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, classifier.get_params() | {"data": data, "output": output})
    validation = scored[0][:2] if scored else None
    training = classifier.fit_in(folder / "_training", train.inputs, train.labels, validation)
    for name, value in train.columns.items():
        setattr(classifier.model_.config, name, value)
    evaluation, metrics, text = classifier.evaluation_, {}, NO_ESTIMATE
    if evaluation is not None:
        if evaluation.config.problem_type == ONE_CLASS:
            rows, kind = training.rows, evaluation.kind
            baseline = baseline_predictions(kind, rows, training.labels, evaluation.splits)
            evaluation.baseline = None if baseline is None else baseline[evaluation.rows]
        metrics = evaluation.metrics()
        table = pandas.concat([part.table for part in (train, *scored)], ignore_index=True)
        text = evaluation.write(folder, table.iloc[evaluation.rows])
    facts = {
        "dataset": Path(data).name,
        "base_model": None if Path(model).exists() else model,
        "command": public_command("hf-gmlp", argv),
        "metrics": metrics,
        "scores": str(evaluation or ""),
        "hyperparameters": {"seed": classifier.random_state} | classifier.plan_.hyperparameters(),
    }
    classifier.save(folder, facts)
    write_json(folder / FINISHED, metrics)
    shutil.rmtree(folder / "_training", ignore_errors=True)
    if push_to_hub:
        push(classifier, folder, hub_model_id or folder.resolve().name, facts)
    return [text]


def check_output(folder: Path, data: Path) -> Path:
    """Return the output folder; raise InputError if it holds something else, or is inside of the data."""
    if data.is_dir() and data.resolve() in [folder.resolve(), *folder.resolve().parents]:
        raise InputError(f"--output is inside of {data}, and its pictures would be a class: choose another folder.")
    if (folder / FINISHED).is_file():
        raise InputError(f"{folder} holds a finished run: choose another --output, or delete it.")
    files = [path.name for pattern in OUTPUTS for path in sorted(folder.glob(pattern))]
    # An interrupted run of this command has settings, and its checkpoints in a folder of their own.
    is_own = (folder / SETTINGS).is_file() and not any(folder.glob("checkpoint-*"))
    if files and not is_own:
        raise InputError(f"{folder} holds {', '.join(files)}: choose another --output.")
    return folder


def read_texts(
    path: str,
    text_columns: Sequence[str] | None,
    pair_columns: Sequence[str] | None,
    label_column: str | None,
    encoding: str | None,
    drop_unlabeled: bool,
) -> Rows:
    """Read the rows of a file. Several text columns are joined; two columns are a pair if they are asked for as one, or
    have the names of a pair in GLUE.
    """
    dataset = read_files([path], encoding=encoding)
    names = dataset.column_names
    label_column = label_column or find_label_column(names)
    columns = list(find_text_columns(names, label_column, text_columns or pair_columns))
    is_pair = bool(pair_columns) or (not text_columns and tuple(columns) in KNOWN_PAIRS)
    check_columns(dataset, path, [], label_column)
    labels = read_labels(dataset, label_column)
    missing = [row for row, label in enumerate(labels) if label is None]
    if missing and not (drop_unlabeled and len(missing) < len(labels)):
        raise InputError(
            f"{len(missing)} of {len(labels)} rows of {path} have no label in the column {label_column!r}, such as row "
            f"{missing[0] + 1}: add it, or leave these rows out with --drop_unlabeled."
        )
    if missing:
        logger.info("%d rows without a label are left out", len(missing))
    kept = [row for row, label in enumerate(labels) if label is not None]
    separator = SEPARATOR if len(columns) > 1 and not is_pair else None
    parts = [text_parts(row, columns, separator) for row in dataset.select(kept).select_columns(columns)]
    how = "a pair" if is_pair else "joined" if len(columns) > 1 else "a text"
    logger.info("Texts: %s (%s). Labels: %s.", ", ".join(columns), how, label_column)
    blank = sum(not all(map(str.strip, texts)) for texts in parts)
    if blank:
        logger.warning("%d rows have no text", blank)
    table = pandas.DataFrame(parts, columns=["text", "text_pair"][: len(parts[0])])
    table.insert(0, "row", [row + 1 for row in kept])
    facts = {"text_columns": columns, "label_column": label_column, "text_separator": separator}
    return Rows(parts, [labels[row] for row in kept], table, facts)


def read_pictures(path: str) -> Rows:
    """Read the pictures of a folder, each in the folder of its class; of several splits those for training."""
    splits = read_folder(Path(path))
    split = "train" if "train" in splits else next(iter(splits))
    if len(splits) > 1:
        logger.info("Only the split %s is used; name the folder of another with --validation_data.", split)
    files = splits[split]["image"][:]
    return Rows(files, splits[split]["label"][:], pandas.DataFrame({"file": files}), {})


def push(classifier: Classifier, folder: Path, repository: str, facts: dict[str, Any]) -> None:
    """Push what a model needs to the Hub: weights, config, code, tokenizer or image processor, card; no rows."""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            repository = huggingface_hub.create_repo(repository, exist_ok=True).repo_id
            classifier.save(temporary, facts, repository)
            huggingface_hub.upload_folder(repo_id=repository, folder_path=temporary)
        except Exception as error:
            # Errors of the network have other types in each version of huggingface_hub.
            command = upload_command(repository, folder)
            raise InputError(
                f"The model is in {folder}, but not pushed ({hub_reason(error)}): use {command}"
            ) from error
