import pytest

from hf_gmlp.data.documents import load_texts
from hf_gmlp.data.files import Access
from hf_gmlp.data.source import Source
from hf_gmlp.errors import InputError

from ..samples import write_rows


def load(tmp_path, train_path=None, validation_path=None, **options):
    """Call load_texts with single files and a separate cache."""
    files = {split: [str(path)] for split, path in (("train", train_path), ("validation", validation_path)) if path}
    return load_texts(Source(files, access=Access(cache_dir=str(tmp_path / "cache"))), **options)


def test_held_out_documents_are_not_trained_on(tmp_path):
    texts = [f"document {i}" for i in range(40)]
    path = write_rows(tmp_path / "train.jsonl", [{"text": text, "other": 1} for text in texts])

    def parts(seed, **needed):
        loaded = load(tmp_path, path, seed=seed, held_out=0.25, **needed)
        return [rows["text"][:] for rows in loaded.values()]

    train, validation = parts(1)
    assert len(validation) == 10 and sorted(train + validation) == sorted(texts)
    assert parts(1) == [train, validation] and parts(2)[1] != validation
    # Each part is the same without the other.
    assert [parts(1, validate=False), parts(1, train=False)] == [[train], [validation]]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("content", "column"),
    [('{"text": ["a"]}', "text"), ('{"a": "b"}', "body")],
)
def test_columns_without_text_are_refused(tmp_path, streaming, content, column):
    (tmp_path / "data.jsonl").write_text(content + "\n")
    with pytest.raises(InputError, match=f"No text is in a column '{column}'.*--text_column_name"):
        load(tmp_path, tmp_path / "data.jsonl", tmp_path / "data.jsonl", streaming=streaming, text_column=column)


def test_a_file_without_blank_lines_has_several_documents(tmp_path):
    lines, path = [f"sentence {number}" for number in range(250)], tmp_path / "train.txt"
    path.write_text("\n".join(lines))
    texts = load(tmp_path, path, path)["train"]["text"][:]
    assert [text.count("\n") for text in texts] == [99, 99, 49] and "\n".join(texts).split("\n") == lines


def test_missing_and_too_few_documents_are_refused(tmp_path):
    with pytest.raises(InputError, match="--train_file"):
        load(tmp_path)
    two = write_rows(tmp_path / "two.jsonl", [{"text": "a"}, {"text": "b"}])
    with pytest.raises(InputError, match="no train data"):
        load(tmp_path, validation_path=two)
    # No rows are held out of a stream.
    with pytest.raises(InputError, match="no validation data"):
        load(tmp_path, two, streaming=True)
    assert len(list(load(tmp_path, two, streaming=True, validate=False)["train"])) == 2
    # One document cannot be divided, but it can be trained on.
    single = write_rows(tmp_path / "single.jsonl", [{"text": "a"}])
    with pytest.raises(InputError, match="1 document.*--validation_file"):
        load(tmp_path, single)
    with pytest.raises(InputError, match="2 document.*--validation_file"):
        load(tmp_path, two, held_out=0.99)
    assert load(tmp_path, single, validate=False)["train"]["text"][:] == ["a"]
