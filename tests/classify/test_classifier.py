"""The estimator in scikit-learn's tools, on all kinds of inputs and labels."""

import inspect
import io
import sys

import joblib
import numpy as np
import pandas
import PIL.Image
import pytest
import torch
import transformers
from scipy.special import expit
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

import hf_gmlp
from hf_gmlp import Classifier
from hf_gmlp.classify import plan, training
from hf_gmlp.classify.plan import FITTED, FROZEN, NEW
from hf_gmlp.errors import InputError

from ..samples import NOUNS, write_photos
from .conftest import make_tokenizer, opinions

TEXTS, LABELS = opinions(40)
NEW_TEXTS, NEW_LABELS = opinions(60, seed=2)
PAIRS = list(zip(TEXTS, TEXTS[::-1]))
# A second class in half of the rows of "good".
SEVERAL = [["good", "third"] if label == "good" and i % 4 == 1 else [label] for i, label in enumerate(LABELS)]
VECTORS = np.array([[int(name in label) for name in ("bad", "good", "never", "third")] for label in SEVERAL])
NUMBERS = [float(1000 + (label == "good")) + 0.25 for label in LABELS]
PIXELS = {"image_size": 16, "patch_size": 4}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Paths and classes of photos."""
    paths = sorted(write_photos(tmp_path_factory.mktemp("photos") / "train", 5, 0).rglob("*.png"))
    return [str(path) for path in paths], [path.parent.name for path in paths]


@pytest.fixture(scope="module")
def fitted(encoder):
    return Classifier(encoder, dtype="float32").fit(TEXTS, LABELS)


def test_parameters_and_tags(encoder):
    options = {"model": encoder, "fine_tune": True, "max_steps": 3, "random_state": None}
    classifier = Classifier(**options)
    parameters = classifier.get_params()
    assert parameters.keys() == inspect.signature(Classifier).parameters.keys() and parameters == vars(classifier)
    assert options.items() <= parameters.items() and clone(classifier).get_params() == parameters
    assert repr(Classifier("folder", batch_size=8)) == "Classifier(batch_size=8, model='folder')"
    tags = get_tags(classifier)
    assert is_classifier(classifier) and tags.input_tags.string and not tags.input_tags.two_d_array
    assert tags.target_tags.required and tags.classifier_tags.multi_label
    with pytest.raises(NotFittedError):
        classifier.predict(["a text"])
    with pytest.raises(InputError, match="sample_weight is not supported"):
        classifier.fit(TEXTS, LABELS, sample_weight=np.ones(40))


def test_scikit_learn_is_named_where_it_is_missing(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("hf_gmlp.classify")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=r'pip install "hf-gmlp\[train\]"'):
        _ = hf_gmlp.Classifier


class OnNumbers(Classifier):
    """Texts made of the numbers of scikit-learn's checks."""

    def fit(self, X, y, sample_weight=None):
        X, y = validate_data(self, X, y, multi_output=True)
        return super().fit(self.texts(X), y, sample_weight)

    def _logits(self, X):
        check_is_fitted(self)
        return super()._logits(self.texts(validate_data(self, X, reset=False)))

    def texts(self, X):
        return [" ".join(NOUNS[(int(3 * x) + 7 * i) % len(NOUNS)] for i, x in enumerate(row)) for row in X]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


# The checks of scikit-learn that do not apply. Weights of rows are refused in one sentence.
WEIGHTS = """
    check_sample_weights_pandas_series check_sample_weights_not_an_array check_sample_weights_list
    check_all_zero_sample_weights_error check_sample_weights_shape check_sample_weights_not_overwritten
    check_sample_weight_equivalence_on_dense_data check_classifiers_one_label_sample_weights
""".split()
EXPECTED_FAILURES = dict.fromkeys(WEIGHTS, "weights of rows are refused") | {
    "check_classifiers_one_label": "a single class is refused, since it would say nothing about a text",
    "check_fit2d_1sample": "a single class is refused, in other words than the check expects",
    "check_classifiers_regression_target": "numbers are predicted by ridge regression",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn(encoder):
    """All checks pass except those above, and two for what is optional, which scikit-learn skips."""
    results = check_estimator(OnNumbers(encoder), expected_failed_checks=EXPECTED_FAILURES, on_skip=None)
    assert len(results) > 50
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert skipped <= {"check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"}


def test_cross_validation_in_a_pipeline(encoder):
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    steps = make_pipeline(lower, Classifier(encoder, cross_validation=0, dtype="float32"))
    scores = cross_val_score(steps, [text.upper() for text in TEXTS], LABELS, cv=4)
    alone = cross_val_score(Classifier(encoder, cross_validation=0, dtype="float32"), TEXTS, LABELS, cv=4)
    assert scores.tolist() == alone.tolist() and scores.mean() > 0.7
    assert isinstance(clone(steps), Pipeline) and steps.fit(TEXTS, LABELS).predict(["THE FILM IS GOOD"]) == ["good"]


@pytest.mark.slow
def test_cross_validation_in_two_processes(encoder):
    classifier = Classifier(encoder, cross_validation=0, dtype="float32")
    scores = [cross_val_score(classifier, TEXTS, LABELS, cv=2, n_jobs=jobs) for jobs in (None, 2)]
    np.testing.assert_array_equal(*scores)


def test_joblib_keeps_predictions_and_no_texts(fitted):
    joblib.dump(fitted, file := io.BytesIO())
    assert TEXTS[0].encode() not in file.getvalue()
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(NEW_TEXTS), fitted.predict_proba(NEW_TEXTS))


