import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import BertConfig

from hf_gmlp import GMLPConfig
from hf_gmlp.data.labels import (
    CLASSES,
    ONE_CLASS,
    REGRESSION,
    Labels,
    find_labels,
    hold_out_rows,
    label_ids,
    label_names,
    number_labels,
    read_labels,
    set_labels,
    trained_labels,
)
from hf_gmlp.errors import InputError

HEAD = "ForSequenceClassification"
SEVERAL = Labels(["a", "b", "c"], CLASSES)
AB = Labels(["a", "b"], ONE_CLASS)
NUMBERS = Labels(None, REGRESSION)
# These are not lists in JSON or as Python writes them.
LISTS = ["bug", "@a", "!high", "%x", "a]", "*y", "'it's'", "'a' 'b'", "area: bug", "0 1 0", "{'a': 1}"]


def read(labels):
    return read_labels(Dataset.from_dict({"label": labels}), "label")


def find(labels, feature=None, **options):
    dataset = Dataset.from_dict({"label": labels}, features=feature and Features({"label": feature}))
    return find_labels(dataset.features["label"], read_labels(dataset, "label"), **options)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        # Integers are classes in numerical order; numbers with a decimal point are not classes.
        ([1, -1, 10, 2], Labels(["-1", "1", "2", "10"], ONE_CLASS)),
        (["1", "0", " 10", "007"], Labels(["0", "1", "007", "10"], ONE_CLASS)),
        ([1.0, 0.0], NUMBERS),
        (["1.5", "0"], NUMBERS),
        ([True, False], Labels(["False", "True"], ONE_CLASS)),
        (["yes", "None", "NA"], Labels(["NA", "None", "yes"], ONE_CLASS)),
        ([[10, 9], [], [2]], Labels(["2", "9", "10"], CLASSES)),
        ([{"b": 0.5, "a": 0.5}], Labels(["b", "a"], ONE_CLASS)),
        # pandas writes lists to csv in this form.
        (["['joy', 'love']", "[]", "['joy']"], Labels(["joy", "love"], CLASSES)),
        (['["it\'s"]', "", "[\"it's\", 'b']"], Labels(["b", "it's"], CLASSES)),
        ([f"[{label}]" for label in LISTS], Labels(sorted(f"[{label}]" for label in LISTS), ONE_CLASS)),
        (["['a', 'b']", "['a']", "plain"], Labels(["['a', 'b']", "['a']", "plain"], ONE_CLASS)),
        # Vectors of zeros and ones, whose classes are the positions.
        ([[0, 1, 1], [1, 0, 0]], Labels(["0", "1", "2"], CLASSES)),
        (["[0, 1, 0]", "[1, 0, 1]"], Labels(["0", "1", "2"], CLASSES)),
        ([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], Labels(["0", "1"], CLASSES)),
        ([[0, 1], [1], [0]], Labels(["0", "1"], CLASSES)),
    ],
)
def test_labels_are_inferred_from_a_column(labels, expected):
    assert find(labels) == expected


def test_a_flag_or_feature_determines_the_labels():
    assert find([1, 0], do_regression=True) == NUMBERS
    assert find([1.5, 0.0], do_regression=False) == Labels(["0.0", "1.5"], ONE_CLASS)
    names = ClassLabel(names=["z", "a", "Z"])
    assert find([0, 1], names) == Labels(["z", "a", "Z"], ONE_CLASS)
    assert find([[0, 1], []], List(names)) == Labels(["z", "a", "Z"], CLASSES)


def test_a_missing_label_is_not_a_class():
    assert find(["a", None, " ", "NaN", "b"]) == AB
    with pytest.raises(InputError, match="Row 2 of the train data, column 'kind', has no label"):
        label_ids(read(["a", " ", None, "b"]), AB, "train", "kind")
    with pytest.raises(InputError, match="^A/1.jpg has the label 'A', which is not one of"):
        label_ids(["a", "A"], AB, "validation", files=["a/1.jpg", "A/1.jpg"])


