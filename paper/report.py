"""The report of a replication: tables, verdicts and pictures from its results, which are in results.json beside it."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.machine import circumstances
from hf_gmlp.markdown import markdown_table
from hf_gmlp.tools.analysis.counts import paper_flops, paper_parameters
from hf_gmlp.tools.analysis.pictures import plt, save_picture

from . import protocol
from .protocol import HELD, MODELS, NOT_HELD, SIZES, TABLE3
from .scaling import log_axis


def collect(study) -> dict:
    """Return every number of the finished runs of a `replicate.Study`, for JSON."""
    configs = {name: model.config(study.size) for name, model in MODELS.items()}
    return {
        "circumstances": circumstances("transformers", "datasets", "hf_gmlp"),
        "size": study.size_name,
        "models": list(MODELS),
        **study.baselines,
        "text": {part: path.stat().st_size for part, path in study.text.items()},
        "tasks": {},
        "counts": {name: (paper_parameters(config), paper_flops(config)) for name, config in configs.items()},
        "runs": [measured(run) for run in study.finished()],
    }


def measured(run) -> dict:
    """Return what `collect` says of a `replicate.Run`: its key, its loss, and the training losses by step."""
    minutes = run.results.get("train_runtime", 0.0) / 60
    row = {"stage": run.stage, **run.key, "minutes": minutes, "loss": run.results["eval_loss"]}
    diverged = run.diverged.is_file()
    if run.stage != "selection":
        path = run.folder / "trainer_state.json"
        history = [] if diverged else json.loads(path.read_text(encoding="utf-8"))["log_history"]
        row["curve"] = [[entry["step"], round(entry["loss"], 4)] for entry in history if "loss" in entry]
    if run.key["model"] == "gmlp-dense":
        row["toeplitz_share"] = math.nan if diverged else toeplitz_fraction(run.folder)
    return row


def toeplitz_fraction(folder: Path) -> float:
    """Return the fraction of the variance of W that its nearest Toeplitz matrix has, averaged over blocks and heads."""
    from hf_gmlp.tools.analysis.filters import load_spatial_model
    from hf_gmlp.tools.analysis.toeplitz import shift_invariant_fraction, spatial_matrices

    matrices = spatial_matrices(load_spatial_model(folder))
    return statistics.fmean(shift_invariant_fraction(matrix - matrix.mean()) for matrix in matrices)


def slope(curve: Sequence[Sequence[float]]) -> float:
    """Return the nats that the training loss falls in 1,000 steps, by a line through the last tenth of its steps."""
    last = [(step, loss) for step, loss in curve if step > 0.9 * curve[-1][0]]
    return math.nan if len(last) < 2 else -1000 * float(np.polyfit(*zip(*last), 1)[0])


class Results:
    """What `collect` returns, by stage, model and seed."""

    def __init__(self, results: dict):
        self.all = results
        self.models = results["models"]
        self.unigram = results["unigram"]
        self.size = SIZES[results["size"]]

    def runs(self, stage: str, **key) -> list[dict]:
        """Those of a stage with this key, in the order of their seeds."""
        key["stage"] = stage
        found = (run for run in self.all["runs"] if all(run.get(name) == value for name, value in key.items()))
        return sorted(found, key=lambda run: run["seed"])

    def losses(self, stage: str = "pretraining", **key) -> dict[str, list[float]]:
        found = {name: [run["loss"] for run in self.runs(stage, model=name, **key)] for name in self.models}
        return {name: losses for name, losses in found.items() if losses}

    def selection(self, name: str) -> dict[tuple[float, float], float]:
        return {(run["learning_rate"], run["multiplier"]): run["loss"] for run in self.runs("selection", model=name)}

    def findings(self) -> list[protocol.Finding]:
        findings = protocol.pretraining_findings(self.losses(), self.unigram)
        lengths = self.size.dense_steps
        losses = {steps: self.losses("dense", steps=steps) for steps in lengths}
        if all({"gmlp", "gmlp-dense"} <= found.keys() for found in losses.values()):
            dense, twin = ({steps: losses[steps][name] for steps in lengths} for name in ("gmlp-dense", "gmlp"))
            fractions = {steps: self.fractions(steps) for steps in lengths}
            findings += protocol.toeplitz_findings(fractions, dense, twin, self.unigram)
        return findings

    def fractions(self, steps: int) -> list[float]:
        return [run["toeplitz_share"] for run in self.runs("dense", model="gmlp-dense", steps=steps)]

    def status(self, one: protocol.Finding) -> str:
        """The verdict if a fair comparison decides the claim, otherwise "open", with what is unfair."""
        if one.verdict not in (HELD, NOT_HELD) or one.mean is None:
            return "see its parts" if one.mean is None else "open"
        for name in one.models:
            if statistics.fmean(self.losses()[name]) > self.all["neighbors"]:
                return f"open: {MODELS[name].title} is behind bigram-context counts"
        winner, *losers = one.models[:: 1 if one.verdict == HELD else -1] or [None]
        for loser in losers if all(MODELS[name].parameters for name in one.models) else ():
            here = self.all["counts"][loser][0] / self.all["counts"][winner][0]
            if here < 0.9 * (paper := MODELS[loser].parameters / MODELS[winner].parameters):
                return f"open: {MODELS[loser].title} has {here:.2f} times the parameters, in the paper {paper:.2f}"
        return one.verdict


def write(results: dict, folder: Path):
    """Write results.json, the pictures, and report.md, whose tables alone are replaced if it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    # A run on each line, by which version control compares.
    runs = ",\n".join("  " + json.dumps(run) for run in results["runs"])
    rest = json.dumps({name: value for name, value in results.items() if name != "runs"}, indent=1)
    text = rest.removesuffix("\n}") + ',\n "runs": [\n' + runs + "\n ]\n}\n"
    (folder / "results.json").write_text(text, encoding="utf-8")
    found, page = Results(results), folder / "report.md"
    if found.losses():
        draw_training(found, folder / "training.png")
        draw_perplexities(found, folder / "perplexity.png")
    template = Path(__file__).parent / "replication" / "template.md"
    text = (page if page.is_file() else template).read_text(encoding="utf-8")
    page.write_text(filled(text, found), encoding="utf-8")


