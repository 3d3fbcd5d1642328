"""The report of a replication: tables, verdicts and a figure computed from results.json."""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from pathlib import Path

from hf_gmlp.cards import markdown_table

from . import protocol
from .counts import paper_flops, paper_parameters
from .pictures import plt, save_picture
from .protocol import MODELS, NEAR, SIZES, TASK_MODELS, Claim, Finding, Size

RESULTS = Path(__file__).parent / "results"
DISAGREE = "no verdict (runs disagree)"
CONTROL_NAMES = {
    "gmlp": "gMLP",
    "bert-prenorm": "pre-norm BERT",
    "bert-prenorm-noattn": "pre-norm BERT without attention",
}
CONTROLS = (("gmlp", "bert-prenorm"), ("bert-prenorm", "bert-prenorm-noattn"), ("gmlp", "bert-prenorm-noattn"))
# The allowed values in the last column of the tables of claims.md.
STATUSES = {
    "counted": "agrees with the paper, as far as counting or a test without training can tell",
    protocol.HELD: "small models show it, by a rule fixed in advance",
    protocol.CONTRADICTED: "small models show the opposite, by the same rule",
    protocol.AHEAD: "small models show the lead, but not that it is as large as the claim says",
    DISAGREE: "the same rule gives different verdicts in different runs",
    protocol.NOISE: "small models do not differ measurably, though a lead as large as the paper's would have been seen",
    protocol.POWER: "small models vary so much between seeds that a lead as large as the paper's could be missed, "
    "or the verdict depends on one pair of models",
    protocol.CEILING: "both small models solve the task, so neither can be ahead",
    "no verdict (gate)": "small models do not meet a condition of a verdict, such as being ahead of a simple baseline",
    "observed": "small models show it in runs for which no rule was fixed in advance, or was changed afterwards",
    "disputed": "the paper's own tables contradict a part of the claim; not run here",
    "recipe": "can be run with the recipe that is named; not run at the paper's size",
    "not examined": "neither examined nor prepared here",
}


@cache
def count_models(size: Size) -> dict[str, tuple[int, int]]:
    """Return the parameters of every model of a size, and the FLOPs of a forward pass of one sequence."""
    configs = {name: model.config(size) for name, model in MODELS.items()}
    return {name: (paper_parameters(config), paper_flops(config)) for name, config in configs.items()}


class Results:
    """The contents of results.json, organized by stage, model and seed."""

    def __init__(self, numbers: dict) -> None:
        self.numbers = numbers
        self.size = SIZES[numbers["size"]]
        self.counts = numbers["baselines"]["evaluation"]["bigram_context"]
        self.unigram = numbers["baselines"]["evaluation"]["unigram"]

    def runs(self, stage: str, name: str, steps: int | None = None) -> list[dict]:
        """Return a model's runs of a stage, sorted by seed, with the given number of steps (default: the largest)."""
        runs = [run for run in self.numbers["runs"] if (run["stage"], run["model"]) == (stage, name)]
        steps = steps or max((run["steps"] for run in runs), default=0)
        return sorted((run for run in runs if run["steps"] == steps), key=lambda run: run["seed"])

    def values(self, stage: str, metric: str, steps: int | None = None) -> dict[str, list[float]]:
        """Return a metric by seed for every model that has as many runs of a stage as any other model."""
        values = {name: [run[metric] for run in self.runs(stage, name, steps)] for name in MODELS}
        count = max(map(len, values.values()))
        return {name: numbers for name, numbers in values.items() if count and len(numbers) == count}

    @cached_property
    def pretrainings(self) -> dict[int, dict[str, list[float]]]:
        """Held-out losses of the pretrainings, by number of steps, model and seed."""
        lengths = sorted({run["steps"] for run in self.numbers["runs"] if run["stage"] == "pretraining"})
        return {steps: self.values("pretraining", "loss", steps) for steps in lengths}

    def fall(self, name: str) -> float:
        """Return how much a model's training loss still falls over a tenth of its steps, averaged over the seeds."""
        return statistics.fmean(protocol.fall(run["curve"]) for run in self.runs("pretraining", name))

    def search(self, name: str) -> dict[protocol.Setting, float]:
        """Return the mean development loss of each setting in the last round of a model's search."""
        losses: dict[protocol.Setting, list[float]] = {}
        for run in self.runs("selection", name):
            losses.setdefault((run["learning_rate"], run["multiplier"]), []).append(run["loss"])
        return {setting: statistics.fmean(values) for setting, values in losses.items()}

    def findings(self) -> list[protocol.Finding]:
        """Judge the claims that the finished runs allow."""
        findings = protocol.pretraining_findings(self.pretrainings, self.counts)
        return findings + protocol.task_findings(self.values("task", "accuracy"))


