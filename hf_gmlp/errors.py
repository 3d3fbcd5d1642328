"""What a user is told when something cannot work."""

import errno
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

# Packages that `pip install hf-gmlp` leaves out -> their modules.
OPTIONAL = {
    "hf-gmlp[train]": ("accelerate", "datasets", "evaluate", "scipy", "sentencepiece", "sklearn"),
    "hf-gmlp[plots]": ("matplotlib",),
    "hf-gmlp[vision]": ("PIL", "torchvision"),
    "timm": ("timm",),
}


class InputError(ValueError):
    """Input from outside (a flag, a file, a folder) cannot work. The message says what is wrong, where, what to do."""


def run(main: Callable[[], object]):
    """Runs a command. What the user can mend ends it with one sentence and exit code 2, and Ctrl-C with 130."""
    try:
        main()
    except (KeyboardInterrupt, Exception) as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        print(f"Error: {sentence}", file=sys.stderr)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 2) from None


def _sentence(error: BaseException) -> str | None:
    """Returns what to tell the user, or None for a fault of the program."""
    repeat = "To continue a training from its last checkpoint, repeat the command."
    if isinstance(error, InputError):
        # A worker process passes its traceback on as text.
        return str(error).rpartition("InputError: ")[2].strip()
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted. {repeat}"
    if is_disk_full(error):
        return f"The disk is full ({error}). Free some space. {repeat}"
    if is_memory_full(error):
        flags = "--per_device_train_batch_size or --per_device_eval_batch_size"
        return f"The memory is full ({first_line(error)}). Lower {flags}."
    if isinstance(error, ImportError):
        module = (error.name or "").partition(".")[0]
        return not_installed(module) if any(module in modules for modules in OPTIONAL.values()) else None
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used ({error.strerror}): check the path and its permissions."
    if isinstance(error, OSError) and "DataLoader worker" in str(error):
        # A worker process passes its traceback on as text.
        return f"A file can no longer be read ({str(error).strip().splitlines()[-1]})."
    return None


def not_installed(module: str) -> str:
    """Returns how to install a missing module of `OPTIONAL`."""
    package = next(package for package, modules in OPTIONAL.items() if module in modules)
    return f'{module} is not installed: pip install "{package}".'


def need(*modules: str):
    """Raises an InputError if one of these modules, all in `OPTIONAL`, is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise InputError(not_installed(module))


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message that is not blank, or the error's type."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, the error that it was raised from, and so on."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


def is_disk_full(error: BaseException) -> bool:
    """Returns whether an error, or a cause of it, says so: Python's own, or that of a library in Rust or C++."""
    # torch.save reports a failed write with the last two.
    texts = ("No space left on device", "unexpected pos", "PytorchStreamWriter failed writing")
    return any(
        getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(text in str(cause) for text in texts)
        for cause in causes(error)
    )


def is_memory_full(error: BaseException) -> bool:
    """Returns whether an error, or a cause of it, says that a device or the machine is out of memory."""
    return any(
        isinstance(one, MemoryError) or type(one).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(one)
        for one in causes(error)
    )


def hub_reason(error: BaseException) -> str:
    """Returns, in half a sentence, why something could not be had from the Hub or a folder, and what to do."""
    # The import takes a tenth of a second, as long as all of `hf-gmlp --help`.
    from huggingface_hub import errors as hub

    chain = list(causes(error))
    text = " ".join(map(str, chain))

    def among(*types: type) -> bool:
        return any(isinstance(cause, types) for cause in chain)

    if among(hub.GatedRepoError) or re.search("gated (repo|dataset)", text):
        return "it is gated: ask for access on its page, then give --token or log in with `hf auth login`"
    if among(hub.RevisionNotFoundError):
        return "it has no branch, tag or commit with that name"
    if among(hub.RepositoryNotFoundError, hub.HFValidationError):
        return "there is no folder and no repository on the Hub with that name; a private one needs --token"
    offline = among(hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError, ConnectionError)
    if offline or re.search("n[o']t (connect|reach)", text):
        return "it is not a folder here, and the Hub cannot be reached: go online, or name a folder"
    if among(hub.EntryNotFoundError):
        return "the repository on the Hub lacks a required file"
    return first_line(error).rstrip(".")