@pytest.mark.parametrize(
    ("values", "labels", "expected"),
    [
        (["b", "1", " 1"], Labels(["1", "b"], ONE_CLASS), [1, 0, 0]),
        (["0.5", "2"], NUMBERS, [0.5, 2.0]),
        ([["c", "a", "c"], []], SEVERAL, [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
        ([{"a": 0.25, "b": 0.75}, {"b": 1}], Labels(["b", "a"], ONE_CLASS), [[0.75, 0.25], [1.0, 0.0]]),
    ],
)
def test_labels_are_converted_to_ids(values, labels, expected):
    assert label_ids(read(values), labels, "train") == expected


def test_vectors_are_class_ids_of_features_and_numbers_of_named_classes(caplog):
    assert find([[0, 1], [1, 0]], List(ClassLabel(names=["z", "a", "b"]))) == Labels(["z", "a", "b"], CLASSES)
    with caplog.at_level("INFO"):
        assert label_names([[0, 1, 1], [0, 0, 0]], ["a", "b", "c"]) == [["b", "c"], []]
    assert "list of 3 zeros and ones: the classes are its positions" in caplog.text
    with pytest.raises(InputError, match="lists of fractions, such as 0.0: .*object"):
        find([[0.2, 0.8], [1.0, 0.0]])


def test_columns_that_cannot_be_labels_are_named(caplog):
    rows = Dataset.from_dict({"text": ["a", "b"], "bug": [0, 1], "ui": ["1", "0"]})
    with pytest.raises(InputError, match="no column 'label': name yours, one of text, bug, ui"):
        number_labels({"train": rows}, {"text": "text"}, "label", trained=None, train=True)
    number_labels({"train": rows}, {"bug": "text"}, "text", trained=None, train=True)
    assert "Every row has a class of its own: is the column 'text' the label?" in caplog.text
    with pytest.raises(InputError, match="All rows have the number 1.5"):
        find(["1.5", "1.5"])


def test_class_numbers_are_accepted_as_labels():
    assert label_names(["1", "no", "0"], ["no", "yes"]) == ["yes", "no", "no"]
    # These names are numbers themselves, such as 1 to 5 stars.
    assert label_names([1, 2, 1], ["1", "2"]) == ["1", "2", "1"]
    # The classes of a checkpoint without names are LABEL_0 to LABEL_11; as text, LABEL_10 comes before LABEL_2.
    config = classifier([f"LABEL_{number}" for number in range(12)])
    data = Dataset.from_dict({"text": ["x", "y"], "label": ["10", "2"]})
    trained = trained_labels(config, HEAD)
    splits, labels = number_labels({"validation": data}, {"text": "text"}, "label", trained=trained, train=False)
    assert splits["validation"]["labels"][:] == [10, 2] and labels.names[11] == "11"
    assert not set_labels(config, labels, HEAD, train=False, new_classifier=False)
    assert config.id2label[10] == "10"


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        (["x"], AB, r"Row 1 of the test data .*'x', which is not one of 2 classes \(a, b\)"),
        (["inf"], NUMBERS, "'inf', which is not a number"),
        (["a"], SEVERAL, "which is not any of"),
        ([["a"]], AB, "not one of"),
        (["1e300"], NUMBERS, "'1e300', which is not a number below 1e"),
        (["A"], AB, "'A', which is not one of"),
        (["1.0"], Labels(["0", "1"], ONE_CLASS), "'1.0', which is not one of"),
        # Only training data may have probabilities.
        ([{"a": 1.0}], AB, "not one of"),
    ],
)
def test_bad_rows_are_named(values, labels, message):
    with pytest.raises(InputError, match=message):
        label_ids(read(values), labels, "test")


