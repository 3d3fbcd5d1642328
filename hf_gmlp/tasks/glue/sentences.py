"""Labeled sentences and pairs of sentences: from GLUE, the Hub or files to token ids."""

import logging
from collections.abc import Mapping, Sequence

import pandas
from datasets import Dataset, Value
from pyarrow.compute import list_value_length
from transformers import PreTrainedTokenizerBase as Tokenizer

from ...columns import KNOWN_TEXT_COLUMNS, LABEL_COLUMNS, known_text_columns
from ...errors import InputError
from ...training.files import Access, load_data
from ..classification import hold_out
from ..labels import ONE_CLASS, REGRESSION, Labels, number_labels
from .arguments import GlueArguments

logger = logging.getLogger(__name__)

GLUE = "nyu-mll/glue"

TEXT_COLUMNS = ("sentence1", "sentence2")


def load_sentences(
    arguments: GlueArguments,
    kinds: Sequence[str] = ("train", "validation"),
    *,
    trained: Labels | None = None,
    access: Access = Access(),
) -> tuple[dict[str, Dataset], Labels]:
    """Read a GLUE task, a data set on the Hub, or files.

    The labels are those of the task, else those in the training files, which are always read, else those of the
    checkpoint. Validation data that are needed but not named are held out of the training files; the column "row" is
    then the number of a row there.

    Args:
        kinds: The data needed: "train", "validation" and "test".
        trained: What the checkpoint predicts. The order of its classes is kept if the data have the same ones.

    Returns:
        The splits, such as "train" and "validation_matched", with the columns "sentence1", for pairs "sentence2", and
        "labels"; and what the labels are.

    Raises:
        InputError: If something needed is missing or unreadable, or as in `number_labels`.
    """
    task, train = arguments.task(), "train" in kinds
    read = kinds if train or not arguments.train_file else ["train", *kinds]
    names = {kind: task.splits(kind) if task else (kind,) for kind in read}
    holds_out = bool(train and arguments.train_file and not arguments.validation_file and names.pop("validation", None))
    splits = (_read_files if arguments.files() else _read_hub)(arguments, names, access)
    columns, label_column = _find_columns(arguments, *next(iter(splits.items())))
    logger.info("Texts: %s", " and ".join(columns))
    labels = None
    if task is not None:
        labels = Labels(list(task.labels), ONE_CLASS) if task.labels else Labels(None, REGRESSION)
    elif "train" not in splits:
        labels = Labels(None, REGRESSION) if arguments.do_regression else trained
        if labels is None:
            raise InputError("The labels are unknown: pass --task_name, a --train_file, or a trained classifier.")
    splits, labels = number_labels(
        splits, columns, label_column, labels, trained=trained, train=train, do_regression=arguments.do_regression
    )
    if holds_out:
        if labels.problem_type == ONE_CLASS and isinstance(splits["train"]["labels"][0], list):
            raise InputError("Probabilities cannot be held out: pass --validation_file with class names.")
        splits["train"], splits["validation"] = hold_out(splits["train"], arguments.train_val_split)
    if not train:
        # It was read only for its labels.
        splits.pop("train", None)
    for split, dataset in splits.items():
        dataset = _name_columns(dataset, columns, split)
        if split == "train" and arguments.shuffle_train_dataset:
            dataset = dataset.shuffle(seed=arguments.shuffle_seed)
        # Rows are left out only after the labels are collected, so that no class is missing.
        limit = arguments.max_samples()[split.partition("_")[0]]
        splits[split] = dataset if limit is None else dataset.take(min(limit, len(dataset)))
        if limit is not None and labels.names and "labels" in dataset.column_names:
            present, kept = (len(set(map(str, rows["labels"]))) for rows in (dataset, splits[split]))
            if kept == 1 < present:
                logger.warning("The first %d rows of the %s data have only one class: shuffle the file", limit, split)
    return splits, labels


def _read_files(arguments: GlueArguments, names: dict[str, tuple[str, ...]], access: Access) -> dict[str, Dataset]:
    """Read the files of each kind. If a task has several splits of a kind, there is a file for each."""
    files: dict[str, list[str]] = {}
    for kind, splits in names.items():
        paths = arguments.files().get(kind, [])
        if not paths:
            raise InputError(f"There are no {kind} data: pass --{kind}_file.")
        if len(paths) > len(splits) > 1:
            raise InputError(f"--{kind}_file has {len(paths)} files: pass at most one each for {', '.join(splits)}.")
        files |= {split: [path] for split, path in zip(splits, paths)} if len(splits) > 1 else {kind: paths}
    text_columns = arguments.text_column_names or [column for columns in KNOWN_TEXT_COLUMNS for column in columns]
    label_columns = [arguments.label_column_name] if arguments.label_column_name else LABEL_COLUMNS
    return dict(load_data(files=files, access=access, text_columns=sorted({*text_columns, *label_columns})))