def facts_rows(results: Results) -> list[list]:
    hours = sum(run["minutes"] for run in results.numbers["runs"]) / 60
    facts = {"size": results.numbers["size"], "hours": f"{hours:.1f}"} | results.numbers["circumstances"]
    return [list(facts), list(facts.values())]


def settings_rows(results: Results) -> list[list]:
    changes = ["half the rate", "twice the rate", "a fifth of the multiplier", "five times"]
    rows = [["model", "settings tried", "steps", "learning rate", "multiplier", "perplexity", *changes]]
    for name in MODELS:
        if losses := results.search(name):
            best = protocol.choose(losses)
            others = [losses.get(setting, math.nan) - losses[best] for setting in protocol.neighbors(best)]
            cells = [len(losses), results.runs("selection", name)[0]["steps"], f"{best[0]:g}", f"x{best[1]:g}"]
            cells += [perplexity([losses[best]]), *("not tried" if math.isnan(x) else f"{x:+.3f}" for x in others)]
            rows.append([MODELS[name].title, *cells])
    return rows


def perplexity_rows(results: Results) -> list[list]:
    header = ["model", "perplexity, paper", *(f"after {steps:,} steps" for steps in results.pretrainings)]
    header += ["seeds", "fall", "parameters", "of BERT's, paper", "of BERT's, here", "FLOPs of BERT's, paper"]
    rows: list[list] = [[*header, "FLOPs of BERT's, here"]]
    counts, papers = results.numbers["counts"], count_models(SIZES["gpu"])
    for name, model in MODELS.items():
        by_length = [losses.get(name) for losses in results.pretrainings.values()]
        if not any(by_length):
            continue
        cells = [model.perplexity or "", *(perplexity(losses) if losses else "" for losses in by_length)]
        cells += [max(map(len, filter(None, by_length))), f"{results.fall(name):.3f}", f"{counts[name][0] / 1e6:.3f} M"]
        for index, count in enumerate(counts[name]):
            cells.append(f"{papers[name][index] / papers['bert-relpos'][index]:.3f}")
            cells.append(f"{count / counts['bert-relpos'][index]:.3f}")
        rows.append([model.title, *cells])
    baselines = {"bigram-context baseline": results.counts, "unigram": results.unigram}
    for name, loss in baselines.items():
        cells = [perplexity([loss]) for _ in results.pretrainings]
        rows.append([name, "", *cells, *[""] * (len(rows[0]) - len(cells) - 2)])
    return rows


def task_rows(results: Results) -> list[list]:
    rows: list[list] = [["model", "settings tried", "learning rate", "multiplier", "accuracy, by seed", "mean"]]
    for name in TASK_MODELS:
        if runs := results.runs("task", name):
            accuracies = [run["accuracy"] for run in runs]
            cells = [len(results.runs("task selection", name)), f"{runs[0]['learning_rate']:g}"]
            cells += [f"x{runs[0]['multiplier']:g}", ", ".join(f"{100 * accuracy:.1f}" for accuracy in accuracies)]
            rows.append([MODELS[name].title, *cells, f"{100 * statistics.fmean(accuracies):.1f} %"])
    return rows


