"""Extractive question answering, for which transformers 5 no longer has a pipeline.

answerer = QuestionAnswerer("my-squad-model")
answerer("Who wrote it?", "The novel was written by Mary Shelley.")
# {"answer": "Mary Shelley", "score": 0.93, "start": 25, "end": 37}
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerBase

from ..answers import Decoded, check_windows, decode, make_windows
from ..errors import InputError
from ..loading import open_model, open_tokenizer
from ..tokenizer import padding_for


class QuestionAnswerer:
    """A model and its tokenizer, called with questions and contexts.

    Args:
        model: A trained question-answering model of any kind: a folder, a name on the Hub, or the model itself.
        tokenizer: Its tokenizer, unless it is where the model comes from.
        max_seq_length: Tokens of question and context together; by default, the tokenizer's maximum, if the model takes
            that many. A longer context is read in windows.
        doc_stride: Tokens by which windows overlap; by default 128, but at most a third of a window.
        device: Where the model runs; by default, where it is.

    Raises:
        InputError: If there is no such model, it was not trained for question answering, or the tokenizer does not fit.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
        *,
        max_seq_length: int | None = None,
        doc_stride: int | None = None,
        device: str | torch.device | None = None,
        trust_remote_code: bool = False,
    ):
        if not isinstance(model, PreTrainedModel):
            tokenizer = tokenizer or model
            model = open_model(AutoModelForQuestionAnswering, model, trust_remote_code=trust_remote_code)
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            self.tokenizer = tokenizer
        else:
            self.tokenizer = open_tokenizer(tokenizer or model.name_or_path, trust_remote_code=trust_remote_code)
        self.model = model.eval().to(device or model.device)
        longest = getattr(model.config, "max_position_embeddings", None) or 512
        self.max_seq_length = max_seq_length or min(longest, self.tokenizer.model_max_length)
        self.doc_stride = min(128, self.max_seq_length // 3) if doc_stride is None else doc_stride
        check_windows(self.tokenizer, self.max_seq_length, self.doc_stride)

    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        null_score_diff_threshold: float = 0.0,
        max_answer_length: int = 30,
        batch_size: int = 16,
    ) -> dict | list[dict] | list[list[dict]]:
        """Return the best answers, which are passages of the context.

        Args:
            question: One or several.
            context: One for all questions, or one for each.
            top_k: Number of answers to each question, best first.
            handle_impossible_answer: Whether there may be no answer. That is the empty answer, "" at [0, 0).
            null_score_diff_threshold: There is no answer if "" scores higher than the best answer by more than this.
            max_answer_length: Maximum number of tokens in an answer.
            batch_size: Windows per pass of the model.

        Returns:
            For a question, "answer", "score" (its probability among the 20 best, or the `top_k` if that is more),
            "start" and "end", so that `context[start:end] == answer`; a list of these if `top_k > 1`; a list of either
            if `question` is a sequence.

        Raises:
            InputError: If a context is empty, or a logit is not finite.
        """
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        if not all(context.strip() for context in contexts):
            raise InputError("A context is empty: give a text that may contain the answer.")
        if not questions:
            return []
        windows = make_windows(
            questions, contexts, self.tokenizer, max_seq_length=self.max_seq_length, doc_stride=self.doc_stride
        )
        decoded = decode(
            contexts,
            windows,
            *self._logits(windows, batch_size),
            n_best_size=max(20, top_k),
            max_answer_length=max_answer_length,
            version_2_with_negative=handle_impossible_answer,
        )
        keys = {"answer": "text", "score": "probability", "start": "start", "end": "end"}
        ranks = (_ranked(one, null_score_diff_threshold)[:top_k] for one in decoded)
        answers = [[{key: entry[old] for key, old in keys.items()} for entry in ranked] for ranked in ranks]
        results = [ranked[0] for ranked in answers] if top_k == 1 else answers
        return results[0] if isinstance(question, str) else results

    @torch.inference_mode()
    def _logits(self, windows: dict[str, list], batch_size: int) -> tuple[list, list]:
        """Return the start and end logits of each window."""
        padding = padding_for(self.model.config)
        names = [name for name in self.tokenizer.model_input_names if name in windows]
        start_logits, end_logits = [], []
        for first in range(0, len(windows["input_ids"]), batch_size):
            rows = {name: windows[name][first : first + batch_size] for name in names}
            batch = self.tokenizer.pad(rows, padding=padding, max_length=self.max_seq_length, return_tensors="pt")
            outputs = self.model(**batch.to(self.model.device))
            start_logits.extend(outputs.start_logits.float().cpu().numpy())
            end_logits.extend(outputs.end_logits.float().cpu().numpy())
        return start_logits, end_logits


def _ranked(decoded: Decoded, null_score_diff_threshold: float) -> list[dict]:
    """Return the n-best list, which starts with no answer if and only if the threshold decides so."""
    answer = decoded.answer(null_score_diff_threshold)
    first = next((entry for entry in decoded.nbest if entry["text"] == answer), decoded.nbest[0])
    return [first, *(entry for entry in decoded.nbest if entry is not first)]
