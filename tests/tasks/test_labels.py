"""Labels of a column and of a checkpoint, and how they are written into a config."""

import logging

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import BertConfig, BertForSequenceClassification

from hf_gmlp import GMLPConfig, GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.labels import (
    CLASSES,
    ONE_CLASS,
    REGRESSION,
    Labels,
    find_labels,
    label_ids,
    read_labels,
    set_labels,
    trained_labels,
)
from hf_gmlp.training.build import renew_classifier

HEAD = "ForSequenceClassification"


def find(labels, feature=None, **options):
    features = None if feature is None else Features({"label": feature})
    dataset = Dataset.from_dict({"label": labels}, features=features)
    return find_labels(dataset.features["label"], read_labels(dataset, "label"), "train", **options)


def read(labels):
    return read_labels(Dataset.from_dict({"label": labels}), "label")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        # Whole numbers are classes, however they are written, in the order of their values.
        ([1.0, 0.0, 10.0, 2.0], Labels(["0", "1", "2", "10"], ONE_CLASS)),
        (["1.0", "0", " 10", "2."], Labels(["0", "1", "2", "10"], ONE_CLASS)),
        ([1, -1], Labels(["-1", "1"], ONE_CLASS)),
        # A fraction makes them numbers.
        ([1.0, 0.5], Labels(None, REGRESSION)),
        (["1.5", "0"], Labels(None, REGRESSION)),
        ([True, False], Labels(["False", "True"], ONE_CLASS)),
        (["true", "false", "half-true"], Labels(["false", "half-true", "true"], ONE_CLASS)),
        (["yes", "None", "NA"], Labels(["NA", "None", "yes"], ONE_CLASS)),
        ([["b"], [], ["a", "b"]], Labels(["a", "b"], CLASSES)),
        ([[10, 9], [2]], Labels(["2", "9", "10"], CLASSES)),
    ],
)  # fmt: skip
def test_labels_of_a_column(labels, expected):
    assert find(labels) == expected


def test_labels_with_a_flag_or_a_feature():
    assert find([1.0, 0.0], do_regression=True) == Labels(None, REGRESSION)
    assert find([1.5, 0.0], do_regression=False) == Labels(["0", "1.5"], ONE_CLASS)
    names = ClassLabel(names=["z", "a", "Z"])
    assert find([0, 1], names) == Labels(["z", "a", "Z"], ONE_CLASS)
    assert find([[0, 1], []], List(names)) == Labels(["z", "a", "Z"], CLASSES)
    assert find([0, 1], names, do_regression=False).names[0] == "z"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "3", "b"], "must be names or whole numbers, not both or fractions, got a, 3, b"),
        (["yes", "no", "Yes"], "must differ in more than case or white space: 'yes' and 'Yes'"),
        (["yes", "no", "no "], "must differ in more than case or white space: 'no' and 'no '"),
        ([[0.5], [1.0]], "not both or fractions, got 0.5, 1"),
        ([None, None], "training data are missing"),
    ],
)
def test_bad_labels_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        find(labels)


@pytest.mark.parametrize("missing", [None, "", " ", "nan", "NaN", "null"])
def test_a_missing_label_is_not_a_class(missing):
    values = read(["a", missing, "b"])
    assert find_labels(Value("string"), values, "train").names == ["a", "b"]
    with pytest.raises(InputError, match="Row 2 of the training data has no label"):
        label_ids(values, Labels(["a", "b"], ONE_CLASS), "train")


def test_label_ids():
    for values, expected in ((["b", "1.0", "1"], [1, 0, 0]), ([1.0], [0]), ([1], [0])):
        assert label_ids(read(values), Labels(["1", "b"], ONE_CLASS), "train") == expected
    for values, expected in ((["0.5", "2"], [0.5, 2.0]), ([0.1, 2.0], [0.1, 2.0]), ([3], [3.0])):
        assert label_ids(read(values), Labels(None, REGRESSION), "train") == expected
    several = Labels(["a", "b", "c"], CLASSES)
    assert label_ids([["c", "a", "c"], []], several, "train") == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    for values, labels, message in [
        (["x"], Labels(["a", "b"], ONE_CLASS), "Row 1 of the test data has the label 'x', which is not one of a, b"),
        (["nan1"], Labels(None, REGRESSION), "the label 'nan1', which is not a number"),
        (["inf"], Labels(None, REGRESSION), "the label 'inf', which is not a number"),
        (read([True]), Labels(None, REGRESSION), "the label 'True', which is not a number"),
        (["a"], several, "the label 'a', which must be a list"),
        (read([["a"], [None]]), several, "Row 2 .* has the label None, which is not one of a, b, c"),
        ([["a"], []], find([["a"], []], do_regression=True), r"the label \['a'\], which must not be a list"),
        ([["a"]], Labels(["a", "b"], ONE_CLASS), "which must not be a list"),
    ]:
        with pytest.raises(InputError, match=message):
            label_ids(values, labels, "test")


