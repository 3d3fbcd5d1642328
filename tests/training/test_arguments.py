from dataclasses import fields

import pytest
from transformers import GPT2Config, MambaConfig, RobertaConfig

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm import CLMArguments
from hf_gmlp.tasks.glue import GlueArguments
from hf_gmlp.tasks.image_classification import ImageArguments
from hf_gmlp.tasks.mlm import MLMArguments
from hf_gmlp.tasks.qa import QAArguments
from hf_gmlp.training.arguments import FlagHelp, ModelArguments, RunArguments, TrainingArguments, parse_arguments
from hf_gmlp.training.build import sequence_length

TYPES = (ModelArguments, MLMArguments, RunArguments)


@pytest.fixture
def parse(tmp_path):
    return lambda *argv: parse_arguments(TYPES, "A test.", [*argv, "--use_cpu", "true", "--output_dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "either --config_name"),
        (["--config_name", "gmlp-base", "--model_name_or_path", "x"], "either --config_name"),
        (["--config_name", "gmlp-base", "--lerning_rate", "1"], "--lerning_rate: try --learning_rate"),
        (["--config_name", "gmlp-base", "--seed", "1", "x.yaml"], r"x.yaml: .* come before all flags"),
        (["--config_name", "gmlp-base", "--lr_scheduler_kwargs", "{"], "JSON|property|dict"),
        (["--config_name", "gmlp-base", "--load_best_model_at_end", "true"], "load_best_model_at_end"),
        *[
            (["--config_name", "gmlp-base", f"--{name}={value}"], f"--{name} must be in .*{value}")
            for name, value in (
                *(("weight_decay", "nan"), ("num_train_epochs", 0), ("global_batch_size", 0), ("max_seq_length", 2)),
                *(("mlm_probability", 15), ("label_smoothing_factor", 1.0)),
            )
        ],
        (["--config_name", "gmlp-base", "--label_names", "foo"], "--label_names"),
        (["--config_name", "gmlp-base", "--hub_strategy", "every_save"], "--hub_strategy: try"),
        (["--config_name", "gmlp-base", "--lr_scheduler_kwargs", "{a: 1}"], "must be JSON, but is '{a: 1}'"),
        (
            ["--config_name", "gmlp-base", "--global_batch_size", "32", "--gradient_accumulation_steps", "2"],
            "--global_batch_size sets --gradient_accumulation_steps",
        ),
        *[
            (["--config_name", "gmlp-base", "--do_train", f"--{name}={value}"], f"--{name}.*{message}")
            for name, value, message in (
                *(("seed", -1, "between 0"), ("per_device_train_batch_size", 0, "got 0")),
                *(("per_device_eval_batch_size", 0, "positive"), ("dataloader_num_workers", -1, "non-negative")),
                *(("adam_beta1", 1.5, "1.5"), ("adam_epsilon", -1, "-1"), ("learning_rate", -1, "-1")),
                *(("optim_args", "a", "unpack"), ("lr_scheduler_kwargs", '{"a": 1}', "'a'")),
                *(("lr_scheduler_kwargs", "5", "mapping"), ("lr_scheduler_type", "cosine_with_min_lr", "min_lr")),
            )
        ],
    ],
)
def test_wrong_flags_get_one_sentence(parse, flags, message):
    with pytest.raises(InputError, match=message) as caught:
        parse(*flags)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    ("total", "largest", "expected"), [(16, 8, (8, 2)), (256, 100, (64, 4)), (7, 4, (1, 7)), (4, 8, (4, 1))]
)
def test_global_batch_size_sets_the_accumulation(tmp_path, total, largest, expected):
    sizes = {"global_batch_size": total, "per_device_train_batch_size": largest}
    args = RunArguments(output_dir=str(tmp_path), use_cpu=True, **sizes)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == expected


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (MLMArguments, {"dataset_name": "c4", "train_file": ["a.txt"]}, "--dataset_name and --train_file"),
        (ImageArguments, {"train_dir": "a", "validation_file": ["a.csv"]}, "--train_dir and --validation_file"),
        (GlueArguments, {"task_name": "sst2", "do_regression": True}, "--do_regression .* sst2"),
        (GlueArguments, {"text_column_names": ["a", "b", "c"]}, "--text_column_names"),
        (GlueArguments, {"text_column_names": ["a", "a"]}, "--text_column_names"),
    ],
)
def test_conflicting_and_unknown_values_are_refused(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_files_may_belong_to_a_task():
    assert GlueArguments(task_name="sst2", train_file=["a.csv"]).data_name() == "a.csv"
    assert GlueArguments(task_name="sst2").dataset_id() == "nyu-mll/glue"


@pytest.mark.parametrize(
    ("config", "length", "expected"),
    [
        (GMLPConfig(max_position_embeddings=64), None, 64),
        (GMLPConfig(max_position_embeddings=64), 2, 2),
        # GPT-2 calls this field n_positions.
        (GPT2Config(n_positions=32), None, 32),
        # RoBERTa counts positions from the padding token's id plus one.
        (RobertaConfig(max_position_embeddings=514, pad_token_id=1), None, 512),
        # Mamba accepts sequences of any length.
        (MambaConfig(), 500, 500),
    ],
)
def test_sequence_length_comes_from_the_flag_or_the_model(config, length, expected):
    assert sequence_length(config, length) == expected


def test_sequence_lengths_beyond_that_of_the_model_are_refused():
    with pytest.raises(InputError, match="--max_seq_length 65 .*64"):
        sequence_length(GMLPConfig(max_position_embeddings=64), 65)
    with pytest.raises(InputError, match="--block_size"):
        sequence_length(MambaConfig(), None, flag="block_size")


@pytest.mark.parametrize("kind", [*TYPES, CLMArguments, GlueArguments, QAArguments, ImageArguments])
def test_every_flag_says_whether_a_resumed_run_may_change_it(kind):
    inherited = {field.name for field in fields(TrainingArguments)}
    own = [field for field in fields(kind) if field.init and field.name not in inherited]
    assert own and all(isinstance(field.metadata["help"], FlagHelp) for field in own)


def test_flags_that_libraries_accept_are_accepted(parse):
    flags = ("--optim", "sgd", "--lr_scheduler_type", "cosine_with_min_lr", "--lr_scheduler_kwargs", '{"min_lr": 1e-6}')
    assert parse("--config_name", "gmlp-base", "--do_train", *flags)[2].lr_scheduler_kwargs == {"min_lr": 1e-6}
    # These need the model.
    flags = ("--optim", "galore_adamw", "--optim_target_modules", "all-linear", "--adam_beta2", "0.95")
    parse("--config_name", "gmlp-base", "--do_train", *flags)


def test_the_command_of_a_run_has_neither_tokens_nor_folders(parse):
    flags = ("--token", "hf_1", "--train_file", "/home/me/a.txt", "--hub-token=hf_2", "--hub_token", "hf_3")
    command = parse("--config_name", "gmlp-base", *flags)[2].command
    assert command.startswith("python --config_name gmlp-base --train_file a.txt --use_cpu true --output_dir ")
