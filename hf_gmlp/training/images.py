"""What run_image_classification.py needs beyond the other scripts: timm's models, classes, processor, loss, metrics."""

import copy
import logging
from collections.abc import Callable

import numpy as np
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

from ..data.processor import evaluation_processor, processor_size
from ..errors import InputError
from ..metrics import load_metric
from ..models.configuration_gmlp import GMLPVisionConfig, as_pair
from .arguments import ImageModelArguments
from .models import load_config, parse_overrides

logger = logging.getLogger(__name__)

TIMM = "timm/"


def load_image_config(arguments: ImageModelArguments, size: tuple[int, int] | None) -> PreTrainedConfig:
    """
    The config that the arguments ask for, as `load_config`; new models of timm go by the name "timm/...", such as
    "timm/resmlp_12_224", and then the overrides are arguments of `timm.create_model`.

    Args:
        size: Height and width in pixels of the images; the config's own if None.

    Raises:
        InputError: As `load_config`; or if timm has no such model or the size does not fit; or if a checkpoint other
            than a gMLP's would have to be resized.
    """
    if arguments.model_name_or_path is None and arguments.config_name.startswith(TIMM):
        return _timm_config(arguments, size)
    if arguments.model_name_or_path is None and size is not None:
        return load_config(arguments, image_size=size[0] if size[0] == size[1] else list(size))
    config = load_config(arguments)
    if size is not None:
        _check_resizing(config, size)
    return config


def _check_resizing(config: PreTrainedConfig, size: tuple[int, int]):
    """Whether a checkpoint can take images of another size, before the images are read."""
    if not hasattr(config, "image_size") or size == image_size(config):
        return
    if not isinstance(config, GMLPVisionConfig):
        raise InputError(
            f"--image_size {size[0]} {size[1]}: {config.name_or_path} is a {config.model_type} for images of "
            f"{image_size(config)[0]} x {image_size(config)[1]} pixels, and only gMLPs are resized here."
        )
    try:
        type(config)(**(config.to_dict() | {"image_size": list(size)}))
    except StrictDataclassError as error:
        raise InputError(f"--image_size {size[0]} {size[1]}: {error.__cause__ or error}") from error


def _timm_config(arguments: ImageModelArguments, size: tuple[int, int] | None) -> TimmWrapperConfig:
    try:
        import timm
    except ImportError as error:
        raise InputError(f"{arguments.config_name} needs timm: pip install timm.") from error
    name = arguments.config_name.removeprefix(TIMM)
    if not timm.is_model(name):
        raise InputError(f"timm {timm.__version__} has no model {name!r}; timm.list_models() lists what it has.")
    given = parse_overrides(arguments.config_overrides or "")
    # A model that must know its size has an argument for it; a convolutional network has not.
    tries = [given] if size is None or "img_size" in given else [given | {"img_size": size}, given]
    for model_args in tries:
        try:
            with torch.device("meta"):
                timm.create_model(name.partition(".")[0], **model_args)
        except TypeError as error:
            fault = error
        except (ValueError, AssertionError, RuntimeError) as error:
            raise InputError(f"timm's {name} cannot be made with {model_args}: {error}") from error
        else:
            return TimmWrapperConfig(architecture=name.partition(".")[0], model_args=model_args or None)
    raise InputError(f"timm's {name} does not take {arguments.config_overrides}: {fault}")


def image_size(config: PreTrainedConfig, processor: BaseImageProcessor | None = None) -> tuple[int, int]:
    """Height and width in pixels that a model takes: what its config says, else its processor, else timm, else 224."""
    size = getattr(config, "image_size", None)
    if size is None and isinstance(config, TimmWrapperConfig):
        import timm

        size = (config.model_args or {}).get("img_size")
        if size is None and processor is None:
            size = timm.get_pretrained_cfg(config.architecture).input_size[1:]
    if size is None and processor is not None:
        size = processor_size(processor)
    return as_pair(224 if size is None else size)


def patch_size(config: PreTrainedConfig) -> tuple[int, int]:
    """Height and width in pixels of a patch; 1 for a model that has none."""
    return as_pair(getattr(config, "patch_size", None) or 1)


def load_processor(
    arguments: ImageModelArguments, config: PreTrainedConfig, size: tuple[int, int] | None, crop_pct: float | None
) -> BaseImageProcessor:
    """
    The image processor of the checkpoint, or the one that was named; for a new model, another size or another
    `crop_pct` a new one, by `evaluation_processor`, with mean, standard deviation and `crop_pct` of what was loaded,
    else 0.5 and 0.875.

    Args:
        size: Height and width in pixels that were asked for.
        crop_pct: Share of the shorter side that is kept.

    Raises:
        InputError: If there is no processor where one was named.
    """
    processor, name = None, arguments.image_processor_name or arguments.model_name_or_path
    if name is not None:
        try:
            processor = AutoImageProcessor.from_pretrained(
                name,
                cache_dir=arguments.cache_dir,
                revision=arguments.model_revision if arguments.image_processor_name is None else "main",
                trust_remote_code=arguments.trust_remote_code,
            )
        except (OSError, ValueError) as error:
            raise InputError(f"There is no image processor in {name!r}: name one by --image_processor_name.") from error
    made = size or image_size(config, processor)
    if processor is not None and crop_pct is None and processor_size(processor) == made:
        return processor
    # What transformers' wrapper of timm's transforms has.
    data = getattr(processor, "data_config", {})
    fields = {
        "crop_pct": crop_pct or getattr(processor, "crop_pct", None) or data.get("crop_pct"),
        "mean": getattr(processor, "image_mean", None) or data.get("mean"),
        "std": getattr(processor, "image_std", None) or data.get("std"),
    }
    return evaluation_processor(made, **{name: value for name, value in fields.items() if value})


