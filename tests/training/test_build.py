import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
)

from hf_gmlp import GMLPConfig, GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import ModelArguments, RunArguments
from hf_gmlp.training.build import (
    build_config,
    build_model,
    build_tokenizer,
    check_causal,
    check_pretraining,
    check_vocabulary,
    sequence_length,
)

from ..samples import WORDS, word_tokenizer

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 50}


def test_configs_come_from_presets_or_folders_with_overrides(tmp_path):
    config = build_config(ModelArguments(config_name="amlp-base"), num_labels=5)
    assert isinstance(config, GMLPConfig) and config.attention_size == 64 and config.num_labels == 5
    GMLPConfig(hidden_size=64).save_pretrained(tmp_path)
    overrides = "num_hidden_layers=2,toeplitz=false,spatial_gating=additive,hidden_dropout_prob=0.1"
    config = build_config(ModelArguments(config_name=str(tmp_path), config_overrides=overrides))
    assert (config.hidden_size, config.num_hidden_layers, config.toeplitz) == (64, 2, False)
    assert config.spatial_gating == "additive" and config.hidden_dropout_prob == 0.1


@pytest.mark.parametrize(
    "overrides",
    ["layers=2", "num_hidden_layers=two", "num_hidden_layers=", "model_type=bert", "vocab_size=9", "hidden_size"],
)
def test_bad_overrides_are_refused(overrides):
    with pytest.raises(InputError, match=f"--config_overrides.*{overrides.partition('=')[0]}"):
        build_config(ModelArguments(config_name="gmlp-base", config_overrides=overrides))


def test_unknown_and_corrupted_configs_are_refused(tmp_path):
    with pytest.raises(InputError, match="--config_name gmlp-bas"):
        build_config(ModelArguments(config_name="gmlp-bas"))
    with pytest.raises(InputError, match=f"--model_name_or_path {tmp_path}"):
        build_config(ModelArguments(model_name_or_path=str(tmp_path)))
    for text in ('{"model_type": "gmlpp"}', "", '{"model_type": "gmlp", "hidden_size": "wide"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=f"{tmp_path}") as caught:
            build_config(ModelArguments(model_name_or_path=str(tmp_path)))
        assert "\n" not in str(caught.value)


def test_new_models_have_the_vocabulary_of_the_tokenizer():
    tokenizer = word_tokenizer(WORDS)
    arguments = ModelArguments(
        config_name="gmlp-base", config_overrides="num_hidden_layers=1,hidden_size=8,intermediate_size=16"
    )
    # A causal model begins and ends each text with the token between documents.
    for auto_class, begin in ((AutoModelForMaskedLM, 2), (AutoModelForCausalLM, 3)):
        config = build_model(auto_class, arguments, build_config(arguments), tokenizer, train=True).config
        assert config.vocab_size == len(tokenizer) == 205
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, begin, 3)
    arguments = ModelArguments(config_name="gmlp-ti16-224")
    with pytest.raises(InputError, match="gmlp_vision model"):
        build_model(AutoModelForCausalLM, arguments, build_config(arguments), tokenizer, train=True)


def test_a_vocabulary_that_does_not_fit_is_refused():
    tokenizer = word_tokenizer(WORDS)
    check_vocabulary(GMLPConfig(vocab_size=300), tokenizer, "m")
    for config in (GMLPConfig(vocab_size=100), BertConfig(vocab_size=300, pad_token_id=7)):
        with pytest.raises(InputError, match=f"205 tokens .* {config.vocab_size} .* with {config.pad_token_id}"):
            check_vocabulary(config, tokenizer, "m")


def test_a_model_that_sees_later_tokens_is_refused(randomize):
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertConfig(num_hidden_layers=1, **sizes)
    with pytest.raises(InputError, match="is_decoder=true"):
        check_causal(AutoModelForCausalLM.from_config(bert))
    bert.is_decoder = True
    model = AutoModelForCausalLM.from_config(bert).train()
    check_causal(model)
    assert model.training
    config = GMLPConfig(num_hidden_layers=2, hidden_size=16, intermediate_size=16, vocab_size=30, attention_size=8)
    check_causal(randomize(AutoModelForCausalLM.from_config(config)))


def test_checkpoints_not_trained_for_the_next_token_must_be_trained():
    for config in (GMLPConfig(is_causal=True), GPT2Config()):
        check_pretraining(config, "m", do_train=False)
    for config in (GMLPConfig(architectures=["GMLPForMaskedLM"]), BertConfig(architectures=["BertForMaskedLM"])):
        with pytest.raises(InputError, match="ForMaskedLM"):
            check_pretraining(config, "m", do_train=False)
        check_pretraining(config, "m", do_train=True)


@pytest.fixture
def checkpoint(tmp_path):
    GMLPForSequenceClassification(GMLPConfig(num_labels=3, **SIZES)).save_pretrained(tmp_path)
    return tmp_path


def open_as(auto_class, folder, *, train=False, fields=None, overrides=None, **options):
    arguments = ModelArguments(model_name_or_path=str(folder))
    arguments.config_overrides = overrides
    return build_model(auto_class, arguments, build_config(arguments, **fields or {}), train=train, **options)


