"""What is said to somebody whose input cannot work."""

import sys
from collections.abc import Callable


class InputError(ValueError):
    """Something given from outside (a flag, a file, a folder) cannot work. The message says what, where, what to do."""


def run(main: Callable[[], object]):
    """Runs a command; an `InputError` ends it with its one sentence instead of a traceback, and exit code 2."""
    try:
        main()
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
