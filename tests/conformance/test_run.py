"""The summary of `run.py` counts a test that only skipped its subtests as skipped, and groups the reasons."""

from types import SimpleNamespace

from .run import Summary, general_reason


class SubtestReport(SimpleNamespace):
    """Bears the name by which the summary knows a subtest's report."""


def report(nodeid, outcome, reason=None, kind=SimpleNamespace):
    return kind(
        nodeid=nodeid,
        failed=outcome == "failed",
        skipped=outcome == "skipped",
        longrepr=("file.py", 1, f"Skipped: {reason}") if reason else None,
    )


def test_subtests_decide():
    summary = Summary([])
    for nodeid, outcomes in {
        "passed": [("passed", None)],
        "skipped": [("skipped", SimpleNamespace)],
        "only skipped subtests": [("skipped", SubtestReport), ("skipped", SubtestReport), ("passed", None)],
        "some skipped subtests": [("skipped", SubtestReport), ("passed", SubtestReport), ("passed", None)],
        "failed subtest": [("skipped", SubtestReport), ("failed", SubtestReport), ("passed", None)],
    }.items():
        for outcome, kind in outcomes:
            reason = "no reason at all" if outcome == "skipped" else None
            summary.pytest_runtest_logreport(report(nodeid, outcome, reason, kind or SimpleNamespace))
    assert {nodeid: summary.verdict(nodeid) for nodeid in summary.outcomes} == {
        "passed": "passed",
        "skipped": "skipped",
        "only skipped subtests": "skipped",
        "some skipped subtests": "passed",
        "failed subtest": "failed",
    }
    assert summary.verdicts() == {"passed": 2, "skipped": 2, "failed": 1}
    assert summary.grouped_reasons() == {"no reason at all": 2}


def test_reasons_that_differ_in_names_are_one():
    reasons = [
        "Skipped: GMLPModel does not support SDPA",
        "Skipped: GMLPVisionModel does not support SDPA",
    ]
    assert {general_reason(reason) for reason in reasons} == {"the model does not support SDPA"}
    tasks = [
        "ATest::test_pipeline_a_float32 is skipped: `a-b` is not in `self.mapping` for `GMLPTest`.",
        "BTest::test_pipeline_c_float16 is skipped: `c` is not in `self.mapping` for `GMLPVisionTest`.",
    ]
    assert {general_reason(reason) for reason in tasks} == {
        "the pipeline's task is not in `self.mapping` for the model."
    }