def trained_classes(config: PreTrainedConfig) -> list[str] | None:
    """The classes of a checkpoint that was trained as an image classifier, in its order; None of any other."""
    if not any(name.endswith("ForImageClassification") for name in config.architectures or ()):
        return None
    return [config.id2label[number] for number in range(config.num_labels)]


def set_classes(config: PreTrainedConfig, labels: list[str], *, train: bool, new_classifier: bool):
    """
    Writes the classes into a config.

    Args:
        train: Whether there will be a training.
        new_classifier: Whether a classifier of another number of classes may be replaced.

    Raises:
        InputError: If the checkpoint tells another number of classes and may not get a new classifier; or if it has
            none and nothing is trained.
    """
    known = trained_classes(config)
    if known is None and not train:
        raise InputError(
            f"{config.name_or_path or 'A new model'} is no trained image classifier: train it first, with --do_train."
        )
    if known is not None and len(known) != len(labels) and not (train and new_classifier):
        advice = "give it a new classifier by --ignore_mismatched_sizes" if train else "evaluate it on its own classes"
        raise InputError(
            f"The checkpoint {config.name_or_path} was trained to tell {len(known)} classes ({', '.join(known[:5])}"
            f"{', ...' if len(known) > 5 else ''}), and the data have {len(labels)} ({', '.join(labels[:5])}"
            f"{', ...' if len(labels) > 5 else ''}): {advice}."
        )
    if known is not None and len(known) == len(labels) and known != labels:
        logger.warning(
            "The %d classes of the checkpoint have other names than those of the data; they are taken to be the same "
            "in the same order: %s is %s, and so on.",
            len(known),
            known[0],
            labels[0],
        )
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: number for number, name in enumerate(labels)}
    config.problem_type = "single_label_classification"


def load_image_model(
    arguments: ImageModelArguments, config: PreTrainedConfig, size: tuple[int, int] | None
) -> PreTrainedModel:
    """
    The checkpoint as an image classifier, or a new one.

    Args:
        config: With the classes of the data.
        size: Height and width in pixels; a gMLP checkpoint of another size is resized.

    Raises:
        InputError: If the weights do not fit the config.
    """
    if arguments.model_name_or_path is None:
        model = AutoModelForImageClassification.from_config(config, trust_remote_code=arguments.trust_remote_code)
        if isinstance(config, TimmWrapperConfig):
            _initialize_as_timm(model)
        return model
    model, report = AutoModelForImageClassification.from_pretrained(
        arguments.model_name_or_path,
        config=copy.deepcopy(config),
        cache_dir=arguments.cache_dir,
        revision=arguments.model_revision,
        trust_remote_code=arguments.trust_remote_code,
        ignore_mismatched_sizes=arguments.ignore_mismatched_sizes,
        output_loading_info=True,
    )
    mismatched = [key for key, *_ in report["mismatched_keys"]]
    shapes = {key: weight.shape for key, weight in model.state_dict().items()}
    wrong = [key for key in mismatched if shapes[key][0] != config.num_labels]
    if wrong:
        raise InputError(f"The weights of {arguments.model_name_or_path} do not fit: {', '.join(sorted(wrong)[:5])}.")
    if mismatched:
        logger.warning("The classifier is new, for %d classes", config.num_labels)
    if size is None or size == image_size(config) or not hasattr(config, "image_size"):
        return model
    model.resize_image_size(size)
    logger.info("Resized to %d x %d pixels: %d tokens", *size, model.config.max_position_embeddings)
    return model


def _initialize_as_timm(model: PreTrainedModel):
    # transformers' wrapper draws all linear layers anew, as if only the classifier could be new, and so undoes what a
    # timm model starts from: the spatial weights of its gMLP near zero and their biases at one, for example.
    import timm

    config = model.config
    fresh = timm.create_model(config.architecture, num_classes=config.num_labels, **(config.model_args or {}))
    model.timm_model.load_state_dict(fresh.state_dict())


def classification_loss(label_smoothing: float = 0.0) -> Callable[..., torch.Tensor]:
    """
    `compute_loss_func` for Trainer: cross-entropy against classes [B] or the shares [B, classes] of a mixed batch. In
    training with label smoothing (which Trainer's own smoother can not do for shares), in evaluation without.
    """

    def compute(
        outputs: ImageClassifierOutput,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        logits = outputs["logits"].float()
        smoothing = label_smoothing if torch.is_grad_enabled() else 0.0
        if num_items_in_batch is None:
            return F.cross_entropy(logits, labels, label_smoothing=smoothing)
        if labels.ndim == 2:
            # Trainer counts numbers, and a mixed image has one for every class.
            num_items_in_batch = num_items_in_batch / labels.shape[1]
        return F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum") / num_items_in_batch

    return compute


def ranked_classes(logits: torch.Tensor | tuple, labels: torch.Tensor) -> torch.Tensor:
    """
    What is kept of a batch's logits [B, classes] in an evaluation: the five best classes of each image, the best first
    [B, 5]; `Trainer` calls this as `preprocess_logits_for_metrics`.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.topk(min(5, logits.shape[-1]), dim=-1).indices


def accuracy_metrics() -> Callable[[EvalPrediction], dict[str, float]]:
    """`compute_metrics` for Trainer: "accuracy" (top-1), and "top5_accuracy" if there are five classes or more."""
    metric = load_metric("accuracy")

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        ranked, labels = prediction.predictions, prediction.label_ids
        results = metric.compute(predictions=ranked[:, 0], references=labels)
        if ranked.shape[1] == 5:
            among = (ranked == labels[:, None]).any(axis=1)
            best = np.where(among, labels, ranked[:, 0])
            results["top5_accuracy"] = metric.compute(predictions=best, references=labels)["accuracy"]
        return results

    return compute
