"""Config, tokenizer and model of a run: of a checkpoint, or new."""

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

from ..data.text import end_of_text
from ..data.tokenizer import byte_tokenizer, train_tokenizer
from ..errors import InputError
from ..loading import open_model, open_tokenizer, reason
from ..presets import PRESETS, preset_path
from .arguments import BaseModelArguments, ModelArguments
from .folder import whole_files
from .recipes import parse_overrides

logger = logging.getLogger(__name__)


def load_config(arguments: BaseModelArguments, **fields) -> PreTrainedConfig:
    """
    The config that the arguments ask for: of a checkpoint, of a preset, or any other, with the overrides. Those of a
    checkpoint must leave the shapes of its weights as they are, as dropout does.

    Args:
        fields: More fields to set, such as `num_labels`.

    Raises:
        InputError: If there is no such config, or an override does not fit it or the checkpoint's weights.
    """
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
            **fields,
        )
    except StrictDataclassError as error:
        raise InputError(f"The config of {name} is not valid: {error.__cause__ or error}") from error
    except Exception as error:
        flag, also = ("config_name", "; hf-gmlp presets lists the presets") if new else ("model_name_or_path", "")
        raise InputError(f"--{flag} {name}: {reason(name, 'config.json', error)}{also}.") from error
    if new:
        # A new model comes from nowhere: not from the preset's folder.
        config.name_or_path = ""
    original = copy.deepcopy(config)
    try:
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
            f"--config_overrides {overrides} does not fit the weights of {name}: of a checkpoint, change only what "
            f"leaves their shapes as they are, such as hidden_dropout_prob."
        )
    return config


def weight_shapes(config: PreTrainedConfig, arguments: BaseModelArguments) -> dict[str, torch.Size]:
    """The shape of every weight that a model of this config has, without making them."""
    with torch.device("meta"):
        model = AutoModel.from_config(config, trust_remote_code=arguments.trust_remote_code)
    return {key: weight.shape for key, weight in model.state_dict().items()}


def load_tokenizer(
    arguments: ModelArguments,
    training_args: TrainingArguments,
    texts: Iterable[str],
    *,
    max_length: int,
    byte_level: bool = False,
) -> PreTrainedTokenizerBase:
    """
    The tokenizer named by the arguments, else the checkpoint's. If none is given, one is trained on the first of the
    `texts` into the output folder, or taken from there when a run goes on; or it is the one of bytes, if `byte_level`.

    Raises:
        InputError: If there is no such tokenizer, the texts do not suffice for one, or it is not that of `byte_level`.
    """
    name = arguments.tokenizer_name or arguments.model_name_or_path
    if name is not None:
        revision = "main" if arguments.tokenizer_name is not None else arguments.model_revision
        tokenizer = open_tokenizer(name, revision=revision, **arguments.hub_options())
        if byte_level and tokenizer.get_vocab() != byte_tokenizer().get_vocab():
            raise InputError(f"The tokenizer of {name} is not the one of --byte_level: leave that out.")
        return tokenizer
    if byte_level:
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
            logger.info("No tokenizer given: training one of %d tokens on the training text", vocab_size)
            texts = itertools.islice(texts, arguments.max_tokenizer_samples)
            tokenizer = train_tokenizer(texts, vocab_size=vocab_size, max_length=max_length)
            with whole_files(folder) as partial:
                tokenizer.save_pretrained(partial)
        return open_tokenizer(str(folder))


def load_model(
    auto_class: type,
    arguments: ModelArguments,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    train: bool,
    new_classifier: bool = False,
) -> PreTrainedModel:
    """
    The checkpoint as `auto_class`, or a new model whose vocabulary and special tokens are the tokenizer's.

    Args:
        train, new_classifier: As for `open_checkpoint`.

    Raises:
        InputError: If there is no such model of the config's type, or as `check_vocabulary` and `open_checkpoint`.
    """
    if type(config) not in auto_class._model_mapping and not arguments.trust_remote_code:
        task = auto_class.__name__.removeprefix("AutoModelFor")
        raise InputError(f"There is no {task} of the model type {config.model_type!r}: take another model.")
    if arguments.model_name_or_path is not None:
        check_vocabulary(config, tokenizer, arguments.model_name_or_path)
        return open_checkpoint(auto_class, arguments, config, train=train, new_classifier=new_classifier)[0]
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    config.bos_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if auto_class is AutoModelForCausalLM:
        # One token between documents, from which a text begins and by which it ends.
        config.bos_token_id = config.eos_token_id = end_of_text(tokenizer)
    return new_model(auto_class, arguments, config)


