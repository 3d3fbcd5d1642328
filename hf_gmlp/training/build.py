"""The config, tokenizer and model of a run, from a checkpoint or new."""

import copy
import itertools
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from ..errors import InputError, first_line
from ..loading import check_vocabulary, open_model, open_tokenizer, reason
from ..presets import PRESETS, preset_path
from ..tokenizer import end_of_text, train_tokenizer
from .arguments import BaseModelArguments, ModelArguments
from .recipes import parse_overrides

logger = logging.getLogger(__name__)

# Models of transformers whose first position is the padding token's id plus one.
COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "mpnet", "esm")
# Fields of a new model's config that `build_model` sets from the tokenizer.
FROM_TOKENIZER = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")


def build_config(arguments: BaseModelArguments, **fields) -> PreTrainedConfig:
    """Return the config of a checkpoint or preset with `fields` and overrides; raise InputError if they do not fit."""
    new = arguments.model_name_or_path is None
    flag, name = ("config_name", arguments.config_name) if new else ("model_name_or_path", arguments.model_name_or_path)
    options = {"revision": arguments.model_revision, "attn_implementation": arguments.attn_implementation}
    try:
        path = preset_path(name) if new and name in PRESETS else name
        config = AutoConfig.from_pretrained(path, **arguments.hub_options(), **options)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise InputError(f"--{flag} {name}: {reason(str(name), 'config.json', error)}.") from error
    if new:
        # The folder of a preset is not the origin of a new model.
        config.name_or_path = ""
    overrides = parse_overrides(arguments.config_overrides or "")
    for key in overrides:
        is_fixed = key.startswith("_") or key in ("model_type", *(FROM_TOKENIZER if new else ()))
        if is_fixed or not hasattr(config, key) or callable(getattr(config, key)):
            raise InputError(f"--config_overrides cannot set {key!r} of a {type(config).__name__}.")
    changes = fields | overrides
    try:
        # Changes are checked together, since an image size may fit only a new patch size.
        for key, value in changes.items():
            setattr(config, key, value)
        config.validate()
    except (StrictDataclassError, TypeError, ValueError, AttributeError) as error:
        pairs = ",".join(f"{key}={value}" for key, value in changes.items())
        raise InputError(f"--config_overrides {pairs}: {error.__cause__ or error}") from error
    return config


def sequence_length(
    config: PreTrainedConfig, length: int | None, default: float = math.inf, flag: str = "max_seq_length"
) -> int:
    """Return the `length` of a flag, else the model's n or `default`; raise an InputError if n is less."""
    longest = getattr(config, "max_position_embeddings", None) or math.inf
    if config.model_type in COUNT_FROM_PADDING:
        longest -= config.pad_token_id + 1
    # `build_model` lengthens a checkpoint with a Toeplitz W, which needs no training for that.
    grows = config.model_type == "gmlp" and config.toeplitz and config.name_or_path
    if length is not None and length > longest and not grows:
        raise InputError(f"--{flag} {length} is above the model's n = {longest} (max_position_embeddings): lower it.")
    if min(length or longest, longest, default) == math.inf:
        raise InputError(f"The model has no maximum length: set the tokens per sequence with --{flag}.")
    return length or int(min(longest, default))


