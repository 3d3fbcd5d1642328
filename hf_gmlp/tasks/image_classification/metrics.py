"""The metrics of image classification."""

from transformers import EvalPrediction


def accuracies(prediction: EvalPrediction) -> dict[str, float]:
    """`compute_metrics` for Trainer: "accuracy" and, with five classes or more, "top5_accuracy"."""
    best = prediction.predictions.argsort(axis=-1)[:, ::-1][:, :5]
    right = best == prediction.label_ids[:, None]  # [images, 5]
    results = {"accuracy": float(right[:, 0].mean())}
    return results | ({"top5_accuracy": float(right.any(axis=1).mean())} if right.shape[1] == 5 else {})
