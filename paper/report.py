"""The report of a replication: tables, verdicts and pictures from its results, which are in results.json beside it."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import TrainerState

from benchmarks.machine import circumstances
from hf_gmlp.markdown import markdown_table
from hf_gmlp.tools.analysis.counts import paper_flops, paper_parameters
from hf_gmlp.tools.analysis.pictures import plt, save_picture

from . import protocol
from .protocol import HELD, MODELS, NOT_HELD, SIZES, TABLE3
from .replicate import Run, Study
from .scaling import log_axis


def collect(study: Study) -> dict:
    """Return every number of the finished runs of a study, for JSON."""
    configs = {name: model.config(study.size) for name, model in MODELS.items()}
    return {
        "circumstances": circumstances("transformers", "datasets", "hf_gmlp"),
        "size": study.size_name,
        "models": list(MODELS),
        **study.baselines,
        "counts": {name: (paper_parameters(config), paper_flops(config)) for name, config in configs.items()},
        "runs": [measure(run) for run in study.runs() if run.is_finished],
    }


def measure(run: Run) -> dict:
    """Return the results of a run: its key, its held-out loss, and the training losses by step."""
    minutes, diverged = run.results.get("train_runtime", 0.0) / 60, run.diverged.is_file()
    row = {"stage": run.stage, **run.key, "minutes": minutes, "loss": run.results["eval_loss"]}
    if run.stage != "selection":
        history = [] if diverged else TrainerState.load_from_json(str(run.folder / "trainer_state.json")).log_history
        row["curve"] = [[entry["step"], round(entry["loss"], 4)] for entry in history if "loss" in entry]
    if run.key["model"] == "gmlp-dense":
        row["toeplitz_fraction"] = math.nan if diverged else toeplitz_fraction(run.folder)
    return row


def toeplitz_fraction(folder: Path) -> float:
    """Return the fraction of the variance of W that its nearest Toeplitz matrix has, averaged over blocks and heads."""
    from hf_gmlp.tools.analysis.filters import load_spatial_model, spatial_matrices
    from hf_gmlp.tools.analysis.toeplitz import shift_invariant_fraction

    matrices = spatial_matrices(load_spatial_model(folder))
    return statistics.fmean(shift_invariant_fraction(matrix - matrix.mean()) for matrix in matrices)


def slope(curve: Sequence[Sequence[float]]) -> float:
    """Return the nats that the training loss falls in 1,000 steps, by a line through the last tenth of its steps."""
    last = np.array([(step, loss) for step, loss in curve if step > 0.9 * curve[-1][0]])
    return math.nan if len(last) < 2 else -1000 * float(np.polyfit(last[:, 0], last[:, 1], 1)[0])


class Results:
    """What `collect` returns, by stage, model and seed."""

    def __init__(self, numbers: dict):
        self.numbers = numbers
        self.unigram, self.bigram_context = numbers["unigram"], numbers["bigram_context"]
        self.size = SIZES[numbers["size"]]

    def runs(self, stage: str, **key) -> list[dict]:
        """Return the runs of a stage with this key, in the order of their seeds."""
        key["stage"] = stage
        runs = (run for run in self.numbers["runs"] if key.items() <= run.items())
        return sorted(runs, key=lambda run: run["seed"])

    def losses(self, stage: str = "pretraining", **key) -> dict[str, list[float]]:
        """Return the held-out losses of every model that has some, by seed."""
        models = {name: [run["loss"] for run in self.runs(stage, model=name, **key)] for name in self.numbers["models"]}
        return {name: losses for name, losses in models.items() if losses}

    def fractions(self, steps: int) -> list[float]:
        """Return the Toeplitz fractions of the models without the prior after some steps, by seed."""
        return [run["toeplitz_fraction"] for run in self.runs("dense", model="gmlp-dense", steps=steps)]

    def findings(self) -> list[protocol.Finding]:
        """Judge the claims that the finished runs allow."""
        findings = protocol.pretraining_findings(self.losses(), self.unigram)
        losses = {steps: self.losses("dense", steps=steps) for steps in self.size.dense_steps}
        if all(len(by_model) == 2 for by_model in losses.values()):
            dense, twin = ({steps: losses[steps][name] for steps in losses} for name in ("gmlp-dense", "gmlp"))
            fractions = {steps: self.fractions(steps) for steps in losses}
            findings += protocol.toeplitz_findings(fractions, dense, twin, self.unigram)
        return findings

    def status(self, finding: protocol.Finding) -> str:
        """Return the verdict if a fair comparison decides the claim, otherwise "open", with what is unfair."""
        if finding.mean is None:
            return "see its parts"
        if finding.verdict not in (HELD, NOT_HELD):
            return "open"
        for name in finding.models:
            if statistics.fmean(self.losses()[name]) > self.bigram_context:
                return f"open: {MODELS[name].title} is behind bigram-context counts"
        winner, *losers = finding.models[:: 1 if finding.verdict == HELD else -1] or [""]
        for loser in losers:
            here = self.numbers["counts"][loser][0] / self.numbers["counts"][winner][0]
            paper = (MODELS[loser].parameters or math.nan) / (MODELS[winner].parameters or math.nan)
            if here < 0.9 * paper:
                return f"open: {MODELS[loser].title} has {here:.2f} times the parameters, in the paper {paper:.2f}"
        return finding.verdict


def facts_rows(results: Results) -> list[list]:
    hours = sum(run["minutes"] for run in results.numbers["runs"]) / 60
    facts = {"size": results.numbers["size"], "hours": f"{hours:.1f}"} | results.numbers["circumstances"]
    return [list(facts), list(facts.values())]


def settings_rows(results: Results) -> list[list]:
    rows = [["model", "learning rate", "multiplier", "perplexity", "best with x1", "last doubling", "next doubling"]]
    for name in results.numbers["models"]:
        runs = results.runs("selection", model=name)
        losses = {(run["learning_rate"], run["multiplier"]): run["loss"] for run in runs}
        if not losses:
            continue
        rate, multiplier = protocol.choose(losses)
        plain = protocol.choose({setting: loss for setting, loss in losses.items() if setting[1] == 1})
        cells = [f"{rate:g}", f"x{multiplier:g}", perplexity([losses[rate, multiplier]])]
        cells.append(f"{perplexity([losses[plain]])} at {plain[0]:g}")
        for before in (rate / 2, rate):
            change = math.expm1(
                losses.get((2 * before, multiplier), math.nan) - losses.get((before, multiplier), math.nan)
            )
            cells.append("not tried" if math.isnan(change) else f"{100 * change:+.0f} %")
        rows.append([MODELS[name].title, *cells])
    return rows


def perplexity_rows(results: Results) -> list[list]:
    header = ["model", "perplexity, paper", "perplexity, here", "seeds", "slope", "params, paper", "params", "FLOPs"]
    rows: list[list] = [header]
    for name, losses in results.losses().items():
        model, (parameters, flops) = MODELS[name], results.numbers["counts"][name]
        title = model.title if name in TABLE3 else f"*{model.title}*"
        fall = statistics.fmean(slope(run["curve"]) for run in results.runs("pretraining", model=name))
        printed = f"{model.parameters} M" if model.parameters else ""
        sizes = [printed, f"{parameters / 1e6:.3f} M", f"{flops / 1e9:.3g} B"]
        rows.append([title, model.perplexity, perplexity(losses), len(losses), f"{fall:.3f}", *sizes])
    baselines = {"bigram-context counts": results.bigram_context, "unigram": results.unigram}
    return rows + [[name, "", perplexity([loss]), "", "", "", "", ""] for name, loss in baselines.items()]


def dense_rows(results: Results) -> list[list]:
    rows: list[list] = [["steps", "perplexity with the prior", "without", "nats between", "Toeplitz fraction", "seeds"]]
    for steps in results.size.dense_steps:
        losses = results.losses("dense", steps=steps)
        if len(losses) == 2:
            dense, twin = losses["gmlp-dense"], losses["gmlp"]
            gap, fractions = spread([a - b for a, b in zip(dense, twin)], 3), spread(results.fractions(steps), 3)
            rows.append([f"{steps:,}", perplexity(twin), perplexity(dense), gap, fractions, len(dense)])
    return rows


def claims_rows(results: Results) -> list[list]:
    rows = [["claim", "paper", "difference", "95 % interval", "threshold", "verdict", "status"]]
    for finding in results.findings():
        numbers = ["", "", ""]
        if finding.mean is not None:
            low, high = finding.mean - finding.margin, finding.mean + finding.margin
            # One seed has no interval.
            interval = "" if math.isnan(low) else f"{low:+.3f} to {high:+.3f}"
            threshold = f"within ± {finding.below:.3f}" if finding.below < math.inf else f"above {finding.above:g}"
            numbers = [f"{finding.mean:+.3f}", interval, threshold]
        rows.append([finding.claim, finding.paper, *numbers, finding.verdict, results.status(finding)])
    return rows


def filled(text: str, results: Results) -> str:
    """Return the text of a page with new tables between its comments <!-- NAME --> and <!-- end -->."""
    for make in (facts_rows, settings_rows, perplexity_rows, dense_rows, claims_rows):
        start, mark, rest = text.partition(f"<!-- {make.__name__.removesuffix('_rows')} -->")
        if mark:
            text = f"{start}{mark}\n\n{markdown_table(make(results))}\n\n{rest[rest.index('<!-- end -->') :]}"
    return text


def write(numbers: dict, folder: Path):
    """Write results.json, the pictures, and report.md, in which only the tables change if it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    # A run on each line, so that version control compares them.
    runs = ",\n".join("  " + json.dumps(run) for run in numbers["runs"])
    rest = json.dumps({name: value for name, value in numbers.items() if name != "runs"}, indent=1)
    text = rest.removesuffix("\n}") + ',\n "runs": [\n' + runs + "\n ]\n}\n"
    (folder / "results.json").write_text(text, encoding="utf-8")
    results, page = Results(numbers), folder / "report.md"
    if results.losses():
        draw_training(results, folder / "training.png")
        draw_perplexities(results, folder / "perplexity.png")
    template = Path(__file__).parent / "replication" / "template.md"
    text = (page if page.is_file() else template).read_text(encoding="utf-8")
    page.write_text(filled(text, results), encoding="utf-8")