def build_tokenizer(
    arguments: ModelArguments,
    training_args: TrainingArguments,
    texts: Iterable[str],
    *,
    max_length: int,
    config: PreTrainedConfig | None = None,
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that the arguments name, or the checkpoint's; raise InputError if it does not fit.

    Without either, train one on the first of the `texts` and save it in the output folder.
    """
    name = arguments.tokenizer_name or arguments.model_name_or_path
    if name is not None:
        revision = "main" if arguments.tokenizer_name else arguments.model_revision
        tokenizer = open_tokenizer(name, revision=revision, **arguments.hub_options())
        if config is not None and arguments.model_name_or_path is not None:
            check_vocabulary(config, tokenizer, arguments.model_name_or_path)
        if arguments.lowercase and tokenizer("A")["input_ids"] != tokenizer("a")["input_ids"]:
            raise InputError(f"--lowercase is for new tokenizers, and that of {name} is cased: pass --lowercase false.")
        tokenizer.model_max_length = max(tokenizer.model_max_length, max_length)
        return tokenizer
    folder = Path(training_args.output_dir)
    # Other processes wait until it is trained.
    with training_args.main_process_first(local=False, desc="tokenizer training"):
        is_trained = all((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json"))
        if training_args.process_index == 0 and not is_trained:
            logger.info("Training a tokenizer with at most %d tokens on the training text", arguments.vocab_size)
            texts = itertools.islice(texts, arguments.max_tokenizer_samples)
            size, lowercase = arguments.vocab_size, arguments.lowercase
            trained = train_tokenizer(texts, vocab_size=size, max_length=max_length, lowercase=lowercase)
            trained.save_pretrained(folder)
        return open_tokenizer(folder)


def build_model(
    auto_class: Any,
    arguments: BaseModelArguments,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    train: bool,
    new_classifier: bool = False,
    length: int | None = None,
) -> PreTrainedModel:
    """Return the checkpoint as `auto_class`, or a new model with the tokenizer's vocabulary and special tokens.

    Args:
        config: The config of the model, which is copied, not changed.
        train: Whether the model will be trained: only then may its head be new, and its weights are float32.
        new_classifier: Whether to replace a classifier of another size with a new one.
        length: Number of tokens to which a checkpoint with a Toeplitz W is extended, if its n is smaller.
    """
    config = copy.deepcopy(config)
    if arguments.model_name_or_path is not None:
        model = open_model(
            auto_class,
            arguments.model_name_or_path,
            new_head=train,
            new_size=config.num_labels if new_classifier else None,
            config=config,
            revision=arguments.model_revision,
            dtype=torch.float32 if train else "auto",
            **arguments.hub_options(),
        )
        n = getattr(model.config, "max_position_embeddings", 0)
        if config.model_type == "gmlp" and length is not None and length > n:
            logger.info("The checkpoint accepts %d tokens. Since its W is Toeplitz, it now accepts %d.", n, length)
            model.resize_position_embeddings(length)
        return model
    if tokenizer is not None:
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        config.bos_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if auto_class is AutoModelForCausalLM:
        # The token between documents begins and ends each text.
        config.bos_token_id = config.eos_token_id = end_of_text(tokenizer)
    try:
        return auto_class.from_config(config, trust_remote_code=arguments.trust_remote_code)
    except (ValueError, TypeError, ImportError, RuntimeError, AssertionError) as error:
        raise InputError(f"This config does not make a {config.model_type} model: {first_line(error)}") from error


def check_pretraining(config: PreTrainedConfig, name: str, do_train: bool) -> None:
    """Raise an InputError if a checkpoint was trained with later tokens visible, unless it will be trained further."""
    trained_for = (config.architectures or [""])[0]
    if not do_train and (not getattr(config, "is_causal", True) or trained_for.endswith("ForMaskedLM")):
        raise InputError(f"{name} was trained as a {trained_for}, not to predict the next token: --do_train first.")


def check_packing(model: PreTrainedModel, separate_documents: bool) -> None:
    """Raise an InputError if --separate_documents is set, but the model cannot separate documents in a row."""
    if separate_documents and model.config.model_type != "gmlp":
        raise InputError(f"--separate_documents is for gMLPs and aMLPs: a {type(model).__name__} mixes documents.")


@torch.no_grad()
def check_causal(model: PreTrainedModel) -> None:
    """Raise an InputError if a token changes the logits of earlier ones: the model would learn to copy it."""
    training = model.training
    model.eval()
    ids = torch.arange(min(8, model.config.vocab_size), device=model.device)[None]
    changed = torch.cat([ids[:, :-1], ids[:, :1]], dim=1)
    mask = torch.ones_like(ids)
    before, after = (model(input_ids=text, attention_mask=mask).logits[:, :-1] for text in (ids, changed))
    model.train(training)
    if (before - after).abs().max() > 1e-6 * before.abs().max():
        name = type(model).__name__
        raise InputError(f"A {name} sees later tokens; a BERT needs --config_overrides is_decoder=true.")
