import json

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue import sentences as classification
from hf_gmlp.tasks.glue.arguments import GlueArguments
from hf_gmlp.tasks.glue.sentences import TASKS, find_task, load_sentences, texts, tokenize
from hf_gmlp.tasks.labels import CLASSES, ONE_CLASS, REGRESSION, Labels
from hf_gmlp.training.files import Access

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture
def load(tmp_path):
    """load_sentences with a cache of its own."""

    def load(known=None, train=True, validate=True, test=False, **arguments):
        needed = {"known": known, "train": train, "validate": validate, "test": test}
        return load_sentences(GlueArguments(**arguments), **needed, access=Access(str(tmp_path / "cache")))

    return load


@pytest.fixture
def write(tmp_path):
    """write(name, rows) makes a file of the kind in its ending."""

    def write(name, rows):
        path = tmp_path / name
        ending = path.suffix.lstrip(".")
        if ending == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif ending == "json":
            path.write_text(json.dumps(rows))
        elif ending == "parquet":
            Dataset.from_list(rows).to_parquet(path)
        else:
            separator = {"csv": ",", "tsv": "\t"}[ending]
            lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
            path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write


def rows(labels, columns=("sentence",)):
    return [{column: f"{column} {i}" for column in columns} | {"label": label} for i, label in enumerate(labels)]


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("train", "validation", "names", "ids"),
    [
        (["no", "yes", "no", "None"], ["yes", "None", "no"], ["None", "no", "yes"], [2, 0, 1]),
        # By value, not by the alphabet.
        ([10, 9, 2, 10], [2, 10, 9], ["2", "9", "10"], [0, 2, 1]),
        ([0.5, 4.0, 2.25], [4.0, 0.25], None, [4.0, 0.25]),
    ],
)
def test_every_kind_of_label_from_every_kind_of_file(load, write, ending, train, validation, names, ids):
    data = load(
        train_file=[write(f"train.{ending}", rows(train))],
        validation_file=[write(f"validation.{ending}", rows(validation))],
    )
    assert data.labels == names
    assert data.splits["validation"]["labels"][:] == ids
    assert data.splits["train"]["sentence1"][:] == [f"sentence {i}" for i in range(len(train))]
    if names is not None:
        # The ids lead back to the file's labels.
        assert [names[number] for number in data.splits["train"]["labels"]] == list(map(str, train))


def test_boolean_classes_and_whole_numbers_for_regression(load, write):
    train = write("train.jsonl", rows([True, False]))
    assert load(train_file=[train], validate=False).labels == ["False", "True"]
    stars = write("stars.jsonl", rows([1, 5, 3]))
    data = load(train_file=[stars], validate=False, do_regression=True)
    assert data.labels is None and data.splits["train"]["labels"][:] == [1.0, 5.0, 3.0]
    halves = write("halves.jsonl", rows([1.0, 2.0]))
    assert load(train_file=[halves], validate=False, do_regression=False).labels == ["1", "2"]


def test_pairs_and_columns_by_name(load, write):
    pairs = write("pairs.jsonl", rows([0, 1], ("question", "sentence", "other")))
    data = load(train_file=[pairs], validate=False)
    assert data.splits["train"].column_names == ["sentence1", "sentence2", "labels"]
    assert data.splits["train"]["sentence1"][0] == "question 0" and data.splits["train"]["sentence2"][1] == "sentence 1"
    data = load(train_file=[pairs], validate=False, text_column_names=["other"], label_column_name="label")
    assert data.splits["train"].column_names == ["sentence1", "labels"]
    assert list(texts(data.splits["train"])) == ["other 0", "other 1"]
    # Columns in another order than in the file, where one has the other's new name.
    swapped = write("swapped.jsonl", rows([0, 1], ("sentence1", "sentence2")))
    data = load(train_file=[swapped], validate=False, text_column_names=["sentence2", "sentence1"])
    assert data.splits["train"]["sentence1"][0] == "sentence2 0"


