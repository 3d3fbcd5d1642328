import numpy as np
import pytest
import torch

from hf_gmlp import GMLPForMaskedLM, GMLPForQuestionAnswering
from hf_gmlp.errors import InputError
from hf_gmlp.tools.question_answering import QuestionAnswerer

from ..samples import CITIES

CONTEXT = " ".join(f"The train  went to {city}." for city in CITIES)


def same(answer, other):
    return answer | {"score": pytest.approx(answer["score"], rel=1e-4)} == other


@pytest.fixture(scope="module")
def model(squad_tokenizer, text_config, perturbed_model):
    config = text_config(vocab_size=len(squad_tokenizer), max_position_embeddings=48, attention_size=8)
    return perturbed_model(GMLPForQuestionAnswering, config)


@pytest.fixture(scope="module")
def answerer(model, squad_tokenizer):
    return QuestionAnswerer(model, squad_tokenizer)


def test_answers_do_not_depend_on_the_batch(answerer):
    questions = ["Where?", "Who traveled in the train?", "When?"]
    contexts = [CONTEXT, CONTEXT[:30], CONTEXT[20:200]]
    alone = [answerer(question, context) for question, context in zip(questions, contexts)]
    for batch_size in (1, 4, 100):
        together = answerer(questions, contexts, batch_size=batch_size)
        assert all(map(same, together, alone))
    assert same(answerer(questions, CONTEXT)[0], alone[0])
    assert answerer([], CONTEXT) == []
    assert [len(ranked) for ranked in answerer(questions, CONTEXT, top_k=3)] == [3, 3, 3]


def test_windows_cover_a_long_context(answerer, squad_tokenizer):
    assert (answerer.max_seq_length, answerer.doc_stride) == (48, 16)
    offsets = squad_tokenizer(CONTEXT, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert len(offsets) > 100
    starts = {span["start"] for span in answerer("Where?", CONTEXT, top_k=10_000, max_answer_length=1)}
    assert starts == {start for start, end in offsets if start < end}


def test_the_empty_answer_is_ranked_on_request(answerer):
    spans = answerer("Where?", CONTEXT, top_k=10_000)
    assert "" not in {span["answer"] for span in spans}
    ranked = answerer("Where?", CONTEXT, top_k=10_000, handle_impossible_answer=True)
    assert [span["answer"] for span in ranked if span["answer"]] == [span["answer"] for span in spans]
    assert [(span["start"], span["end"]) for span in ranked if not span["answer"]] == [(0, 0)]
    scores = [span["score"] for span in ranked]
    assert scores == sorted(scores, reverse=True)
    assert answerer("Where?", CONTEXT, handle_impossible_answer=True)["answer"] == ranked[0]["answer"]


def test_unmasked_padding_is_always_the_same(squad_tokenizer, text_config, perturbed_model):
    config = text_config(vocab_size=len(squad_tokenizer), max_position_embeddings=48, mask_padding=False)
    answerer = QuestionAnswerer(perturbed_model(GMLPForQuestionAnswering, config), squad_tokenizer)
    alone = answerer("Where?", "The train went to Oslo.")
    together = answerer(["Where?", "Where?"], ["The train went to Oslo.", CONTEXT])
    assert same(together[0], alone)


def test_bad_contexts_and_models_are_refused(tmp_path, answerer, model, squad_tokenizer):
    with pytest.raises(InputError, match="empty"):
        answerer("Where?", " \n")
    with pytest.raises(ValueError, match="batch length"):
        answerer(["Where?"], ["a", "b"])
    squad_tokenizer.save_pretrained(tmp_path)
    GMLPForMaskedLM(model.config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="qa_outputs"):
        QuestionAnswerer(tmp_path)


def test_the_best_answer_is_that_of_the_logits(answerer, model, squad_tokenizer):
    context = "The train went to Oslo."
    inputs = squad_tokenizer("Where?", context, return_tensors="pt", return_offsets_mapping=True)
    offsets, context_tokens = inputs.pop("offset_mapping")[0].tolist(), inputs.pop("token_type_ids")[0].tolist()
    with torch.no_grad():
        output = model(**inputs, token_type_ids=torch.tensor([context_tokens]))
    length = len(offsets)
    scores = {
        (start, end): float(output.start_logits[0, start] + output.end_logits[0, end])
        for start in range(length)
        for end in range(start, length)
        if context_tokens[start] and offsets[start][0] < offsets[start][1] and offsets[end][0] < offsets[end][1]
    }
    start, end = max(scores, key=scores.get)
    answer = answerer("Where?", context)
    assert (answer["start"], answer["end"]) == (offsets[start][0], offsets[end][1])
    top = np.array(sorted(scores.values(), reverse=True)[:20])
    assert answer["score"] == pytest.approx(1 / np.exp(top - top[0]).sum(), rel=1e-4)
