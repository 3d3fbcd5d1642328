import errno
import importlib
import sys

import pytest
import torch
from huggingface_hub import errors as hub

from hf_gmlp import errors


def fail(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (errors.InputError("No."), 2, "Error: No.\n"),
        (KeyboardInterrupt(), 130, "Error: Interrupted. To continue a training"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "Error: The disk is full ("),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), 2, "Error: /etc/x cannot be used (Permission"),
        (RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 6976 vs 6868"), 2, "Error: The disk"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), 2, "Error: The memory is full (CUDA out of memory.)."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "Error: The memory is full ("),
    ],
)
def test_commands_end_with_a_sentence(capsys, error, code, sentence):
    with pytest.raises(SystemExit) as caught:
        errors.run(fail(error))
    assert caught.value.code == code
    text = capsys.readouterr().err
    assert text.startswith(sentence) and text.count("\n") == 1


def test_a_file_that_is_missing_in_a_worker_process(capsys):
    with pytest.raises(SystemExit):
        errors.run(fail(FileNotFoundError("Caught in DataLoader worker process 0.\n  File x\nNo such file: 'a.png'\n")))
    assert capsys.readouterr().err == "Error: A file can no longer be read (No such file: 'a.png').\n"


def test_faults_of_the_program_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        errors.run(fail(ZeroDivisionError()))
    assert errors.run(lambda: None) is None


def test_causes_of_an_error():
    try:
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as cause:
            raise RuntimeError("cannot write") from cause
    except RuntimeError as error:
        assert errors.is_disk_full(error) and len(list(errors.causes(error))) == 2
    assert not errors.is_disk_full(ValueError("other"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("You are trying to access a gated repo.\nMore."), "it is gated"),
        (hub.LocalEntryNotFoundError("x"), "the Hub cannot be reached"),
        (hub.OfflineModeIsEnabled("x"), "the Hub cannot be reached"),
        (ConnectionError("x"), "the Hub cannot be reached"),
        (hub.EntryNotFoundError("x"), "lacks a required file"),
        (hub.HFValidationError("x"), "there is no folder and no repository"),
        (OSError("We couldn't connect to 'https://huggingface.co' to load the files."), "the Hub cannot be reached"),
        (ValueError("It is damaged.\nIn detail."), "It is damaged"),
        (OSError("connected-gated-mlp has no file."), "connected-gated-mlp has no file"),
    ],
)
def test_reasons_of_the_hub(error, reason):
    assert reason in errors.hub_reason(error) and "\n" not in errors.hub_reason(error)


@pytest.mark.parametrize(
    ("module", "package"),
    [("datasets", '"hf-gmlp[train]"'), ("matplotlib", '"hf-gmlp[plots]"'), ("PIL", '"hf-gmlp[vision]"')],
)
def test_a_missing_extra_is_named(capsys, monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit):
        errors.run(lambda: importlib.import_module(module))
    assert capsys.readouterr().err == f"Error: {module} is not installed: pip install {package}.\n"
    with pytest.raises(errors.InputError, match=f"{module} is not installed"):
        errors.need("torch", module)


def test_other_missing_modules_keep_their_traceback():
    with pytest.raises(ImportError):
        errors.run(lambda: importlib.import_module("hf_gmlp.nothing"))
