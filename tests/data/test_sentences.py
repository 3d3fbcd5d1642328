import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from hf_gmlp.data.labels import ONE_CLASS, REGRESSION, Labels
from hf_gmlp.data.sentences import load_sentences, sequence_lengths, texts, tokenize_sentences, truncation_note
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue import TASKS, GlueArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments

from ..samples import WORDS, word_tokenizer, write_rows

PAIR = ("premise", "hypothesis")


@pytest.fixture
def load(tmp_path):
    """load(*splits, **flags) calls load_sentences with the flags of run_glue.py and a separate cache."""
    model_args = ModelArguments(config_name="gmlp-base", cache_dir=str(tmp_path / "cache"))

    def load(*kinds, trained=None, **flags):
        data_args = GlueArguments(**flags)
        source = data_args.source(model_args, RunArguments(str(tmp_path), use_cpu=True))
        return load_sentences(source, kinds or ["train"], trained=trained, **data_args.loading_options())[:2]

    return load


@pytest.fixture
def write(tmp_path):
    """write(name, rows) writes a file in the format of its extension, and returns a list with its path."""
    return lambda name, rows: [str(write_rows(tmp_path / name, rows))]


def rows(labels, columns=("sentence",)):
    return [{column: f"{column} {i}" for column in columns} | {"label": label} for i, label in enumerate(labels)]


def test_text_columns_are_selected_by_name(load, write):
    pairs = write("pairs.jsonl", rows([0, 1], ("question", "sentence", "other")))
    data = load(train_file=pairs)[0]["train"]
    assert data.column_names == ["sentence1", "sentence2", "labels"]
    assert data["sentence1"][0] == "question 0" and data["sentence2"][1] == "sentence 1"
    data = load(train_file=pairs, text_column_names=["other"])[0]["train"]
    assert data.column_names == ["sentence1", "labels"] and list(texts(data)) == ["other 0", "other 1"]
    # Each column is renamed to the other.
    swapped = write("swapped.jsonl", rows([0, 1], ("sentence1", "sentence2")))
    splits, _ = load(train_file=swapped, text_column_names=["sentence2", "sentence1"])
    assert splits["train"]["sentence1"][0] == "sentence2 0"


def test_rows_of_a_spreadsheet_are_held_out(load, write):
    content = [{"message": f"m{i}", "category": ("007", "8")[i % 10 == 3]} for i in range(100)]
    splits, labels = load("train", "validation", train_file=write("tickets.csv", content))
    assert labels.names == ["007", "8"] and len(splits["train"]) == 90
    held_out = splits["validation"]
    assert sorted(held_out["labels"]) == [0] * 9 + [1]
    assert held_out["sentence1"][:] == [f"m{row - 1}" for row in held_out["row"]]
    assert list(texts(held_out)) == held_out["sentence1"][:]


def test_files_of_a_task_have_names_or_numbers(load, write):
    train = write("train.jsonl", rows([0, 1, 2], PAIR))
    matched = write("m.jsonl", rows(["contradiction", "entailment"], PAIR))
    mismatched = write("mm.csv", rows(["2", "neutral"], PAIR))
    options = {"validation_file": matched + mismatched, "test_file": write("test.jsonl", rows([-1], PAIR))}
    splits, labels = load("train", "validation", "test", task_name="mnli", train_file=train, **options)
    assert labels.names == ["entailment", "neutral", "contradiction"]
    assert list(splits) == ["train", "validation_matched", "validation_mismatched", "test_matched"]
    assert splits["validation_matched"]["labels"][:] == [2, 0]
    assert splits["validation_mismatched"]["labels"][:] == [2, 1]
    assert splits["test_matched"].column_names == ["sentence1", "sentence2"]


def test_a_checkpoint_keeps_the_order_of_its_classes(load, write):
    files = {"validation_file": write("v.jsonl", rows(["b", "c", "a"]))}
    train = {"train_file": write("t.jsonl", rows(["a", "b", "c"]))}
    for options in (files, files | train):
        splits, labels = load("validation", **options, trained=Labels(["c", "a", "b"], ONE_CLASS))
        assert labels.names == ["c", "a", "b"] and splits["validation"]["labels"][:] == [2, 0, 1]
        assert list(splits) == ["validation"]
    # Other classes need a new head.
    assert load(**files, **train, trained=Labels(["x", "y", "z"], ONE_CLASS))[1].names == ["a", "b", "c"]
    # A regressor has no classes.
    scores = write("s.jsonl", rows([1, 2]))
    splits, labels = load("validation", validation_file=scores, trained=Labels(None, REGRESSION))
    assert labels.names is None and splits["validation"]["labels"][:] == [1.0, 2.0]


def test_labels_are_collected_before_rows_are_left_out(load, write, caplog):
    train = write("t.jsonl", [*rows(["a", "a"]), {"sentence": " ", "label": "b"}])
    files = {"train_file": train, "validation_file": train}
    splits, labels = load("train", "validation", **files, max_train_samples=2, max_eval_samples=9)
    assert labels.names == ["a", "b"] and len(splits["train"]) == 2 and len(splits["validation"]) == 3
    assert "first 2 rows of the train data have only one class" in caplog.text
    assert "1 row(s) of the validation data have no text, such as row 3" in caplog.text


