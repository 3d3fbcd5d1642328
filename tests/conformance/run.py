"""Run the common tests of transformers on the project's models: `python -m tests.conformance.run [pytest arguments]`.

The first run fetches the tests of the installed transformers version (see fetch.py); later runs need no network.
docs/log/checks.md says what runs, what is skipped and why.
"""

import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    """Fetch the tests, run the suite with `arguments` for pytest, and return pytest's exit code."""
    from .fetch import fetch_common_tests

    try:
        fetch_common_tests()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1

    # These must be set before torch and transformers are imported. Workers and ranks inherit them.
    os.environ.update(
        HF_GMLP_CONFORMANCE="1",
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TOKENIZERS_PARALLELISM="false",
        # transformers skips its slow tests by default, but with these models they take seconds.
        RUN_SLOW="1",
        # One thread per worker is enough for tiny models.
        OMP_NUM_THREADS="1",
    )
    import pytest

    options = ["-c", str(FOLDER / "pytest.ini"), "--rootdir", str(FOLDER.parents[1]), "-p", "no:cacheprovider", "-rs"]
    if importlib.util.find_spec("xdist") and not any(argument.startswith("-n") for argument in arguments):
        options += ["-n", str(min(os.cpu_count() or 1, 8))]
    if not any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        options.append(str(FOLDER))
    return int(pytest.main(options + arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
