"""Arguments of sentence classification, and the tasks of GLUE."""

from dataclasses import dataclass

from ...columns import check_text_columns
from ...training.arguments import ModelArguments, SeriesArguments, flag
from ..classification import ClassificationArguments


@dataclass(frozen=True)
class Task:
    """One of GLUE's nine tasks."""

    columns: tuple[str, ...]
    # The names of the labels 0, 1, ...; None for a task that predicts numbers.
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]
    validations: tuple[str, ...] = ("validation",)
    tests: tuple[str, ...] = ("test",)

    def splits(self, kind: str) -> tuple[str, ...]:
        """Return the names of the "train", "validation" or "test" splits."""
        return {"validation": self.validations, "test": self.tests}.get(kind, (kind,))


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",)),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        validations=("validation_matched", "validation_mismatched"),
        tests=("test_matched", "test_mismatched"),
    ),
    "mrpc": Task(_PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy")),
    "qnli": Task(("question", "sentence"), _ENTAILMENT, ("accuracy",)),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")),
    "rte": Task(_PAIR, _ENTAILMENT, ("accuracy",)),
    "sst2": Task(("sentence",), ("negative", "positive"), ("accuracy",)),
    "stsb": Task(_PAIR, None, ("spearman", "pearson")),
    "wnli": Task(_PAIR, ("not_entailment", "entailment"), ("accuracy",)),
}


@dataclass
class SentenceModelArguments(ModelArguments):
    """The sentence classifier to start from."""

    ignore_mismatched_sizes: bool = flag(
        "Give the checkpoint a new classifier if it was trained for other classes.", False
    )


@dataclass
class GlueArguments(ClassificationArguments, SeriesArguments):
    """The sentences to classify, and the runs to make."""

    task_name: str | None = flag("GLUE task: cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb or wnli.")
    validation_file: list[str] | None = flag("Validation files; for MNLI, the matched one first.")
    test_file: list[str] | None = flag("Files to predict labels for; for MNLI, the matched one first.")
    train_split_name: str | None = flag("Split of the data set to train on.")
    validation_split_name: str | None = flag("Split of the data set to evaluate on.")
    test_split_name: str | None = flag("Split of the data set to predict labels for.")
    train_val_split: float = flag(
        "Fraction of each class to hold out if there are no validation data.", 0.1, interval="(0, 1)"
    )
    text_column_names: list[str] | None = flag(
        "Text column, or the two of a pair; by default, named as in GLUE, or the only one besides the label."
    )
    label_column_name: str | None = flag(
        "Column of the label or labels; by default label, labels, category, class, target or sentiment."
    )
    do_regression: bool = flag("Predict numbers; by default, only if the labels have fractions.")
    baseline: bool = flag("Also report logistic regression on tf-idf, for data with one class per row.", False)
    shuffle_train_dataset: bool = flag("Shuffle the training rows before --max_train_samples is applied.", False)
    shuffle_seed: int = flag("Seed for --shuffle_train_dataset.", 42, interval="[0, 4294967295]")
    # The shortest sequence of a pair is [CLS] A [SEP] B [SEP].
    max_seq_length: int | None = flag(
        "Tokens per text or pair; by default 128 for GLUE's tasks and 512 for others, or the model's n if smaller.",
        interval="[5, inf)",
    )
    pad_to_max_length: bool = flag(
        "Pad to --max_seq_length instead of the longest sequence; always on for mask_padding=false.", False
    )

    def __post_init__(self):
        super().__post_init__()
        if self.task_name is not None and self.task_name.lower() not in TASKS:
            raise ValueError(f"GLUE has no task {self.task_name!r}: --task_name must be one of {', '.join(TASKS)}.")
        task = self.task()
        if task is not None and self.do_regression not in (None, task.labels is None):
            raise ValueError(f"--do_regression does not fit --task_name {self.task_name}: leave it out.")
        for split in self.files():
            if getattr(self, f"{split}_split_name"):
                raise ValueError(f"--{split}_split_name is for a data set on the Hub, not for files: leave it out.")
        check_text_columns(self.text_column_names or [])

    def task(self) -> Task | None:
        """Return the GLUE task of --task_name, if any."""
        return None if self.task_name is None else TASKS[self.task_name.lower()]

    def data_name(self) -> str:
        name = super().data_name()
        return name if self.task_name is None else f"{name} ({self.task_name})" if name else f"GLUE {self.task_name}"

    def dataset_id(self) -> str | None:
        return super().dataset_id() if self.files() or self.dataset_name is not None else "nyu-mll/glue"
