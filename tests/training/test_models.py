import pytest
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, BertConfig, GPT2Config

from hf_gmlp import GMLPConfig, GMLPForMaskedLM
from hf_gmlp.data.tokenizer import byte_tokenizer
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import ModelArguments
from hf_gmlp.training.models import (
    check_causal,
    check_pretraining,
    check_vocabulary,
    load_config,
    load_model,
    load_tokenizer,
    parse_overrides,
)

from ..data.test_text import tokenizer  # noqa: F401


def test_presets_folders_and_overrides(tmp_path):
    config = load_config(ModelArguments(config_name="amlp-base"), num_labels=5)
    assert isinstance(config, GMLPConfig) and config.attention_size == 64 and config.num_labels == 5
    GMLPConfig(hidden_size=64).save_pretrained(tmp_path)
    overrides = "num_hidden_layers=2,toeplitz=false,spatial_gating=additive,hidden_dropout_prob=0.1"
    config = load_config(ModelArguments(config_name=str(tmp_path), config_overrides=overrides))
    assert (config.hidden_size, config.num_hidden_layers, config.toeplitz) == (64, 2, False)
    assert config.spatial_gating == "additive" and config.hidden_dropout_prob == 0.1
    assert parse_overrides("") == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("layers=2", "names 'layers', which a GMLPConfig does not have"),
        ("num_hidden_layers", "key=value pairs"),
        ("num_hidden_layers=two", "num_hidden_layers=two"),
        ("spatial_gating=none", "split"),
        ("intermediate_size=33", "must be even"),
    ],
)
def test_bad_overrides(overrides, message):
    with pytest.raises(InputError, match=message):
        load_config(ModelArguments(config_name="gmlp-base", config_overrides=overrides))


def test_unknown_config(tmp_path):
    with pytest.raises(InputError, match="'gmlp-bas' is no preset"):
        load_config(ModelArguments(config_name="gmlp-bas"))
    (tmp_path / "config.json").write_text('{"model_type": "gmlpp"}')
    with pytest.raises(InputError, match="has no config of a model that is known here"):
        load_config(ModelArguments(model_name_or_path=str(tmp_path)))


def test_new_model_takes_the_tokenizer_s_vocabulary(tokenizer):  # noqa: F811
    arguments = ModelArguments(
        config_name="gmlp-base", config_overrides="num_hidden_layers=1,hidden_size=8,intermediate_size=16"
    )
    model = load_model(AutoModelForMaskedLM, arguments, load_config(arguments), tokenizer)
    assert isinstance(model, GMLPForMaskedLM) and model.config.vocab_size == len(tokenizer) == 205
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (0, 2, 3)


def test_vocabulary_that_does_not_fit(tokenizer):  # noqa: F811
    check_vocabulary(GMLPConfig(vocab_size=300), tokenizer, "m")
    with pytest.raises(InputError, match="tokenizer has 205 tokens and the model m has embeddings for 100"):
        check_vocabulary(GMLPConfig(vocab_size=100), tokenizer, "m")
    with pytest.raises(InputError, match="pads with token 0 and the model m with 7"):
        check_vocabulary(BertConfig(vocab_size=300, pad_token_id=7), tokenizer, "m")


@pytest.mark.parametrize("make", [GMLPConfig, BertConfig])
def test_overrides_of_a_checkpoint_leave_its_weights_alone(tmp_path, make):
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 50}
    make(**sizes).save_pretrained(tmp_path)

    def load(overrides):
        arguments = ModelArguments(model_name_or_path=str(tmp_path))
        arguments.config_overrides = overrides
        return load_config(arguments)

    config = load("hidden_dropout_prob=0.5,attention_probs_dropout_prob=0.25")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.hidden_size) == (0.5, 0.25, 12)
    for overrides in ("num_hidden_layers=3", "intermediate_size=32", "hidden_dropout_prob=0.5,vocab_size=51"):
        with pytest.raises(InputError, match=f"{overrides} does not fit the weights of .*hidden_dropout_prob"):
            load(overrides)


def test_causal_model_begins_and_ends_with_one_token():
    arguments = ModelArguments(config_name="gmlp-base", config_overrides="num_hidden_layers=1,hidden_size=8")
    model = load_model(AutoModelForCausalLM, arguments, load_config(arguments), byte_tokenizer())
    config = model.config
    assert (config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id) == (258, 0, 1, 1)
    arguments = ModelArguments(config_name="gmlp-ti16-224")
    with pytest.raises(InputError, match="no CausalLM of the model type 'gmlp_vision'"):
        load_model(AutoModelForCausalLM, arguments, load_config(arguments), byte_tokenizer())


def test_model_that_sees_later_tokens_is_found(randomize):
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertConfig(num_hidden_layers=1, **sizes)
    with pytest.raises(InputError, match="BertLMHeadModel of this config sees later tokens"):
        check_causal(AutoModelForCausalLM.from_config(bert))
    bert.is_decoder = True
    model = AutoModelForCausalLM.from_config(bert).train()
    check_causal(model)
    assert model.training
    check_causal(AutoModelForCausalLM.from_config(GPT2Config(vocab_size=30, n_embd=16, n_head=2, n_layer=1)))
    for fields in ({"toeplitz": False}, {"attention_size": 8}, {"spatial_gating": "additive"}):
        config = GMLPConfig(num_hidden_layers=2, hidden_size=16, intermediate_size=16, vocab_size=30, **fields)
        check_causal(randomize(AutoModelForCausalLM.from_config(config)))


def test_what_a_checkpoint_was_trained_for(caplog):
    for config in (GMLPConfig(is_causal=True), GPT2Config(), GMLPConfig(is_causal=True, architectures=["Other"])):
        check_pretraining(config, "m", do_train=False)
    assert not caplog.records
    for config in (GMLPConfig(architectures=["GMLPForMaskedLM"]), BertConfig(architectures=["BertForMaskedLM"])):
        with pytest.raises(InputError, match="m was trained as a .*ForMaskedLM, not to predict the next token"):
            check_pretraining(config, "m", do_train=False)
        check_pretraining(config, "m", do_train=True)
    assert len(caplog.records) == 2


def test_byte_level_wants_the_byte_tokenizer(tmp_path, tokenizer):  # noqa: F811
    options = {"vocab_size": 0, "max_length": 9, "byte_level": True}
    arguments = ModelArguments(config_name="gmlp-base")
    made = load_tokenizer(arguments, None, [], **options)
    assert made.get_vocab() == byte_tokenizer().get_vocab() and made.model_max_length == 9
    for name, saved in (("bytes", made), ("words", tokenizer)):
        saved.save_pretrained(tmp_path / name)
    arguments.tokenizer_name = str(tmp_path / "bytes")
    assert (
        load_tokenizer(arguments, None, [], **options).get_vocab()
        == AutoTokenizer.from_pretrained(tmp_path / "bytes").get_vocab()
    )
    arguments.tokenizer_name = str(tmp_path / "words")
    with pytest.raises(InputError, match="words is not the one of --byte_level"):
        load_tokenizer(arguments, None, [], **options)
