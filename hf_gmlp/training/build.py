"""The config, tokenizer and model of a run: from a checkpoint, or new."""

import copy
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from ..errors import InputError
from ..loading import open_model, open_tokenizer, reason
from ..presets import PRESETS, preset_path
from ..tokenizer import byte_tokenizer, end_of_text, train_tokenizer
from .arguments import BaseModelArguments, DataArguments, ModelArguments
from .recipes import parse_overrides

logger = logging.getLogger(__name__)


def load_config(arguments: BaseModelArguments, **fields) -> PreTrainedConfig:
    """The config of a checkpoint or preset, with overrides and `fields`; raises InputError if they do not fit."""
    new, overrides = arguments.model_name_or_path is None, arguments.config_overrides or ""
    name = arguments.config_name if new else arguments.model_name_or_path
    if new and name in PRESETS:
        name = str(preset_path(name))
    try:
        config = AutoConfig.from_pretrained(
            name,
            **arguments.hub_options(),
            revision=arguments.model_revision,
            attn_implementation=arguments.attn_implementation,
        )
    except StrictDataclassError as error:
        raise InputError(f"The config of {name} is not valid: {error.__cause__ or error}") from error
    except Exception as error:
        flag, also = ("config_name", "; hf-gmlp presets lists the presets") if new else ("model_name_or_path", "")
        raise InputError(f"--{flag} {name}: {reason(name, 'config.json', error)}{also}.") from error
    if new:
        # Not the folder of the preset.
        config.name_or_path = ""
    original = copy.deepcopy(config)
    try:
        # Checked together with the overrides: an image size may fit only a new patch size.
        for key, value in fields.items():
            setattr(config, key, value)
        for key, value in parse_overrides(overrides).items():
            if not hasattr(config, key) or key.startswith("_") or key == "model_type" or callable(getattr(config, key)):
                raise InputError(f"--config_overrides names {key!r}, which a {type(config).__name__} does not have.")
            setattr(config, key, value)
        config.validate()
    except InputError:
        raise
    except (StrictDataclassError, TypeError, ValueError, AttributeError) as error:
        changes = overrides or ",".join(f"{key}={value}" for key, value in fields.items())
        raise InputError(f"--config_overrides {changes}: {error.__cause__ or error}") from error
    if overrides and not new and weight_shapes(config, arguments) != weight_shapes(original, arguments):
        raise InputError(
            f"--config_overrides {overrides} does not fit the weights of {name}: in a checkpoint, change only what "
            f"keeps their shapes, such as hidden_dropout_prob."
        )
    return config


def weight_shapes(config: PreTrainedConfig, arguments: BaseModelArguments) -> dict[str, torch.Size]:
    """The shapes of the weights of a model with this config, without making the weights."""
    with torch.device("meta"):
        model = AutoModel.from_config(config, trust_remote_code=arguments.trust_remote_code)
    return {key: weight.shape for key, weight in model.state_dict().items()}


