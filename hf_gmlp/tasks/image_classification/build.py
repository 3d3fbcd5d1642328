"""For the image classification script only: timm's models, sizes, image processors, loss and metrics."""

import logging
from collections.abc import Callable

import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    BaseImageProcessor,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
)
from transformers.modeling_outputs import ImageClassifierOutput

from ...errors import InputError, need
from ...loading import reason
from ...metrics import load_metric
from ...models.configuration_gmlp import GMLPVisionConfig, as_pair
from ...processor import evaluation_processor, processor_size
from ...training.build import load_config, load_model
from ...training.recipes import parse_overrides
from .arguments import ImageModelArguments

logger = logging.getLogger(__name__)

TIMM = "timm/"


def load_image_config(arguments: ImageModelArguments, size: tuple[int, int] | None) -> PreTrainedConfig:
    """
    `load_config` for images of a `size` [height, width] in pixels, if given. New models of timm have names such as
    "timm/resmlp_12_224", and their overrides are arguments of `timm.create_model`. Also raises InputError if timm has
    no such model, the size does not fit, or a checkpoint other than a gMLP would have to be resized.
    """
    if arguments.model_name_or_path is None and arguments.config_name.startswith(TIMM):
        return _timm_config(arguments, size)
    if arguments.model_name_or_path is None and size is not None:
        return load_config(arguments, image_size=size[0] if size[0] == size[1] else list(size))
    config = load_config(arguments)
    if size is None or not hasattr(config, "image_size") or size == image_size(config):
        return config
    # Checked before the images are read.
    if not isinstance(config, GMLPVisionConfig):
        raise InputError(
            f"--image_size {size[0]} {size[1]}: {config.name_or_path} is a {config.model_type} for images of "
            f"{image_size(config)[0]} x {image_size(config)[1]} pixels, and only gMLPs are resized."
        )
    try:
        type(config)(**(config.to_dict() | {"image_size": list(size)}))
    except StrictDataclassError as error:
        raise InputError(f"--image_size {size[0]} {size[1]}: {error.__cause__ or error}") from error
    return config


def _timm_config(arguments: ImageModelArguments, size: tuple[int, int] | None) -> TimmWrapperConfig:
    need("timm")
    import timm

    name = arguments.config_name.removeprefix(TIMM).partition(".")[0]
    if not timm.is_model(name):
        raise InputError(f"timm {timm.__version__} has no model {name!r}; timm.list_models() lists what it has.")
    given = parse_overrides(arguments.config_overrides or "")
    # Convolutional networks take no size.
    tries = [given] if size is None or "img_size" in given else [given | {"img_size": size}, given]
    for model_args in tries:
        try:
            with torch.device("meta"):
                timm.create_model(name, **model_args)
            break
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            if not isinstance(error, TypeError) or model_args is given:
                raise InputError(f"timm's {name} cannot be made with {model_args}: {error}") from error
    return TimmWrapperConfig(architecture=name, model_args=model_args or None)


def image_size(config: PreTrainedConfig, processor: BaseImageProcessor | None = None) -> tuple[int, int]:
    """Height and width in pixels that a model takes, from its config, else its processor, else timm, else 224."""
    size = getattr(config, "image_size", None)
    if isinstance(config, TimmWrapperConfig):
        size = (config.model_args or {}).get("img_size")
    if size is None and processor is not None:
        size = processor_size(processor)
    elif size is None and isinstance(config, TimmWrapperConfig):
        import timm

        size = timm.get_pretrained_cfg(config.architecture).input_size[1:]
    return as_pair(size or 224)


