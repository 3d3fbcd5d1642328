import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset, Image, concatenate_datasets
from filelock import FileLock
from safetensors.torch import save_file

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.mlm import MLMArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments, flag
from hf_gmlp.training.run_folder import (
    check_rows,
    check_same,
    checkpoint_to_resume,
    claim,
    hash_rows,
    hyperparameters,
    is_complete,
    published_files,
    run_settings,
    start_run,
    upload_command,
    write_json,
)

from ..samples import write_photos


@pytest.fixture
def command(tmp_path):
    """command(**changes) returns the three dataclasses of a run with changed flags."""

    def make(**changes):
        files = {"train_file": [str(tmp_path / "a.txt")], "output_dir": str(tmp_path / "out")}
        flags = {"config_name": "gmlp-base", "use_cpu": True, "do_train": True, "max_steps": 6} | files | changes
        return tuple(
            kind(**{name: value for name, value in flags.items() if name in kind.__dataclass_fields__})
            for kind in (ModelArguments, MLMArguments, RunArguments)
        )

    return make


def make_checkpoint(folder, step=4, state="{}"):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    save_file({"W": torch.zeros(9)}, checkpoint / "model.safetensors")
    torch.save({}, checkpoint / "optimizer.pt")
    torch.save({}, checkpoint / "rng_state.pth")
    torch.save({}, checkpoint / "scheduler.pt")
    if state is not None:
        (checkpoint / "trainer_state.json").write_text(state)
    return checkpoint


def cut_off(arguments, step=4):
    """Write the folder of a run with these flags that was killed after a checkpoint, and return the checkpoint."""
    folder = Path(arguments[2].output_dir)
    folder.mkdir()
    write_json(folder / "settings.json", run_settings(*arguments))
    (folder / "tokenizer.json").write_text("{}")
    return make_checkpoint(folder, step)


def test_a_run_resumes_despite_changes_that_do_not_affect_the_weights(command):
    checkpoint = cut_off(command())
    changes = {"max_steps": 7, "logging_steps": 1, "save_steps": 1, "do_eval": True, "dataloader_num_workers": 2}
    changes |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "preprocessing_num_workers": 2}
    assert start_run(*command()) == start_run(*command(**changes)) == str(checkpoint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_steps", 5), ("learning_rate", 1e-3), ("per_device_train_batch_size", 4)],
        *[("config_overrides", "num_hidden_layers=2"), ("mlm_probability", 0.2)],
    ],
)
def test_changed_command_is_refused_by_name(command, name, value):
    cut_off(command())
    with pytest.raises(InputError, match=f"another command.*{name.replace('per_device_train', 'global')}"):
        start_run(*command(**{name: value}))


def rows_of(labels, **columns):
    return Dataset.from_dict({"input_ids": [[1, 7]] * len(labels), "labels": labels} | columns)


def test_other_rows_and_classes_are_refused(command):
    arguments, config = command(), GMLPConfig(id2label={0: "negative", 1: "positive"})
    cut_off(arguments)
    start_run(*arguments)
    check_rows(arguments[2], rows_of([0, 1, 1]), config)
    assert start_run(*arguments) is not None
    check_rows(arguments[2], rows_of([0, 1, 1]), config)
    renamed = GMLPConfig(id2label={0: "happy", 1: "unhappy"})
    # Another token, an earlier end of a text, other labels, and fewer rows.
    others = ([[1, 7]] * 2 + [[1, 8]], [[1], [7, 1, 7], [1, 7]])
    others = [*(rows_of([0, 1, 1], input_ids=ids) for ids in others), rows_of([0, 1, 0]), rows_of([0, 1])]
    for rows in others:
        with pytest.raises(InputError, match="holds a run on other training rows or classes: restore the data"):
            check_rows(arguments[2], rows, config)
    with pytest.raises(InputError, match="other training rows or classes"):
        check_rows(arguments[2], rows_of([0, 1, 1]), renamed)
    # All may change if there is no checkpoint.
    shutil.rmtree(Path(arguments[2].output_dir) / "checkpoint-4")
    assert start_run(*arguments) is None
    check_rows(arguments[2], rows_of([1, 0]), renamed)


def test_the_hash_is_that_of_the_rows_as_they_are_read(tmp_path):
    ids, labels = [[index, 7] for index in range(2500)], [[0.5, 0.5]] * 2500
    rows = rows_of(labels, input_ids=ids)
    # Neither the file, the format nor the pieces of a table matter.
    rows.to_parquet(tmp_path / "rows.parquet", batch_size=7)
    again = Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    parts = concatenate_datasets([rows.select(range(900)), rows.select(range(900, 2500))])
    assert len({hash_rows(same) for same in (rows, again, parts, rows.with_format("numpy"))}) == 1
    assert hash_rows(rows.select(range(2499, -1, -1))) != hash_rows(rows)


def test_pictures_may_be_moved_but_not_swapped(tmp_path):
    def rows_with(images):
        rows = Dataset.from_dict({"image": images, "labels": [0, 0, 1, 1]})
        return rows.cast_column("image", Image(decode=False))

    def rows():
        return rows_with(sorted(map(str, (tmp_path / "photos").glob("[br]*/*.png"))))

    photos = write_photos(tmp_path / "photos", 2, 0)
    before = hash_rows(rows())
    pictures = [{"bytes": Path(image["path"]).read_bytes(), "path": None} for image in rows()["image"]]
    assert hash_rows(rows_with(pictures)) == before
    shutil.move(photos, tmp_path / "moved")
    shutil.move(tmp_path / "moved", photos)
    (photos / "blue" / "000.png").touch()
    assert hash_rows(rows()) == before
    # The pictures of both folders have the same names and number.
    for old, new in (("blue", "other"), ("red", "blue"), ("other", "red")):
        (photos / old).rename(photos / new)
    assert hash_rows(rows()) != before


