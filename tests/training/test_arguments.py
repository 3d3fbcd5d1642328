import pytest

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import MLMArguments, ModelArguments, RunArguments, parse_arguments, recipe_flags

TYPES = (ModelArguments, MLMArguments, RunArguments)


def parse(*argv):
    return parse_arguments(TYPES, "A test.", [*argv, "--use_cpu", "true"])


def test_flags_win_over_the_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "config_name: gmlp-base\nlearning_rate: 1.0e-4\ndo_train: true\ntrain_file: [a.txt, b.txt]\n"
        "lr_scheduler_kwargs: {num_cycles: 1}\nmax_steps: 7\ncache_dir: null\n"
    )
    model, data, training = parse(str(recipe), "--max_steps", "9", "--output_dir", str(tmp_path))
    assert model.config_name == "gmlp-base" and data.train_file == ["a.txt", "b.txt"]
    assert training.learning_rate == 1e-4 and training.do_train and training.max_steps == 9
    assert training.lr_scheduler_kwargs == {"num_cycles": 1}


def test_bad_arguments_get_one_sentence(tmp_path):
    with pytest.raises(InputError, match="Say what to train"):
        parse("--output_dir", str(tmp_path))
    with pytest.raises(InputError, match="one of the two"):
        parse("--config_name", "gmlp-base", "--model_name_or_path", "x", "--output_dir", str(tmp_path))
    with pytest.raises(InputError, match="mlm_probability is between 0 and 1"):
        parse("--config_name", "gmlp-base", "--mlm_probability", "15", "--output_dir", str(tmp_path))
    with pytest.raises(InputError, match=r"no recipe .*none\.yaml"):
        parse(str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    with pytest.raises(InputError, match="must map flags to values"):
        recipe_flags(str(tmp_path / "list.yaml"))
    (tmp_path / "typo.yaml").write_text("config_name: gmlp-base\nlerning_rate: 1\n")
    with pytest.raises(InputError, match="no flag --lerning_rate; did you mean --learning_rate"):
        parse(str(tmp_path / "typo.yaml"))


def test_sequence_length_is_checked_against_the_model():
    config = GMLPConfig(max_position_embeddings=64)
    assert MLMArguments().sequence_length(config) == 64
    assert MLMArguments(max_seq_length=32).sequence_length(config) == 32
    with pytest.raises(InputError, match="--max_seq_length 65 is above the model's n = 64"):
        MLMArguments(max_seq_length=65).sequence_length(config)


def test_help_names_recipe_and_groups(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert "[recipe.yaml]" in text and "model:" in text and "data:" in text and "--config_name" in text