def new_model(auto_class: type, arguments: BaseModelArguments, config: PreTrainedConfig) -> PreTrainedModel:
    """
    Raises:
        InputError: If no model can be made of the config.
    """
    try:
        return auto_class.from_config(config, trust_remote_code=arguments.trust_remote_code)
    except (ValueError, TypeError, ImportError, RuntimeError, AssertionError) as error:
        raise InputError(f"No {config.model_type} can be made of this config: {error}") from error


def open_checkpoint(
    auto_class: type,
    arguments: BaseModelArguments,
    config: PreTrainedConfig,
    *,
    train: bool,
    new_classifier: bool = False,
) -> tuple[PreTrainedModel, list[str]]:
    """
    What `open_model` gives of the checkpoint as `auto_class`, with its errors.

    Args:
        train: Whether the model will be trained: only then may it have a new head, and its weights are in float32.
        new_classifier: Whether the head may be new because it has another size.
    """
    return open_model(
        auto_class,
        arguments.model_name_or_path,
        new_head=train,
        new_size=config.num_labels if new_classifier else None,
        config=copy.deepcopy(config),
        **arguments.hub_options(),
        revision=arguments.model_revision,
        dtype=torch.float32 if train else "auto",
    )


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, name: str):
    """
    Raises:
        InputError: If the tokenizer has more tokens than the checkpoint `name` has embeddings, or pads with another.
    """
    if len(tokenizer) > config.vocab_size:
        fault = f"has {len(tokenizer)} tokens and the model {name} has embeddings for {config.vocab_size}"
    elif None not in (config.pad_token_id, tokenizer.pad_token_id) and config.pad_token_id != tokenizer.pad_token_id:
        fault = f"pads with token {tokenizer.pad_token_id} and the model {name} with {config.pad_token_id}"
    else:
        return
    raise InputError(f"The tokenizer {fault}: take the tokenizer that belongs to the model.")


def check_pretraining(config: PreTrainedConfig, name: str, do_train: bool):
    """
    Says of a checkpoint `name` that is to predict the next token if it was trained for something else.

    Raises:
        InputError: If it is not to be trained now either.
    """
    trained_for = (config.architectures or [""])[0]
    if getattr(config, "is_causal", True) and not trained_for.endswith("ForMaskedLM"):
        return
    fault = f"{name} was trained as a {trained_for or 'model that sees later tokens'}, not to predict the next token"
    if not do_train:
        raise InputError(f"{fault}: evaluate a causal model, or train this one by --do_train first.")
    logger.warning("%s: its weights are where this training begins.", fault)


@torch.no_grad()
def check_packing(model: PreTrainedModel, flag: str):
    """
    Raises:
        InputError: If documents that share a row would mix in this model, or if it would be trained without the padding
            that it sees otherwise.
    """
    if not getattr(model, "packs_documents", False):
        raise InputError(f"{flag} is for gMLPs and aMLPs: in a {type(model).__name__}, what shares a row would mix.")
    if flag == "--packing" and not model.config.mask_padding:
        raise InputError(
            "--packing trains without padding, which this model sees: add --config_overrides mask_padding=true."
        )


def check_causal(model: PreTrainedModel):
    """
    Raises:
        InputError: If what the model says of a token changes with a later one: it would learn to copy it.
    """
    training = model.training
    model.eval()
    ids = torch.arange(min(8, model.config.vocab_size), device=model.device)[None]
    changed = torch.cat([ids[:, :-1], ids[:, :1]], dim=1)
    mask = torch.ones_like(ids)
    before, after = (model(input_ids=text, attention_mask=mask).logits[:, :-1] for text in (ids, changed))
    model.train(training)
    if (before - after).abs().max() > 1e-6 * before.abs().max():
        raise InputError(
            f"A {type(model).__name__} of this config sees later tokens: take a causal model, such as a gMLP or GPT-2; "
            f"a BERT is one by --config_overrides is_decoder=true."
        )
