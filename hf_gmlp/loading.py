"""Loading of models, configs, tokenizers and image processors. If it fails, it raises an InputError of one line."""

import re
from logging import getLogger
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ModelOutput, logging

from .errors import InputError, causes, hub_reason, listed
from .models.modeling_gmlp import GMLPPreTrainedModel

logger = getLogger(__name__)

# The ONNX programs in the folder of a model, the preferred one first.
PROGRAMS = ("onnx/model_quantized.onnx", "onnx/model.onnx")
# Errors that libraries raise for files of weights that are incomplete or have another format.
WEIGHT_ERRORS = (SafetensorError, UnpicklingError, EOFError)
# Errors that they raise for a checkpoint that is missing, or whose files contradict each other.
LOADING_ERRORS = (OSError, ValueError, RuntimeError, ImportError, StrictDataclassError, *WEIGHT_ERRORS)


def open_model(
    auto_class: Any, name: str | Path, *, new_head: bool = False, new_size: int | None = None, **options
) -> PreTrainedModel:
    """Load a checkpoint as `auto_class`; raise InputError if weights are missing, do not fit, or are not finite.

    Args:
        new_head: Whether weights outside of the encoder may be missing. They are then random.
        new_size: The first dimension of weights of the head that may differ in the checkpoint. They are then random.
        options: Options of `from_pretrained`.
    """
    verbosity = logging.get_verbosity()
    try:
        # Weights that are missing or have another shape are reported below, in one line.
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        logging.set_verbosity_error()
        model, report = auto_class.from_pretrained(name, **options)
    except LOADING_ERRORS as error:
        why = reason(name, "config.json", error)
        if any(isinstance(cause, WEIGHT_ERRORS) for cause in causes(error)):
            why = f"its weights are incomplete or corrupted ({why}): copy them again, or `git lfs pull` them"
        raise InputError(f"Cannot load a model from {name}: {why}.") from error
    finally:
        logging.set_verbosity(verbosity)
    weights, class_name = model.state_dict(), type(model).__name__
    encoder = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    # Heads and poolers have neither numbered layers nor embeddings.
    is_layer = re.compile(rf"{re.escape(encoder)}.*(\.\d+\.|embeddings\.weight$)").match
    mismatched = {key for key, *_ in report["mismatched_keys"]}
    missing = {*report["missing_keys"]} - mismatched
    wrong = [
        *(f"{key} is missing" for key in missing if is_layer(key)),
        *(f"{key} is unexpected" for key in report["unexpected_keys"] if is_layer(key)),
        *(f"{key} has another shape" for key in mismatched if new_size is None or weights[key].shape[0] != new_size),
    ]
    if wrong:
        raise InputError(f"The weights of {name} do not fit its config as a {class_name}: {listed(sorted(wrong), 3)}.")
    new = sorted({*missing, *mismatched})
    if new and not new_head:
        raise InputError(f"{name} has no trained weights for a {class_name}, such as {new[0]}: fine-tune it first.")
    if new:
        logger.info("New weights, which the training will fill: %s", listed(new))
    for key, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise InputError(f"{name} has weights that are not finite, such as {key}: use an earlier checkpoint.")
    return model


def open_config(name: str | Path, **options) -> PreTrainedConfig:
    """Load the config of a checkpoint; raise InputError if there is none or it cannot be read."""
    return _open(AutoConfig, "a model", name, "config.json", **options)