def test_a_checkpoint_with_a_toeplitz_matrix_grows(checkpoint):
    arguments = ModelArguments(model_name_or_path=str(checkpoint))
    config = build_config(arguments)
    n = config.max_position_embeddings
    assert sequence_length(config, 4 * n) == 4 * n
    model = build_model(AutoModelForMaskedLM, arguments, config, train=True, length=4 * n)
    assert (model.config.max_position_embeddings, model.config.spatial_reach) == (4 * n, n)
    # A dense W and a new model do not accept longer sequences.
    config.toeplitz = False
    with pytest.raises(InputError, match=f"--max_seq_length {4 * n} .* n = {n}"):
        sequence_length(config, 4 * n)
    arguments = ModelArguments(config_name="gmlp-base")
    with pytest.raises(InputError, match="--max_seq_length 1024 .* n = 512"):
        sequence_length(build_config(arguments), 1024)


def test_overrides_of_a_checkpoint_must_fit_its_weights(checkpoint):
    overrides = "hidden_dropout_prob=0.5,attention_probs_dropout_prob=0.25"
    config = open_as(AutoModelForSequenceClassification, checkpoint, overrides=overrides).config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.hidden_size) == (0.5, 0.25, 12)
    # type_vocab_size=0 leaves an unused encoder weight outside of the layers.
    for overrides in ("num_hidden_layers=3", "num_hidden_layers=1", "intermediate_size=32", "type_vocab_size=0"):
        with pytest.raises(InputError, match="do not fit its config"):
            open_as(AutoModelForSequenceClassification, checkpoint, overrides=overrides, train=True)


def test_complete_checkpoints_are_loaded(checkpoint, tmp_path):
    assert isinstance(open_as(AutoModelForSequenceClassification, checkpoint), GMLPForSequenceClassification)
    # A head may be new only for training. BERT's unused pooler is not one of its numbered layers.
    open_as(AutoModelForMaskedLM, checkpoint, train=True)
    with pytest.raises(InputError, match="GMLPForMaskedLM"):
        open_as(AutoModelForMaskedLM, checkpoint)
    bert = BertConfig(**SIZES, num_attention_heads=2)
    AutoModelForMaskedLM.from_config(bert).save_pretrained(tmp_path / "bert")
    model = open_as(AutoModelForSequenceClassification, tmp_path / "bert", train=True)
    assert isinstance(model, BertForSequenceClassification)
    model.half().save_pretrained(tmp_path / "half")
    assert open_as(AutoModelForSequenceClassification, tmp_path / "half", train=True).dtype == torch.float32


def test_a_classifier_of_another_size_must_be_requested(checkpoint):
    options = {"train": True, "fields": {"num_labels": 5}}
    with pytest.raises(InputError, match="classifier"):
        open_as(AutoModelForSequenceClassification, checkpoint, **options)
    model = open_as(AutoModelForSequenceClassification, checkpoint, **options, new_classifier=True)
    old, weights = load_file(checkpoint / "model.safetensors"), model.state_dict()
    changed = [name for name in old if not torch.equal(old[name], weights[name])]
    assert model.config.num_labels == 5 and changed and all(name.startswith("classifier") for name in changed)


@pytest.mark.parametrize("fault", ["fewer layers", "nan", "incomplete", "none"])
def test_corrupted_checkpoints_are_refused(checkpoint, fault):
    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    if fault == "fewer layers":
        save_file({key: weight for key, weight in weights.items() if ".1." not in key}, path)
    elif fault == "nan":
        key = next(key for key in weights if ".1." in key)
        weights[key][0] = float("nan")
        save_file(weights, path)
    elif fault == "none":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=f"{checkpoint}") as caught:
        open_as(AutoModelForSequenceClassification, checkpoint, train=True)
    assert "\n" not in str(caught.value)


def test_cased_and_corrupted_tokenizers_are_refused(tmp_path):
    word_tokenizer(["A", "a"]).save_pretrained(tmp_path)
    arguments = ModelArguments(config_name="gmlp-base", tokenizer_name=str(tmp_path), lowercase=True)
    with pytest.raises(InputError, match="--lowercase false"):
        build_tokenizer(arguments, None, [], max_length=9)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=f"{tmp_path}") as caught:
        build_tokenizer(arguments, None, [], max_length=9)
    assert "\n" not in str(caught.value)


def test_a_trained_tokenizer_is_reused_if_it_is_complete(tmp_path):
    arguments = ModelArguments(config_name="gmlp-base", vocab_size=366, lowercase=True)
    args = RunArguments(output_dir=str(tmp_path), use_cpu=True)

    def load():
        return build_tokenizer(arguments, args, ["Lorem ipsum dolor sit amet"], max_length=9)

    assert load()("Lorem")["input_ids"] == load()("lorem")["input_ids"]
    content = (tmp_path / "tokenizer.json").read_bytes()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
        load()
        assert (tmp_path / name).is_file() and (tmp_path / "tokenizer.json").read_bytes() == content
