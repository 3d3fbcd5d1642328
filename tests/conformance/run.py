"""Run the common tests of transformers on the project's models: `python -m tests.conformance.run [pytest arguments]`.

The first run fetches the tests of the installed transformers version (see fetch.py); later runs need no network. With
`-rs`, pytest lists why tests are skipped.
"""

import os
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


class Summary:
    """A pytest plugin that counts tests by outcome.

    A test counts as skipped if it skipped all of its subtests: this is how transformers marks a test that concerns none
    of the classes, and pytest alone would count it as passed.
    """

    def __init__(self):
        self.outcomes: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report):
        outcomes = self.outcomes.setdefault(report.nodeid, set())
        is_subtest = type(report).__name__ == "SubtestReport"
        if report.failed:
            outcomes.add("failed")
        elif report.skipped:
            outcomes.add("subtest skipped" if is_subtest else "skipped")
        elif is_subtest:
            outcomes.add("subtest passed")

    def verdict(self, outcomes: set[str]) -> str:
        """Return "failed", "skipped" or "passed" for the outcomes of one test."""
        if "failed" in outcomes:
            return "failed"
        only_skipped_subtests = "subtest skipped" in outcomes and "subtest passed" not in outcomes
        return "skipped" if "skipped" in outcomes or only_skipped_subtests else "passed"

    def pytest_terminal_summary(self, terminalreporter):
        counts = Counter(map(self.verdict, self.outcomes.values()))
        terminalreporter.section("conformance with the common tests of transformers")
        terminalreporter.write_line(", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped")))


def main(arguments: list[str]) -> int:
    """Fetch the tests, run the suite with `arguments` for pytest, and return pytest's exit code."""
    from .fetch import fetch_common_tests

    try:
        fetch_common_tests()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1

    # Must be set before torch and transformers are imported. The workers and the ranks inherit them.
    os.environ.update(
        HF_GMLP_CONFORMANCE="1",
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TOKENIZERS_PARALLELISM="false",
        # transformers skips its slow tests by default; those that concern these models take seconds.
        RUN_SLOW="1",
        # The models are tiny: one thread per worker.
        OMP_NUM_THREADS="1",
    )
    import pytest

    options = ["-c", str(FOLDER / "pytest.ini"), "--rootdir", str(FOLDER.parents[1]), "-p", "no:cacheprovider"]
    if not any(argument.startswith("-n") for argument in arguments):
        options += ["-n", str(min(os.cpu_count() or 1, 8))]
    if not any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        options.append(str(FOLDER))
    return int(pytest.main(options + arguments, plugins=[Summary()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