def open_tokenizer(name: str | Path, **options) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or the Hub; raise InputError if there is none or it cannot be read."""
    # `tokenizers` raises nothing more specific than Exception for a file that it cannot read.
    return _open(AutoTokenizer, "a tokenizer", name, "tokenizer_config.json", Exception, **options)


def open_image_processor(name: str | Path, **options) -> BaseImageProcessor:
    """Load an image processor from a folder or the Hub; raise InputError if there is none or it cannot be read."""
    return _open(AutoImageProcessor, "an image processor", name, "preprocessor_config.json", **options)


def _open(auto_class: Any, kind: str, name: str | Path, file: str, errors: Any = LOADING_ERRORS, **options) -> Any:
    try:
        return auto_class.from_pretrained(name, **options)
    except errors as error:
        raise InputError(f"Cannot load {kind} from {name}: {reason(name, file, error)}.") from error


def reason(name: str | Path, file: str, error: Exception) -> str:
    """Return in one line why something that should have a `file` cannot be loaded."""
    if Path(name).is_dir() and not (Path(name) / file).exists():
        return f"the folder has no {file}"
    # huggingface_hub takes every name that is not a folder for a repository.
    is_path = any(isinstance(cause, HFValidationError) for cause in causes(error)) and not Path(name).exists()
    if is_path:
        return "there is no such folder"
    if any(isinstance(cause, LocalEntryNotFoundError) for cause in causes(error)):
        return "there is no such folder, the cache has neither this name nor this revision, and the Hub is unreachable"
    return hub_reason(error)


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise an InputError if the tokenizer has more tokens than the checkpoint `name`, or another padding token."""
    tokens, padding = len(tokenizer), tokenizer.pad_token_id
    pads_alike = None in (config.pad_token_id, padding) or config.pad_token_id == padding
    if tokens > config.vocab_size or not pads_alike:
        raise InputError(
            f"The tokenizer has {tokens} tokens and pads with token {padding}, but {name} has embeddings for "
            f"{config.vocab_size} and pads with {config.pad_token_id}: use the model's own tokenizer."
        )


def task_of(config: PreTrainedConfig) -> str:
    """Return the task that a checkpoint was trained for, such as "SequenceClassification"; "" for an encoder."""
    return (config.architectures or [""])[0].partition("For")[2]


def open_runnable(checkpoint: str, task: str, dtype: str = "auto") -> PreTrainedModel:
    """Load a model for a task such as "SequenceClassification", on the accelerator if there is one, with weights of the
    type that `choose_dtype` returns for `dtype`.

    If the folder has an ONNX program from `hf-gmlp export`, that program computes.
    """
    auto_class = getattr(transformers, f"AutoModelFor{task}")
    file = program_of(checkpoint)
    if file is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        model = open_model(auto_class, checkpoint)
        # Numbers keep their digits, of which bfloat16 has three.
        is_number = model.config.problem_type == "regression"
        return model.to(device, torch.float32 if is_number else choose_dtype(dtype)).eval()
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def forward(**inputs: torch.Tensor) -> ModelOutput:
        # Inputs that are missing, such as segments, are zeros.
        zeros = torch.zeros_like(next(iter(inputs.values())))
        arrays = {tensor.name: inputs.get(tensor.name, zeros).cpu().numpy() for tensor in session.get_inputs()}
        return ModelOutput(dict(zip(names, map(torch.from_numpy, session.run(names, arrays)))))

    # The weights of this model are not used.
    model = auto_class.from_config(open_config(checkpoint)).eval()
    model.forward = forward
    if dtype == "bfloat16":
        raise InputError(f"--dtype bfloat16 has no effect on {file}: leave it out, or delete the program.")
    print(f"Running {file}")
    return model


def choose_dtype(name: str) -> torch.dtype:
    """Return the type that "float32", "bfloat16" or "auto" names: by default bfloat16 where it is multiplied fast.

    These are GPUs that have it, and processors with AMX or AVX512_BF16; others are ten times slower with it.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if torch.cuda.is_available():
        is_fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        is_fast = any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))
    return torch.bfloat16 if is_fast else torch.float32


def program_of(checkpoint: str) -> Path | None:
    """Return the ONNX program in the folder of a model, if there is one."""
    return next((file for file in (Path(checkpoint, name) for name in PROGRAMS) if file.is_file()), None)


def extend_context(model: GMLPPreTrainedModel, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
    """Extend a text model and its tokenizer, such as those of a pipeline, to texts of up to `length` tokens, in place.

    A Toeplitz W, the default of text models, needs no training for that. A model that accepts as many tokens already
    stays as it is.

    Example:
        classify = pipeline("text-classification", "checkpoints/amlp-mini-sst2")
        hf_gmlp.extend_context(classify.model, classify.tokenizer, 4096)

    Raises:
        ValueError: If W is dense, since its added positions must be trained (`model.resize_position_embeddings`).
    """
    is_longer = length > model.config.max_position_embeddings
    if is_longer and not model.config.toeplitz:
        raise ValueError(
            "The model has a dense W, whose added positions must be trained: call "
            f"`model.resize_position_embeddings({length})` and train it."
        )
    if is_longer:
        model.resize_position_embeddings(length)
    tokenizer.model_max_length = length
