"""The card of a run, and pushes that break off."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import RemoteEntryNotFoundError

from hf_gmlp.errors import InputError
from hf_gmlp.training.publish import check_metadata, shown_command

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


def test_a_push_that_breaks_off_leaves_a_finished_run(tmp_path, monkeypatch):
    def fail(trainer):
        raise OSError("The Hub is tired")

    monkeypatch.setattr("transformers.Trainer.push_to_hub", fail)
    trainer = make_trainer(tmp_path, do_train=True)
    metrics = trainer.train_and_evaluate(None)
    trainer.args.push_to_hub, trainer.hub_model_id = True, "me/cats"
    with pytest.raises(InputError, match="tired.*hf upload me/cats"):
        trainer.finish(metrics)
    assert (tmp_path / "all_results.json").is_file() and (tmp_path / "model.safetensors").is_file()


@pytest.mark.parametrize("published", ["# Mine", None])
def test_the_card_of_a_person_in_the_repository_stays(tmp_path, monkeypatch, published):
    def load(source, **options):
        if published is None:
            raise RemoteEntryNotFoundError("There is no card.", response=SimpleNamespace(headers={}, request=None))
        return ModelCard(published)

    trainer = make_trainer(tmp_path)
    trainer.hub_model_id = "me/cats"
    monkeypatch.setattr(ModelCard, "load", load)
    trainer.create_model_card()
    assert ("# me/cats" in (tmp_path / "README.md").read_text()) == (published is None)


def test_metadata_that_the_hub_does_not_accept(monkeypatch):
    def refuse(card):
        raise ValueError("license must be one of [...]")

    check_metadata(None, None)
    monkeypatch.setattr(ModelCard, "validate", refuse)
    with pytest.raises(InputError, match="--license mitt"):
        check_metadata("mitt", None)