def load_tokenizer(
    arguments: ModelArguments,
    training_args: TrainingArguments,
    texts: Iterable[str],
    *,
    max_length: int,
    config: PreTrainedConfig | None = None,
    byte_level: bool = False,
) -> PreTrainedTokenizerBase:
    """
    The tokenizer named by the arguments, else the checkpoint's, else with `byte_level` that of bytes, else one trained
    on the first of the `texts`, which is kept in the output folder.

    Raises:
        InputError: If there is no such tokenizer, the texts do not suffice for one, it is not that of `byte_level`, or
            it does not fit the checkpoint with this `config`.
    """
    name = arguments.tokenizer_name or arguments.model_name_or_path
    if name is not None:
        revision = "main" if arguments.tokenizer_name is not None else arguments.model_revision
        tokenizer = open_tokenizer(name, revision=revision, **arguments.hub_options())
        if byte_level and tokenizer.get_vocab() != byte_tokenizer().get_vocab():
            raise InputError(f"The tokenizer of {name} is not that of --byte_level: leave --byte_level out.")
        if config is not None and arguments.model_name_or_path is not None:
            check_vocabulary(config, tokenizer, arguments.model_name_or_path)
        if arguments.lowercase and tokenizer("A")["input_ids"] != tokenizer("a")["input_ids"]:
            raise InputError(f"--lowercase is for new tokenizers, and that of {name} is cased: pass --lowercase false.")
        return tokenizer
    if byte_level:
        if arguments.lowercase:
            raise InputError("--byte_level keeps every byte: pass --lowercase false.")
        return byte_tokenizer(max_length)
    folder, vocab_size = Path(training_args.output_dir), arguments.vocab_size
    # Other processes wait, and then find it trained.
    with training_args.main_process_first(local=False, desc="tokenizer training"):
        if all((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json")):
            try:
                return open_tokenizer(str(folder))
            except InputError as error:
                logger.warning("%s", error)
        if training_args.process_index == 0:
            logger.info("No tokenizer given: training one with %d tokens on the training text", vocab_size)
            texts = itertools.islice(texts, arguments.max_tokenizer_samples)
            tokenizer = train_tokenizer(
                texts, vocab_size=vocab_size, max_length=max_length, lowercase=arguments.lowercase
            )
            tokenizer.save_pretrained(folder)
        return open_tokenizer(str(folder))


def load_model(
    auto_class: type,
    arguments: BaseModelArguments,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    train: bool,
    new_classifier: bool = False,
) -> PreTrainedModel:
    """
    The checkpoint as `auto_class`, or a new model with the tokenizer's vocabulary and special tokens. The `config` is
    copied.

    Args:
        train: Whether the model will be trained: only then may its head be new, and its weights are float32.
        new_classifier: Whether to replace the checkpoint's classifier.

    Raises:
        InputError: If the config does not allow such a model, or as `open_model`.
    """
    config = copy.deepcopy(config)
    if type(config) not in auto_class._model_mapping and not arguments.trust_remote_code:
        task = auto_class.__name__.removeprefix("AutoModelFor")
        raise InputError(f"There is no {task} of the model type {config.model_type!r}: choose another model.")
    if arguments.model_name_or_path is not None:
        model, _ = open_model(
            auto_class,
            arguments.model_name_or_path,
            new_head=train,
            new_size=config.num_labels if new_classifier else None,
            config=config,
            **arguments.hub_options(),
            revision=arguments.model_revision,
            dtype=torch.float32 if train else "auto",
        )
        if new_classifier:
            renew_classifier(model)
        return model
    if tokenizer is not None:
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        config.bos_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if auto_class is AutoModelForCausalLM:
        # The token between documents begins and ends a text.
        config.bos_token_id = config.eos_token_id = end_of_text(tokenizer)
    try:
        return auto_class.from_config(config, trust_remote_code=arguments.trust_remote_code)
    except (ValueError, TypeError, ImportError, RuntimeError, AssertionError) as error:
        raise InputError(f"This config does not make a {config.model_type} model: {error}") from error


@torch.no_grad()
def renew_classifier(model: PreTrainedModel):
    """Initialize the weights whose shapes depend on the number of classes anew."""
    config = copy.deepcopy(model.config)
    fresh = type(model)(config).state_dict()
    config.num_labels += 1
    with torch.device("meta"):
        larger = type(model)(config).state_dict()
    for name, weight in model.state_dict().items():
        if weight.shape != larger[name].shape:
            weight.copy_(fresh[name])


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, name: str):
    """Raises InputError if the tokenizer has more tokens than the checkpoint `name`, or another padding token."""
    if len(tokenizer) > config.vocab_size:
        fault = f"has {len(tokenizer)} tokens, but the model {name} has embeddings for {config.vocab_size}"
    elif None not in (config.pad_token_id, tokenizer.pad_token_id) and config.pad_token_id != tokenizer.pad_token_id:
        fault = f"pads with token {tokenizer.pad_token_id}, but the model {name} with {config.pad_token_id}"
    else:
        return
    raise InputError(f"The tokenizer {fault}: use the model's own tokenizer.")


def check_pretraining(config: PreTrainedConfig, name: str, do_train: bool):
    """Warns if a checkpoint was not trained to predict the next token; raises InputError unless it will be."""
    trained_for = (config.architectures or [""])[0]
    if getattr(config, "is_causal", True) and not trained_for.endswith("ForMaskedLM"):
        return
    fault = f"{name} was trained as a {trained_for or 'model that sees later tokens'}, not to predict the next token"
    if not do_train:
        raise InputError(f"{fault}: evaluate a causal model, or train this one with --do_train first.")
    logger.warning("%s: the training starts from its weights.", fault)


def check_packing(model: PreTrainedModel, data_args: DataArguments):
    """Raises InputError if the model would mix what shares a row, or sees padding that training would lack."""
    for flag in ("separate_documents", "packing"):
        if not getattr(data_args, flag, False):
            continue
        if not getattr(model, "packs_documents", False):
            raise InputError(
                f"--{flag} is only for gMLPs and aMLPs: a {type(model).__name__} would mix what shares a row."
            )
        if flag == "packing" and not model.config.mask_padding:
            raise InputError(
                "--packing trains without padding, which this model sees: add --config_overrides mask_padding=true."
            )


@torch.no_grad()
def check_causal(model: PreTrainedModel):
    """Raises InputError if a later token changes the logits of an earlier one: the model would learn to copy it."""
    training = model.training
    model.eval()
    ids = torch.arange(min(8, model.config.vocab_size), device=model.device)[None]
    changed = torch.cat([ids[:, :-1], ids[:, :1]], dim=1)
    mask = torch.ones_like(ids)
    before, after = (model(input_ids=text, attention_mask=mask).logits[:, :-1] for text in (ids, changed))
    model.train(training)
    if (before - after).abs().max() > 1e-6 * before.abs().max():
        raise InputError(
            f"A {type(model).__name__} with this config sees later tokens: use a causal model, such as a gMLP or a "
            f"GPT-2; for a BERT, add --config_overrides is_decoder=true."
        )
