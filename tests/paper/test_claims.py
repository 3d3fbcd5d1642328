import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from transformers import AutoConfig

from hf_gmlp.presets import preset_path
from paper import protocol, report
from paper.counts import paper_flops, paper_parameters
from paper.report import Results, fill_tables, status_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "paper" / "claims.md").read_text(encoding="utf-8")
RESULTS = Results(json.loads((ROOT / "paper" / "replication" / "results.json").read_text(encoding="utf-8")))
# The claim, the evidence and the status of each row.
ROWS = re.findall(
    r"^\| (.+) \| (.*?) ?\| ([^|]+) \|$", TEXT[TEXT.index("## Abstract") : TEXT.index("## Where")], re.MULTILINE
)
COUNTED = re.findall(r"^\| `(\S+)((?: \w+=\S+)*)` \| ([\d.]+) (M|B MAdds) \|(.*)$", TEXT, re.MULTILINE)


def rounds_to(count: float, printed: str) -> bool:
    return f"{count:.{len(printed.partition('.')[2])}f}" == printed


@pytest.mark.parametrize("name, fields, printed, unit, notes", COUNTED, ids=lambda value: str(value).strip()[:40])
def test_counts_are_those_of_the_package(name, fields, printed, unit, notes):
    values = (field.split("=") for field in fields.split())
    overrides = {field: value == "true" if value in ("true", "false") else int(value) for field, value in values}
    config = AutoConfig.from_pretrained(preset_path(name), num_labels=1000, **overrides)
    count = paper_parameters(config) / 1e6 if unit == "M" else paper_flops(config) / 2e9
    assert rounds_to(count, printed)
    for flops in re.findall(r"([\d.]+) B FLOPs", notes):
        assert rounds_to(paper_flops(config) / 1e9, flops)
    for percent in re.findall(r"\| ([+-][\d.]+) %", notes):
        assert rounds_to(100 * (count / float(notes.split("|")[0]) - 1), percent)


def test_every_row_of_the_counts_is_read():
    rows = TEXT.partition("\n### Counts\n")[2].count("\n| `")
    assert len(COUNTED) == rows > 15


def test_named_recipes_and_tests_exist():
    for folder in re.findall(r"`((?:table|figure)\d+)`", TEXT):
        assert (ROOT / "paper" / "recipes" / folder).is_dir(), folder
    for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT):
        assert f"def {test}(" in (ROOT / "tests" / file.removeprefix("tests/")).read_text(encoding="utf-8"), test


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["claims.md", "replication.md", "replication/report.md"])
def test_tables_are_those_of_the_results(name):
    text = (ROOT / "paper" / name).read_text(encoding="utf-8")
    assert fill_tables(text, RESULTS) == text


def test_statuses_are_the_verdicts_of_the_runs():
    named = {name: status for _, evidence, status in ROWS for name in re.findall(r"\*([^*]+)\*", evidence)}
    claims = [finding.name for finding in RESULTS.findings() if not finding.is_part]
    assert named == {claim: status_of(claim, RESULTS) for claim in claims} and len(claims) == 9


def test_runs_disagree_only_if_both_decide(monkeypatch):
    own = status_of(protocol.ATTENTION.text, RESULTS)

    def with_later(*verdicts):
        findings = [protocol.Finding(protocol.ATTENTION, verdict) for verdict in verdicts]
        monkeypatch.setattr(report, "later_findings", lambda: {"later": findings})
        return status_of(protocol.ATTENTION.text, RESULTS)

    assert own == with_later() == with_later(protocol.HELD) == protocol.NOISE
    assert with_later(protocol.HELD, protocol.CONTRADICTED) == report.DISAGREE
    # A claim of several parts disagrees by its parts.
    findings = [protocol.Finding(claim, protocol.CONTRADICTED) for claim in protocol.CLAIMS if claim.part_of]
    monkeypatch.setattr(report, "later_findings", lambda: {"later": findings})
    assert status_of(protocol.DEPTH, RESULTS) == report.DISAGREE


def test_controls_are_compared_by_seeds_that_both_have(tmp_path, monkeypatch):
    losses = {"gmlp": (4.0, 4.1, 4.2, 9.0), "bert-prenorm": (4.3, 4.45, 4.5), "bert-prenorm-noattn": (4.2, 4.3)}
    runs = {
        f"{name} seed {i}": {"evaluation": loss} for name, values in losses.items() for i, loss in enumerate(values)
    }
    runs["search gmlp 1e-3 seed 11"] = {"development": 1.0}
    monkeypatch.setattr(report, "RESULTS", tmp_path)

    def rows(baseline):
        (tmp_path / "prenorm.json").write_text(json.dumps({"baselines": {"bigram_context": baseline}, "runs": runs}))
        return report.control_rows()[1:]

    first, second, third = rows(baseline=6.0)
    leads = np.array([0.3, 0.35, 0.3])
    low, high = scipy.stats.t.interval(1 - 0.05 / 3, 2, leads.mean(), leads.std(ddof=1) / 3**0.5)
    assert first[1:] == [3, f"{leads.mean():+.3f}", f"{low:+.3f} to {high:+.3f}", "ahead"]
    assert second[1] == third[1] == 2 and second[-1] == third[-1] == "not complete"
    assert rows(baseline=5.0)[0][-1] == protocol.UNLEARNED
