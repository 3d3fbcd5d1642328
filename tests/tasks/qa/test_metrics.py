import json

import numpy as np
import pytest
from transformers import EvalPrediction, TrainingArguments

from hf_gmlp.metrics.squad.squad import squad_v2_scores
from hf_gmlp.tasks.qa.arguments import QAArguments
from hf_gmlp.tasks.qa.metrics import AnswerMetrics
from hf_gmlp.tasks.qa.windows import window_dataset

from ...numerics import assert_close
from ...samples import squad, write
from .test_questions import load


@pytest.mark.parametrize("threshold", [-6.0, 0.0, 2.0])
def test_scores_are_those_of_the_written_predictions(squad_tokenizer, tmp_path, threshold):
    questions = load(write(tmp_path / "x.json", squad(6, unanswerable=True)), version_2_with_negative=True)
    windows = window_dataset(questions, squad_tokenizer, max_seq_length=32, doc_stride=8)
    # These logits are usually correct.
    labels = np.array(windows["start_positions"]), np.array(windows["end_positions"])
    outputs = np.random.default_rng(0).normal(size=(2, len(windows), 32))
    for logits, positions in zip(outputs, labels):
        logits[np.arange(len(windows)), positions] += 2
    arguments = QAArguments(version_2_with_negative=True, null_score_diff_threshold=threshold)
    metrics = AnswerMetrics(questions, windows, arguments)
    scores = metrics(EvalPrediction(tuple(outputs), labels))
    assert metrics.names() == list(scores)
    (tmp_path / "out").mkdir()
    metrics.write(TrainingArguments(tmp_path / "out", use_cpu=True), "eval")
    files = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(files) == {"eval_predictions.json", "eval_nbest_predictions.json", "eval_null_odds.json"}
    predictions, odds = files["eval_predictions.json"], files["eval_null_odds.json"]
    assert {key for key in odds if odds[key] > threshold} == {key for key in predictions if predictions[key] == ""}
    official = squad_v2_scores(predictions, {row["id"]: row["answers"]["text"] for row in questions})
    names = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "total")
    assert_close([float(scores[name]) for name in names], [float(official[name]) for name in names])
    entry = files["eval_nbest_predictions.json"][questions[0]["id"]][0]
    assert set(entry) == {"text", "start", "end", "probability", "start_logit", "end_logit"}
