"""Fine-tune a gMLP or aMLP (or any AutoModelForQuestionAnswering) to find answers in a text, as in SQuAD. For example:

    hf-gmlp run qa --model_name_or_path my-amlp --dataset_name rajpurkar/squad --do_train --do_eval --output_dir out
    hf-gmlp run qa recipes/finetune-squad-v1.yaml --model_name_or_path my-amlp --output_dir out

Questions without an answer (SQuAD v2.0) need --version_2_with_negative. Your own --train_file, --validation_file and
--test_file may be JSON as SQuAD is published, flat JSON, JSON lines, or tables. The flags have the names of
transformers' own run_qa.py.
"""

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedConfig,
    TrainingArguments,
    set_seed,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.trainer_utils import PredictionOutput

from ..data.questions import Decoded, check_windows, decode_answers, load_questions, make_windows
from ..metrics.squad import squad_scores, squad_v2_scores
from ..tokenizer import padding_for
from ..training.arguments import LabeledTextArguments, ModelArguments, RunArguments, flag, parse_arguments
from ..training.build import build_config, build_model, build_tokenizer, sequence_length
from ..training.run_folder import start_run, write_text
from ..training.trainer import GMLPTrainer

logger = logging.getLogger(__name__)

# Columns of a window that `decode_answers` needs besides the logits, and that are not inputs of the model.
DECODING_COLUMNS = ["question_index", "offsets"]