def test_a_quotation_mark_in_a_tsv_is_text(load, tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text('sentence\tlabel\n"open\tyes\nshe said "no"\tno\nNA\tyes\n')
    data = load(train_file=[str(path)], validate=False)
    assert data.splits["train"]["sentence1"][:] == ['"open', 'she said "no"', "NA"]


def test_tasks_take_names_and_numbers_from_files(load, write):
    train = write("train.jsonl", rows([0, 1, 2], ("premise", "hypothesis")))
    matched = write("m.jsonl", rows(["contradiction", "entailment"], ("premise", "hypothesis")))
    mismatched = write("mm.csv", rows(["2", "neutral"], ("premise", "hypothesis")))
    unlabeled = write("test.jsonl", [{"premise": "p", "hypothesis": "h", "label": -1}])
    data = load(
        task_name="MNLI",
        train_file=[train],
        validation_file=[matched, mismatched],
        test_file=[unlabeled],
        test=True,
    )
    assert data.labels == ["entailment", "neutral", "contradiction"]
    assert list(data.splits) == ["train", "validation_matched", "validation_mismatched", "test_matched"]
    assert data.splits["validation_matched"]["labels"][:] == [2, 0]
    assert data.splits["validation_mismatched"]["labels"][:] == [2, 1]
    assert data.splits["test_matched"].column_names == ["sentence1", "sentence2"]


def test_a_checkpoint_keeps_its_order(load, write):
    files = {"validation_file": [write("v.jsonl", rows(["b", "c", "a"]))]}
    train = {"train_file": [write("t.jsonl", rows(["a", "b", "c"]))]}
    for options in (files, files | train):
        data = load(**options, train=False, known=Labels(["c", "a", "b"], ONE_CLASS))
        assert data.labels == ["c", "a", "b"] and data.splits["validation"]["labels"][:] == [2, 0, 1]
    # Other classes need a new head.
    assert load(**files, **train, known=Labels(["x", "y", "z"], ONE_CLASS)).labels == ["a", "b", "c"]
    # A task's numbers keep their meaning, whatever the checkpoint's order.
    pairs = write("p.jsonl", rows([0, 1], ("sentence1", "sentence2")))
    order = ["not_entailment", "entailment"]
    data = load(task_name="rte", validation_file=[pairs], train=False, known=Labels(order, ONE_CLASS))
    assert data.labels == order and data.splits["validation"]["labels"][:] == [1, 0]
    # A regressor has no classes.
    scores = {"validation_file": [write("s.jsonl", rows([1, 2]))]}
    data = load(**scores, train=False, known=Labels(None, REGRESSION))
    assert data.labels is None and data.splits["validation"]["labels"][:] == [1.0, 2.0]


def test_labels_come_from_all_rows_before_the_first_are_taken(load, write):
    train = write("t.jsonl", rows(["a", "a", "b"]))
    data = load(train_file=[train], validation_file=[train], max_train_samples=2, max_eval_samples=9)
    assert data.labels == ["a", "b"] and len(data.splits["train"]) == 2 and len(data.splits["validation"]) == 3


def glue_on_the_hub(name):
    """A task as in nyu-mll/glue: its splits, columns and features, with -1 as the labels of the tests."""
    task = TASKS[name]
    label = Value("float32") if task.labels is None else ClassLabel(names=list(task.labels))
    features = Features({**{column: Value("string") for column in task.columns}, "label": label, "idx": Value("int32")})
    tests = [split for split in task.tests if split != "test_ax"]

    def split(labels):
        columns = {column: [f"{column} {i}" for i in range(len(labels))] for column in task.columns}
        return Dataset.from_dict({**columns, "label": list(labels), "idx": list(range(len(labels)))}, features=features)

    labels = {"train": (0, 1, 1, 0)} | dict.fromkeys(task.validations, (1, 0)) | dict.fromkeys(tests, (-1, -1))
    return DatasetDict({name: split(values) for name, values in labels.items()})


@pytest.mark.parametrize("name", TASKS)
def test_every_task_as_it_is_on_the_hub(load, monkeypatch, name):
    def load_data(dataset_name, dataset_config_name, access):
        assert dataset_name == "nyu-mll/glue"
        if dataset_config_name == "ax":
            return {"test": glue_on_the_hub(name)["test_matched"]}
        return glue_on_the_hub(dataset_config_name)

    monkeypatch.setattr(classification, "load_data", load_data)
    task = find_task(name)
    data = load(task_name=name, test=True)
    assert list(data.splits) == ["train", *task.validations, *task.tests]
    assert data.labels == (list(task.labels) if task.labels else None)
    assert data.splits["train"]["labels"][:] == [0, 1, 1, 0]
    for split, dataset in data.splits.items():
        assert ("labels" in dataset.column_names) == (not split.startswith("test"))
        assert len(dataset.column_names) == len(task.columns) + ("labels" in dataset.column_names)


def test_data_sets_on_the_hub(load, monkeypatch):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["z", "a"])})
    made = DatasetDict({"train": Dataset.from_dict({"text": ["x", "y"], "label": [0, 1]}, features=features)})
    monkeypatch.setattr(classification, "load_data", lambda **options: made)
    # The data set's own order.
    assert load(dataset_name="some/data", validate=False).labels == ["z", "a"]
    with pytest.raises(InputError, match="has no split validation but train: name one with --validation_split_name"):
        load(dataset_name="some/data")
    made["dev"] = made["train"]
    data = load(dataset_name="some/data", validation_split_name="dev")
    assert list(data.splits) == ["train", "validation"]
    with pytest.raises(InputError, match="has no split held-out but train, dev"):
        load(dataset_name="some/data", validation_split_name="held-out")
    # A part of MNLI has its own name.
    monkeypatch.setattr(classification, "load_data", lambda **options: glue_on_the_hub("mnli"))
    data = load(task_name="mnli", validation_split_name="validation_mismatched")
    assert list(data.splits) == ["train", "validation_mismatched"]


