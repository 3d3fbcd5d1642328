"""Opens models and tokenizers completely, or says in one sentence why that is not possible."""

import re
from pathlib import Path
from pickle import UnpicklingError

from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .errors import InputError, causes, hub_reason


def open_model(
    auto_class: type, name: str | Path, *, new_head: bool = False, new_size: int | None = None, **options
) -> tuple[PreTrainedModel, list[str]]:
    """
    Opens a checkpoint as `auto_class`.

    Args:
        name: A folder, or a name on the Hub.
        new_head: Whether weights outside the encoder may be missing. They are then random.
        new_size: Weights of the head may have another shape in the checkpoint if the model's starts with this size.
        options: Passed to `from_pretrained`.

    Returns:
        The model, and the names of the weights that are new because they have another shape in the checkpoint.

    Raises:
        InputError: If the weights cannot be read, do not fit the config, are incomplete, or are not finite.
    """
    try:
        # Other shapes are reported below.
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        model, report = auto_class.from_pretrained(name, **options)
    except Exception as error:
        raise InputError(f"There is no model to open in {name}: {_weights_reason(name, error)}.") from error
    weights, title = model.state_dict(), type(model).__name__
    encoder = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    mismatched = sorted(key for key, *_ in report["mismatched_keys"])
    missing = set(report["missing_keys"]) - set(mismatched)
    for keys, has, has_not in ((missing, "lacks", "has"), (report["unexpected_keys"], "has", "does not have")):
        # Heads and poolers have no numbered layers.
        keys = sorted(key for key in keys if key.startswith(encoder) and re.search(r"\.\d+\.", key))
        if keys:
            raise InputError(
                f"{name} {has} {len(keys)} weights that a {title} of its config {has_not}, such as {keys[0]}: its "
                "weights and its config.json belong to different models."
            )
    wrong = [key for key in mismatched if new_size is None or weights[key].shape[0] != new_size]
    if wrong:
        advice = "; --ignore_mismatched_sizes gives a classifier a new head" if new_head and new_size is None else ""
        fault = f"{_listed(wrong)} have another shape. Use the config.json that belongs to the weights"
        raise InputError(f"The weights of {name} do not fit its config: {fault}{advice}.")
    new = sorted({*report["missing_keys"], *mismatched})
    if new and not new_head:
        raise InputError(f"{name} was not trained as a {title}: {_listed(new)} would be random. Train it for that.")
    bad = [key for key, weight in model.named_parameters() if not weight.isfinite().all()]
    if bad:
        raise InputError(f"{name} has weights that are not finite numbers, such as {bad[0]}: use an earlier one.")
    return model, mismatched


def open_config(name: str | Path) -> PreTrainedConfig:
    """Opens the config of a checkpoint, or raises an InputError if there is none or it cannot be read."""
    try:
        return AutoConfig.from_pretrained(name)
    except Exception as error:
        raise InputError(f"There is no model to open in {name}: {reason(name, 'config.json', error)}.") from error


def open_tokenizer(name: str | Path, **options) -> PreTrainedTokenizerBase:
    """Opens a tokenizer in a folder or on the Hub, or raises an InputError if there is none or it is damaged."""
    try:
        return AutoTokenizer.from_pretrained(name, **options)
    except Exception as error:
        why = reason(name, "tokenizer_config.json", error)
        advice = "Name another, or make one with `hf-gmlp train-tokenizer`."
        raise InputError(f"There is no tokenizer to open in {name}: {why}. {advice}") from error


def reason(name: str | Path, file: str, error: Exception) -> str:
    """Returns, in half a sentence, why something that should have a `file` cannot be opened."""
    path = Path(name)
    if path.is_dir() and not (path / file).exists():
        return f"the folder has no {file}"
    if path.is_file() and path.suffix != ".json":
        return "it is a file: name its folder instead"
    return hub_reason(error)


def _weights_reason(name: str | Path, error: Exception) -> str:
    for path in sorted([*Path(name).glob("*.safetensors"), *Path(name).glob("*.bin")]):
        with open(path, "rb") as file:
            start = file.read(24)
        if not start:
            return f"{path.name} is empty"
        if start.startswith(b"version https://git-lfs"):
            return f"{path.name} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"
    if any(isinstance(cause, SafetensorError | UnpicklingError | EOFError) for cause in causes(error)):
        return f"the file is cut off or damaged ({hub_reason(error)})"
    return reason(name, "config.json", error)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