@dataclass
class QAArguments(LabeledTextArguments):
    """The questions to answer, and the choice of answers."""

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
    n_best_size: int = flag("Number of answers per question in nbest_predictions.json.", 20, interval="[1, inf)")
    max_answer_length: int = flag("Maximum number of tokens of an answer.", 30, interval="[1, inf)")

    def window_lengths(self, config: PreTrainedConfig) -> dict[str, int]:
        """Return the windows' "max_seq_length" and "doc_stride"."""
        has_n = getattr(config, "max_position_embeddings", None) is not None
        max_seq_length = sequence_length(config, self.max_seq_length, default=math.inf if has_n else 512)
        doc_stride = min(128, max_seq_length // 3) if self.doc_stride is None else self.doc_stride
        return {"max_seq_length": max_seq_length, "doc_stride": doc_stride}


def window_dataset(
    questions: Dataset, tokenizer: Tokenizer, *, training: bool = False, num_proc: int | None = None, **lengths: int
) -> Dataset:
    """Return the windows of the questions of `load_questions`, labeled with the first answer, if there is one.

    With `training`, they lack the columns that only decoding needs. `lengths` are "max_seq_length" and "doc_stride".
    """

    def map_batch(batch: dict, indices: list[int]) -> dict:
        answers = batch.get("answers")
        windows = make_windows(batch["question"], batch["context"], tokenizer, answers=answers, **lengths)
        windows["question_index"] = [indices[index] for index in windows["question_index"]]
        # Keep training rows small, since every process holds them in memory.
        return {name: windows[name] for name in windows if not training or name not in DECODING_COLUMNS}

    options = {"batched": True, "with_indices": True, "num_proc": num_proc, "desc": "Cutting windows"}
    return questions.map(map_batch, remove_columns=questions.column_names, **options)


def log_long_answers(windows: Dataset, max_answer_length: int) -> None:
    """Log the number of windows whose answer has more tokens than the model may answer with."""
    if "start_positions" in windows.column_names:
        lengths = np.array(windows["end_positions"]) - np.array(windows["start_positions"]) + 1
        if count := int((lengths > max_answer_length).sum()):
            logger.warning("%d answers have more than %d tokens (--max_answer_length)", count, max_answer_length)


class AnswerMetrics:
    """`compute_metrics` for Trainer that decodes and scores an evaluation, and keeps its answers in `decoded`.

    The best threshold of SQuAD v2.0 is found on the best span of every question, while the official script uses the
    answers in predictions.json, some of which a threshold has already removed.

    Args:
        questions: From `load_questions`.
        windows: From `window_dataset`, in the order of the evaluation.
    """

    def __init__(self, questions: Dataset, windows: Dataset, arguments: QAArguments) -> None:
        self.questions, self.arguments = questions, arguments
        self.windows = {name: windows[name] for name in DECODING_COLUMNS}
        self.decoded: list[Decoded] = []

    def __call__(self, prediction: EvalPrediction | PredictionOutput) -> dict[str, float]:
        self.decoded = decode_answers(
            self.questions["context"],
            self.windows,
            *prediction.predictions[:2],
            n_best_size=self.arguments.n_best_size,
            max_answer_length=self.arguments.max_answer_length,
            version_2_with_negative=self.arguments.version_2_with_negative,
        )
        if "answers" not in self.questions.column_names:
            return {}
        ids, threshold = self.questions["id"], self.arguments.null_score_diff_threshold
        references = {key: answers["text"] for key, answers in zip(ids, self.questions["answers"])}
        texts = {key: answer.text for key, answer in zip(ids, self.decoded)}
        if not self.arguments.version_2_with_negative:
            return squad_scores(texts, references)
        null_odds = {key: answer.null_odds for key, answer in zip(ids, self.decoded)}
        return squad_v2_scores(texts, references, null_odds, no_answer_threshold=threshold)

    def write(self, args: TrainingArguments, prefix: str) -> None:
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


def predict_answers(trainer: GMLPTrainer, windows: Dataset, answers: AnswerMetrics) -> dict[str, float]:
    """Write the answers to the test questions, and return their scores if the correct answers are known."""
    trainer.compute_metrics = answers
    output = trainer.predict(windows, metric_key_prefix="predict")
    if output.label_ids is None:
        # Without labels, Trainer does not call `compute_metrics`.
        answers(output)
    answers.write(trainer.args, "predict")
    return output.metrics


def main(argv: list[str] | None = None, program: str = "hf-gmlp run qa") -> None:
    model_args, data_args, args = parse_arguments((ModelArguments, QAArguments, RunArguments), __doc__, argv, program)
    checkpoint = start_run(model_args, data_args, args)
    config = build_config(model_args)
    lengths = data_args.window_lengths(config)
    length = lengths["max_seq_length"]

    needed = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    options = {"version_2_with_negative": data_args.version_2_with_negative, "max_rows": data_args.max_rows()}
    splits = [split for split in needed if needed[split]]
    questions = load_questions(data_args.source(model_args, args), splits, **options)

    texts = (text for row in questions.get("train", ()) for text in (row["context"], row["question"]))
    tokenizer = build_tokenizer(model_args, args, texts, max_length=length, config=config)
    check_windows(tokenizer, **lengths)
    if getattr(config, "type_vocab_size", None) == 1:
        # RoBERTa and its relatives have no second segment.
        tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    # The saved tokenizer has the length of the windows that the model was trained on.
    tokenizer.model_max_length = length
    windows, answers = {}, {}
    for split, rows in questions.items():
        options = lengths | {"num_proc": data_args.preprocessing_num_workers}
        windows[split] = window_dataset(rows, tokenizer, training=split == "train", **options)
        logger.info("%s: %d questions in %d windows", split, len(rows), len(windows[split]))
        log_long_answers(windows[split], data_args.max_answer_length)
        if split != "train":
            answers[split] = AnswerMetrics(rows, windows[split], data_args)
            windows[split] = windows[split].remove_columns(DECODING_COLUMNS)
    collator = DataCollatorWithPadding(tokenizer, padding_for(config, data_args.pad_to_max_length), max_length=length)

    # The weights of a new head depend on the seed, and not on what preparing the data has used of it.
    set_seed(args.seed)
    options = {"train": args.do_train, "length": length}
    trainer = GMLPTrainer(
        model=build_model(AutoModelForQuestionAnswering, model_args, config, tokenizer, **options),
        args=args,
        train_dataset=windows.get("train"),
        eval_dataset=windows.get("validation"),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=answers.get("validation"),
        card=data_args.card_facts(model_args),
    )
    results = trainer.train_and_evaluate(checkpoint)
    if args.do_eval:
        answers["validation"].write(args, "eval")
    if args.do_predict:
        results |= predict_answers(trainer, windows["test"], answers["test"])
    trainer.finish(results)