def test_a_run_without_a_checkpoint_starts_again(command):
    arguments = command()
    folder = cut_off(arguments).parent
    (folder / "checkpoint-4" / "trainer_state.json").unlink()
    assert start_run(*arguments) is None and (folder / "tokenizer.json").exists()
    # The tokenizer was trained with different flags.
    assert start_run(*command(vocab_size=500)) is None and not (folder / "tokenizer.json").exists()
    # A final model must not be overwritten, even if no checkpoint is left.
    (folder / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(InputError, match="vocab_size.* 500 .*600"):
        start_run(*command(vocab_size=600))


EVALUATION = {"config_name": None, "model_name_or_path": "m", "do_train": False, "do_eval": True}


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        *[(name, {}, name) for name in ("tokenizer.json", "model.safetensors", "checkpoint-7")],
        ("all_results.json", {}, "finished run"),
        ("all_results.json", EVALUATION, "finished run"),
    ],
)
def test_foreign_and_final_files_are_not_overwritten(command, tmp_path, name, flags, message):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(InputError, match=message):
        start_run(*command(**flags))
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_evaluation_does_not_finish_a_run(command):
    cut_off(command())
    with pytest.raises(InputError, match="interrupted run"):
        start_run(*command(**EVALUATION))


@pytest.mark.parametrize("options", [{"state": None}, {"state": '{"global_step": 1'}])
def test_incomplete_checkpoints_are_skipped(tmp_path, options, caplog):
    for step in (4, 12, 8):
        make_checkpoint(tmp_path, step, **(options if step == 12 else {}))
    incomplete = tmp_path / "checkpoint-12"
    assert not is_complete(incomplete)
    flags = {"output_dir": str(tmp_path), "use_cpu": True}
    assert checkpoint_to_resume(RunArguments(**flags)) == tmp_path / "checkpoint-8"
    assert f"Skipping {incomplete}" in caplog.text
    for name in (incomplete, make_checkpoint(tmp_path / "elsewhere")):
        with pytest.raises(InputError, match=f"{name} is not a complete checkpoint in"):
            checkpoint_to_resume(RunArguments(**flags, resume_from_checkpoint=str(name)))
    earlier = tmp_path / "checkpoint-4"
    assert checkpoint_to_resume(RunArguments(**flags, resume_from_checkpoint=str(earlier))) == earlier
    for checkpoint in (earlier, tmp_path / "checkpoint-8"):
        (checkpoint / "optimizer.pt").unlink()
    assert checkpoint_to_resume(RunArguments(**flags)) is None and "starting from step 0" in caplog.text


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt"])
def test_checkpoints_with_missing_files_are_incomplete(tmp_path, name):
    file = make_checkpoint(tmp_path) / name
    assert is_complete(file.parent)
    file.unlink()
    assert not is_complete(file.parent)


@pytest.mark.heavy
def test_two_runs_do_not_share_a_folder(tmp_path):
    with FileLock(tmp_path / "_run.lock"), pytest.raises(InputError, match="Another run"):
        claim(tmp_path)
    claim(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"do_train": False}, "--do_train, --do_eval or"),
        ({"do_train": False, "do_eval": True}, "--config_name.* untrained"),
        ({"do_predict": True}, "--do_predict"),
        ({}, "2 processes .*--use_cpu"),
    ],
)
def test_missing_and_conflicting_flags_are_refused(command, flags, message, monkeypatch):
    arguments = command(**flags)
    if not flags:
        # torchrun starts two, which do not form a group without GPUs or --use_cpu.
        for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
            monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        start_run(*arguments)


def test_only_the_model_is_published(tmp_path):
    published = ["README.md", "config.json", "generation_config.json", "model.safetensors", "modeling_gmlp.py"]
    published += ["preprocessor_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    private = ["all_results.json", "eval_predictions.csv", "eval_predictions.json", "_run.lock", "predictions.tsv"]
    private += ["report.txt", "settings.json", "trainer_state.json", "training_args.bin"]
    for name in published + private:
        (tmp_path / name).touch()
    make_checkpoint(tmp_path)
    assert published_files(tmp_path) == sorted(published)
    command = upload_command("me/model", tmp_path).split()
    assert command[:5] == ["hf", "upload", "me/model", str(tmp_path), "."]
    assert command[6::2] == published_files(tmp_path) and set(command[5::2]) == {"--include"}


def test_a_new_flag_may_not_change_unless_it_says_so(tmp_path):
    @dataclasses.dataclass
    class Extended(RunArguments):
        muon_momentum: float = flag("A new flag.", 0.95)
        printed_rows: int = flag("Another.", 5, may_change=True)

    settings = hyperparameters(Extended(output_dir=str(tmp_path), use_cpu=True))
    assert settings["muon_momentum"] == 0.95 and "printed_rows" not in settings
    with pytest.raises(InputError, match=r"muon_momentum was 0\.95 and is 0\.9"):
        check_same(tmp_path, settings, settings | {"muon_momentum": 0.9})