def test_scores_are_honest(fitted):
    """The cross-validated accuracy is that of scikit-learn's own folds, and that of new texts, within chance."""
    evaluation = fitted.evaluation_
    cross_validated = (evaluation.logits.argmax(1) == evaluation.labels).mean()
    assert evaluation.how == "Cross-validated" and cross_validated > 0.7
    assert fitted.score(TEXTS, LABELS) > cross_validated - 0.01
    assert fitted.score(NEW_TEXTS, NEW_LABELS) == np.mean(fitted.predict(NEW_TEXTS) == NEW_LABELS) > 0.7
    # A label that was not in the training data is wrong, not an error.
    assert fitted.score(NEW_TEXTS, ["new", *NEW_LABELS[1:]]) <= fitted.score(NEW_TEXTS, NEW_LABELS)


@pytest.mark.parametrize("kind", [list, np.array, pandas.Series])
@pytest.mark.parametrize("names", [("bad", "good"), (10, 3), (False, True), (" a ", "b")])
def test_classes_come_back_as_they_were_passed(encoder, kind, names):
    labels = [names[label == "good"] for label in LABELS]
    classifier = Classifier(encoder, cross_validation=0).fit(kind(TEXTS), kind(labels))
    assert sorted(classifier.classes_.tolist()) == sorted(names) and classifier.score(TEXTS, labels) > 0.9
    results = classifier.predict(kind(TEXTS))
    assert results.dtype == classifier.classes_.dtype and {*results.tolist()} == {*names}
    probabilities = classifier.predict_proba(TEXTS)
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(1)], results)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)


def test_several_classes_as_names_or_as_vectors(encoder):
    names, vectors = (Classifier(encoder, dtype="float32").fit(TEXTS, labels) for labels in (SEVERAL, VECTORS))
    assert names.classes_.tolist() == ["bad", "good", "third"] and vectors.classes_.tolist() == [0, 1, 2, 3]
    probabilities = vectors.predict_proba(TEXTS)
    np.testing.assert_allclose(probabilities[:, [0, 1, 3]], names.predict_proba(TEXTS), atol=1e-5)
    np.testing.assert_allclose(expit(vectors._logits(TEXTS)), probabilities)
    predictions = vectors.predict(TEXTS)
    np.testing.assert_array_equal(predictions, probabilities > 0.5)
    expected = [[("bad", "good", "", "third")[number] for number in row.nonzero()[0]] for row in predictions]
    assert names.predict(TEXTS).tolist() == expected
    right = (predictions == VECTORS).all(axis=1).mean()
    assert vectors.score(TEXTS, VECTORS) == vectors.score(TEXTS, VECTORS.astype(float)) == right > 0.6
    assert names.score(TEXTS, [label[::-1] for label in SEVERAL]) == names.score(TEXTS, map(set, SEVERAL)) == right
    np.testing.assert_array_equal(
        cross_val_score(vectors, TEXTS, VECTORS, scoring="accuracy", cv=2),
        cross_val_score(vectors, TEXTS, VECTORS, cv=2),
    )


def test_numbers(encoder):
    classifier = Classifier(encoder, dtype="bfloat16").fit(TEXTS, NUMBERS)
    predictions = classifier.predict(NEW_TEXTS)
    # bfloat16 has 1000 and 1004, and no number between them.
    assert len({*predictions.tolist()}) > 30
    numbers = [1000.25 + (label == "good") for label in NEW_LABELS]
    assert classifier.score(NEW_TEXTS, numbers) == pytest.approx(r2_score(numbers, predictions))
    assert not hasattr(classifier, "classes_")
    with pytest.raises(InputError, match="numbers, which have no probabilities"):
        classifier.predict_proba(NEW_TEXTS)


