import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.training.arguments import MLMArguments, ModelArguments, RunArguments
from hf_gmlp.training.folder import (
    checkpoint_fault,
    checkpoint_to_resume,
    claim,
    clear,
    fingerprint,
    resume_point,
    run_settings,
    whole_files,
    write_manifest,
    write_text,
)
from hf_gmlp.training.trainer import start_run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One.\n\nTwo.\n")
    return path


@pytest.fixture
def command(tmp_path, text):
    """From changed flags to the three dataclasses of a run."""

    def make(**changes):
        flags = {"config_name": "gmlp-base", "train_file": [str(text)], "output_dir": str(tmp_path / "out"),
                 "use_cpu": True, "do_train": True, "max_steps": 6} | changes  # fmt: skip
        return tuple(
            kind(**{name: value for name, value in flags.items() if name in kind.__dataclass_fields__})
            for kind in (ModelArguments, MLMArguments, RunArguments)
        )

    return make


def make_checkpoint(folder, settings, step=4, resumable=True):
    checkpoint = folder / f"checkpoint-{step}"
    (checkpoint / "shards").mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "shards/0.bin"):
        (checkpoint / name).write_bytes(name.encode() * 100)
    write_manifest(checkpoint, settings, resumable)
    return checkpoint


def cut_off(arguments, step=4):
    """The folder of a run with these flags that was killed after a checkpoint."""
    folder = Path(arguments[2].output_dir)
    folder.mkdir()
    settings = run_settings(*arguments)
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text("{}")
    return make_checkpoint(folder, settings, step)


def test_same_command_resumes(command):
    arguments = command()
    checkpoint = cut_off(arguments)
    assert start_run(*arguments) == str(checkpoint)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_steps": 7},
        {"logging_steps": 1},
        {"save_steps": 1},
        {"dataloader_num_workers": 2},
        {"do_eval": True},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"train_file": ["{folder}/../{name}/text.txt"]},
    ],
    ids=str,
)
def test_changes_that_do_not_affect_the_weights_are_allowed(command, tmp_path, changes):
    cut_off(command())
    if "train_file" in changes:
        changes = {"train_file": [path.format(folder=tmp_path, name=tmp_path.name) for path in changes["train_file"]]}
    assert start_run(*command(**changes)) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_steps", 5), ("learning_rate", 1e-3), ("seed", 1), ("weight_decay", 0.1), ("warmup_steps", 3)],
        *[("per_device_train_batch_size", 4), ("lr_scheduler_type", "cosine"), ("optim", "sgd"), ("bf16", True)],
        *[("config_name", "amlp-base"), ("config_overrides", "num_hidden_layers=2"), ("vocab_size", 500)],
        *[("mlm_probability", 0.2), ("max_seq_length", 64), ("whole_word_mask", True), ("line_by_line", True)],
        *[("max_train_samples", 9), ("validation_split_percentage", 7), ("text_column", "t"), ("num_train_epochs", 9)],
        *[("label_smoothing_factor", 0.1), ("max_grad_norm", 0.0), ("adam_beta2", 0.9), ("dataloader_drop_last", True)],
        *[("max_tokenizer_samples", 5), ("data_seed", 3), ("train_sampling_strategy", "sequential")],
    ],
)
def test_changed_command_is_refused_by_name(command, name, value):
    checkpoint = cut_off(command())
    with pytest.raises(
        InputError, match=f"holds a run of another command: .*{name.replace('per_device_train', 'global')}"
    ):
        start_run(*command(**{name: value}))
    with pytest.raises(InputError, match="holds a run of another command"):
        start_run(*command(**{name: value, "resume_from_checkpoint": str(checkpoint)}))


def test_changed_data_are_refused(command, text):
    cut_off(command())
    stat = text.stat()
    text.write_text("One.\n\nTen.\n")
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(InputError, match="the train data have changed"):
        start_run(*command())
    text.unlink()
    with pytest.raises(InputError, match="There is no file .*text.txt"):
        start_run(*command())


