"""Tests how the summary of `run.py` counts tests and groups the reasons of skipped ones."""

from types import SimpleNamespace

import pytest

from .run import Summary, general_reason


class SubtestReport(SimpleNamespace):
    """The summary recognizes the report of a subtest by this name."""


def report(nodeid, outcome):
    kind = SubtestReport if outcome.startswith("subtest") else SimpleNamespace
    outcome = outcome.removeprefix("subtest ")
    skipped = outcome == "skipped"
    longrepr = ("file.py", 1, "Skipped: no reason at all") if skipped else None
    return kind(nodeid=nodeid, failed=outcome == "failed", skipped=skipped, longrepr=longrepr)


def test_subtests_decide():
    cases = {
        "passed": (["passed"], "passed"),
        "skipped": (["skipped"], "skipped"),
        "only skipped subtests": (["subtest skipped", "subtest skipped", "passed"], "skipped"),
        "some skipped subtests": (["subtest skipped", "subtest passed", "passed"], "passed"),
        "failed subtest": (["subtest skipped", "subtest failed", "passed"], "failed"),
    }
    summary = Summary([])
    for nodeid, (outcomes, verdict) in cases.items():
        for outcome in outcomes:
            summary.pytest_runtest_logreport(report(nodeid, outcome))
        assert summary.verdict(nodeid) == verdict
    assert summary.verdicts() == {"passed": 2, "skipped": 2, "failed": 1}
    assert summary.grouped_reasons() == {"no reason at all": 2}


@pytest.mark.parametrize(
    ("reason", "general"),
    [
        ("Skipped: GMLPModel does not support SDPA", "the model does not support SDPA"),
        ("Skipped: GMLPVisionModel does not support SDPA", "the model does not support SDPA"),
        (
            "ATest::test_pipeline_a_float32 is skipped: `a-b` is not in `self.mapping` for `GMLPTest`.",
            "the pipeline's task is not in `self.mapping` for the model.",
        ),
        (
            "BTest::test_pipeline_c_float16 is skipped: `c` is not in `self.mapping` for `GMLPVisionTest`.",
            "the pipeline's task is not in `self.mapping` for the model.",
        ),
    ],
)
def test_reasons_that_differ_only_in_names_are_equal(reason, general):
    assert general_reason(reason) == general