def classifier(names, **fields):
    fields = {"name_or_path": "x", "architectures": ["GMLPForSequenceClassification"]} | fields
    return GMLPConfig(id2label=dict(enumerate(names)), **fields)


def test_labels_are_written_into_the_config_and_read_back():
    config = GMLPConfig()
    assert trained_labels(config, HEAD) is None
    assert not set_labels(config, Labels(["b", "a", "c"], ONE_CLASS), HEAD, train=True, new_classifier=False)
    assert (config.num_labels, config.id2label[0], config.label2id["c"]) == (3, "b", 2)
    assert config.problem_type == "single_label_classification"
    config.architectures = ["GMLPForSequenceClassification"]
    assert trained_labels(config, HEAD) == Labels(["b", "a", "c"], ONE_CLASS)
    assert trained_labels(config, "ForImageClassification") is None

    config = GMLPConfig(architectures=["GMLPForMaskedLM"], name_or_path="x")
    set_labels(config, Labels(None, REGRESSION), HEAD, train=True, new_classifier=False)
    assert config.num_labels == 1 and config.problem_type == "regression"
    with pytest.raises(InputError, match="x is not a trained classifier: train it first"):
        set_labels(config, Labels(["a", "b"], ONE_CLASS), HEAD, train=False, new_classifier=True)
    with pytest.raises(InputError, match="only the label 'a'; there must be two or more"):
        set_labels(config, Labels(["a"], ONE_CLASS), HEAD, train=True, new_classifier=True)
    # Other software does not save a problem type.
    bert = BertConfig(num_labels=1, architectures=["BertForSequenceClassification"])
    assert trained_labels(bert, HEAD) == Labels(None, REGRESSION)


@pytest.mark.parametrize(
    ("config", "labels", "message"),
    [
        (
            classifier("bac"),
            Labels(["x", "y"], ONE_CLASS),
            r"predict 3 classes \(b, a, c\), but the data have 2 classes",
        ),
        (classifier("ab"), Labels(["x", "y"], ONE_CLASS), "or, if these are other names .* write them into id2label"),
        (classifier("ab"), Labels(["a", "b"], CLASSES), r"the data have any of 2 classes \(a, b\)"),
        (classifier("ab"), Labels(None, REGRESSION), "the data have numbers"),
        (
            classifier("v", problem_type=REGRESSION),
            Labels(["a", "b"], ONE_CLASS),
            "predict numbers, .* --do_regression",
        ),
    ],
)
def test_a_new_classifier_must_be_asked_for(config, labels, message, caplog):
    for train, new_classifier in ((True, False), (False, True)):
        with pytest.raises(InputError, match=message):
            set_labels(config, labels, HEAD, train=train, new_classifier=new_classifier)
    with caplog.at_level(logging.INFO):
        assert set_labels(config, labels, HEAD, train=True, new_classifier=True)
    assert "The classifier is new: " in caplog.text
    assert trained_labels(config, HEAD) == labels


def test_placeholder_names_are_replaced(caplog):
    config = classifier(["LABEL_0", "LABEL_1"])
    with caplog.at_level(logging.INFO):
        assert not set_labels(config, Labels(["no", "yes"], ONE_CLASS), HEAD, train=False, new_classifier=False)
    assert config.id2label == {0: "no", 1: "yes"} and "take the names of the data: 2 classes (no, yes)" in caplog.text


def test_a_few_of_many_names_may_differ():
    names = [f"class {number}" for number in range(200)]
    config = classifier(names)
    names[7] = "another word"
    assert not set_labels(config, Labels(names, ONE_CLASS), HEAD, train=False, new_classifier=False)
    names[8] = names[9] = "more"
    with pytest.raises(InputError, match="trained to predict 200 classes"):
        set_labels(config, Labels(["x", "y", "z", *names[3:]], ONE_CLASS), HEAD, train=False, new_classifier=False)


@pytest.mark.parametrize("kind", ["gmlp", "bert"])
def test_only_the_classifier_is_drawn_again(kind, text_config, far_model):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2}
    config, model_class = (text_config(), GMLPForSequenceClassification)
    if kind == "bert":
        config, model_class = BertConfig(vocab_size=40, num_labels=3, **sizes), BertForSequenceClassification
    model = far_model(model_class, config)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    renew_classifier(model)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"} and not model.classifier.bias.any()