def test_test_data_may_have_no_labels(load, write):
    train = write("t.jsonl", rows(["a", "b"]))
    for name, test in (("m", rows([-1, -1])), ("b", [{"sentence": "x"}])):
        splits, _ = load("train", "test", train_file=train, test_file=write(f"{name}.jsonl", test))
        assert splits["test"].column_names == ["sentence1"]
    # -1 is a valid label if it is one of the classes.
    signs = write("signs.jsonl", rows([-1, 1]))
    splits, _ = load("train", "test", train_file=signs, test_file=write("s.jsonl", rows([-1, -1])))
    assert splits["test"]["labels"][:] == [0, 0]


@pytest.mark.parametrize("name", ["mnli", "stsb"])
def test_glue_tasks_of_the_hub_are_read(load, monkeypatch, name):
    task = TASKS[name]
    label = Value("float32") if task.labels is None else ClassLabel(names=list(task.labels))
    features = Features({column: Value("string") for column in task.columns} | {"label": label})
    # The labels of the tests are -1.
    validations, tests = task.splits("validation"), task.splits("test")
    labels = {"train": (0, 1, 1, 0)} | dict.fromkeys(validations, (1, 0)) | dict.fromkeys(tests, (-1, -1))
    glue = {split: Dataset.from_list(rows(values, task.columns), features) for split, values in labels.items()}

    def load_dataset(dataset_name, dataset_config_name, **options):
        assert (dataset_name, dataset_config_name) == ("nyu-mll/glue", name)
        return glue

    monkeypatch.setattr("hf_gmlp.data.source.load_dataset", load_dataset)
    splits, labels = load("train", "validation", "test", task_name=name)
    assert list(splits) == ["train", *validations, *tests]
    assert labels.names == (list(task.labels) if task.labels else None)
    assert splits["train"]["labels"][:] == [0, 1, 1, 0]
    for split, dataset in splits.items():
        label_columns = [] if split.startswith("test") else ["labels"]
        assert dataset.column_names == [*("sentence1", "sentence2")[: len(task.columns)], *label_columns]


def test_data_sets_of_the_hub_are_read(load, monkeypatch):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["z", "a"])})
    train = Dataset.from_dict({"text": ["x", "y"] * 10, "label": [0, 1] * 10}, features=features)
    monkeypatch.setattr("hf_gmlp.data.source.load_dataset", lambda *names, **options: DatasetDict({"train": train}))
    # The class order is that of the dataset.
    assert load(dataset_name="some/data")[1].names == ["z", "a"]
    # Validation rows are held out of the training data.
    splits, _ = load("train", "validation", dataset_name="some/data", train_val_split=0.5)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 10, "validation": 10}
    with pytest.raises(InputError, match="no validation data.*--validation_file"):
        load("validation", dataset_name="some/data")


@pytest.mark.parametrize(
    ("content", "message", "options"),
    [
        (rows(["a"]), "no column 'gold': .* sentence, label", {"label_column_name": "gold"}),
        (rows(["a"]), "text from body: the columns are sentence, label", {"text_column_names": ["body"]}),
        (rows(["a", "b"]), "text from label: .* the label is 'label'", {"text_column_names": ["label"]}),
        ([*rows(["a", "b"]), {"sentence": None, "label": "a"}], "Row 3 .*'sentence'", {}),
        ([{"body": "x", "to": "y", "label": 1}], "the columns are body, to, label.*--text_column_names", {}),
        ([{"sentence": ["x", "y"], "label": 0}, {"sentence": [], "label": 1}], "'sentence' must hold text", {}),
    ],
)
def test_bad_columns_and_rows_are_refused(load, write, content, message, options):
    with pytest.raises(InputError, match=message):
        load(train_file=write("t.jsonl", content), **options)


def test_too_many_or_too_few_files_are_refused(load, write):
    pairs = write("pairs.jsonl", rows([0, 1], PAIR))
    with pytest.raises(InputError, match="3 files"):
        load("validation", task_name="mnli", validation_file=pairs * 3)
    with pytest.raises(InputError, match="--train_file"):
        load("train", validation_file=pairs)
    with pytest.raises(InputError, match="--validation_file"):
        load("validation", train_file=pairs)
    with pytest.raises(InputError, match="too few to hold some out"):
        load("train", "validation", train_file=pairs)
    soft = write("soft.jsonl", rows([{"no": number / 20, "yes": 1 - number / 20} for number in range(20)]))
    assert load(train_file=soft)[1].names == ["no", "yes"]
    with pytest.raises(InputError, match="Probabilities cannot be held out"):
        load("train", "validation", train_file=soft)
    with pytest.raises(InputError, match="labels are unknown"):
        load("validation", validation_file=pairs)


def test_pairs_have_the_input_of_bert_and_truncated_ones_are_counted(caplog):
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = word_tokenizer(WORDS, model_input_names=inputs)
    pairs = {"sentence1": ["w0 w1", "w0 w1 w2 w3 w4"], "sentence2": ["w5", "w6 w7"], "labels": [1, 0]}
    encoded = tokenize_sentences(Dataset.from_dict(pairs), tokenizer, 8)
    # The longer sentence is truncated.
    assert encoded["input_ids"][:] == [[2, 5, 6, 3, 10, 3], [2, 5, 6, 7, 3, 11, 12, 3]]
    assert encoded["token_type_ids"][:] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]
    assert set(encoded.column_names) == {*inputs, "labels"}
    lengths = sequence_lengths(encoded)
    assert lengths.tolist() == [6, 8]
    assert "1 of 2 rows" in truncation_note(lengths, 8) and truncation_note(lengths[:1], 8) is None