def rewrite(results: Path, folder: Path, pages: Sequence[Path] = ()):
    """Write the report again from results.json, and the tables of pages."""
    numbers = json.loads(results.read_text(encoding="utf-8"))
    write(numbers, folder)
    for page in pages:
        page.write_text(filled(page.read_text(encoding="utf-8"), Results(numbers)), encoding="utf-8")


def perplexity(losses: Sequence[float]) -> str:
    """Return the mean perplexity of some losses as text."""
    return spread([math.exp(loss) for loss in losses], 1)


def spread(values: Sequence[float], digits: int) -> str:
    """Return the mean and the standard deviation (of a sample) as text; the value itself of a single one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def draw_training(results: Results, path: Path):
    """Draw the losses of seed 1: BERTs and Mixer, and gMLPs, in two panels of one scale."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, title, gmlps in zip(axes, ("BERT and Mixer", "gMLP and aMLP"), (False, True)):
        for name in results.losses():
            if (MODELS[name].kind == "gmlp") == gmlps and MODELS[name].depth == 1:
                curve = results.runs("pretraining", model=name)[0]["curve"]
                axis.plot(*zip(*curve), linewidth=1.3, label=MODELS[name].title)
        axis.axhline(results.unigram, color="0.4", linestyle="--", linewidth=1, label="unigram")
        axis.set(title=title, xlabel="optimizer step")
        axis.grid(color="0.92")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("training loss (nats per masked token)")
    save_picture(figure, path)


def draw_perplexities(results: Results, path: Path):
    """Draw a row for each model, with a dot for each seed, and the paper's perplexity in its title."""
    losses = results.losses()
    names = sorted(losses, key=lambda name: statistics.fmean(losses[name]), reverse=True)
    figure, axis = plt.subplots(figsize=(8, 0.42 * len(names) + 1.4), layout="constrained")
    for row, name in enumerate(names):
        axis.plot(np.exp(losses[name]), [row] * len(losses[name]), "o", color="C0", alpha=0.7)
    printed = {name: f"  ({MODELS[name].perplexity})" if MODELS[name].perplexity else "" for name in names}
    axis.set_yticks(range(len(names)), [MODELS[name].title + printed[name] for name in names])
    for label, level in (("bigram-context counts", results.bigram_context), ("unigram", results.unigram)):
        axis.axvline(math.exp(level), color="0.4", linestyle="--", linewidth=1)
        axis.annotate(label, (math.exp(level), 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
    log_axis(axis.xaxis, "held-out perplexity; in brackets the paper's")
    axis.grid(axis="x", color="0.92")
    save_picture(figure, path)
