"""Scores of answers, by SQuAD's official rules, and files of answers."""

import json
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import EvalPrediction, TrainingArguments
from transformers.trainer_utils import PredictionOutput

from ...answers import Decoded, decode
from ...metrics.squad.squad import squad_scores, squad_v2_scores
from ...training.run_folder import write_text
from .arguments import QAArguments
from .windows import DECODING_COLUMNS


class AnswerMetrics:
    """`compute_metrics` for Trainer that decodes and scores an evaluation, and keeps its answers in `decoded`.

    The best threshold of SQuAD v2.0 is found on the best span of every question, while the official script uses the
    answers in predictions.json, some of which a threshold has already removed.

    Args:
        questions: From `load_questions`.
        windows: From `window_dataset`, in the order of the evaluation.
    """

    def __init__(self, questions: Dataset, windows: Dataset, arguments: QAArguments):
        self.questions, self.arguments = questions, arguments
        self.windows = {name: windows[name] for name in DECODING_COLUMNS}
        self.decoded: list[Decoded] = []

    def __call__(self, prediction: EvalPrediction | PredictionOutput) -> dict[str, float]:
        self.decoded = decode(
            self.questions["context"],
            self.windows,
            *prediction.predictions[:2],
            n_best_size=self.arguments.n_best_size,
            max_answer_length=self.arguments.max_answer_length,
            version_2_with_negative=self.arguments.version_2_with_negative,
        )
        return self._scores(self.decoded) if "answers" in self.questions.column_names else {}

    def names(self) -> list[str]:
        """Return the names of the scores."""
        return list(self._scores([Decoded("", [], 0.0)] * len(self.questions)))

    def _scores(self, decoded: Sequence[Decoded]) -> dict[str, float]:
        ids, threshold = self.questions["id"], self.arguments.null_score_diff_threshold
        references = {key: answers["text"] for key, answers in zip(ids, self.questions["answers"])}
        texts = {key: answer.text for key, answer in zip(ids, decoded)}
        if not self.arguments.version_2_with_negative:
            return squad_scores(texts, references)
        null_odds = {key: answer.null_odds for key, answer in zip(ids, decoded)}
        return squad_v2_scores(texts, references, null_odds, no_answer_threshold=threshold)

    def write(self, args: TrainingArguments, prefix: str):
        """Write {prefix}_predictions.json (for the official scripts), _nbest_predictions.json and _null_odds.json."""
        if not args.should_save:
            return
        contents: dict[str, list] = {
            "predictions": [answer.answer(self.arguments.null_score_diff_threshold) for answer in self.decoded],
            "nbest_predictions": [answer.nbest for answer in self.decoded],
        }
        if self.arguments.version_2_with_negative:
            contents["null_odds"] = [answer.null_odds for answer in self.decoded]
        for name, content in contents.items():
            text = json.dumps(dict(zip(self.questions["id"], content)), indent=2, ensure_ascii=False)
            write_text(Path(args.output_dir, f"{prefix}_{name}.json"), f"{text}\n")
