"""Image classifiers of any size, from this package, transformers and timm, and their image processors."""

import logging
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModelForImageClassification,
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
)

from ...errors import InputError
from ...loading import open_image_processor
from ...models.configuration_gmlp import as_pair
from ...processor import evaluation_processor, processor_size
from ...training.build import load_config, load_model
from ...training.recipes import parse_overrides
from .arguments import ImageModelArguments

logger = logging.getLogger(__name__)

TIMM = "timm/"


def load_image_config(arguments: ImageModelArguments, size: tuple[int, int] | None) -> PreTrainedConfig:
    """Return the config of a checkpoint or preset, or of a new model of timm, such as "timm/resmlp_12_224".

    The overrides of a timm model are arguments of `timm.create_model`. The `size` (height and width in pixels) applies
    to new models.
    """
    name = arguments.config_name or ""
    if name.startswith(TIMM):
        return _timm_config(name, arguments, size)
    if size is None or arguments.model_name_or_path is not None:
        return load_config(arguments)
    return load_config(arguments, image_size=size[0] if size[0] == size[1] else list(size))


def _timm_config(name: str, arguments: ImageModelArguments, size: tuple[int, int] | None) -> TimmWrapperConfig:
    import timm

    name = name.removeprefix(TIMM).partition(".")[0]
    overrides = parse_overrides(arguments.config_overrides or "")
    model_args = overrides if size is None else {"img_size": size} | overrides
    try:
        with torch.device("meta"):
            try:
                timm.create_model(name, **model_args)
            except TypeError:
                # Convolutional networks have no argument for the size.
                model_args = overrides
                timm.create_model(name, **model_args)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise InputError(f"Cannot create timm's {name} with {model_args}: {error}") from error
    return TimmWrapperConfig(architecture=name, model_args=model_args or None)


def image_size(config: PreTrainedConfig, processor: BaseImageProcessor | None = None) -> tuple[int, int]:
    """Return the height and width in pixels of a model's input: those of its config, processor, or timm, else 224."""
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
    """Return the image processor of the checkpoint.

    A new model, another `size` in pixels or a `crop_pct` needs an `evaluation_processor`. It has the mean, standard
    deviation and crop of the checkpoint's processor, if there is one.
    """
    processor, name = None, arguments.model_name_or_path
    if name is not None:
        processor = open_image_processor(name, revision=arguments.model_revision, **arguments.hub_options())
    new_size = size or image_size(config, processor)
    if processor is not None and crop_pct is None and processor_size(processor) == new_size:
        return processor
    # transformers' wrapper of timm's transforms stores them in `data_config`.
    data = getattr(processor, "data_config", {})
    fields: dict[str, Any] = {
        "crop_pct": crop_pct or getattr(processor, "crop_pct", None) or data.get("crop_pct"),
        "mean": getattr(processor, "image_mean", None) or data.get("mean"),
        "std": getattr(processor, "image_std", None) or data.get("std"),
    }
    return evaluation_processor(new_size, **{name: value for name, value in fields.items() if value})


def load_image_model(
    arguments: ImageModelArguments,
    config: PreTrainedConfig,
    size: tuple[int, int] | None,
    *,
    train: bool,
    new_classifier: bool = False,
) -> PreTrainedModel:
    """Return the image classifier of `load_model`; a gMLP checkpoint is resized to the `size` in pixels."""
    model = load_model(AutoModelForImageClassification, arguments, config, train=train, new_classifier=new_classifier)
    if arguments.model_name_or_path is None and isinstance(config, TimmWrapperConfig):
        # transformers' wrapper initializes all linear layers itself, which overwrites the near-zero W of timm's gMLP.
        import timm

        timm_model = timm.create_model(config.architecture, num_classes=config.num_labels, **(config.model_args or {}))
        model.timm_model.load_state_dict(timm_model.state_dict())
    if size is not None and hasattr(config, "image_size") and size != image_size(config):
        if not hasattr(model, "resize_image_size"):
            raise InputError(f"--image_size {size[0]} {size[1]}: only gMLPs are resized, not a {config.model_type}.")
        try:
            model.resize_image_size(size)
        except (StrictDataclassError, ValueError) as error:
            raise InputError(f"--image_size {size[0]} {size[1]}: {error.__cause__ or error}") from error
        logger.info("Resized to %d x %d pixels: %d tokens", *size, model.config.max_position_embeddings)
    return model
