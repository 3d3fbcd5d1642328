"""Sentences and pairs of them, with a label each: from GLUE, the Hub or files, to token ids ready for a collator."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from datasets import Dataset, Value
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .files import Access, load_data
from .labels import ONE_CLASS, REGRESSION, LabeledData, Labels, data_of, number_labels

GLUE = "nyu-mll/glue"


@dataclass(frozen=True)
class Task:
    """One of GLUE's nine tasks."""

    columns: tuple[str, ...]
    """The column of the sentence, or the two of the pair."""
    labels: tuple[str, ...] | None
    """The names of the labels 0, 1, ...; None where the label is a number to be predicted."""
    metrics: tuple[str, ...]
    """Modules of hf_gmlp/metrics; runs are compared by the first."""
    tests: dict[str, str]
    """Each test split with the name under which the leaderboard takes its predictions."""
    validations: tuple[str, ...] = ("validation",)
    """The validation splits."""
    submits_names: bool = False
    """Whether the leaderboard takes the names of the labels, not their numbers."""


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",), {"test": "CoLA"}),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"},
        validations=("validation_matched", "validation_mismatched"),
        submits_names=True,
    ),
    "mrpc": Task(_PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy"), {"test": "MRPC"}),
    "qnli": Task(("question", "sentence"), _ENTAILMENT, ("accuracy",), {"test": "QNLI"}, submits_names=True),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy"), {"test": "QQP"}),
    "rte": Task(_PAIR, _ENTAILMENT, ("accuracy",), {"test": "RTE"}, submits_names=True),
    "sst2": Task(("sentence",), ("negative", "positive"), ("accuracy",), {"test": "SST-2"}),
    "stsb": Task(_PAIR, None, ("spearman", "pearson"), {"test": "STS-B"}),
    "wnli": Task(_PAIR, ("not_entailment", "entailment"), ("accuracy",), {"test": "WNLI"}),
}
# Columns looked for where neither a task nor a flag names them; pairs first.
_KNOWN_COLUMNS = sorted({task.columns for task in TASKS.values()} | {("text",)}, key=lambda names: (-len(names), names))


def find_task(name: str | None) -> Task | None:
    """
    The GLUE task of that name; None for None.

    Raises:
        InputError: If there is no such task.
    """
    if name is None or name.lower() in TASKS:
        return TASKS.get((name or "").lower())
    raise InputError(f"GLUE has no task {name!r}; --task_name is one of {', '.join(TASKS)}.")


def load_sentences(
    *,
    task_name: str | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_files: list[str] | None = None,
    validation_files: list[str] | None = None,
    test_files: list[str] | None = None,
    split_names: Mapping[str, str | None] | None = None,
    text_columns: list[str] | None = None,
    delimiter: str | None = None,
    label_column: str = "label",
    do_regression: bool | None = None,
    known: Labels | None = None,
    train: bool = True,
    validate: bool = True,
    test: bool = False,
    max_samples: Mapping[str, int | None] | None = None,
    shuffle_seed: int | None = None,
    access: Access = Access(),
) -> LabeledData:
    """
    The data of a GLUE task, of a data set on the Hub, or of files: columns "sentence1", "sentence2" if there are pairs,
    and "labels".

    Labels are what the task or else `find_labels` says of the training data; a checkpoint that has the same classes
    keeps its order.

    Args:
        split_names: Names of the "train", "validation" and "test" splits of a data set on the Hub, where it has others.
        text_columns: One column, or two of a pair; by default the task's, else those that GLUE's tasks use, or "text".
        delimiter: Join the columns, of which there may then be any number, to one sentence, with this between them.
        do_regression: Whether labels are numbers to be predicted; by default, without a task, if they have fractions.
        known: What the checkpoint was trained to tell; what counts where there are no training data.
        train, validate, test: What is needed. Training files are read in any case, for their labels.
        max_samples: At most so many rows of "train", "validation" and "test", the first ones.
        shuffle_seed: Seed to shuffle the training rows with beforehand.

    Raises:
        InputError: If no data or two kinds of it are named, something needed is missing, a file cannot be read or is
            empty, a column or label is missing, or a label is none of the training data's.
    """
    task = find_task(task_name)
    files = {"train": train_files, "validation": validation_files, "test": test_files}
    if (dataset_name is not None or task is None) and (dataset_name is None) == (not any(files.values())):
        raise InputError(
            "Name the data: --task_name for a task of GLUE, --dataset_name for other data of the Hub, or files by "
            "--train_file, --validation_file and --test_file."
        )
    named = {kind: name for kind, name in (split_names or {}).items() if name is not None}
    # Training data tell the labels, also where nothing is trained.
    needed = {"train": train or train_files, "validation": validate, "test": test}
    wanted = [kind for kind in needed if needed[kind]]
    if any(files.values()):
        if named:
            raise InputError(f"--{next(iter(named))}_split_name is for a data set of the Hub, and files are given.")
        texts = text_columns or {column for columns in _KNOWN_COLUMNS for column in columns}
        files = _files({kind: files[kind] for kind in wanted}, task)
        splits = load_data(files=files, access=access, text_columns=sorted({*texts, label_column}))
    elif dataset_name is not None:
        splits = _read_hub(dataset_name, dataset_config_name, task, wanted, named, access)
    else:
        splits = _read_hub(GLUE, task_name.lower(), task, wanted, named, access)

    labels = None
    if task is not None:
        labels = Labels(task.labels and list(task.labels), ONE_CLASS if task.labels else REGRESSION)
        if do_regression not in (None, task.labels is None):
            raise InputError(f"--do_regression {str(do_regression).lower()} does not fit --task_name {task_name}.")
    elif "train" not in splits:
        labels = Labels(None, REGRESSION) if do_regression else known
        if labels is None or (labels.names is None and do_regression is False):
            raise InputError(
                "Nothing tells which labels there are: give --task_name, a --train_file, or a checkpoint that was "
                "trained as a classifier."
            )
    columns = _text_columns(splits, task, text_columns)
    labels, ids = number_labels(
        splits,
        columns,
        label_column,
        "text_column_names",
        labels,
        known=known,
        train=train,
        do_regression=do_regression,
        numbered=task and task.labels,
    )
    # After the labels were collected from all rows.
    for split, dataset in splits.items():
        for column in columns:
            feature = dataset.features[column]
            if not isinstance(feature, Value) or feature.dtype.endswith("binary"):
                raise InputError(f"The column {column!r} of the {data_of(split)} must hold text, and holds {feature}.")
        if delimiter is not None:
            joined = [delimiter.join(map(str, row)) for row in zip(*(dataset[column] for column in columns))]
            sentences = Dataset.from_dict({"sentence1": joined})
        else:
            names = {column: f"sentence{number}" for number, column in enumerate(columns, start=1)}
            sentences = dataset.select_columns(list(columns)).rename_columns(names)
        if split in ids:
            # A new column: one that is mapped in place may turn back into strings.
            sentences = sentences.add_column("labels", ids[split])
        if split == "train" and shuffle_seed is not None:
            sentences = sentences.shuffle(seed=shuffle_seed)
        limit = (max_samples or {}).get(split.partition("_")[0])
        splits[split] = sentences if limit is None else sentences.take(min(limit, len(sentences)))
    return LabeledData(splits, *labels)


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    *,
    pad_to_max_length: bool = False,
    num_proc: int | None = None,
    access: Access = Access(),
) -> Dataset:
    """
    BERT's input for a split of `load_sentences`: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with the segments 0 and 1. The
    longer sentence of a pair is cut first. "labels" stay.

    Args:
        pad_to_max_length: Pad here, all sequences to the same length; by default the collator does it for each batch.
    """
    columns = [column for column in ("sentence1", "sentence2") if column in dataset.column_names]

    def tokenize_batch(batch: dict) -> dict:
        # A column of numbers is text too.
        sentences = [[str(text) for text in batch[column]] for column in columns]
        padding = "max_length" if pad_to_max_length else False
        return dict(tokenizer(*sentences, truncation="longest_first", max_length=max_seq_length, padding=padding))

    return dataset.map(
        tokenize_batch,
        batched=True,
        remove_columns=columns,
        num_proc=num_proc,
        load_from_cache_file=not access.overwrite_cache,
        desc="Tokenizing",
    )


