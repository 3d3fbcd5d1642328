"""Arguments of sentence classification."""

from dataclasses import dataclass

from transformers import PreTrainedConfig

from ...training.arguments import ModelArguments, SeriesArguments, flag


@dataclass
class SentenceModelArguments(ModelArguments):
    """The sentence classifier to start from."""

    ignore_mismatched_sizes: bool = flag(
        "Give the checkpoint a new classifier if it was trained for other classes.", False
    )


@dataclass
class GlueArguments(SeriesArguments):
    """The sentences to classify, and the runs to make."""

    task_name: str | None = flag("GLUE task: cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb or wnli.")
    validation_file: list[str] | None = flag("Validation files; for MNLI, the matched one first.")
    test_file: list[str] | None = flag("Files to predict labels for; for MNLI, matched, mismatched, AX.")
    train_split_name: str | None = flag("Split of the data set to train on.")
    validation_split_name: str | None = flag("Split of the data set to evaluate on.")
    test_split_name: str | None = flag("Split of the data set to predict labels for.")
    text_column_names: list[str] | None = flag("Text column, or the two of a pair; by default, named as in GLUE.")
    text_column_delimiter: str | None = flag("Join any number of text columns, with this between them.")
    label_column_name: str = flag("Column of the label or labels.", "label")
    do_regression: bool = flag("Predict numbers; by default, only if the labels have fractions.")
    metric_name: str | None = flag("Metric to compare runs: accuracy, f1, matthews_correlation, spearman or pearson.")
    shuffle_train_dataset: bool = flag("Shuffle the training rows before --max_train_samples is applied.", False)
    shuffle_seed: int = flag("Seed for --shuffle_train_dataset.", 42, interval="[0, 4294967295]")
    # At least [CLS] A [SEP] B [SEP].
    max_seq_length: int | None = flag(
        "Tokens per sentence or pair; by default 128, or the model's n if smaller.", interval="[5, inf)"
    )
    pad_to_max_length: bool = flag(
        "Pad to --max_seq_length instead of the longest sequence; always on for mask_padding=false.", False
    )

    def __post_init__(self):
        super().__post_init__()
        if self.packing and self.pad_to_max_length:
            raise ValueError("--packing leaves no padding: give either --packing or --pad_to_max_length.")
        if len(self.text_column_names or ()) > 2 and self.text_column_delimiter is None:
            raise ValueError("--text_column_names takes one or two columns; --text_column_delimiter joins more.")

    def sequence_length(self, config: PreTrainedConfig, default: float = 128) -> int:
        return super().sequence_length(config, default)

    def data_name(self) -> str:
        name = super().data_name()
        return name if self.task_name is None else f"{name} ({self.task_name})" if name else f"GLUE {self.task_name}"

    def dataset_id(self) -> str | None:
        return super().dataset_id() if self.files() or self.dataset_name is not None else "nyu-mll/glue"