def test_changed_data_set_in_a_folder_is_refused(command, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("{}")
    flags = {"train_file": None, "dataset_name": str(tmp_path / "set")}
    cut_off(command(**flags))
    (tmp_path / "set" / "train.jsonl").write_text("{ }")
    with pytest.raises(InputError, match="the dataset_name data have changed"):
        start_run(*command(**flags))


def test_changed_config_in_a_folder_is_refused(command, tmp_path):
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "config.json"
    config.write_text("{}")
    cut_off(command(config_name=str(config.parent)))
    config.write_text('{"a": 1}')
    with pytest.raises(InputError, match="what is in --config_name has changed"):
        start_run(*command(config_name=str(config.parent)))


def test_new_start(command, tmp_path):
    checkpoint = cut_off(command())
    mine = tmp_path / "out" / "notes.txt"
    mine.write_text("mine")
    changed = command(learning_rate=1e-3, overwrite_output_dir=True)
    assert start_run(*changed) is None
    assert not checkpoint.exists() and not (tmp_path / "out" / "tokenizer.json").exists() and mine.exists()
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["learning_rate"] == 1e-3
    within = command(config_name=None, model_name_or_path=str(tmp_path / "out"), overwrite_output_dir=True)
    with pytest.raises(InputError, match="would delete --model_name_or_path"):
        start_run(*within)
    # What is no run is left alone.
    other = tmp_path / "other"
    (other / "checkpoint-1").mkdir(parents=True)
    clear(other)
    assert (other / "checkpoint-1").is_dir()


def test_run_without_a_checkpoint_starts_anew(command, tmp_path):
    arguments = command()
    folder = cut_off(arguments).parent
    for path in folder.glob("checkpoint-*/*"):
        if path.is_file():
            path.unlink()
    assert start_run(*arguments) is None and (folder / "tokenizer.json").exists()
    # The tokenizer is that of other flags.
    assert start_run(*command(vocab_size=500)) is None and not (folder / "tokenizer.json").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "config.json", "checkpoint-7"])
def test_foreign_files_are_not_overwritten(command, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(InputError, match=f"already holds {name} from another source: choose another --output_dir"):
        start_run(*command())
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_finished_run_is_not_written_over(command, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "all_results.json").write_text("{}")
    for flags in (
        {"do_train": True},
        {"config_name": None, "model_name_or_path": "m", "do_train": False, "do_eval": True},
    ):
        with pytest.raises(InputError, match="holds a finished run"):
            start_run(*command(**flags))
    with pytest.raises(InputError, match="Say what to do"):
        start_run(*command(do_train=False))
    with pytest.raises(InputError, match="is untrained: give --do_train"):
        start_run(*command(do_train=False, do_eval=True))


def test_evaluation_does_not_finish_a_run(command):
    cut_off(command())
    evaluation = command(config_name=None, model_name_or_path="m", do_train=False, do_eval=True)
    with pytest.raises(InputError, match="holds an interrupted run: finish it"):
        start_run(*evaluation)
    # A training that never began is in nobody's way.
    shutil.rmtree(Path(evaluation[2].output_dir) / "checkpoint-4")
    assert start_run(*evaluation) is None and not (Path(evaluation[2].output_dir) / "settings.json").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "shards/0.bin", "manifest.json"])
def test_damaged_checkpoint_is_skipped(tmp_path, name, caplog):
    for damage in ("cut", "changed", "removed"):
        folder = tmp_path / damage
        for step in (4, 12, 8):
            checkpoint = make_checkpoint(folder, {}, step)
            assert checkpoint_fault(checkpoint) is None
        path = folder / "checkpoint-12" / name
        content = path.read_bytes()
        if damage == "removed":
            path.unlink()
        else:
            path.write_bytes(content[:-5] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
        args = RunArguments(output_dir=str(folder), use_cpu=True)
        if (name, damage) != ("manifest.json", "changed"):
            assert name in checkpoint_fault(folder / "checkpoint-12")
        assert checkpoint_to_resume(args) == str(folder / "checkpoint-8")
        with pytest.raises(InputError, match="is not a whole checkpoint of these scripts: "):
            checkpoint_to_resume(RunArguments(output_dir=str(folder), use_cpu=True,
                                              resume_from_checkpoint=str(folder / "checkpoint-12")))  # fmt: skip


def test_checkpoint_without_its_best_is_skipped(tmp_path, caplog):
    best = tmp_path / "checkpoint-8"
    for step in (4, 8, 12):
        checkpoint = make_checkpoint(tmp_path, {}, step)
        write_text(
            checkpoint / "trainer_state.json", json.dumps({"best_model_checkpoint": str(best) if step > 4 else None})
        )
        write_manifest(checkpoint, {}, resumable=True)
    flags = {"output_dir": str(tmp_path), "use_cpu": True}
    args = RunArguments(**flags, load_best_model_at_end=True, eval_strategy="steps", eval_steps=500)
    assert checkpoint_to_resume(args) == str(tmp_path / "checkpoint-12")
    (best / "model.safetensors").unlink()
    assert checkpoint_to_resume(args) == str(tmp_path / "checkpoint-4")
    assert f"in {best}, the best checkpoint so far, model.safetensors is missing" in caplog.text
    assert checkpoint_to_resume(RunArguments(**flags)) == str(tmp_path / "checkpoint-12")


def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match=r"pipe\.txt is a pipe or a device"):
        fingerprint([tmp_path / "pipe.txt"])