def texts(dataset: Dataset) -> Iterable[str]:
    """All sentences of a split, for the training of a tokenizer."""
    for row in dataset:
        yield from (str(row[column]) for column in ("sentence1", "sentence2") if column in row)


def _split_names(task: Task | None, kind: str) -> tuple[str, ...]:
    if task is None or kind == "train":
        return (kind,)
    return task.validations if kind == "validation" else tuple(task.tests)


def _files(files: dict[str, list[str] | None], task: Task | None) -> dict[str, list[str]]:
    splits = {}
    for kind, paths in files.items():
        names = _split_names(task, kind)
        if not paths:
            raise InputError(f"There are no {data_of(kind)}: give --{kind}_file.")
        if len(paths) > len(names) > 1:
            known = ", ".join(data_of(name) for name in names)
            raise InputError(f"--{kind}_file has {len(paths)} files; at most these can be told apart: {known}.")
        splits |= {kind: paths} if names == (kind,) else {name: [path] for name, path in zip(names, paths)}
    return splits


def _read_hub(
    name: str, config_name: str | None, task: Task | None, wanted: list[str], named: Mapping[str, str], access: Access
) -> dict[str, Dataset]:
    title = f"{name} {config_name or ''}".strip()
    loaded = dict(load_data(dataset_name=name, dataset_config_name=config_name, access=access))
    if task is TASKS["mnli"] and name == GLUE and "test" in wanted and "test" not in named:
        loaded["test_ax"] = load_data(dataset_name=GLUE, dataset_config_name="ax", access=access)["test"]
    splits = {}
    for kind in wanted:
        known = _split_names(task, kind)
        found = [split for split in ([named[kind]] if kind in named else known) if split in loaded]
        if not found:
            raise InputError(
                f"{title} has no split {named.get(kind, kind)} but {', '.join(loaded)}: name one by "
                f"--{kind}_split_name, or save what you need as files."
            )
        splits |= {split if split in known else kind: loaded[split] for split in found}
    return splits


def _text_columns(splits: dict[str, Dataset], task: Task | None, named: list[str] | None) -> tuple[str, ...]:
    if named or task is not None:
        return tuple(named or task.columns)
    split, dataset = next(iter(splits.items()))
    for columns in _KNOWN_COLUMNS:
        if set(columns) <= set(dataset.column_names):
            return columns
    raise InputError(
        f"Which columns hold the sentences? The {data_of(split)} have {', '.join(dataset.column_names)}: name one, or "
        f"the two of a pair, by --text_column_names."
    )
