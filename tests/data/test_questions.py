import gzip
import json

import pytest
from datasets import Dataset

from hf_gmlp.data.files import Access
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.qa import QAArguments, load_questions

from ..samples import flat, squad, write


def load(path, split="validation", **options):
    return load_questions(QAArguments(**{f"{split}_file": [str(path)]}, **options), [split])[split]


def test_every_form_of_a_file_gives_the_same_questions(tmp_path):
    nested = squad(5, unanswerable=True)
    rows = flat(nested)
    pairs = [[dict(zip(row["answers"], pair)) for pair in zip(*row["answers"].values())] for row in rows]
    forms = {
        "nested.json": nested,
        "flat.json": {"version": "v2.0", "data": rows},
        "list.json": rows,
        "lines.jsonl": "\n".join(map(json.dumps, rows)) + "\n\n",
        "one.jsonl": json.dumps(rows[0]),
        "answers.jsonl": "\n".join(json.dumps(row | {"answers": pair}) for row, pair in zip(rows, pairs)),
    }
    expected = [{key: row[key] for key in ("id", "question", "context", "answers")} for row in rows]
    for name, content in forms.items():
        loaded = load(write(tmp_path / name, content), version_2_with_negative=True)
        assert loaded.to_list() == (expected[:1] if name == "one.jsonl" else expected), name
    both = [str(tmp_path / "one.jsonl"), write(tmp_path / "rest.json", {"data": rows[1:]})]
    arguments = QAArguments(train_file=both, version_2_with_negative=True, max_train_samples=4)
    assert load_questions(arguments, ["train"])["train"].to_list() == expected[:4]


def test_a_data_set_is_loaded_by_name(tmp_path):
    rows, name = flat(squad(4)), str(tmp_path / "squad")
    Dataset.from_list(rows).to_parquet(tmp_path / "squad" / "train.parquet")
    access = Access(str(tmp_path / "cache"))
    loaded = load_questions(QAArguments(dataset_name=name, max_train_samples=5), ["train"], access)
    assert loaded["train"]["id"][:] == [row["id"] for row in rows[:5]]
    with pytest.raises(InputError, match="no validation questions .*--validation_file"):
        load_questions(QAArguments(dataset_name=name), ["validation"], access)


def test_compressed_files_byte_order_marks_and_line_ends_are_read(tmp_path):
    answers = {"text": ["two"], "answer_start": [4]}
    row = {"id": "a", "question": "Q?", "context": "One\u2028two\x85 three", "answers": answers}
    lines = "\ufeff" + "\r\n".join(json.dumps(row | {"id": key}, ensure_ascii=False) for key in "ab")
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert load(tmp_path / "x.jsonl.gz").to_list() == [row, row | {"id": "b"}]


ROW = flat(squad(1))[0]
ANSWERS = ROW["answers"]
START = ANSWERS["answer_start"][0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (" \n", "no validation questions"),
        (f"{json.dumps(ROW)}\n{json.dumps(ROW)[:-9]}", "x.json cannot be read .*: line 2"),
        ({"data": [{"paragraphs": [{"qas": []}]}, {"title": "t"}]}, "no field 'id'"),
        ([ROW | {"context": ["a"]}], "no field 'context'"),
        ([ROW | {"answers": {"text": ["a"], "answer_start": []}}], "0-0-name' .* needs 'answers', each with"),
        ([ROW | {"answers": [{"text": 5, "answer_start": 0}]}], "0-0-name' .* needs 'answers', each with"),
        ([ROW | {"context": " "}], "0-0-name .* empty context"),
        ([ROW | {"is_impossible": True}], "0-0-name .* 'is_impossible'"),
        ([ROW | {"answers": ANSWERS | {"answer_start": [-1]}}], "0-0-name .* -1"),
        ("id,question,context", "x.json cannot be read as questions.*line 1"),
        ([ROW | {"answers": ANSWERS | {"answer_start": [START + 1]}}], f"'{ANSWERS['text'][0]}', is not at"),
        ([ROW | {"answers": {"text": [], "answer_start": []}}], "0-0-name .*--version_2_with_negative"),
        ([ROW, ROW], "have the id 0-0-name"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load(write(tmp_path / "x.json", content))
    assert "\n" not in str(caught.value)


def test_missing_data_are_named(tmp_path):
    with pytest.raises(InputError, match="--train_file"):
        load_questions(QAArguments(validation_file=[str(tmp_path / "x.json")]), ["train"])


def test_answers_after_white_space_are_found(tmp_path):
    row = {"id": 7, "question": "q", "context": "It is\n  here.", "answers": {"text": ["here"], "answer_start": [5]}}
    loaded = load(write(tmp_path / "x.json", [row]))
    assert loaded["answers"][0] == {"text": ["here"], "answer_start": [8]} and loaded["id"][0] == "7"


def test_test_split_may_have_answers_or_none(tmp_path):
    rows = flat(squad(2, unanswerable=True))
    hidden = [row | {"answers": None} for row in rows]
    assert load(write(tmp_path / "hidden.json", hidden), "test").column_names == ["id", "question", "context"]
    empty = [row | {"answers": {"text": [], "answer_start": []}} for row in rows]
    assert "answers" not in load(write(tmp_path / "empty.json", empty), "test").column_names
    known = write(tmp_path / "known.json", rows)
    assert "answers" in load(known, "test", version_2_with_negative=True).column_names
    with pytest.raises(InputError, match="--version_2_with_negative"):
        load(known, "test")
