from pathlib import Path

import pytest
from transformers import GPT2Config, MambaConfig

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm.arguments import CLMArguments
from hf_gmlp.tasks.glue.arguments import GlueArguments
from hf_gmlp.tasks.image_classification.arguments import ImageArguments
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.tasks.qa.arguments import QAArguments
from hf_gmlp.training.arguments import INTERVALS, ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.build import load_config

RECIPES = Path(__file__).parents[2] / "paper" / "recipes"
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


@pytest.mark.parametrize(
    "recipe", sorted(RECIPES.glob("table[346]/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_recipes_of_the_tables_are_the_hyper_parameters_of_the_paper(recipe, tmp_path):
    model, data, training = parse(str(recipe), "--bf16", "false", "--output_dir", str(tmp_path))
    load_config(model)
    assert training.do_train and training.do_eval and training.max_grad_norm == 0
    if recipe.stem.endswith(".smoke"):
        assert training.max_steps <= 10 and data.dataset_name is None
        return
    # Table 8.
    ablation = recipe.parent.name in ("table3", "table4")
    assert (data.dataset_name, data.streaming) == ("allenai/c4", True)
    assert data.dataset_config_name == ("realnewslike" if ablation else "en")
    assert data.max_seq_length == (128 if ablation else 512)
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == (2048 if ablation else 256)
    assert training.learning_rate == (7e-4 if ablation else 1e-4)
    assert training.max_steps == (125_000 if ablation else 1_000_000)
    assert (training.warmup_steps, training.lr_scheduler_type, training.weight_decay) == (10_000, "linear", 0.01)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.999, 1e-6)


def test_bad_arguments_get_one_sentence(tmp_path):
    with pytest.raises(InputError, match="Give either --config_name"):
        parse("--output_dir", str(tmp_path))
    with pytest.raises(InputError, match="Give either --config_name"):
        parse("--config_name", "gmlp-base", "--model_name_or_path", "x", "--output_dir", str(tmp_path))
    with pytest.raises(InputError, match="--mlm_probability.* 15"):
        parse("--config_name", "gmlp-base", "--mlm_probability", "15", "--output_dir", str(tmp_path))
    with pytest.raises(InputError, match="udcff' is not UTF-8: rename"):
        parse("--config_name", "gmlp-base", "--output_dir", "a\udcff")
    (tmp_path / "typo.yaml").write_text("config_name: gmlp-base\nlerning_rate: 1\n")
    with pytest.raises(InputError, match="no flag --lerning_rate; did you mean --learning_rate"):
        parse(str(tmp_path / "typo.yaml"))


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("seed", ["-1", "4294967296"]),
        ("learning_rate", ["-1e-3", "nan", "inf"]),
        ("num_train_epochs", ["0", "-1"]),
        ("per_device_train_batch_size", ["0"]),
        ("per_device_eval_batch_size", ["-4"]),
        ("gradient_accumulation_steps", ["0"]),
        ("global_batch_size", ["0"]),
        ("dataloader_num_workers", ["-1"]),
        ("preprocessing_num_workers", ["0"]),
        ("max_train_samples", ["0"]),
        ("max_eval_samples", ["-3"]),
        ("vocab_size", ["0"]),
        ("warmup_steps", ["-5"]),
        ("weight_decay", ["-0.1"]),
        ("adam_beta1", ["1", "-0.1"]),
        ("save_steps", ["0"]),
        ("logging_steps", ["0"]),
        ("save_total_limit", ["0"]),
        ("max_seq_length", ["2"]),
        ("validation_split_percentage", ["0", "100"]),
    ],
)
def test_ranges_of_flags(tmp_path, flag, values):
    for value in values:
        with pytest.raises(InputError, match=f"--{flag} must be in ") as caught:
            parse("--config_name", "gmlp-base", "--output_dir", str(tmp_path), f"--{flag}={value}")
        assert "\n" not in str(caught.value)


def test_every_interval_is_that_of_a_flag():
    assert set(INTERVALS) <= set(RunArguments.__dataclass_fields__)


@pytest.mark.parametrize(
    "flags",
    [
        ["--lr_scheduler_type", "nobody"],
        ["--optim", "nobody"],
        ["--lr_scheduler_kwargs", "{"],
        ["--fsdp", "full_shard", "--fsdp_config", "none.json"],
        ["--accelerator_config", "none.json"],
        ["--load_best_model_at_end", "true"],
        ["--learning_rate", "fast"],
        ["--max_steps", "1.5"],
        ["--do_train", "perhaps"],
    ],
    ids=lambda flags: flags[0],
)
def test_errors_of_the_libraries_give_no_traceback(tmp_path, flags):
    with pytest.raises((InputError, SystemExit)):
        parse("--config_name", "gmlp-base", "--output_dir", str(tmp_path), *flags)


def test_data_of_this_machine_have_no_name_on_the_hub(tmp_path):
    assert MLMArguments(dataset_name="allenai/c4").dataset_id() == "allenai/c4"
    assert MLMArguments(dataset_name=str(tmp_path)).dataset_id() is None
    assert GlueArguments(dataset_name=str(tmp_path)).dataset_id() is None
    assert GlueArguments(task_name="sst2").dataset_id() == "nyu-mll/glue"


def test_two_sources_of_data_are_refused():
    for kind in (MLMArguments, CLMArguments, GlueArguments, QAArguments, ImageArguments):
        with pytest.raises(ValueError, match="--dataset_name and --train_file both name the data: leave one of them"):
            kind(dataset_name="c4", train_file=["a.txt"])
    with pytest.raises(ValueError, match="--validation_file and --train_dir both name the data"):
        ImageArguments(train_dir="photos", validation_file=["a.parquet"])
    assert GlueArguments(task_name="sst2", train_file=["a.csv"]).data_name() == "a.csv (sst2)"


def test_sequence_length_is_checked_against_the_model():
    config = GMLPConfig(max_position_embeddings=64)
    assert MLMArguments().sequence_length(config) == 64
    assert MLMArguments(max_seq_length=32).sequence_length(config) == 32
    with pytest.raises(InputError, match="--max_seq_length 65 is above the model's n = 64"):
        MLMArguments(max_seq_length=65).sequence_length(config)
    assert CLMArguments().sequence_length(config) == 64 and CLMArguments(block_size=2).sequence_length(config) == 2
    # By its other name.
    assert CLMArguments().sequence_length(GPT2Config(n_positions=32)) == 32
    with pytest.raises(InputError, match="--block_size 65 is above the model's n = 64"):
        CLMArguments(block_size=65).sequence_length(config)
    # What takes sequences of any length.
    assert CLMArguments(block_size=500).sequence_length(MambaConfig()) == 500
    with pytest.raises(InputError, match="no maximum length: set the tokens per sequence with --block_size"):
        CLMArguments().sequence_length(MambaConfig())


def test_help_names_recipe_and_groups(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert "[recipe.yaml ...]" in text and "model:" in text and "data:" in text and "--config_name" in text