@pytest.mark.parametrize("value", [{"a": 0.5, "b": 0.4}, {"a": -0.5, "b": 1.5}, {"a": 0.5, "c": 0.5}, {"a": "x"}])
def test_a_dictionary_must_have_the_probabilities_of_all_classes(value):
    with pytest.raises(InputError, match="Row 2 of the train data"):
        label_ids([{"a": 0.5, "b": 0.5}, value], AB, "train")


def classifier(names, **fields):
    fields = {"name_or_path": "x", "architectures": ["GMLPForSequenceClassification"]} | fields
    return GMLPConfig(id2label=dict(enumerate(names)), **fields)


def test_labels_are_written_into_the_config_and_read_back():
    config = GMLPConfig()
    assert trained_labels(config, HEAD) is None
    labels = Labels(["b", "a", "c"], ONE_CLASS)
    assert not set_labels(config, labels, HEAD, train=True, new_classifier=False)
    assert (config.num_labels, config.id2label[0], config.label2id["c"]) == (3, "b", 2)
    config.architectures = ["GMLPForSequenceClassification"]
    assert trained_labels(config, HEAD) == labels
    assert trained_labels(config, "ForImageClassification") is None

    config = GMLPConfig(architectures=["GMLPForMaskedLM"])
    set_labels(config, NUMBERS, HEAD, train=True, new_classifier=False)
    assert config.num_labels == 1 and config.problem_type == "regression"
    # Other software does not save a problem type.
    bert = BertConfig(num_labels=1, architectures=["BertForSequenceClassification"])
    assert trained_labels(bert, HEAD) == NUMBERS


def test_a_single_class_is_refused():
    with pytest.raises(InputError, match="'a'"):
        set_labels(GMLPConfig(), Labels(["a"], ONE_CLASS), HEAD, train=True, new_classifier=True)


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        (classifier("bac"), Labels(["x", "y"], ONE_CLASS)),
        (classifier("ab"), Labels(["a", "b"], CLASSES)),
        (classifier("v", problem_type=REGRESSION), AB),
    ],
)
def test_a_new_classifier_must_be_asked_for(config, labels):
    for train, new_classifier in ((True, False), (False, True)):
        with pytest.raises(InputError, match="--ignore_mismatched_sizes"):
            set_labels(config, labels, HEAD, train=train, new_classifier=new_classifier)
    assert set_labels(config, labels, HEAD, train=True, new_classifier=True)
    assert trained_labels(config, HEAD) == labels


def test_rows_are_held_out_by_class():
    labels = [0] * 70 + [1] * 25 + [2] * 4 + [3]
    dataset = Dataset.from_dict({"labels": labels, "text": [f"t{row}" for row in range(1, 101)]})
    train, held_out = hold_out_rows(dataset, 0.2)
    assert np.bincount(held_out["labels"], minlength=4).tolist() in ([14, 5, 1, 0], [14, 5, 0, 0])
    assert sorted([*train["row"], *held_out["row"]]) == list(range(1, 101))
    assert [f"t{row}" for row in held_out["row"]] == held_out["text"][:]
    again, other = (hold_out_rows(dataset, 0.2, seed)[1]["row"][:] for seed in (0, 1))
    assert again == held_out["row"][:] != other
    for labels in ([0.5, 0.25, 1.0, 2.0], [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]):
        train, held_out = hold_out_rows(Dataset.from_dict({"labels": labels}), 0.25)
        assert (len(train), len(held_out)) == (3, 1)


def test_numbers_with_decimal_commas_or_a_few_other_labels_are_refused():
    for values, others in ((["1.5", "2", "3.5", "4", "n/a"], "n/a"), (["3,5", "2", "1,25"], "1,25, 3,5")):
        with pytest.raises(InputError, match=f"numbers, except for {others}: correct"):
            find_labels(Value("string"), values)
        assert find_labels(Value("string"), values, False).names == sorted(values)
    # Versions and names of classes.
    assert find_labels(Value("string"), ["1", "2", "other"]).problem_type == ONE_CLASS
