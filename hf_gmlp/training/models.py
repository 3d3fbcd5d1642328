"""Config, tokenizer and model of a run: of a checkpoint, or new."""

import copy
import logging
from collections.abc import Iterable
from pathlib import Path

import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from ..data.text import end_of_text
from ..data.tokenizer import byte_tokenizer, train_tokenizer
from ..errors import InputError
from ..presets import PRESETS, preset_path
from .arguments import BaseModelArguments, ModelArguments

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
    name = arguments.model_name_or_path or arguments.config_name
    if arguments.model_name_or_path is None and name in PRESETS:
        name = str(preset_path(name))
    try:
        config = AutoConfig.from_pretrained(
            name,
            cache_dir=arguments.cache_dir,
            revision=arguments.model_revision,
            trust_remote_code=arguments.trust_remote_code,
            attn_implementation=arguments.attn_implementation,
            **fields,
        )
    except OSError as error:
        if arguments.model_name_or_path is not None:
            raise InputError(f"There is no checkpoint {name!r}, neither a folder nor on the Hub.") from error
        raise InputError(
            f"{name!r} is no preset (hf-gmlp presets lists them), and there is no config in a folder or on the Hub of "
            f"that name."
        ) from error
    except ValueError as error:
        raise InputError(f"{name!r} has no config of a model that is known here: {error}") from error
    if arguments.model_name_or_path is None:
        # A new model comes from nowhere: not from the preset's folder.
        config.name_or_path = ""
    original = copy.deepcopy(config)
    for key, value in parse_overrides(arguments.config_overrides or "").items():
        if not hasattr(config, key):
            raise InputError(f"--config_overrides names {key!r}, which a {type(config).__name__} does not have.")
        try:
            setattr(config, key, value)
        except StrictDataclassError as error:
            raise InputError(f"--config_overrides {key}={value}: {error.__cause__ or error}") from error
    try:
        config.validate()
    except StrictDataclassError as error:
        changes = arguments.config_overrides or ",".join(f"{key}={value}" for key, value in fields.items())
        raise InputError(f"--config_overrides {changes}: {error.__cause__ or error}") from error
    if arguments.config_overrides and arguments.model_name_or_path is not None:
        if weight_shapes(config, arguments) != weight_shapes(original, arguments):
            raise InputError(
                f"--config_overrides {arguments.config_overrides} does not fit the weights of {name}: of a checkpoint, "
                f"only what leaves their shapes as they are can be changed, such as hidden_dropout_prob."
            )
    return config


def weight_shapes(config: PreTrainedConfig, arguments: BaseModelArguments) -> dict[str, torch.Size]:
    """The shape of every weight that a model of this config has, without making them."""
    with torch.device("meta"):
        model = AutoModel.from_config(config, trust_remote_code=arguments.trust_remote_code)
    return {key: weight.shape for key, weight in model.state_dict().items()}


def parse_overrides(text: str) -> dict:
    """ "`"a=1,b=true,c=relu"` as a dictionary, each value as YAML reads it."""
    overrides = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"--config_overrides takes key=value pairs parted by commas, got {item!r}.")
        overrides[key.strip()] = yaml.safe_load(value)
    return overrides


def load_tokenizer(
    arguments: ModelArguments,
    training_args: TrainingArguments,
    texts: Iterable[str],
    *,
    vocab_size: int,
    max_length: int,
    byte_level: bool = False,
) -> PreTrainedTokenizerBase:
    """
    The tokenizer named by the arguments, else the checkpoint's. If none is given, one is trained on `texts` into the
    output folder, or taken from there when a run goes on; or it is the one of bytes, if `byte_level`.

    Raises:
        InputError: If there is no such tokenizer, the texts do not suffice for one, or it is not the one of bytes where
            that is asked for.
    """
    name = arguments.tokenizer_name or arguments.model_name_or_path
    options = {"cache_dir": arguments.cache_dir, "trust_remote_code": arguments.trust_remote_code}
    if name is not None:
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
        except (OSError, ValueError) as error:
            raise InputError(
                f"There is no tokenizer in {name!r}: name one by --tokenizer_name, or make one by "
                f"`hf-gmlp train-tokenizer`."
            ) from error
        if byte_level and tokenizer.get_vocab() != byte_tokenizer().get_vocab():
            raise InputError(
                f"The tokenizer of {name} is not the one of --byte_level: leave that out, or take a model that was "
                f"trained with it."
            )
        return tokenizer
    if byte_level:
        return byte_tokenizer(max_length)
    folder = Path(training_args.output_dir)
    # Other processes wait, and then find it trained.
    with training_args.main_process_first(local=False, desc="tokenizer training"):
        if not (folder / "tokenizer.json").is_file():
            logger.info("No tokenizer given: training one of %d tokens on the training text", vocab_size)
            try:
                tokenizer = train_tokenizer(texts, vocab_size=vocab_size, max_length=max_length)
            except ValueError as error:
                raise InputError(str(error)) from error
            tokenizer.save_pretrained(folder)
        return AutoTokenizer.from_pretrained(folder)


def load_model(
    auto_class: type, arguments: ModelArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """
    The checkpoint as `auto_class`, or a new model whose vocabulary and special tokens are the tokenizer's.

    Raises:
        InputError: If there is no such model of the config's type, a checkpoint's vocabulary is too small for the
            tokenizer, or its padding token is another.
    """
    if type(config) not in auto_class._model_mapping and not arguments.trust_remote_code:
        task = auto_class.__name__.removeprefix("AutoModelFor")
        raise InputError(f"There is no {task} of the model type {config.model_type!r}: take another model.")
    if arguments.model_name_or_path is None:
        config.vocab_size = len(tokenizer)
        config.pad_token_id = tokenizer.pad_token_id
        config.bos_token_id = tokenizer.cls_token_id
        config.eos_token_id = tokenizer.sep_token_id
        if auto_class is AutoModelForCausalLM:
            # One token between documents, from which a text begins and by which it ends.
            config.bos_token_id = config.eos_token_id = end_of_text(tokenizer)
        return auto_class.from_config(config, trust_remote_code=arguments.trust_remote_code)
    check_vocabulary(config, tokenizer, arguments.model_name_or_path)
    return auto_class.from_pretrained(
        arguments.model_name_or_path,
        config=config,
        cache_dir=arguments.cache_dir,
        revision=arguments.model_revision,
        trust_remote_code=arguments.trust_remote_code,
    )


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, name: str):
    """
    Raises:
        InputError: If the tokenizer has more tokens than the checkpoint `name` has embeddings, or pads with another.
    """
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"The tokenizer has {len(tokenizer)} tokens and the model {name} has embeddings for {config.vocab_size}: "
            f"take the tokenizer that belongs to the model."
        )
    if None not in (config.pad_token_id, tokenizer.pad_token_id) and config.pad_token_id != tokenizer.pad_token_id:
        raise InputError(
            f"The tokenizer pads with token {tokenizer.pad_token_id} and the model {name} with {config.pad_token_id}: "
            f"take the tokenizer that belongs to the model."
        )


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
            f"A {type(model).__name__} of this config sees later tokens and cannot predict them: take a causal model, "
            f"such as a gMLP or GPT-2; a BERT is one by --config_overrides is_decoder=true."
        )
