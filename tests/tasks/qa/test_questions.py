import bz2
import gzip
import json

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import CanineTokenizer, PreTrainedTokenizerFast

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.qa.arguments import QAArguments
from hf_gmlp.tasks.qa.questions import load_questions
from hf_gmlp.tasks.qa.windows import DECODING_COLUMNS, check_tokenizer, make_windows, shorten_questions, window_dataset
from hf_gmlp.training.files import Access

from ...samples import CITIES, flat, squad, write


def load(path, split="validation", **options):
    return load_questions(QAArguments(**{f"{split}_file": [str(path)]}, **options), [split])[split]


@pytest.fixture(scope="module")
def bert_tokenizer():
    """BERT's parts: lower case, no accents, words and punctuation separated, continuations with ##."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["the", "train", "went", "to", "was", "traveler", "who", *letters, *".,?-'"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: index for index, token in enumerate(special + words + [f"##{letter}" for letter in letters])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **dict(zip(names, special)),
    )


@pytest.fixture(params=["sentencepiece", "bert"])
def any_tokenizer(request, squad_tokenizer, bert_tokenizer):
    return {"sentencepiece": squad_tokenizer, "bert": bert_tokenizer}[request.param]


def test_every_form_of_a_file_gives_the_same_questions(tmp_path):
    nested = squad(5, unanswerable=True)
    rows = flat(nested)
    forms = {
        "nested.json": nested,
        "flat.json": {"version": "v2.0", "data": rows},
        "list.json": rows,
        "lines.jsonl": "\n".join(map(json.dumps, rows)) + "\n\n",
        "one.jsonl": json.dumps(rows[0]),
        "answers.jsonl": "\n".join(
            json.dumps(row | {"answers": [dict(zip(row["answers"], pair)) for pair in zip(*row["answers"].values())]})
            for row in rows
        ),
    }
    expected = [{key: row[key] for key in ("id", "question", "context", "answers")} for row in rows]
    for name, content in forms.items():
        loaded = load(write(tmp_path / name, content), version_2_with_negative=True)
        assert loaded.to_list() == (expected[:1] if name == "one.jsonl" else expected), name
    both = [str(tmp_path / "one.jsonl"), write(tmp_path / "rest.json", {"data": rows[1:]})]
    arguments = QAArguments(train_file=both, version_2_with_negative=True, max_train_samples=4)
    assert load_questions(arguments, ["train"])["train"].to_list() == expected[:4]


def test_data_set_by_name(tmp_path):
    rows = flat(squad(4))
    name = str(tmp_path / "squad")
    Dataset.from_list(rows).to_parquet(tmp_path / "squad" / "train.parquet")
    access = Access(str(tmp_path / "cache"))
    loaded = load_questions(QAArguments(dataset_name=name, max_train_samples=5), ["train"], access)
    assert loaded["train"]["id"][:] == [row["id"] for row in rows[:5]]
    with pytest.raises(InputError, match="no validation data: .*squad has train"):
        load_questions(QAArguments(dataset_name=name), ["validation"], access)
    with pytest.raises(InputError, match="nowhere cannot be loaded"):
        load_questions(QAArguments(dataset_name=str(tmp_path / "nowhere")), ["train"])


def test_compressed_files_byte_order_marks_and_line_ends(tmp_path):
    row = {
        "id": "a",
        "question": "Q?",
        "context": "One\u2028two\x85 three",
        "answers": {"text": ["two"], "answer_start": [4]},
    }
    lines = "\ufeff" + "\r\n".join(json.dumps(row | {"id": key}, ensure_ascii=False) for key in "ab")
    for name, packed in (("x.jsonl", bytes), ("x.jsonl.gz", gzip.compress), ("x.jsonl.bz2", bz2.compress)):
        (tmp_path / name).write_bytes(packed(lines.encode()))
        assert load(tmp_path / name).to_list() == [row, row | {"id": "b"}]
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(lines.encode())[:-9])
    with pytest.raises(InputError, match="cut.json.gz cannot be read as JSON or JSON lines: "):
        load(tmp_path / "cut.json.gz")


def changed(row, **fields):
    return {key: value for key, value in (row | fields).items() if value is not None}


def test_bad_files_are_named(tmp_path):
    row = flat(squad(1))[0]
    answers, context = row["answers"], row["context"]
    off_by_one = {"text": answers["text"], "answer_start": [answers["answer_start"][0] + 1]}
    cases = [
        ("", "x.json is empty"),
        (" \n", "There is no question in .*x.json"),
        (json.dumps(row)[:-9], "cannot be read as JSON or JSON lines: Unterminated string"),
        (f"{json.dumps(row)}\n{json.dumps(row)[:-9]}", "Unterminated string starting at: line 2 column"),
        (json.dumps([row]).encode("utf-16"), "it is not UTF-8"),
        (["a", "b"], "no list of questions"),
        ({"data": {"a": 1}}, "no list of questions"),
        ({"data": [{"paragraphs": [{"qas": []}]}, {"title": "t"}]}, "as articles, each with .paragraphs.*: "),
        ([changed(row, id=None)], "question number 1 in .* has no field 'id'"),
        ([changed(row, question=None)], "0-0-name in .* has no field 'question' with text, only id, title, context"),
        ([changed(row, context=["a"])], "question 0-0-name in .* has no field 'context'"),
        ([changed(row, context="  ")], "context of question 0-0-name in .*x.json is empty"),
        *(
            ([changed(row, answers=wrong)], "'answers' of question 0-0-name .* as many 'text's as 'answer_start's")
            for wrong in (None, {"text": ["a"], "answer_start": []}, [{"text": "a"}])
        ),
        ([changed(row, answers=answers | {"answer_start": ["5"]})], "at a whole number, got .* at '5'"),
        ([changed(row, answers={"text": [" "], "answer_start": [3]})], "answer to question 0-0-name .* got ' ' at 3"),
        ([changed(row, answers=off_by_one)], f"question 0-0-name .*, '{answers['text'][0]}', is not at character"),
        ([changed(row, answers={"text": ["The"], "answer_start": [-len(context)]})], "got 'The' at -"),
        ([changed(row, answers={"text": [], "answer_start": []})], "0-0-name .*--version_2_with_negative"),
        ([changed(row, is_impossible=True)], "'is_impossible' of question 0-0-name .* is true, but it has 1 answers"),
        ([row, row], "Two questions in .*x.json have the id 0-0-name"),
    ]
    for content, message in cases:
        path = tmp_path / "x.json"
        path.write_bytes(content) if isinstance(content, bytes) else write(path, content)
        with pytest.raises(InputError, match=message) as caught:
            load(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no train data: give --train_file"):
        load_questions(QAArguments(validation_file=[str(path)]), ["train"])
    with pytest.raises(InputError, match="Name the data: --dataset_name"):
        load_questions(QAArguments(), ["train"])


def test_answers_after_white_space_are_found(tmp_path):
    row = {"id": 7, "question": "q", "context": "It is\n  here.", "answers": {"text": ["here"], "answer_start": [5]}}
    loaded = load(write(tmp_path / "x.json", [row]))
    assert loaded["answers"][0] == {"text": ["here"], "answer_start": [8]} and loaded["id"][0] == "7"


def test_test_split_may_have_answers_or_none(tmp_path):
    rows = flat(squad(2, unanswerable=True))
    hidden = [changed(row, answers=None) for row in rows]
    assert load(write(tmp_path / "hidden.json", hidden), "test").column_names == ["id", "question", "context"]
    empty = [row | {"answers": {"text": [], "answer_start": []}} for row in rows]
    assert "answers" not in load(write(tmp_path / "empty.json", empty), "test").column_names
    known = write(tmp_path / "known.json", rows)
    assert "answers" in load(known, "test", version_2_with_negative=True).column_names
    with pytest.raises(InputError, match="There is no answer to question .*--version_2_with_negative"):
        load(known, "test")


def test_windows_cover_the_context_and_overlap(any_tokenizer):
    context = " ".join(f"The train went to {city}-{number}." for number, city in enumerate(CITIES))
    question = "  Who traveled?\n"
    windows = make_windows([question, "Who?"], [context] * 2, any_tokenizer, max_seq_length=48, doc_stride=12)
    whole = any_tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    for index in (0, 1):
        rows = [row for row, source in enumerate(windows["question_index"]) if source == index]
        assert len(rows) > 2
        asked = any_tokenizer([question, "Who?"][index].strip(), add_special_tokens=False)["input_ids"]
        seen = []
        for row in rows:
            ids, first = windows["input_ids"][row], windows["context_start"][row]
            offsets = windows["offsets"][row]
            segments = [0] * first + [1] * (len(ids) - first)
            assert len(ids) <= 48 and windows["cls_index"][row] == 0
            assert ids[:first] == [2, *asked, 3] and ids[-1] == 3 and len(ids) == first + len(offsets) + 1
            assert windows["token_type_ids"][row] == segments and windows["attention_mask"][row] == [1] * len(ids)
            body = list(zip(ids[first:-1], map(tuple, offsets)))
            # The windows overlap.
            assert not seen or seen[-12:] == body[:12]
            seen += body[12:] if seen else body
        assert seen == list(zip(whole["input_ids"], whole["offset_mapping"]))


def test_labels_are_the_answer_or_cls(any_tokenizer):
    rows = [
        *flat(squad(6)),
        {"question": "Q?", "context": "  spaces  all over , the  place  ", "answers": ["all over ,", 10]},
        {"question": "Q?", "context": "in Zürich’s 日本 café today", "answers": ["日本 café", 12]},
        {"question": "Q?", "context": "so [SEP] and [MASK] are text", "answers": ["[MASK]", 13]},
        {"question": "Q?", "context": "white space at its ends", "answers": [" space ", 5]},
        {"question": "Q?", "context": "with (signs) around it", "answers": ["signs", 6]},
    ]
    spans = []
    for row in rows:
        answer = row["answers"]
        text, start = (answer["text"][0], answer["answer_start"][0]) if isinstance(answer, dict) else answer
        assert row["context"][start : start + len(text)] == text
        start += len(text) - len(text.lstrip())
        spans.append((start, start + len(text.strip())))
    contexts = [row["context"] for row in rows]
    windows = make_windows(
        [row["question"] for row in rows], contexts, any_tokenizer, max_seq_length=32, doc_stride=8, answers=spans
    )
    found = set()
    columns = (windows[name] for name in ("question_index", "context_start", "offsets", "start_positions"))
    for index, first, offsets, start, end in zip(*columns, windows["end_positions"]):
        text = [(a, b) for a, b in offsets if a < b]
        if start == 0:
            # This window does not hold all of the answer.
            assert end == 0 and not (text[0][0] <= spans[index][0] and spans[index][1] <= text[-1][1])
            continue
        found.add(index)
        assert (offsets[start - first][0], offsets[end - first][1]) == spans[index]
    assert found == set(range(len(rows)))


def test_names_of_special_tokens_are_text(any_tokenizer):
    context = "so [SEP] and [MASK] and [CLS] are text"
    windows = make_windows(["Is [SEP]?"], [context], any_tokenizer, max_seq_length=128, doc_stride=8)
    (ids,) = windows["input_ids"]
    assert [token for token in ids if token in (2, 3, 4)] == [2, 3, 3]
    assert sum(windows["token_type_ids"][0]) == len(windows["offsets"][0]) + 1


def test_labels_of_questions_without_answer(squad_tokenizer):
    windows = make_windows(["Q?"], ["a b c"], squad_tokenizer, max_seq_length=16, doc_stride=4, answers=[None])
    assert windows["start_positions"] == windows["end_positions"] == [0]
    windows = make_windows(["Q?"], ["a b c"], squad_tokenizer, max_seq_length=16, doc_stride=4)
    assert "start_positions" not in windows


def test_long_questions_are_cut_and_logged(squad_tokenizer, caplog):
    questions = ["word " * 100, "日本語の質問" * 20, "Who?", " " * 200 + "Who?"]
    short = shorten_questions(questions, squad_tokenizer, 10)
    for before, after in zip(questions, short):
        assert before.strip().startswith(after) and len(after) > 0
        assert len(squad_tokenizer(after, add_special_tokens=False)["input_ids"]) <= 10
    assert short[2:] == ["Who?", "Who?"] and short[0].startswith("word word")
    assert caplog.text.count("A question was cut to 10 tokens") == 2
    windows = make_windows(questions, ["The train."] * 4, squad_tokenizer, max_seq_length=24, doc_stride=4)
    assert set(windows["question_index"]) == {0, 1, 2, 3} and max(map(len, windows["input_ids"])) <= 24


def test_window_dataset_keeps_what_decoding_needs(tmp_path, squad_tokenizer):
    questions = load(write(tmp_path / "x.json", squad(4)))
    lengths = {"max_seq_length": 32, "doc_stride": 8}
    windows = window_dataset(questions, squad_tokenizer, **lengths)
    assert set(DECODING_COLUMNS) < set(windows.column_names)
    assert sorted(set(windows["question_index"])) == list(range(len(questions)))
    direct = make_windows(questions["question"], questions["context"], squad_tokenizer, **lengths)
    assert windows["input_ids"][:] == direct["input_ids"] and windows["offsets"][:] == direct["offsets"]
    training = window_dataset(questions, squad_tokenizer, **lengths, training=True)
    assert not set(DECODING_COLUMNS) & set(training.column_names)
    assert training["start_positions"][:] == windows["start_positions"][:] and max(training["start_positions"]) > 0


def test_window_dataset_of_several_batches(squad_tokenizer):
    count = 1003
    rows = {"question": ["Q?"] * count, "context": ["It is  here."] * count}
    rows["answers"] = [{"text": [" here"], "answer_start": [6]}] * count
    windows = window_dataset(Dataset.from_dict(rows), squad_tokenizer, max_seq_length=32, doc_stride=8)
    assert windows["question_index"][:] == list(range(count))
    last = windows[count - 1]
    span = [last["offsets"][last[name] - last["context_start"]] for name in ("start_positions", "end_positions")]
    assert (span[0][0], span[1][1]) == (7, 11)


def test_bad_lengths_and_tokenizers(squad_tokenizer):
    for length, stride, message in ((32, 17, "doc_stride 17, .* half of --max_seq_length, 16"),
                                    (32, -1, "doc_stride -1"), (15, 4, "at least 16, got 15")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            make_windows(["Q?"], ["a"], squad_tokenizer, max_seq_length=length, doc_stride=stride)
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}, unk_token="[UNK]"))
    padded, left = {"pad_token": "[UNK]", "cls_token": "[CLS]"}, {"padding_side": "left"}
    tokenizers = [CanineTokenizer(), PreTrainedTokenizerFast(tokenizer_object=backend, **padded)]
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    for options in (padded | left, {"cls_token": "[CLS]"}):
        tokenizers.append(PreTrainedTokenizerFast(tokenizer_object=backend, **options))
    for tokenizer in tokenizers:
        with pytest.raises(InputError, match="cannot find answers: choose a fast one"):
            check_tokenizer(tokenizer)
    check_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, **padded))
