"""The card of a run, and pushes that break off."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import RemoteEntryNotFoundError

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.training import publish
from hf_gmlp.training.arguments import ModelArguments
from hf_gmlp.training.publish import shown_command
from hf_gmlp.training.run_folder import run_settings
from hf_gmlp.training.start import start_run

from .test_trainer import make_trainer


def test_a_command_is_shown_without_tokens():
    command = "run_mlm.py --token hf_1 --train_file /home/me/a.txt --hub-token=hf_2 --hub_token hf_3 --do_train"
    assert shown_command(command.split()) == "python run_mlm.py --train_file a.txt --do_train"


@pytest.mark.parametrize("folder, title", [("runs/out", "runs/out"), ("../out", "out"), ("{}/out", "out")])
def test_a_card_names_only_what_is_below_this_folder(folder, title, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = Path(folder.format(tmp_path))
    folder.mkdir(parents=True)
    make_trainer(folder).create_model_card()
    card = ModelCard.load(folder / "README.md")
    assert f"\n# {title}\n" in card.text and f'from_pretrained("{title}"' in card.text


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A finished run whose push has broken off: the arguments of its command, and the list of what is uploaded."""
    uploaded = []

    def fail(trainer):
        trainer.create_model_card()
        raise OSError("The Hub is tired")

    monkeypatch.setattr("transformers.Trainer.push_to_hub", fail)
    monkeypatch.setattr(publish, "create_repo", lambda name, **options: SimpleNamespace(repo_id=f"me/{name}"))
    monkeypatch.setattr(publish, "upload_folder", lambda **options: uploaded.append(options))
    trainer = make_trainer(tmp_path / "out", do_train=True)
    arguments = ModelArguments(config_name="gmlp-18l"), MLMArguments(), trainer.args
    (tmp_path / "out" / "settings.json").write_text(json.dumps(run_settings(*arguments)))
    metrics = trainer.train_and_evaluate(None)
    trainer.args.push_to_hub = True
    with pytest.raises(InputError, match="tired"):
        trainer.finish(metrics)
    return arguments, uploaded


def no_card(*args, **kwargs):
    raise RemoteEntryNotFoundError("There is no card.", response=SimpleNamespace(headers={}, request=None))


def test_the_same_command_repeats_a_push(finished, tmp_path, monkeypatch, capsys):
    (_, _, args), uploaded = finished
    before = (tmp_path / "out" / "README.md").read_text()
    load = ModelCard.load
    monkeypatch.setattr(
        ModelCard, "load", lambda source, **options: load(source) if Path(source).is_file() else no_card()
    )
    with pytest.raises(SystemExit) as ended:
        start_run(*finished[0])
    assert not ended.value.code and "me/out" in capsys.readouterr().out
    assert [(one["repo_id"], one["folder_path"]) for one in uploaded] == [("me/out", Path(args.output_dir))]
    assert (tmp_path / "out" / "README.md").read_text().strip() == before.strip()


@pytest.mark.parametrize("change", ["other settings", "no push", "no model"])
def test_other_finished_runs_are_refused(finished, tmp_path, change):
    (model_args, data_args, args), uploaded = finished
    match change:
        case "other settings":
            args.learning_rate = 1.0
        case "no push":
            args.push_to_hub = False
        case "no model":
            (tmp_path / "out" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="finished run"):
        start_run(model_args, data_args, args)
    assert not uploaded