def load_processor(
    arguments: ImageModelArguments, config: PreTrainedConfig, size: tuple[int, int] | None, crop_pct: float | None
) -> BaseImageProcessor:
    """
    The named image processor, or the checkpoint's. A new model, another size in pixels or a `crop_pct` gets an
    `evaluation_processor` with the mean, standard deviation and `crop_pct` of the one that was loaded, if any. Raises
    InputError if it cannot be opened.
    """
    processor, name = None, arguments.image_processor_name or arguments.model_name_or_path
    if name is not None:
        try:
            processor = AutoImageProcessor.from_pretrained(
                name,
                revision="main" if arguments.image_processor_name else arguments.model_revision,
                **arguments.hub_options(),
            )
        except Exception as error:
            why = reason(name, "preprocessor_config.json", error)
            raise InputError(
                f"The image processor of {name} cannot be opened: {why}. Name one with --image_processor_name."
            ) from error
    made = size or image_size(config, processor)
    if processor is not None and crop_pct is None and processor_size(processor) == made:
        return processor
    # timm's transforms, in transformers' wrapper.
    data = getattr(processor, "data_config", {})
    fields = {
        "crop_pct": crop_pct or getattr(processor, "crop_pct", None) or data.get("crop_pct"),
        "mean": getattr(processor, "image_mean", None) or data.get("mean"),
        "std": getattr(processor, "image_std", None) or data.get("std"),
    }
    return evaluation_processor(made, **{name: value for name, value in fields.items() if value})


def load_image_model(
    arguments: ImageModelArguments,
    config: PreTrainedConfig,
    size: tuple[int, int] | None,
    *,
    train: bool,
    new_classifier: bool = False,
) -> PreTrainedModel:
    """`load_model` of an image classifier; a gMLP checkpoint is resized to the `size` [height, width] in pixels."""
    model = load_model(AutoModelForImageClassification, arguments, config, train=train, new_classifier=new_classifier)
    new = arguments.model_name_or_path is None
    if new and isinstance(config, TimmWrapperConfig):
        # transformers' wrapper reinitializes all linear layers, and so undoes timm's own initialization, such as
        # spatial weights near zero and biases of one in its gMLP.
        import timm

        fresh = timm.create_model(config.architecture, num_classes=config.num_labels, **(config.model_args or {}))
        model.timm_model.load_state_dict(fresh.state_dict())
    if not new and size is not None and hasattr(config, "image_size") and size != image_size(config):
        model.resize_image_size(size)
        logger.info("Resized to %d x %d pixels: %d tokens", *size, model.config.max_position_embeddings)
    return model


def classification_loss(label_smoothing: float = 0.0) -> Callable[..., torch.Tensor]:
    """
    `compute_loss_func` for Trainer: cross-entropy against classes [B] or the class shares [B, classes] of a mixed
    batch, which Trainer's own label smoother does not take. Evaluation has no label smoothing.
    """

    def compute(
        outputs: ImageClassifierOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        logits = outputs["logits"].float()
        smoothing = label_smoothing if torch.is_grad_enabled() else 0.0
        if num_items_in_batch is None:
            return F.cross_entropy(logits, labels, label_smoothing=smoothing)
        if labels.ndim == 2:
            # Trainer counts numbers, of which a mixed image has one per class.
            num_items_in_batch = num_items_in_batch / labels.shape[1]
        return F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum") / num_items_in_batch

    return compute


def ranked_classes(logits: torch.Tensor | tuple, labels: torch.Tensor) -> torch.Tensor:
    """`preprocess_logits_for_metrics` for Trainer: from logits [B, classes], the best five classes [B, 5], in order."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.topk(min(5, logits.shape[-1]), dim=-1).indices


def accuracy_metrics() -> Callable[[EvalPrediction], dict[str, float]]:
    """`compute_metrics` for Trainer: "accuracy" (top-1), and "top5_accuracy" if there are five classes or more."""
    metric = load_metric("accuracy")

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        ranked, labels = prediction.predictions, prediction.label_ids
        results = metric.compute(predictions=ranked[:, 0], references=labels)
        if ranked.shape[1] == 5:
            results["top5_accuracy"] = float((ranked == labels[:, None]).any(axis=1).mean())
        return results

    return compute