def test_predictions_of_an_earlier_run_are_cleared(tmp_path):
    for name in ("settings.json", "predictions.tsv", "MNLI-m.tsv", "eval_predictions.json", "summary.json", "my.tsv"):
        (tmp_path / name).write_text("{}")
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["my.tsv"]


def test_checkpoint_without_an_optimizer_is_skipped(tmp_path, caplog):
    make_checkpoint(tmp_path, {}, 4, resumable=False)
    assert checkpoint_to_resume(RunArguments(output_dir=str(tmp_path), use_cpu=True)) is None
    assert "save_only_model" in caplog.text and "starting from the beginning" in caplog.text


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling link", "circle", "read-only"])
def test_folder_that_cannot_be_written_to(tmp_path, kind):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "none" / "where")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    paths = {
        "below a file": tmp_path / "file" / "out",
        "dangling link": tmp_path / "link",
        "read-only": Path("/proc/out"),
    }
    path = paths.get(kind, tmp_path / kind)
    with pytest.raises(InputError, match=f"--output_dir {path} (is a|cannot be written to)"):
        claim(path)


@pytest.mark.slow
def test_two_runs_do_not_share_a_folder(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    code += "from pathlib import Path; from hf_gmlp.training.folder import claim; import os, time\n"
    code += f"claim(Path({str(tmp_path)!r}))\n"
    code += "os.fork() or time.sleep(600)\nprint('claimed', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "claimed\n"
        with pytest.raises(InputError, match="Another run is writing to"):
            claim(tmp_path)
        # A dead process leaves nothing behind, though a child of it goes on.
        process.kill()
        process.wait()
        claim(tmp_path)
        claim(tmp_path)
    finally:
        os.killpg(process.pid, 9)


def test_files_are_whole_or_not_there(tmp_path):
    write_text(tmp_path / "a.json", "one")
    write_text(tmp_path / "a.json", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"] and (tmp_path / "a.json").read_text() == "two"
    with pytest.raises(ZeroDivisionError), whole_files(tmp_path) as folder:
        (folder / "b").write_text("half")
        raise ZeroDivisionError
    assert not (tmp_path / "b").exists()
    with whole_files(tmp_path) as folder:
        (folder / "b").write_text("whole")
        (folder / "shards").mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b", "shards"]


def test_fingerprints(tmp_path, monkeypatch):
    for name, text in (("a", "12"), ("b", "3"), ("c", "1"), ("d", "23")):
        (tmp_path / name).write_text(text)
    # Where one file ends counts.
    assert fingerprint([tmp_path / "a", tmp_path / "b"]) != fingerprint([tmp_path / "c", tmp_path / "d"])
    before = fingerprint([tmp_path])
    # The name of a class counts, but not that of a file.
    (tmp_path / "d").rename(tmp_path / "e")
    assert fingerprint([tmp_path]) != before
    (tmp_path / "e").rename(tmp_path / "d")
    assert fingerprint([tmp_path]) == before
    (tmp_path / "a").write_text("13")
    assert fingerprint([tmp_path]) != before
    assert fingerprint([tmp_path / "a"]) == fingerprint([(tmp_path / "a").rename(tmp_path / "z")])
    # Of more than can be read, the sizes count.
    monkeypatch.setattr("hf_gmlp.training.folder.LARGEST_HASHED", 1)
    before = fingerprint([tmp_path])
    (tmp_path / "z").write_text("99")
    assert fingerprint([tmp_path]) == before
    (tmp_path / "z").write_text("999")
    assert fingerprint([tmp_path]) != before


def test_where_nothing_can_be_locked_a_warning_is_given(tmp_path, monkeypatch, caplog):
    def fail(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", fail)
    claim(tmp_path / "out")
    assert "cannot be locked" in caplog.text


def test_secrets_are_not_written_down(command):
    settings = run_settings(*command(token="hf_secret", hub_token="hf_secret"))
    assert "hf_secret" not in json.dumps(settings)


def test_resuming_checks_the_manifest(command, tmp_path):
    arguments = command()
    folder = cut_off(arguments).parent
    # Somebody has written over settings.json.
    (folder / "settings.json").write_text(json.dumps(run_settings(*command(seed=7))))
    with pytest.raises(InputError, match="seed was 42 and is 7"):
        resume_point(command(seed=7)[2], run_settings(*command(seed=7)))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"label_names": ["x"]}, "--label_names is set by this script"),
        ({"prediction_loss_only": True}, "--prediction_loss_only is set by this script"),
        ({"do_predict": True}, "This script does not predict"),
        ({"streaming": True, "max_steps": -1}, "set the length of the training with --max_steps"),
        ({"cache_dir": "/proc/none"}, "--cache_dir /proc/none cannot be used"),
    ],
)
def test_flags_that_cannot_be_followed(command, flags, message):
    with pytest.raises(InputError, match=message):
        start_run(*command(**flags))
