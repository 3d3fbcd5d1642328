"""What is said to somebody whose input cannot work."""

import errno
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

# What `pip install hf-gmlp` leaves out, by the name that it is installed by.
OPTIONAL = {
    "hf-gmlp[train]": ("accelerate", "datasets", "evaluate", "scipy", "sentencepiece", "sklearn"),
    "hf-gmlp[plots]": ("matplotlib",),
    "hf-gmlp[vision]": ("PIL", "torchvision"),
    "timm": ("timm",),
}


class InputError(ValueError):
    """Something given from outside (a flag, a file, a folder) cannot work. The message says what, where, what to do."""


def run(main: Callable[[], object]):
    """
    Runs a command. What cannot work ends it with one sentence instead of a traceback: an `InputError` with exit code 2,
    a full disk or memory, a path that cannot be used and a missing extra likewise, Ctrl-C with 130.
    """
    code = 2
    try:
        main()
    except InputError as error:
        sentence = str(error)
    except KeyboardInterrupt:
        code, sentence = 130, "Interrupted. A training goes on from its last checkpoint when the same command is given."
    except Exception as error:
        if is_disk_full(error):
            sentence = f"The disk is full ({error}). Make room; the same command then goes on from the last checkpoint."
        elif is_memory_full(error):
            reason = str(error).partition("\n")[0]
            sentence = (
                f"The memory is full ({reason}). Lower --per_device_train_batch_size or --per_device_eval_batch_size."
            )
        elif isinstance(error, ImportError) and (module := (error.name or "").partition(".")[0]) in sum(
            OPTIONAL.values(), ()
        ):
            sentence = not_installed(module)
        elif isinstance(error, OSError) and error.filename is not None:
            sentence = f"{error.filename} cannot be used ({error.strerror}): check the path, and who may write there."
        elif isinstance(error, OSError) and "DataLoader worker" in str(error):
            # A worker process hands on its traceback as text.
            sentence = f"A file cannot be read any more ({str(error).strip().splitlines()[-1]})."
        else:
            raise
    else:
        return
    print(f"Error: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def not_installed(module: str) -> str:
    """What to do about a missing module of `OPTIONAL`."""
    package = next(package for package, modules in OPTIONAL.items() if module in modules)
    return f'{module} is not installed: pip install "{package}".'


def need(*modules: str):
    """
    Raises:
        InputError: If one of these modules, all in `OPTIONAL`, is not installed.
    """
    for module in modules:
        if find_spec(module) is None:
            raise InputError(not_installed(module))


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, the one that it was raised from, and so on."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        seen.append(one)
        yield one
        one = one.__cause__ or one.__context__


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says so: Python's own, or that of a library in Rust or C++."""
    # The last two are what torch.save says of a write that failed.
    texts = ("No space left on device", "unexpected pos", "PytorchStreamWriter failed writing")
    return any(
        getattr(one, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(text in str(one) for text in texts)
        for one in causes(error)
    )


def is_memory_full(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that a device or the machine has no memory left."""
    return any(
        isinstance(one, MemoryError) or type(one).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(one)
        for one in causes(error)
    )


def hub_reason(error: BaseException) -> str:
    """Why something could not be had from the Hub or from a folder: what to do, in half a sentence."""
    # Takes a second, which `hf-gmlp --help` does without.
    from huggingface_hub import errors as hub

    kinds = [type(one) for one in causes(error)]
    text = " ".join(str(one) for one in causes(error))

    def among(*types: type) -> bool:
        return any(issubclass(kind, types) for kind in kinds)

    if among(hub.GatedRepoError) or re.search("gated (repo|dataset)", text):
        return "it is gated: ask for access on its page, then give --token or log in by `hf auth login`"
    if among(hub.RevisionNotFoundError):
        return "it has no branch, tag or commit of that name"
    if among(hub.RepositoryNotFoundError, hub.HFValidationError):
        return "there is no folder and no repository on the Hub of that name; a private one needs --token"
    offline = among(hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError, ConnectionError)
    if offline or re.search("n[o']t (connect|reach)", text):
        return "it is no folder here, and the Hub cannot be reached: go online, or name a folder"
    if among(hub.EntryNotFoundError):
        return "the repository on the Hub lacks a file that is needed"
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return first.rstrip(".")
