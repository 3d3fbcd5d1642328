"""Scores of answers by SQuAD's official rules, and files of answers."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import EvalPrediction, TrainingArguments
from transformers.trainer_utils import PredictionOutput

from ...metrics.squad.squad import squad_scores, squad_v2_scores
from ...training.run_folder import write_text
from .arguments import QAArguments
from .decoding import Decoded, decode
from .windows import DECODING_COLUMNS


class AnswerMetrics:
    """`compute_metrics` for Trainer: decodes and scores an evaluation. `decoded` keeps the last answers.

    The best threshold of SQuAD v2.0 is searched with the best span of every question, while the official script
    searches it with the answers in predictions.json, some of which a threshold has already removed.

    Args:
        questions: From `load_questions`.
        windows: From `window_dataset`, in the order of the evaluation.
    """

    def __init__(self, questions: Dataset, windows: Dataset, arguments: QAArguments):
        self.questions, self.windows = questions, windows.select_columns(DECODING_COLUMNS)
        self.start_positions = windows["start_positions"][:] if "start_positions" in windows.column_names else []
        self.threshold, self.negative = arguments.null_score_diff_threshold, arguments.version_2_with_negative
        names = ("n_best_size", "max_answer_length", "version_2_with_negative")
        self.options = {name: getattr(arguments, name) for name in names}
        self.decoded: list[Decoded] = []

    def __call__(self, prediction: EvalPrediction | PredictionOutput) -> dict[str, float]:
        if prediction.label_ids is not None and not np.array_equal(prediction.label_ids[0], self.start_positions):
            raise ValueError("The windows were not evaluated in their order: logits and contexts do not match.")
        self.decoded = decode(self.questions["context"], self.windows, *prediction.predictions[:2], **self.options)
        return self._scores(self.decoded) if "answers" in self.questions.column_names else {}

    def names(self) -> list[str]:
        """Return the names of the scores."""
        return list(self._scores([Decoded("", [], 0.0)] * len(self.questions)))

    def _scores(self, decoded: Sequence[Decoded]) -> dict[str, float]:
        answers = dict(zip(self.questions["id"], decoded))
        references = {row["id"]: row["answers"]["text"] for row in self.questions}
        texts = {key: answer.text for key, answer in answers.items()}
        if not self.negative:
            return squad_scores(texts, references)
        null_odds = {key: answer.null_odds for key, answer in answers.items()}
        return squad_v2_scores(texts, references, null_odds, no_answer_threshold=self.threshold)

    def write(self, args: TrainingArguments, prefix: str):
        """Write {prefix}_predictions.json (for the official scripts), _nbest_predictions.json and _null_odds.json."""
        if not args.should_save:
            return
        contents: dict[str, list] = {
            "predictions": [answer.answer(self.threshold) for answer in self.decoded],
            "nbest_predictions": [answer.nbest for answer in self.decoded],
        }
        if self.negative:
            contents["null_odds"] = [answer.null_odds for answer in self.decoded]
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            text = json.dumps(dict(zip(self.questions["id"], content)), indent=2, ensure_ascii=False)
            write_text(Path(args.output_dir, f"{prefix}_{name}.json"), f"{text}\n")
