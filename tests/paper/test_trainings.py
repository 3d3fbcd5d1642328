"""Trainings are searched, run once, and fail with their own message."""

import math

import pytest

from hf_gmlp.errors import InputError
from paper import trainings


def test_a_finished_or_diverged_training_is_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "call", lambda *_: pytest.fail("made again"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "all_results.json").write_text('{"eval_loss": 1.5}')
    assert trainings.train(tmp_path / "one", "mlm", "", {})["eval_loss"] == 1.5
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "diverged").touch()
    assert trainings.train(tmp_path / "two", "mlm", "", {})["eval_loss"] == math.inf


def test_a_training_that_fails_ends_with_its_error(tmp_path, monkeypatch):
    message = "There is no text in it."
    monkeypatch.setattr(trainings.sys, "executable", tmp_path / "python")
    (tmp_path / "python").write_text('#!/bin/sh\necho "Error: $MESSAGE"\nmkdir -p out\nexit 1\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESSAGE", message)
    with pytest.raises(InputError, match=message):
        trainings.train(tmp_path / "out", "mlm", "", {})
    monkeypatch.setenv("MESSAGE", "The training diverged.")
    assert trainings.train(tmp_path / "out", "mlm", "", {})["eval_loss"] == math.inf
    assert (tmp_path / "out" / "diverged").is_file()
