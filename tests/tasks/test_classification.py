import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, top_k_accuracy_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F
from transformers import EvalPrediction
from transformers.modeling_outputs import ImageClassifierOutput

from hf_gmlp.data.labels import CLASSES, ONE_CLASS, REGRESSION
from hf_gmlp.metrics.scores import DEFAULT_METRICS
from hf_gmlp.tasks.classification import (
    ClassificationArguments,
    balanced_weights,
    classification_metrics,
    weighted_loss,
)
from hf_gmlp.training.arguments import RunArguments

from ..numerics import assert_close
from ..samples import config_of


@pytest.mark.parametrize("mixed", [False, True])
def test_loss_is_cross_entropy_with_smoothing_in_training_only(mixed):
    logits, classes = torch.randn(6, 4, requires_grad=True), torch.randint(4, (6,))
    probabilities = torch.rand(6, 4).softmax(-1) if mixed else F.one_hot(classes, 4).float()
    labels = probabilities if mixed else classes
    outputs, loss = ImageClassifierOutput(logits=logits), weighted_loss(0.1)

    def expected(smoothing):
        return -((1 - smoothing) * probabilities + smoothing / 4).mul(logits.log_softmax(-1)).sum(-1).mean()

    assert_close(loss(outputs, labels), expected(0.1))
    # Trainer counts the elements of the labels, here those of two batches.
    assert_close(loss(outputs, labels, torch.tensor(2 * labels.numel())), expected(0.1) / 2)
    with torch.no_grad():
        assert_close(loss(outputs, labels), expected(0.0))


def test_class_weights_are_those_of_scikit_learn():
    labels = [0, 0, 0, 2, 2, 1]
    weights = balanced_weights(labels, config_of("abc"))
    expected = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=labels))
    assert_close(weights, expected.float())
    assert_close(balanced_weights(F.one_hot(torch.tensor(labels)).float().tolist(), config_of("abc")), weights)
    logits = torch.randn(6, 3)
    loss = weighted_loss(weights=weights)(ImageClassifierOutput(logits=logits), torch.tensor(labels))
    picked = logits.log_softmax(-1)[range(6), labels]
    assert_close(loss, -(weights[labels] * picked).mean())
    # One class of the checkpoint is absent from the data.
    assert_close(balanced_weights([0, 0, 2], config_of("abc")), torch.tensor([0.75, 0.0, 1.5]))


def test_early_stopping_has_a_threshold(tmp_path):
    args = RunArguments(str(tmp_path), use_cpu=True, do_train=True)
    for problem_type, threshold in ((ONE_CLASS, 0.001), (REGRESSION, 0.0)):
        (callback,) = ClassificationArguments(early_stopping_patience=3).callbacks(args, problem_type)
        assert (callback.early_stopping_patience, callback.early_stopping_threshold) == (3, threshold)
    assert args.restore_callback_states_from_checkpoint
    assert ClassificationArguments(early_stopping_patience=0).callbacks(args) == []


def computed(config, logits, truth, names=None):
    return classification_metrics(names or DEFAULT_METRICS[config.problem_type], config)(EvalPrediction(logits, truth))


def test_metrics_equal_those_of_scikit_learn_and_scipy():
    generator = np.random.default_rng(0)
    logits, truth = generator.normal(size=(40, 3)), generator.integers(3, size=40)
    classes = logits.argmax(-1)
    expected = {"accuracy": accuracy_score(truth, classes), "f1": f1_score(truth, classes, average="macro")}
    assert_close(computed(config_of("abc"), logits, truth), expected)
    # With two classes, F1 is that of the second, as in MRPC and QQP.
    logits, truth = generator.normal(size=(40, 2)), generator.integers(2, size=40)
    classes = logits.argmax(-1)
    expected = {"f1": f1_score(truth, classes), "matthews_correlation": matthews_corrcoef(truth, classes)}
    assert_close(computed(config_of("ab"), logits, truth, expected), expected)
    assert computed(config_of("ab"), 0 * logits, truth, ["matthews_correlation"]) == {"matthews_correlation": 0.0}

    logits, truth = generator.normal(size=(40, 1)), generator.normal(size=40)
    config = config_of(None, REGRESSION)
    expected = {"spearman": spearmanr(logits[:, 0], truth)[0], "pearson": pearsonr(logits[:, 0], truth)[0]}
    assert_close(computed(config, logits, truth), expected)
    # A run that diverged also gets a result.
    assert computed(config, np.full((40, 1), np.nan), truth) == {"spearman": 0.0, "pearson": 0.0}


def test_metrics_of_several_labels_per_row_equal_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    logits, truth = generator.normal(size=(40, 3)), generator.integers(2, size=(40, 3))
    results = computed(config_of("abc", CLASSES), logits, truth.astype(np.float32))
    expected = {"f1": f1_score(truth, logits > 0, average="micro"), "accuracy": accuracy_score(truth, logits > 0)}
    assert_close(results, expected)


def test_the_class_is_among_the_five_with_the_largest_logits():
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(200, 8)), random.integers(8, size=200)
    results = computed(config_of("abcdefgh"), logits, labels, ["accuracy", "top5_accuracy"])
    expected = [top_k_accuracy_score(labels, logits, k=k, labels=np.arange(8)) for k in (1, 5)]
    assert_close([results["accuracy"], results["top5_accuracy"]], expected)
