"""Extractive question answering, for which transformers 5 has no pipeline.

answerer = QuestionAnswerer("my-squad-model")
answerer("Who wrote it?", "The novel was written by Mary Shelley.")
# {"answer": "Mary Shelley", "score": 0.93, "start": 25, "end": 37}
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerBase

from ..data.questions import check_windows, decode_answers, make_windows
from ..errors import InputError
from ..loading import open_model, open_tokenizer
from ..tokenizer import padding_for


class QuestionAnswerer:
    """A model and its tokenizer, called with questions and contexts.

    A context that is longer than the model allows is split into windows that overlap by 128 tokens, or by a third if
    that is less.

    Args:
        model: A trained question-answering model of any kind: a folder, a name on the Hub, or the model itself.
        tokenizer: Its tokenizer, by default the one that was saved with the model.
    """

    def __init__(self, model: str | Path | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        if not isinstance(model, PreTrainedModel):
            model = open_model(AutoModelForQuestionAnswering, model)
        self.model = model.eval()
        self.tokenizer = tokenizer or open_tokenizer(model.name_or_path)
        longest = getattr(model.config, "max_position_embeddings", None) or 512
        self.max_seq_length = min(longest, self.tokenizer.model_max_length)
        self.doc_stride = min(128, self.max_seq_length // 3)
        check_windows(self.tokenizer, self.max_seq_length, self.doc_stride)

    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        max_answer_length: int = 30,
        batch_size: int = 16,
    ) -> dict | list[dict] | list[list[dict]]:
        """Return the best answers, which are spans of the context.

        Args:
            question: One question or several.
            context: One context for all questions, or one for each.
            top_k: Number of answers to each question, best first.
            handle_impossible_answer: Whether the answer may be "" at [0, 0), for no answer.
            max_answer_length: Maximum number of tokens in an answer.
            batch_size: Windows per pass of the model.

        Returns:
            A dictionary with "answer", "score" (its probability among the 20 best, or the `top_k` if that is more),
            "start" and "end" in the context; a list of dictionaries if `top_k > 1`; a list with an entry for each
            question if `question` is a sequence.
        """
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        if not all(context.strip() for context in contexts):
            raise InputError("A context is empty: pass a text that may contain the answer.")
        if not questions:
            return []
        lengths = {"max_seq_length": self.max_seq_length, "doc_stride": self.doc_stride}
        windows = make_windows(questions, contexts, self.tokenizer, **lengths)
        options: dict[str, Any] = {"n_best_size": max(20, top_k), "max_answer_length": max_answer_length}
        options["version_2_with_negative"] = handle_impossible_answer
        decoded = decode_answers(contexts, windows, *self._logits(windows, batch_size), **options)
        keys = {"answer": "text", "score": "probability", "start": "start", "end": "end"}
        answers = [[{key: span[name] for key, name in keys.items()} for span in each.nbest[:top_k]] for each in decoded]
        results = [spans[0] for spans in answers] if top_k == 1 else answers
        return results[0] if isinstance(question, str) else results

    @torch.inference_mode()
    def _logits(self, windows: dict[str, list], batch_size: int) -> tuple[list, list]:
        """Return the start and end logits of each window."""
        padding = padding_for(self.model.config)
        names = [name for name in self.tokenizer.model_input_names if name in windows]
        start_logits, end_logits = [], []
        for start in range(0, len(windows["input_ids"]), batch_size):
            rows = {name: windows[name][start : start + batch_size] for name in names}
            batch = self.tokenizer.pad(rows, padding=padding, max_length=self.max_seq_length, return_tensors="pt")
            outputs = self.model(**batch.to(self.model.device))
            start_logits.extend(outputs.start_logits.float().cpu().numpy())
            end_logits.extend(outputs.end_logits.float().cpu().numpy())
        return start_logits, end_logits