def test_pairs_are_encoded_as_pairs(encoder):
    classifier = Classifier(encoder, dtype="float32").fit(PAIRS, LABELS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    encoded = tokenizer(*PAIRS[0], return_tensors="pt")
    assert (encoded["input_ids"] == tokenizer.sep_token_id).sum() == 2
    with torch.no_grad():
        expected = classifier.model_(**encoded).logits.softmax(-1)
    np.testing.assert_allclose(classifier.predict_proba(PAIRS[:1]), expected, atol=1e-5)
    np.testing.assert_allclose(classifier.predict_proba(np.array(PAIRS)[:1]), expected, atol=1e-5)
    with pytest.raises(InputError, match="Row 1 must be a pair of texts"):
        classifier.predict(TEXTS)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ([None] * 40, LABELS, "Row 1 must be a"),
        ([("a", "b", "c")] * 40, LABELS, "Row 1 must be a"),
        (["a", ("b", "c")] * 20, LABELS, "Row 2 must be a text"),
        ("a" * 40, LABELS, "Pass a list"),
        (TEXTS, LABELS[1:], "40 texts or pictures and 39 labels"),
        (TEXTS, [None, *LABELS[1:]], "no label"),
        (TEXTS, ["good"] * 40, "only the label 'good'"),
        (TEXTS, [float("nan"), *NUMBERS[1:]], "no label"),
    ],
)
def test_what_says_nothing_is_refused(encoder, X, y, message):
    with pytest.raises(InputError, match=message):
        Classifier(encoder).fit(X, y)


def test_pictures_from_memory_and_from_files(vision, pictures, tmp_path):
    files, classes = pictures
    classifier = Classifier(vision, dtype="float32").fit(files, classes)
    assert classifier.plan_.training == FROZEN and classifier.score(files, classes) > 0.8
    expected = classifier.predict_proba(files)
    np.testing.assert_allclose(classifier.predict_proba([PIL.Image.open(file) for file in files]), expected, atol=1e-6)
    # A rotated photo is turned upright, and a transparent one is on white, in both ways.
    picture, exif = PIL.Image.open(files[0]), PIL.Image.Exif()
    picture.putalpha(picture.convert("L"))
    exif[0x0112] = 6
    picture.save(tmp_path / "rotated.png", exif=exif)
    rotated = [str(tmp_path / "rotated.png"), PIL.Image.open(tmp_path / "rotated.png")]
    np.testing.assert_allclose(*(classifier.predict_proba([row]) for row in rotated), atol=1e-6)
    for row in (PIL.Image.new("I;16", (20, 20)), 3):
        with pytest.raises(InputError, match="Row 1 must be a picture"):
            classifier.predict([row])
    tuned = Classifier(vision, fine_tune=True, max_steps=2).fit(files, np.arange(15) + 0.5)
    assert np.isfinite(tuned.predict(files)).all()


def save_foreign(folder, kind):
    """Write a tiny ViT, BERT or RoBERTa, and return its folder."""
    fields = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if kind == "ViT":
        processor, fields = transformers.ViTImageProcessor(size=dict.fromkeys(("height", "width"), 16)), fields | PIXELS
    else:
        processor = make_tokenizer()
        fields |= {"vocab_size": len(processor), "max_position_embeddings": 40, "pad_token_id": 0}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**fields)
    for item in (getattr(transformers, f"{kind}Model")(config), processor):
        item.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["texts", "pairs", "pictures", "ViT", "Bert", "Roberta"])
def test_pipelines_open_what_is_saved(kind, encoder, vision, pictures, tmp_path):
    is_picture = kind in ("pictures", "ViT")
    model = {"texts": encoder, "pairs": encoder, "pictures": vision}.get(kind) or save_foreign(tmp_path / "start", kind)
    X, y = pictures if is_picture else (PAIRS if kind == "pairs" else TEXTS, LABELS)
    options = {"max_steps": 3, "learning_rate": 1e-2} if kind in ("Bert", "Roberta") else {}
    classifier = Classifier(model, dtype="float32", **options).fit(X, y)
    assert classifier.plan_.training == (NEW if options else FROZEN)
    classifier.save(tmp_path / "saved")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    assert getattr(config, "normalize_pooled", None) == (True if model in (encoder, vision) else None)
    assert list(config.id2label.values()) == classifier.classes_.tolist()
    task = "image-classification" if is_picture else "text-classification"
    classify = transformers.pipeline(task, str(tmp_path / "saved"), device="cpu", top_k=None)
    inputs = [{"text": a, "text_pair": b} for a, b in X[:4]] if kind == "pairs" else X[:4]
    results = [{result["label"]: result["score"] for result in row} for row in classify(inputs)]
    expected = [dict(zip(classifier.classes_.tolist(), row)) for row in classifier.predict_proba(X[:4]).tolist()]
    assert all(result == pytest.approx(row, abs=1e-4) for result, row in zip(results, expected))
    if kind == "texts":
        # The encoder in a saved classifier can be used for other labels.
        again = Classifier(str(tmp_path / "saved"), dtype="float32").fit(X, SEVERAL)
        np.testing.assert_allclose(
            again.predict_proba(X), Classifier(model, dtype="float32").fit(X, SEVERAL).predict_proba(X)
        )