def lengths_rows(results: Results) -> list[list]:
    """Rows of gMLP's perplexity relative to that of the two BERTs, by the number of training steps.

    The first row is the search, on the development text; the other rows are on the evaluation text.
    """
    names = ("gmlp", "bert-relpos", "bert-noattn")
    rows: list[list] = [["steps", "text", *(MODELS[name].title for name in names)]]
    rows[0] += [f"gMLP relative to {MODELS[name].title}" for name in names[1:]]
    lengths: list[tuple[int, str, list[float]]] = []
    searches = [{run["steps"] for run in results.runs("selection", name)} for name in names]
    if searches[0] and all(steps == searches[0] for steps in searches):
        best = [math.exp(min(results.search(name).values())) for name in names]
        lengths.append((*searches[0], "development", best))
    for steps, losses in results.pretrainings.items():
        if {*names} <= losses.keys():
            means = [statistics.fmean(map(math.exp, losses[name])) for name in names]
            lengths.append((steps, "evaluation", means))
    for steps, text, perplexities in lengths:
        relative = [f"{100 * (perplexities[0] / other - 1):+.1f} %" for other in perplexities[1:]]
        rows.append([f"{steps:,}", text, *(f"{value:.2f}" for value in perplexities), *relative])
    return rows


def claims_rows(results: Results) -> list[list]:
    """Rows of all claims with their verdicts. Claims that are not part of another are in bold."""
    rows = [["claim", "lead in the paper", "steps", "lead here", "interval", "ahead?", "by the margin?", "verdict"]]
    for finding in results.findings():
        cells = [""] * 6
        if isinstance(finding.claim, Claim) and finding.lead is not None:
            better, worse = finding.claim.paper
            paper = f"{finding.claim.paper_lead:+.3f} ({better:g} and {worse:g})"
            steps = f"{finding.steps:,}" if finding.steps else ""
            cells = [paper, steps, f"{finding.lead:+.3f}", interval_cell(finding), finding.ahead, margin_cell(finding)]
        rows.append([finding.name if finding.is_part else f"**{finding.name}**", *cells, finding.verdict])
    return rows


def interval_cell(finding: Finding) -> str:
    """Return the interval of a lead, which a single seed does not have."""
    low, high = (finding.lead or 0.0) - finding.half_width, (finding.lead or 0.0) + finding.half_width
    return "" if math.isnan(low) else f"{low:+.3f} to {high:+.3f}"


def margin_cell(finding: Finding) -> str:
    """Return whether the lead of a finding exceeds its margin, or for NEAR is within it; empty without a margin."""
    if not finding.margin or math.isnan(finding.margin):
        return ""
    return f"{finding.by_margin} ({f'within {finding.margin:.3f}' if finding.claim is NEAR else f'{finding.margin:g}'})"


def verdicts_rows(results: Results) -> list[list]:
    """Rows of the verdicts, each with the number and the names of its claims, not counting parts of claims."""
    names: dict[str, list[str]] = {verdict: [] for verdict in (protocol.HELD, protocol.CONTRADICTED, protocol.AHEAD)}
    for finding in results.findings():
        if not finding.is_part:
            names.setdefault(finding.verdict, []).append(finding.name)
    rows = [[verdict, len(claims), "; ".join(claims)] for verdict, claims in names.items()]
    total = sum(map(len, names.values()))
    return [["verdict", "claims", "which"], *rows, ["in all", total, ""]]