def fact_rows(found: Results) -> list[list]:
    hours = sum(run["minutes"] for run in found.all["runs"]) / 60
    facts: dict[str, object] = {
        "size": found.all["size"],
        "runs": len(found.all["runs"]),
        "hours of training": f"{hours:.1f}",
    }
    facts |= found.all["circumstances"]
    return [list(facts), list(facts.values())]


def setting_rows(found: Results) -> list[list]:
    rows = [["model", "learning rate", "multiplier", "perplexity", "best with x1", "last doubling", "next doubling"]]
    for name in found.models:
        losses = found.selection(name)
        if len(losses) < len(found.size.learning_rates) * len(protocol.MULTIPLIERS):
            continue
        rate, multiplier = protocol.choose(losses)
        plain = protocol.choose({setting: loss for setting, loss in losses.items() if setting[1] == 1})
        cells = [f"{rate:g}", f"x{multiplier:g}", perplexity([losses[rate, multiplier]])]
        cells.append(f"{perplexity([losses[plain]])} at {plain[0]:g}")
        for after in (rate, 2 * rate):
            tried = [losses.get((one, multiplier)) for one in (after / 2, after)]
            cells.append("not tried" if None in tried else f"{100 * math.expm1(tried[1] - tried[0]):+.0f} %")
        rows.append([MODELS[name].title, *cells])
    return rows


def perplexity_rows(found: Results) -> list[list]:
    rows = [["model", "perplexity, paper", "perplexity, here", "seeds", "slope", "params, paper", "params", "FLOPs"]]
    for name in found.losses():
        model, runs = MODELS[name], found.runs("pretraining", model=name)
        parameters, flops = found.all["counts"][name]
        printed = [model.perplexity or "", f"{model.parameters} M" if model.parameters else ""]
        fall = f"{statistics.fmean(slope(run['curve']) for run in runs):.3f}"
        here = [perplexity([run["loss"] for run in runs]), len(runs), fall]
        title = model.title if name in TABLE3 else f"*{model.title}*"
        rows.append([title, printed[0], *here, printed[1], f"{parameters / 1e6:.3f} M", f"{flops / 1e9:.3g} B"])
    baselines = {"bigram-context counts": found.all["neighbors"], "unigram": found.unigram}
    rows += [[words, "", perplexity([loss]), "", "", "", "", ""] for words, loss in baselines.items() if len(rows) > 1]
    return rows