def test_copies_make_no_score_more_certain(encoder):
    once, four = (Classifier(encoder, calibrate=False).fit(TEXTS * times, LABELS * times) for times in (1, 4))
    assert four.evaluation_.inflation == 4 * once.evaluation_.inflation == 4 * 2.25
    texts = np.array(TEXTS * 4)
    assert all({*texts[train]}.isdisjoint(texts[scored]) for train, scored in four.evaluation_.splits)
    # Three rows of each class, four times each, are three rows.
    few = Classifier(encoder).fit(TEXTS[:6] * 4, LABELS[:6] * 4)
    assert few.evaluation_ is None and few.plan_.folds == 0


def test_validation_rows_that_were_trained_on_are_counted(encoder, caplog):
    caplog.set_level("INFO")
    classifier = Classifier(encoder, calibrate=False)
    classifier.fit_in(None, TEXTS, LABELS, ([*NEW_TEXTS, TEXTS[0] + " "], [*NEW_LABELS, LABELS[0]]))
    shared = sum(text in TEXTS for text in NEW_TEXTS) + 1
    assert f"{shared} rows of the validation data are in the training data too" in caplog.text
    right = classifier.predict(NEW_TEXTS) == NEW_LABELS
    evaluation = classifier.evaluation_
    assert evaluation.how == "On the validation data" and len(evaluation.labels) == 61
    np.testing.assert_array_equal((evaluation.logits.argmax(1) == evaluation.labels)[:60], right)


@pytest.mark.parametrize(("before", "temperature"), [(0.1, 1.0), (0.2, 8.0)])
def test_a_temperature_is_applied_only_if_it_helps_on_other_rows(encoder, monkeypatch, before, temperature):
    monkeypatch.setattr(training, "calibrate", lambda logits, labels: (8.0, before, 0.1))
    raw, classifier = (Classifier(encoder, dtype="float32", calibrate=x).fit(TEXTS, LABELS) for x in (False, True))
    np.testing.assert_allclose(classifier._logits(TEXTS) * temperature, raw._logits(TEXTS), atol=1e-4)
    np.testing.assert_allclose(classifier.evaluation_.logits * temperature, raw.evaluation_.logits, atol=1e-6)
    expected = "would not lower it" if temperature == 1 else "0.100 with the temperature 8.00"
    assert expected in classifier.evaluation_.calibration and not raw.evaluation_.calibration


@pytest.mark.slow
@pytest.mark.parametrize("is_better", [False, True])
def test_fine_tuning_is_kept_only_if_it_is_better(encoder, monkeypatch, is_better):
    monkeypatch.setattr(plan, "MIN_COMPARED_ROWS", 40)
    if is_better:
        # The frozen classifier learns nothing.
        zeros = np.zeros((2, 32)), np.array([0.0, 1.0])
        monkeypatch.setattr(training.frozen, "fit", lambda *args: zeros)
    texts, labels = opinions(400, seed=3)
    classifier = Classifier(encoder, max_steps=60, learning_rate=1e-2, dtype="float32").fit(texts, labels)
    assert classifier.plan_.training == (FITTED if is_better else FROZEN)
    evaluation = classifier.evaluation_
    if not is_better:
        assert evaluation.how == "Cross-validated" and len(evaluation.labels) == 400
        return
    # What was scored is the model that was kept.
    assert evaluation.how == "On held-out rows" and 30 < len(evaluation.labels) < 50
    logits = classifier._logits([texts[row] for row in evaluation.rows])
    np.testing.assert_allclose(logits, evaluation.logits, atol=1e-4)


@pytest.mark.slow
def test_folds_of_fine_tuning_score_all_rows_with_models_of_the_others(encoder):
    options = {"fine_tune": True, "max_steps": 3, "learning_rate": 1e-3, "calibrate": False, "dtype": "float32"}
    classifier = Classifier(encoder, cross_validation=2, **options).fit(TEXTS, LABELS)
    (second, first), _ = classifier.evaluation_.splits
    other = Classifier(encoder, **options)
    other.fit_in(None, *([values[row] for row in second] for values in (TEXTS, LABELS)), ([TEXTS[0]], [LABELS[0]]))
    logits = other._logits([TEXTS[row] for row in first])
    np.testing.assert_allclose(classifier.evaluation_.logits[first], logits, atol=1e-3)