@cache
def later_findings() -> dict[str, list[Finding]]:
    """Judge the claims that later experiments (paper/results) tested again, by the same rules.

    A claim of several parts is judged by the parts that were tested.
    """
    texts = ((RESULTS / f"{name}.json").read_text(encoding="utf-8") for name in ("scaling", "without_attention"))
    scaling, attention = map(json.loads, texts)
    seeds = {(name, depth): losses for name, depth, *_, losses in scaling["rows"]}
    same_size = {name: seeds[name, 1] for name in ("gmlp", "bert-relpos", "bert-noattn")}
    # Other depths have three seeds.
    depths = {"gmlp": seeds["gmlp", 1][:3], "gmlp-half": seeds["gmlp", 0.5], "gmlp-double": seeds["gmlp", 2]}
    longer: dict[str, list[float]] = {}
    for key, run in attention["runs"].items():
        stage, name = key.split()[:2]
        if stage == "reported":
            longer.setdefault(name, []).append(run["evaluation"])
    scaling_counts, counts = (found["baselines"]["bigram_context"] for found in (scaling, attention))
    return {
        "3,000 steps, seven seeds": protocol.pretraining_findings({3000: same_size}, scaling_counts),
        "3,000 steps, three seeds": protocol.pretraining_findings({3000: depths}, scaling_counts),
        "10 M tokens in rows of 256, three seeds": protocol.pretraining_findings({2440: longer}, counts),
    }


def later_rows() -> list[list]:
    """Rows of the claims that later experiments tested again."""
    rows: list[list] = [["claim", "runs", "lead", "interval", "verdict"]]
    for runs, findings in later_findings().items():
        for finding in findings:
            lead = "" if finding.lead is None else f"{finding.lead:+.3f}"
            rows.append([finding.name, runs, lead, interval_cell(finding), finding.verdict])
    return rows


def control_rows() -> list[list]:
    """Rows of the comparisons of gMLP with pre-norm BERTs, by the protocol in docs/log/text.md: intervals at a level of
    1 - 0.05 / 3, from three seeds on, of the seeds that both models have. Both must be ahead of the baseline."""
    record = json.loads((RESULTS / "prenorm.json").read_text(encoding="utf-8"))
    losses: dict[str, dict[str, float]] = {}
    for key, run in record["runs"].items():
        name, _, seed = key.partition(" seed ")
        if "evaluation" in run:
            losses.setdefault(name, {})[seed] = run["evaluation"]
    rows: list[list] = [["models", "seeds", "lead of the first, in nats", "interval", "result"]]
    for better, worse in CONTROLS:
        ahead, behind = losses.get(better, {}), losses.get(worse, {})
        leads = [behind[seed] - loss for seed, loss in ahead.items() if seed in behind]
        lead = interval_words = ""
        result = "not complete"
        if len(leads) >= 3:
            low, high = protocol.interval(leads, 1 - 0.05 / len(CONTROLS))
            lead, interval_words = f"{statistics.fmean(leads):+.3f}", f"{low:+.3f} to {high:+.3f}"
            result = "ahead" if low > 0 else "behind" if high < 0 else "open"
            pair = {better: list(ahead.values()), worse: list(behind.values())}
            result = protocol.gate(pair, record["baselines"]["bigram_context"]) or result
        rows.append([f"{CONTROL_NAMES[better]} and {CONTROL_NAMES[worse]}", len(leads), lead, interval_words, result])
    return rows


def status_of(claim: str, results: Results) -> str:
    """Return the status of a claim: the verdict of the replication, unless other runs disagree with it.

    Runs disagree if one of them decides the claim, or a part of it, in one way, and another decides it in another way.
    """
    findings = results.findings()
    (own,) = (finding for finding in findings if finding.name == claim)
    names = {part.text for part in protocol.CLAIMS if part.part_of == claim} or {claim}
    for name in names:
        verdicts = {
            finding.verdict
            for finding in [*findings, *(later for runs in later_findings().values() for later in runs)]
            if finding.name == name and finding.verdict in (protocol.HELD, protocol.CONTRADICTED, protocol.AHEAD)
        }
        if len(verdicts) > 1:
            return DISAGREE
    # Without the reason of a gate.
    return re.sub(r": .*(?=\))", "", own.verdict)