def _read_hub(arguments: GlueArguments, names: dict[str, tuple[str, ...]], access: Access) -> dict[str, Dataset]:
    name, config_name = arguments.dataset_name, arguments.dataset_config_name
    if name is None and arguments.task_name is not None:
        name, config_name = GLUE, arguments.task_name.lower()
    loaded = load_data(dataset_name=name, dataset_config_name=config_name, access=access)
    splits: dict[str, Dataset] = {}
    for kind, default_names in names.items():
        split_name = getattr(arguments, f"{kind}_split_name")
        sources = {kind: split_name} if split_name else {split: split for split in default_names}
        present = {split: loaded[source] for split, source in sources.items() if source in loaded}
        if not present:
            advice = f"name one with --{kind}_split_name, or pass files"
            raise InputError(f"{name} has no split {split_name or kind}, only {', '.join(loaded)}: {advice}.")
        splits |= present
    return splits


def _find_columns(arguments: GlueArguments, split: str, dataset: Dataset) -> tuple[Sequence[str], str]:
    """Return the columns of text and of labels: those of flags or the task, else `known_text_columns`, else the
    only column besides the label.
    """
    names, task = dataset.column_names, arguments.task()
    label = arguments.label_column_name or next((name for name in LABEL_COLUMNS if name in names), "label")
    if columns := arguments.text_column_names or (task.columns if task else None):
        if label in columns:
            raise InputError(f"The column {label!r} cannot be both text and label: name others.")
        return columns, label
    others = [name for name in names if name != label]
    columns = known_text_columns(others)
    if columns is None and (len(others) != 1 or label not in names):
        flags = "the text column with --text_column_names, and the label column with --label_column_name"
        raise InputError(f"The {split} data have the columns {', '.join(names)}: name {flags}.")
    return columns or others, label


def _name_columns(dataset: Dataset, columns: Sequence[str], split: str) -> Dataset:
    """Rename the columns of text to "sentence1" and "sentence2"."""
    for column in columns:
        feature = dataset.features[column]
        if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
            fault = f"The column {column!r} of the {split} data must hold text, not {feature}"
            raise InputError(f"{fault}: name yours with --text_column_names.")
        if blank := sum(not str(text).strip() for text in dataset[column][:]):
            logger.warning("%d row(s) of the %s data have no text in the column %r", blank, split, column)
    return dataset.rename_columns(dict(zip(columns, TEXT_COLUMNS)))


def tokenize(
    dataset: Dataset, tokenizer: Tokenizer, length: int, arguments: GlueArguments, access: Access = Access()
) -> Dataset:
    """Tokenize a split of `load_sentences` as BERT's input: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

    The longer sentence of a pair is truncated first, to at most `length` tokens in all. The column "labels" is kept.
    """
    columns = [column for column in TEXT_COLUMNS if column in dataset.column_names]

    def tokenize_batch(batch: dict) -> dict:
        # Columns of numbers are accepted as text too.
        sentences = [[str(text) for text in batch[column]] for column in columns]
        return dict(tokenizer(*sentences, truncation="longest_first", max_length=length))

    options = {"num_proc": arguments.preprocessing_num_workers, "load_from_cache_file": not access.overwrite_cache}
    removed = [*columns, *({"row"} & set(dataset.column_names))]
    return dataset.map(tokenize_batch, batched=True, remove_columns=removed, desc="Tokenizing", **options)


def report_truncation(datasets: Mapping[str, Dataset], length: int):
    """Log how many of the tokenized rows have `length` tokens, to which longer ones were truncated."""
    for split, dataset in datasets.items():
        lengths = list_value_length(dataset.with_format("arrow")[:]["input_ids"]).to_numpy()
        if count := int((lengths >= length).sum()):
            fact = f"with {length} tokens or more, of which the first {length} are used (--max_seq_length)"
            logger.info("Rows of the %s data %s: %d of %d", split, fact, count, len(dataset))


def texts(dataset: Dataset) -> list[str]:
    """Return the text of each row, with pairs joined, to train a tokenizer and for the baseline."""
    columns = [dataset[column] for column in TEXT_COLUMNS if column in dataset.column_names]
    return [" ".join(map(str, row)) for row in zip(*columns)]


def visible_columns(dataset: Dataset) -> pandas.DataFrame:
    """Return the texts of an evaluated split and the number of each row in its file, for `write_report`."""
    names = [name for name in ("row", *TEXT_COLUMNS) if name in dataset.column_names]
    table = dataset.select_columns(names).to_pandas()
    if "row" not in table:
        table.insert(0, "row", range(1, len(table) + 1))
    return table.rename(columns={"sentence1": "text", "sentence2": "text_pair"})
