"""Run the common tests of transformers on the project's models: `python -m tests.conformance.run [pytest arguments]`.

The first run fetches the tests of the installed transformers version (see fetch.py); later runs need no network.
docs/log/checks.md says what runs, what is skipped and why.
"""

import importlib.util
import os
import re
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# Names of classes in skip reasons that are otherwise equal.
MODEL = r"<class '[\w.]*'>|`?\w*GMLP\w+`?"


class Summary:
    """A pytest plugin that counts outcomes and groups the reasons of skipped tests.

    A test counts as skipped if it skipped all of its subtests. This is how transformers marks a test that applies to
    none of the classes; pytest alone would count it as passed.
    """

    def __init__(self, arguments: list[str]):
        self.arguments = arguments
        self.outcomes: dict[str, set[str]] = {}
        self.reasons: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report):
        is_subtest = type(report).__name__ == "SubtestReport"
        outcomes = self.outcomes.setdefault(report.nodeid, set())
        if report.failed:
            outcomes.add("failed")
        elif report.skipped:
            outcomes.add("subtest skipped" if is_subtest else "skipped")
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            # Without the names in them, equal reasons can be counted.
            reason = re.sub(MODEL, "the model", reason.removeprefix("Skipped: "))
            self.reasons.setdefault(report.nodeid, set()).add(reason)
        elif is_subtest:
            outcomes.add("subtest passed")

    def verdict(self, nodeid: str) -> str:
        """Return "failed", "skipped" or "passed"."""
        outcomes = self.outcomes[nodeid]
        if "failed" in outcomes:
            return "failed"
        only_skipped_subtests = "subtest skipped" in outcomes and "subtest passed" not in outcomes
        return "skipped" if "skipped" in outcomes or only_skipped_subtests else "passed"

    def pytest_terminal_summary(self, terminalreporter):
        verdicts, write = {nodeid: self.verdict(nodeid) for nodeid in self.outcomes}, terminalreporter.write_line
        terminalreporter.section("conformance with the common tests of transformers")
        reasons = (min(reasons) for nodeid, reasons in self.reasons.items() if verdicts[nodeid] == "skipped")
        for reason, count in Counter(reasons).most_common():
            write(f"{count:5} skipped: {reason}")
        counts = Counter(verdicts.values())
        write(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped")))
        if self.arguments:
            write(f"This was a run with {' '.join(self.arguments)}; without arguments the complete suite runs.")


def main(arguments: list[str]) -> int:
    """Fetch the tests, run the suite with `arguments` for pytest, and return pytest's exit code."""
    from .fetch import CACHE_FOLDER, fetch_common_tests

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

    from .fixtures import PICTURE, write_picture

    write_picture(CACHE_FOLDER / PICTURE)
    options = ["-c", str(FOLDER / "pytest.ini"), "--rootdir", str(FOLDER.parents[1]), "-p", "no:cacheprovider"]
    if importlib.util.find_spec("xdist") and not any(argument.startswith("-n") for argument in arguments):
        options += ["-n", str(min(os.cpu_count() or 1, 8))]
    if not any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        options.append(str(FOLDER))
    return int(pytest.main(options + arguments, plugins=[Summary(arguments)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
