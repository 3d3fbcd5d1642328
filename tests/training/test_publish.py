"""The card of a run."""

from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import RemoteEntryNotFoundError

from hf_gmlp.training.publish import shown_command

from .test_trainer import make_trainer


def test_a_command_is_shown_without_tokens():
    command = "run_mlm.py --token hf_1 --train_file /home/me/a.txt --hub-token=hf_2 --hub_token hf_3 --do_train"
    assert shown_command(command.split()) == "python run_mlm.py --train_file a.txt --do_train"


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
