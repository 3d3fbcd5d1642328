"""The losses of the heads equal those of PyTorch, and pooling excludes padding."""

import pytest
import torch
from torch.nn import functional as F

from hf_gmlp import GMLPForQuestionAnswering, GMLPForSequenceClassification
from hf_gmlp.models.modeling_gmlp import class_loss, classification_loss, next_token_loss, pool_tokens


@pytest.mark.parametrize("num_items", [None, torch.tensor(7)])
@pytest.mark.parametrize(
    "num_labels, problem_type, labels, inferred_type, distance",
    [
        (1, None, torch.tensor([0.5, -1.0, 2.0]), "regression", F.mse_loss),
        (1, None, torch.tensor([1, 0, 3]), "regression", F.mse_loss),
        (3, None, torch.tensor([1, 0, 2]), "single_label_classification", F.cross_entropy),
        (3, None, torch.tensor([1, -100, 2]), "single_label_classification", F.cross_entropy),
        (3, None, torch.eye(3), "multi_label_classification", F.binary_cross_entropy_with_logits),
        (3, "multi_label_classification", torch.eye(3).long(), None, F.binary_cross_entropy_with_logits),
        (3, "regression", torch.ones(3, 3), None, F.mse_loss),
    ],
)
def test_losses_equal_those_of_pytorch(
    text_config, num_labels, problem_type, labels, inferred_type, distance, num_items
):
    config = text_config(num_labels=num_labels)
    config.problem_type = problem_type
    logits = torch.randn(3, num_labels)
    loss = classification_loss(labels, logits, config, num_items)
    assert config.problem_type == (inferred_type or problem_type)
    inputs = (logits, labels)
    if distance is not F.cross_entropy:
        inputs = logits.view(labels.shape), labels.float()
    expected = distance(*inputs) if num_items is None else distance(*inputs, reduction="sum") / num_items
    torch.testing.assert_close(loss, expected)


def test_probabilities_as_labels_have_their_cross_entropy(text_config):
    config = text_config(num_labels=3)
    config.problem_type = "single_label_classification"
    logits, labels = torch.randn(4, 3), torch.randn(4, 3).softmax(-1)
    expected = -(labels * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(classification_loss(labels, logits, config), expected)
    # Trainer passes the number of elements in all accumulated batches.
    parts = [classification_loss(labels[part], logits[part], config, torch.tensor(12)) for part in ([0], [1, 2, 3])]
    torch.testing.assert_close(sum(parts), expected)


def test_shifted_labels_replace_the_labels():
    logits, labels = torch.randn(2, 6, 9), torch.randint(0, 9, (2, 6))
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    loss = next_token_loss(logits, torch.zeros_like(labels), shift_labels=shifted)
    torch.testing.assert_close(loss, next_token_loss(logits, labels))


@pytest.mark.parametrize(
    "dtype, expected", [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)]
)
def test_losses_keep_double_precision(text_config, dtype, expected):
    logits, labels = torch.randn(4, 3).to(dtype), torch.tensor([0, 1, 2, 0])
    assert class_loss(logits, labels).dtype == expected
    assert next_token_loss(logits[None], labels[None]).dtype == expected
    for kind, values in (("regression", torch.ones(4, 3)), ("multi_label_classification", torch.ones(4, 3))):
        config = text_config()
        config.problem_type = kind
        assert classification_loss(values, logits, config).dtype == expected
    assert classification_loss(labels, logits, text_config()).dtype == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_loss_of_question_answering_is_precise(text_config, perturbed_model, random_ids, dtype):
    model, ends = perturbed_model(GMLPForQuestionAnswering, text_config()).to(dtype), torch.tensor([3, 4])
    output = model(random_ids(2, 6), start_positions=ends - 2, end_positions=ends)
    precise = torch.promote_types(dtype, torch.float32)
    assert output.loss.dtype == precise and output.start_logits.dtype == dtype
    losses = [
        F.cross_entropy(x.to(precise), y) for x, y in ((output.start_logits, ends - 2), (output.end_logits, ends))
    ]
    torch.testing.assert_close(output.loss, sum(losses) / 2)


@pytest.mark.parametrize(
    "fields, labels",
    [
        ({"num_labels": 4, "problem_type": "multi_label_classification"}, torch.zeros(4, 3)),
        ({"num_labels": 3, "problem_type": "regression"}, torch.zeros(9)),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, torch.zeros(3)),
    ],
)
def test_labels_of_the_wrong_shape_are_refused(text_config, random_ids, fields, labels):
    model = GMLPForSequenceClassification(text_config(**fields))
    with pytest.raises(ValueError, match="labels of shape"):
        model(random_ids(3, 6), labels=labels)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_with_a_row_of_padding(text_config, perturbed_model, random_ids, pooling, dtype):
    model = perturbed_model(GMLPForSequenceClassification, text_config(pooling=pooling)).to(dtype).train()
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1] = 0
    model(random_ids(3, 6), mask, labels=torch.tensor([0, 1, 2])).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_mean_in_half_precision_does_not_overflow():
    hidden_states, mask = torch.full((1, 400, 2), 300.0, dtype=torch.float16), torch.ones(1, 400)
    mean = pool_tokens(hidden_states, mask, "mean")
    assert mean.dtype == torch.float16 and (mean == 300).all()