@pytest.fixture(scope="module")
def tokenizer():
    """One token per word, and BERT's template."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *(f"w{i}" for i in range(20))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": 0, "unk_token": 1, "cls_token": 2, "sep_token": 3, "mask_token": 4}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{name: SPECIAL[i] for name, i in names.items()},
    )


def test_pairs_have_the_input_of_bert(tokenizer):
    pairs = Dataset.from_dict(
        {"sentence1": ["w0 w1", "w0 w1 w2 w3 w4"], "sentence2": ["w5", "w6 w7"], "labels": [1, 0]}
    )
    encoded = tokenize(pairs, tokenizer, 8, GlueArguments())
    # The longer sentence is cut.
    assert encoded["input_ids"][:] == [[2, 5, 6, 3, 10, 3], [2, 5, 6, 7, 3, 11, 12, 3]]
    assert encoded["token_type_ids"][:] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]
    assert encoded["labels"][:] == [1, 0]
    assert set(encoded.column_names) == {"input_ids", "token_type_ids", "attention_mask", "labels"}


def test_single_sentences_and_padding(tokenizer):
    sentences = Dataset.from_dict({"sentence1": ["w0", "w1 w2 w3 w4 w5"]})
    encoded = tokenize(sentences, tokenizer, 5, GlueArguments(pad_to_max_length=True))
    assert encoded["input_ids"][:] == [[2, 5, 3, 0, 0], [2, 6, 7, 8, 3]]
    assert encoded["attention_mask"][:] == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_bad_data_are_explained_in_one_sentence(load, write, tmp_path):
    good = write("good.jsonl", rows(["a", "b"]))
    pairs = write("pairs.jsonl", rows([0, 1], ("premise", "hypothesis")))
    textless = write("textless.jsonl", [*rows(["a", "b"]), {"sentence": None, "label": "a"}])
    (tmp_path / "empty.csv").touch()
    (tmp_path / "head.csv").write_text("sentence,label\n")
    cases = [
        ({}, "Name the data"),
        ({"task_name": "sst3", "train_file": [good]}, "GLUE has no task 'sst3'; --task_name is one of cola"),
        ({"train_file": [good], "validate": True}, "no validation data: give --validation_file"),
        ({"validation_file": [good]}, "no training data: give --train_file"),
        ({"train_file": ["none.csv"]}, r"no file none\.csv"),
        ({"train_file": [str(tmp_path / "empty.csv")]}, r"empty\.csv is empty"),
        ({"train_file": [str(tmp_path / "head.csv")]}, r"head\.csv cannot be read"),
        (
            {"task_name": "mnli", "train_file": [pairs], "validation_file": [pairs] * 3, "validate": True},
            "has 3 files",
        ),
        ({"train_file": [good], "task_name": "mnli"}, "training data have no column 'premise' but sentence, label"),
        (
            {"train_file": [good], "label_column_name": "gold"},
            "training data have no column 'gold' but sentence",
        ),
        ({"train_file": [good], "text_column_names": ["body"]}, "training data have no column 'body'"),
        (
            {"train_file": [write("c.jsonl", [{"body": "x", "label": 1}])]},
            "Name the columns of the sentences with --text_column_names: the training data have",
        ),
        (
            {"train_file": [write("o.jsonl", rows(["a", "b"]))], "task_name": "sst2", "do_regression": True},
            "--do_regression does not fit --task_name sst2",
        ),
        ({"train_file": [good], "train_split_name": "x"}, "--train_split_name is for a data set on the Hub"),
        ({"train_file": [good], "text_column_names": ["label"]}, "columns label and label, of the label, must be diff"),
        ({"train_file": [write("l.jsonl", rows([{"a": 1}, {"a": 2}]))]}, "The column 'label' must hold labels, not"),
        (
            {"train_file": [write("k.jsonl", [{"sentence": ["x", "y"], "label": 0}, {"sentence": [], "label": 1}])]},
            "The column 'sentence' of the training data must hold text, not List",
        ),
        ({"train_file": [write("n.jsonl", rows(["a", None, "b"]))]}, "Row 2 of the training data has no label"),
        ({"train_file": [write("m.csv", rows(["a", "", "b"]))]}, "Row 2 of the training data has no label"),
        ({"train_file": [textless]}, "Row 3 of the training data has nothing in the column 'sentence'"),
        (
            {"train_file": [write("r.jsonl", rows(["a", "b"]))], "do_regression": True},
            "label 'a', which is not a n",
        ),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            load(**({"validate": False} | options))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_label_missing_from_the_training_data_is_refused(load, write, split):
    files = {
        "train_file": [write("t.jsonl", rows(["a", "b"]))],
        f"{split}_file": [write("v.jsonl", rows(["a", "c"]))],
    }
    with pytest.raises(InputError, match=f"Row 2 of the {split} data has the label 'c', which is not one of a, b"):
        load(**files, validate=split == "validation", test=split == "test")


def test_unlabeled_test_data(load, write):
    train = write("t.jsonl", rows(["a", "b"]))
    for name, labels in (("none.jsonl", [None, None]), ("minus.jsonl", [-1, -1])):
        data = load(train_file=[train], test_file=[write(name, rows(labels))], validate=False, test=True)
        assert data.splits["test"].column_names == ["sentence1"]
    bare = write("bare.jsonl", [{"sentence": "x"}])
    assert load(train_file=[train], test_file=[bare], validate=False, test=True).splits["test"].num_rows == 1
    # Where -1 is a class, it is a label.
    signs = write("signs.jsonl", rows([-1, 1]))
    data = load(train_file=[signs], test_file=[write("s.jsonl", rows([-1, -1]))], validate=False, test=True)
    assert data.splits["test"]["labels"][:] == [0, 0]


def test_sentences_of_digits_stay_as_they_are_written(load, tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text("text,label\n007,001\n1.0,002\nNA,001\n,002\n")
    data = load(train_file=[str(path)], validate=False)
    assert data.splits["train"]["sentence1"][:] == ["007", "1.0", "NA", ""] and data.labels == ["001", "002"]


def test_several_labels_per_row(load, write):
    train = write("t.jsonl", rows([["b", "a"], [], ["c"]]))
    test = write("s.jsonl", rows([["c", "a"]]))
    data = load(train_file=[train], test_file=[test], validate=False, test=True)
    assert data.labels == ["a", "b", "c"] and data.problem_type == CLASSES
    assert data.splits["train"]["labels"][:] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert data.splits["test"]["labels"][:] == [[1, 0, 1]]
    known = Labels(["c", "b", "a", "d"], CLASSES)
    data = load(validation_file=[test], train=False, known=known)
    assert data.labels == known.names and data.splits["validation"]["labels"][:] == [[1, 0, 1, 0]]


def test_any_number_of_columns_can_be_joined(load, write):
    train = write("t.jsonl", rows([0, 1], ("title", "body", "place")))
    options = {"text_column_names": ["place", "title", "body"], "text_column_delimiter": " | "}
    data = load(train_file=[train], validate=False, **options)
    assert data.splits["train"]["sentence1"][0] == "place 0 | title 0 | body 0"
    assert set(data.splits["train"].column_names) == {"sentence1", "labels"}


def test_training_rows_are_shuffled_before_the_first_are_taken(load, write):
    train = write("t.jsonl", rows([i % 2 for i in range(20)]))
    options = {"train_file": [train], "validation_file": [train], "max_train_samples": 8, "shuffle_train_dataset": True}
    data, other = (load(**options, shuffle_seed=seed) for seed in (1, 2))
    drawn = data.splits["train"]["sentence1"][:]
    assert len(drawn) == 8 and drawn != [f"sentence {i}" for i in range(8)]
    assert drawn != other.splits["train"]["sentence1"][:]
    # Labels move along, and the validation data stay in order.
    assert data.splits["train"]["labels"][:] == [int(text.split()[1]) % 2 for text in drawn]
    assert data.splits["validation"]["sentence1"][:] == [f"sentence {i}" for i in range(20)]


def test_a_checkpoint_is_evaluated_on_some_of_its_classes(load, write):
    known = Labels(["c", "a", "b"], ONE_CLASS)
    some = write("t.jsonl", rows(["b", "b"]))
    data = load(train_file=[some], validation_file=[some], train=False, known=known)
    assert data.labels == known.names and data.splits["validation"]["labels"][:] == [2, 2]
    # Placeholder names go by their numbers.
    made = Labels(["LABEL_0", "LABEL_1"], ONE_CLASS)
    data = load(validation_file=[write("n.jsonl", rows([1, 0]))], train=False, known=made)
    assert data.splits["validation"]["labels"][:] == [1, 0]


def test_labels_must_be_known_without_training_data(load, write):
    with pytest.raises(InputError, match="The labels are unknown: give --task_name"):
        load(validation_file=[write("v.jsonl", rows(["a", "b"]))], train=False)