def dense_rows(found: Results) -> list[list]:
    rows = [["steps", "perplexity with the prior", "without", "nats between", "Toeplitz fraction", "seeds"]]
    for steps in found.size.dense_steps:
        losses = found.losses("dense", steps=steps)
        if {"gmlp", "gmlp-dense"} <= losses.keys():
            dense, twin = losses["gmlp-dense"], losses["gmlp"]
            gap = spread([a - b for a, b in zip(dense, twin)], 3)
            fractions = spread(found.fractions(steps), 3)
            rows.append([f"{steps:,}", perplexity(twin), perplexity(dense), gap, fractions, len(dense)])
    return rows


def claim_rows(found: Results) -> list[list]:
    rows = [["claim", "paper", "difference", "95 % interval", "threshold", "verdict", "status"]]
    for one in found.findings():
        numbers = ["", "", ""]
        if one.mean is not None:
            numbers = [f"{one.mean:+.3f}", f"{one.mean - one.margin:+.3f} to {one.mean + one.margin:+.3f}"]
            numbers.append(f"within ± {one.below:.3f}" if one.below < math.inf else f"above {one.above:g}")
        # One seed has no interval.
        numbers = ["" if "nan" in number else number for number in numbers]
        rows.append([one.claim, one.paper, *numbers, one.verdict, found.status(one)])
    return rows


TABLES = {
    "facts": fact_rows,
    "settings": setting_rows,
    "perplexity": perplexity_rows,
    "dense": dense_rows,
    "claims": claim_rows,
}
"""By the comments <!-- NAME --> ... <!-- end --> of the pages that have them."""


def filled(text: str, found: Results) -> str:
    """Return the text of a page with its tables written anew."""
    for name, rows in TABLES.items():
        start, mark, rest = text.partition(f"<!-- {name} -->")
        if mark:
            text = f"{start}{mark}\n\n{markdown_table(rows(found))}\n\n{rest[rest.index('<!-- end -->') :]}"
    return text


def rewrite(results: Path, folder: Path, pages: Sequence[Path] = ()):
    """Write the report again from results.json, and the tables of pages."""
    numbers = json.loads(results.read_text(encoding="utf-8"))
    write(numbers, folder)
    for page in pages:
        page.write_text(filled(page.read_text(encoding="utf-8"), Results(numbers)), encoding="utf-8")


def perplexity(losses: Sequence[float]) -> str:
    return spread([math.exp(loss) for loss in losses], 1)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation (of a sample) as text; the value itself of a single one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def draw_training(found: Results, path: Path):
    """Draw the losses of seed 1: BERTs and Mixer, and gMLPs, in two panels of one scale."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, title, gmlps in zip(axes, ("BERT and Mixer", "gMLP and aMLP"), (False, True)):
        for name in found.losses():
            if (MODELS[name].kind == "gmlp") == gmlps and MODELS[name].depth == 1:
                curve = found.runs("pretraining", model=name)[0]["curve"]
                axis.plot(*zip(*curve), linewidth=1.3, label=MODELS[name].title)
        axis.axhline(found.unigram, color="0.4", linestyle="--", linewidth=1, label="unigram")
        axis.set(title=title, xlabel="optimizer step")
        axis.grid(color="0.92")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("training loss (nats per masked token)")
    save_picture(figure, path)


def draw_perplexities(found: Results, path: Path):
    """Draw a row for each model, with a dot for each seed, and the paper's perplexity in its title."""
    losses = found.losses()
    names = sorted(losses, key=lambda name: statistics.fmean(losses[name]), reverse=True)
    figure, axis = plt.subplots(figsize=(8, 0.42 * len(names) + 1.4), layout="constrained")
    for row, name in enumerate(names):
        axis.plot(np.exp(losses[name]), [row] * len(losses[name]), "o", color="C0", alpha=0.7)
    printed = {name: f"  ({MODELS[name].perplexity})" if MODELS[name].perplexity else "" for name in names}
    axis.set_yticks(range(len(names)), [MODELS[name].title + printed[name] for name in names])
    for label, level in (("bigram-context counts", found.all["neighbors"]), ("unigram", found.unigram)):
        axis.axvline(math.exp(level), color="0.4", linestyle="--", linewidth=1)
        axis.annotate(label, (math.exp(level), 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
    values = [math.exp(loss) for name in names for loss in (*losses[name], found.unigram)]
    log_axis(axis.xaxis, values, "held-out perplexity (log scale); in brackets the paper's")
    axis.grid(axis="x", color="0.92")
    save_picture(figure, path)
