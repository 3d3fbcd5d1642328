"""Arguments of question answering."""

import math
from dataclasses import dataclass

from transformers import PreTrainedConfig

from ...training.arguments import SeriesArguments, flag


@dataclass
class QAArguments(SeriesArguments):
    """The questions to answer, and the choice of answers."""

    train_file: list[str] | None = flag(
        "Questions to train on: JSON (in SQuAD's format, or flat) or JSON lines; also .gz."
    )
    validation_file: list[str] | None = flag("Questions to evaluate on, in the same formats.")
    test_file: list[str] | None = flag("Questions to answer, in the same formats.")
    version_2_with_negative: bool = flag("Allow questions without an answer, as in SQuAD v2.0.", False)
    null_score_diff_threshold: float = flag(
        'Answer "" if the score of no answer exceeds that of the best answer by more than this.',
        0.0,
        interval="(-inf, inf)",
    )
    max_seq_length: int | None = flag(
        "Tokens of a question and a window of context; by default, the model's n.", interval="[16, inf)"
    )
    doc_stride: int | None = flag(
        "Overlap of windows in tokens; by default 128, or max_seq_length / 3 if smaller.", interval="[0, inf)"
    )
    pad_to_max_length: bool = flag(
        "Pad to --max_seq_length instead of the longest sequence; always on for mask_padding=false.", False
    )
    n_best_size: int = flag("Number of answers per question in nbest_predictions.json.", 20, interval="[1, inf)")
    max_answer_length: int = flag("Maximum number of tokens of an answer.", 30, interval="[1, inf)")

    def window_lengths(self, config: PreTrainedConfig) -> dict[str, int]:
        """Return the windows' "max_seq_length" and "doc_stride"."""
        has_n = getattr(config, "max_position_embeddings", None) is not None
        max_seq_length = self.sequence_length(config, default=math.inf if has_n else 512)
        doc_stride = min(128, max_seq_length // 3) if self.doc_stride is None else self.doc_stride
        return {"max_seq_length": max_seq_length, "doc_stride": doc_stride}
