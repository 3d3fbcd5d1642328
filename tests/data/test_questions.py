import json
import math

import numpy as np
import pytest
from datasets import Dataset
from transformers import BertTokenizer, CanineTokenizer

from hf_gmlp.data.files import Access
from hf_gmlp.data.questions import check_windows, decode_answers, load_questions, make_windows
from hf_gmlp.data.source import Source
from hf_gmlp.errors import InputError

from ..numerics import assert_close
from ..samples import CITIES, SPECIAL, flat, squad, word_tokenizer, write


def load(path, split="validation", **options):
    return load_questions(Source({split: [str(path)]}), [split], **options)[split]


def test_every_form_of_a_file_gives_the_same_questions(tmp_path):
    nested = squad(5, unanswerable=True)
    rows = flat(nested)
    pairs = [[dict(zip(row["answers"], pair)) for pair in zip(*row["answers"].values())] for row in rows]
    forms = {
        "nested.json": nested,
        "flat.json": {"version": "v2.0", "data": rows},
        "list.json": rows,
        "lines.jsonl": "\n".join(map(json.dumps, rows)) + "\n\n",
        "indented.json": json.dumps(rows, indent=1),
        "one.jsonl": json.dumps(rows[0]),
        "answers.jsonl": "\n".join(json.dumps(row | {"answers": pair}) for row, pair in zip(rows, pairs)),
    }
    expected = [{key: row[key] for key in ("id", "question", "context", "answers")} for row in rows]
    for name, content in forms.items():
        loaded = load(write(tmp_path / name, content), version_2_with_negative=True)
        assert loaded.to_list() == expected[: 1 if name == "one.jsonl" else None], name
    both = [str(tmp_path / "one.jsonl"), write(tmp_path / "rest.json", {"data": rows[1:]})]
    options = {"version_2_with_negative": True, "max_rows": {"train": 4}}
    assert load_questions(Source({"train": both}), ["train"], **options)["train"].to_list() == expected[:4]


def test_a_data_set_is_loaded_by_name(tmp_path):
    rows, name = flat(squad(4)), str(tmp_path / "squad")
    Dataset.from_list(rows).to_parquet(tmp_path / "squad" / "train.parquet")
    source = Source(dataset_name=name, access=Access(str(tmp_path / "cache")))
    loaded = load_questions(source, ["train"], max_rows={"train": 5})
    assert loaded["train"]["id"][:] == [row["id"] for row in rows[:5]]
    with pytest.raises(InputError, match="no validation questions .*--validation_file"):
        load_questions(source, ["validation"])