def statuses_rows(text: str) -> list[list]:
    """Rows of the statuses, each with its number of claims in the page's tables whose last column is "status"."""
    tables = re.findall(r"^\|.*\| status \|\n((?:\|.*\n)+)", text, re.MULTILINE)
    last_cells = Counter(row.rstrip("| ").rpartition("| ")[2] for table in tables for row in table.splitlines())
    counts = {status: last_cells[status] for status in STATUSES}
    rows = [[status, count, STATUSES[status]] for status, count in counts.items()]
    return [["status", "claims", "meaning"], *rows, ["in all", sum(counts.values()), ""]]


def fill_tables(text: str, results: Results) -> str:
    """Return the text of a page with its tables between <!-- NAME --> and <!-- end --> replaced."""
    tables = (facts_rows, settings_rows, perplexity_rows, lengths_rows, task_rows, claims_rows, verdicts_rows)
    for make in tables:
        text = fill(text, make.__name__.removesuffix("_rows"), partial(make, results))
    text = fill(fill(text, "later", later_rows), "control", control_rows)
    return fill(text, "statuses", partial(statuses_rows, text))


def fill(text: str, name: str, make: Callable[[], list[list]]) -> str:
    """Return a text with the table between <!-- `name` --> and <!-- end -->, if present, replaced."""
    before, mark, after = text.partition(f"<!-- {name} -->")
    return f"{before}{mark}\n\n{markdown_table(make())}\n\n{after[after.index('<!-- end -->') :]}" if mark else text


def write(numbers: dict, folder: Path) -> None:
    """Write results.json, the figure, and report.md. In an existing report.md, only the tables change."""
    folder.mkdir(parents=True, exist_ok=True)
    # Write one run per line, for readable diffs.
    runs = ",\n".join("  " + json.dumps(run) for run in numbers["runs"])
    header = json.dumps({name: value for name, value in numbers.items() if name != "runs"}, indent=1)
    text = header.removesuffix("\n}") + ',\n "runs": [\n' + runs + "\n ]\n}\n"
    (folder / "results.json").write_text(text, encoding="utf-8")
    results, page = Results(numbers), folder / "report.md"
    if results.pretrainings:
        draw_training(results, folder / "training.png")
    template = Path(__file__).parent / "replication" / "template.md"
    text = (page if page.is_file() else template).read_text(encoding="utf-8")
    page.write_text(fill_tables(text, results), encoding="utf-8")


def rewrite(results: Path, folder: Path, pages: Sequence[Path] = ()) -> None:
    """Rewrite the report and the tables of pages from results.json."""
    numbers = json.loads(results.read_text(encoding="utf-8"))
    write(numbers, folder)
    for page in pages:
        page.write_text(fill_tables(page.read_text(encoding="utf-8"), Results(numbers)), encoding="utf-8")


def perplexity(losses: Sequence[float]) -> str:
    """Format the mean perplexity of losses and its sample standard deviation, if there are several."""
    values = [math.exp(loss) for loss in losses]
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def draw_training(results: Results, path: Path) -> None:
    """Draw the training losses of seed 1 in two panels of one scale: BERTs and Mixer, and gMLPs."""
    # The number of steps that most models were trained for.
    steps, losses = max(results.pretrainings.items(), key=lambda item: (len(item[1]), item[0]))
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, title, gmlps in zip(axes, ("BERT and Mixer", "gMLP and aMLP"), (False, True)):
        for name in losses:
            if (MODELS[name].kind == "gmlp") == gmlps and MODELS[name].depth == 1:
                curve = results.runs("pretraining", name, steps)[0]["curve"]
                axis.plot(*zip(*curve), linewidth=1.3, label=MODELS[name].title)
        axis.axhline(results.unigram, color="0.4", linestyle="--", linewidth=1, label="unigram")
        axis.set(title=title, xlabel="optimizer step")
        axis.grid(color="0.92")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("training loss (nats per masked token)")
    save_picture(figure, path)
