import errno
import importlib
import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError

from hf_gmlp import errors


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errors.InputError("No."), 2, "No."),
        (KeyboardInterrupt(), 130, "Repeat the command to start again"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), 2, "Permission denied: '/etc/x'"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), 2, "--per_device_train_batch_size"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"), 2, "disk is full"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), 2, "disk is full"),
        (ImportError("You need\nliger-kernel"), 2, "You need liger-kernel"),
    ],
)
def test_commands_end_with_one_line(capsys, error, code, words):
    with pytest.raises(SystemExit) as caught:
        errors.run_command(lambda: fail(error))
    assert caught.value.code == code
    text = capsys.readouterr().err
    assert text.startswith("Error: ") and words in text and text.count("\n") == 1


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), ModuleNotFoundError("x", name="hf_gmlp.nothing"), OSError(), ImportError()]
)
def test_faults_of_the_program_keep_their_traceback(error):
    with pytest.raises(type(error)):
        errors.run_command(lambda: fail(error))


@pytest.mark.heavy
def test_a_closed_pipe_ends_a_command_quietly():
    code = "from hf_gmlp import errors; errors.run_command(lambda: print('line\\n' * 100_000))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 141


def test_an_interrupt_may_be_the_context_of_another_error(capsys):
    def main():
        try:
            raise KeyboardInterrupt
        finally:
            raise TimeoutError

    with pytest.raises(SystemExit) as caught:
        errors.run_command(main)
    assert caught.value.code == 130 and capsys.readouterr().err.startswith("Error: Interrupted.")


@pytest.mark.parametrize(("module", "package"), [("datasets", "hf-gmlp[train]"), ("PIL", "hf-gmlp[vision]")])
def test_a_missing_extra_is_named(capsys, monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit):
        errors.run_command(lambda: importlib.import_module(module))
    assert f'{module} is not installed: pip install "{package}"' in capsys.readouterr().err