ROW = flat(squad(1))[0]
ANSWERS = ROW["answers"]
START = ANSWERS["answer_start"][0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (" \n", "no validation questions"),
        (f"{json.dumps(ROW)}\n{json.dumps(ROW)[:-9]}", "x.json cannot be read as json: "),
        (
            {"data": [{"paragraphs": [{"qas": []}]}, {"title": "t"}]},
            "no text in the field 'id', of title",
        ),
        ([ROW | {"answers": {"text": ["a"], "answer_start": []}}], "0-0-name' .* needs 'answers', each with"),
        ([ROW | {"answers": [{"text": 5, "answer_start": 0}]}], "0-0-name' .* needs 'answers', each with"),
        ([ROW | {"context": " "}], "0-0-name.* no text in the field 'context'"),
        ([ROW | {"is_impossible": True}], "0-0-name.* 'is_impossible'"),
        ([ROW | {"answers": ANSWERS | {"answer_start": [-1]}}], "0-0-name.* -1"),
        ("id,question,context", "x.json cannot be read as json.*line 1"),
        ([ROW | {"answers": ANSWERS | {"answer_start": [START + 1]}}], f"'{ANSWERS['text'][0]}' .* is not at"),
        ([ROW | {"answers": {"text": [], "answer_start": []}}], "0-0-name .*--version_2_with_negative"),
        ([ROW, ROW], "have the id 0-0-name"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load(write(tmp_path / "x.json", content))
    assert "\n" not in str(caught.value)


def test_answers_after_white_space_are_found(tmp_path):
    row = {"id": 7, "question": "q", "context": "It is\n  here.", "answers": {"text": ["here"], "answer_start": [5]}}
    loaded = load(write(tmp_path / "x.json", [row]))
    assert loaded["answers"][0] == {"text": ["here"], "answer_start": [8]} and loaded["id"][0] == "7"


def test_test_split_may_have_answers_or_none(tmp_path):
    rows = flat(squad(2, unanswerable=True))
    hidden = [row | {"answers": None} for row in rows]
    assert load(write(tmp_path / "hidden.json", hidden), "test").column_names == ["id", "question", "context"]
    known = write(tmp_path / "known.json", rows)
    assert "answers" in load(known, "test", version_2_with_negative=True).column_names
    with pytest.raises(InputError, match="--version_2_with_negative"):
        load(known, "test")


QUESTIONS = flat(squad(6, unanswerable=True))
CONTEXTS = [row["context"] for row in QUESTIONS]


@pytest.fixture(scope="module", params=["sentencepiece", "bert"])
def any_tokenizer(request, squad_tokenizer):
    """A trained tokenizer, and that of BERT with a small vocabulary."""
    if request.param == "sentencepiece":
        return squad_tokenizer
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["the", "train", "went", "to", "was", "traveler", "who", *letters, *".,?-'"]
    tokens = [*SPECIAL, *words, *(f"##{letter}" for letter in letters)]
    return BertTokenizer({token: index for index, token in enumerate(tokens)})


def test_windows_cover_the_context_and_overlap(any_tokenizer):
    context = " ".join(f"The train went to {city}-{number}." for number, city in enumerate(CITIES))
    questions = ["  Who traveled?\n", "Who?"]
    windows = make_windows(questions, [context] * 2, any_tokenizer, max_seq_length=48, doc_stride=12)
    complete = any_tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    for index, question in enumerate(questions):
        rows = [row for row, source in enumerate(windows["question_index"]) if source == index]
        assert len(rows) > 2
        asked = any_tokenizer(question.strip(), add_special_tokens=False)["input_ids"]
        seen = []
        for row in rows:
            ids, offsets, first = windows["input_ids"][row], windows["offsets"][row], len(asked) + 2
            assert len(offsets) == len(ids) <= 48
            assert ids[:first] == [2, *asked, 3] and ids[-1] == 3
            assert offsets[:first] == [[0, 0]] * first and offsets[-1] == [0, 0]
            assert windows["token_type_ids"][row] == [0] * first + [1] * (len(ids) - first)
            assert windows["attention_mask"][row] == [1] * len(ids)
            body = list(zip(ids[first:-1], map(tuple, offsets[first:-1])))
            # The windows overlap.
            assert not seen or seen[-12:] == body[:12]
            seen += body[12:] if seen else body
        assert seen == list(zip(complete["input_ids"], complete["offset_mapping"]))


def test_labels_are_the_answer_or_cls(any_tokenizer):
    rows = [(row["context"], row["answers"]["text"][0], row["answers"]["answer_start"][0]) for row in flat(squad(6))]
    rows += [
        ("  spaces  all over , the  text  ", "all over ,", 10),
        ("in Zürich’s 日本 café today", "日本 café", 12),
        ("so [SEP] and [MASK] are text", "[MASK]", 13),
        ("with (signs) around it", "signs", 6),
    ]
    contexts, spans = [row[0] for row in rows], [(start, start + len(text)) for _, text, start in rows]
    answers = [{"text": [text, "more"], "answer_start": [start, 0]} for _, text, start in rows]
    options = {"max_seq_length": 32, "doc_stride": 8, "answers": answers}
    windows = make_windows(["Q?"] * len(rows), contexts, any_tokenizer, **options)
    answered = set()
    columns = (windows[name] for name in ("question_index", "offsets", "start_positions", "end_positions"))
    for index, offsets, start, end in zip(*columns):
        text = [(a, b) for a, b in offsets if a < b]
        if start == 0:
            # This window does not contain the entire answer.
            assert end == 0 and not (text[0][0] <= spans[index][0] and spans[index][1] <= text[-1][1])
            continue
        answered.add(index)
        assert (offsets[start][0], offsets[end][1]) == spans[index]
    assert answered == set(range(len(rows)))


def test_long_questions_are_cut_and_logged(any_tokenizer, caplog):
    questions = ["word " * 100, "日本語の質問" * 20, "Who?", " " * 200 + "Who?"]
    windows = make_windows(questions, ["The train."] * 4, any_tokenizer, max_seq_length=24, doc_stride=4)
    assert set(windows["question_index"]) == {0, 1, 2, 3} and max(map(len, windows["input_ids"])) <= 24
    lengths = {index: parts.index(1) for index, parts in zip(windows["question_index"], windows["token_type_ids"])}
    # The question keeps half of the 17 tokens that are neither special nor overlap, between [CLS] and [SEP].
    assert lengths[0] == 2 + 8 and lengths[2] == lengths[3] == len(any_tokenizer("Who?")["input_ids"])
    assert "A question was truncated to 8 tokens" in caplog.text and "Who?" not in caplog.text


def test_lengths_and_tokenizers_that_cannot_find_answers_are_refused():
    tokenizer = word_tokenizer(["a"])
    check_windows(tokenizer, 32, 16)
    with pytest.raises(InputError, match="--doc_stride 17 .* 16"):
        check_windows(tokenizer, 32, 17)
    unpadded = word_tokenizer(["a"])
    unpadded.pad_token = None
    others = (word_tokenizer(["a"], ends=False), word_tokenizer(["a"], padding_side="left"), unpadded)
    for tokenizer in (CanineTokenizer(), *others):
        with pytest.raises(InputError, match="a fast one"):
            check_windows(tokenizer, 32, 16)


@pytest.fixture(scope="module")
def windows(squad_tokenizer):
    words = [row["question"] for row in QUESTIONS]
    return make_windows(words, CONTEXTS, squad_tokenizer, max_seq_length=32, doc_stride=8)


def random_logits(windows, width=40):
    """Logits as gathered by `Trainer`: padded, and high on padding and question, where no answer is allowed."""
    start, end = np.random.default_rng(0).normal(size=(2, len(windows["offsets"]), width)).astype(np.float32)
    for row, offsets in enumerate(windows["offsets"]):
        outside = np.array([*(first == last for first, last in offsets), *[True] * width])[:width]
        for logits in (start, end):
            logits[row, 1:][outside[1:]] += 50
    return start, end


def all_answers(windows, start, end, max_answer_length):
    """Score every span of every question: {question: {(start, end): score}}, and the lowest score of [CLS]."""
    spans, nulls = {}, {}
    for row, (question, offsets) in enumerate(zip(windows["question_index"], windows["offsets"])):
        for i, (from_character, _) in enumerate(offsets):
            for j in range(i, min(i + max_answer_length, len(offsets))):
                to_character = offsets[j][1]
                if offsets[i][0] == offsets[i][1] or offsets[j][0] == offsets[j][1]:
                    continue
                value = float(start[row, i]) + float(end[row, j])
                best = spans.setdefault(question, {})
                span = from_character, to_character
                best[span] = max(best.get(span, -math.inf), value)
        null = float(start[row, 0]) + float(end[row, 0])
        nulls[question] = min(nulls.get(question, math.inf), null)
    return spans, nulls


@pytest.mark.parametrize(("n_best_size", "max_answer_length"), [(1, 30), (7, 1), (500, 30)])
@pytest.mark.parametrize("negative", [False, True])
def test_decode_finds_the_best_of_all_spans(windows, n_best_size, max_answer_length, negative):
    assert len(windows["offsets"]) > len(CONTEXTS)
    start, end = random_logits(windows)
    options = {"n_best_size": n_best_size, "max_answer_length": max_answer_length}
    decoded = decode_answers(CONTEXTS, windows, start, end, version_2_with_negative=negative, **options)
    spans, nulls = all_answers(windows, start, end, max_answer_length)
    for index, (answer, context) in enumerate(zip(decoded, CONTEXTS)):
        ranked = sorted(spans[index].items(), key=lambda item: -item[1])
        best_span, best_score = ranked[0]
        assert answer.text == context[slice(*best_span)] == answer.text.strip()
        expected = ranked[:n_best_size]
        if negative:
            null = (0, 0), nulls[index]
            assert_close(answer.null_odds, nulls[index] - best_score)
            expected = sorted([*expected, null], key=lambda item: -item[1])[:n_best_size]
            expected += [] if null in expected else [null]
        else:
            assert answer.null_odds == -math.inf
        assert [(entry["start"], entry["end"]) for entry in answer.nbest] == [span for span, _ in expected]
        assert [entry["text"] for entry in answer.nbest] == [context[slice(*span)] for span, _ in expected]
        scores = np.array([value for _, value in expected])
        assert_close([entry["start_logit"] + entry["end_logit"] for entry in answer.nbest], list(scores))
        assert_close([entry["probability"] for entry in answer.nbest], list(np.exp(scores) / np.exp(scores).sum()))


def test_logits_that_are_not_finite_are_refused(windows):
    start, end = random_logits(windows)
    end[3, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        decode_answers(CONTEXTS, windows, start, end)
