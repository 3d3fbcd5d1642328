"""Errors that a user can fix, which end a command with one line and an exit code instead of a traceback."""

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial

# Packages that `pip install hf-gmlp` does not install -> their modules.
OPTIONAL = {
    "hf-gmlp[train]": (
        *("accelerate", "datasets", "matplotlib", "pandas", "pyarrow", "scipy", "sentencepiece"),
        *("sklearn", "torchdata", "tqdm", "zstandard"),
    ),
    "hf-gmlp[vision]": ("PIL", "torchvision"),
    "hf-gmlp[serve]": ("gradio",),
    "hf-gmlp[export]": ("nncf", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "openvino"),
    "transformers>=5.23": ("transformers.exporters",),
    "timm": ("timm",),
}


class InputError(ValueError):
    """A flag, a file or a folder is wrong. The message says what is wrong, where, and what to do."""


def run_command(main: Callable[[], object]) -> None:
    """Run a command. An error that a user can fix ends it with one line and exit code 2, Ctrl-C with 130, and a closed
    pipe (`| head`) silently with 141. Any other error is a bug, and keeps its traceback.
    """
    if hasattr(os, "register_at_fork"):
        # A terminal sends Ctrl-C to worker processes too. They ignore it, and are ended by this process.
        os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGINT, signal.SIG_IGN))
    for stream in (sys.stdout, sys.stderr):
        # Printing must not fail where the terminal or log file lacks a character of a class name.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the standard output at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except (KeyboardInterrupt, Exception) as error:
        # A library may raise another error while it ends its workers after Ctrl-C.
        interrupted = any(isinstance(cause, KeyboardInterrupt) for cause in causes(error))
        resume = "Interrupted. Repeat the command to start again; training continues from the last checkpoint, if any."
        message = resume if interrupted else _message(error)
        if message is None:
            raise
        print(f"Error: {message}", file=sys.stderr)
        raise SystemExit(130 if interrupted else 2) from None


def _message(error: BaseException) -> str | None:
    """Return a message of one line for the user; None if the error is a bug."""
    if isinstance(error, InputError):
        # For an error in a worker of a data loader, the message is the worker's traceback.
        return str(error).rpartition("InputError: ")[2].strip()
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return f"Out of memory ({first_line(error)}): lower --per_device_train_batch_size."
    # torch reports only the position at which it could not write on.
    if any("No space left" in str(cause) or "unexpected pos" in str(cause) for cause in causes(error)):
        return "The disk is full: free some space, and repeat the command."
    if isinstance(error, ImportError) and error.name:
        return _not_installed(error.name)
    if isinstance(error, ImportError | OSError):
        # A library says what to install, or what is wrong with a file or the network.
        return " ".join(str(error).split()) or None
    return None


def _not_installed(module: str) -> str | None:
    for package, modules in OPTIONAL.items():
        if module in modules or module.partition(".")[0] in modules:
            return f'{module} is not installed: pip install "{package}".'
    return None


def listed(names: list[str], most: int = 5) -> str:
    """Return the first names, and the number of the others, as text."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank, or the error's type."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8: save it as UTF-8 text (in Excel, as CSV UTF-8)"
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def hub_reason(error: BaseException) -> str:
    """Return a library's message about a repository on the Hub or a folder in one line, without a full stop."""
    # Importing this takes a tenth of a second, as long as all of `hf-gmlp --help`.
    from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError

    # The first line of these errors is a number, or the name of a check.
    text = str(error) if isinstance(error, HfHubHTTPError | StrictDataclassError) else first_line(error)
    return " ".join(text.split()).rstrip(".")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the error that it was raised from, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
