"""The report of a replication: tables, verdicts and pictures from its finished runs.

    python paper/report.py paper/replication/results.json FOLDER [PAGE ...]

writes it again from the numbers of a replication, which are in results.json beside report.md, and the
`TABLES` of pages, each between the comments <!-- NAME --> and <!-- end -->.
"""

import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "paper")]
# For machine.py.
sys.path.append(str(ROOT / "benchmarks"))

import numpy as np  # noqa: E402
import protocol  # noqa: E402
from protocol import FINETUNED, HELD, NOT_HELD, POOLINGS, SIZES, SYSTEMS, TABLE3, TASKS  # noqa: E402

from hf_gmlp.markdown import markdown_table  # noqa: E402
from hf_gmlp.tools.analysis.pictures import plt, save_picture  # noqa: E402


def collect(study) -> dict:
    """
    Returns every number of the finished runs of a `replicate.Study`, for JSON: for each run its key, its stage, its
    score and its losses on the way, and for a classifier which validation rows were right, as "0110...".
    """
    from corpus import read_rows
    from machine import circumstances
    from yardsticks import repeated_word_rule, sentence_yardstick

    labels, tasks = {}, {}
    for task, parts in study.tasks.items():
        labels[task] = [row["label"] for row in read_rows(parts["evaluation"])]
        tasks[task] = {
            "rows": {part: len(read_rows(path)) for part, path in parts.items()},
            "majority": max(map(labels[task].count, set(labels[task]))) / len(labels[task]),
            "tf-idf": sentence_yardstick(parts["train"], parts["evaluation"]),
        }
    if "repeated" in tasks:
        tasks["repeated"]["shared word"] = repeated_word_rule(study.tasks["repeated"]["evaluation"])
    return {
        "circumstances": circumstances("transformers", "datasets", "hf_gmlp"),
        "size": study.size_name,
        "models": study.models,
        **study.yardsticks,
        "text": {part: path.stat().st_size for part, path in study.text.items()},
        "tasks": tasks,
        "counts": {name: study.counts(name) for name in study.models},
        "runs": [measured(run, labels.get(run.key.get("task"))) for run in study.finished()],
    }


def measured(run, labels: list | None) -> dict:
    """What `collect` says of a `replicate.Run`; `labels` are those of the evaluation rows of its task."""
    row = {"stage": run.stage, **run.key, "minutes": run.results.get("train_runtime", 0.0) / 60}
    diverged = run.diverged.is_file()
    if labels is None:
        row["loss"] = run.results["eval_loss"]
        if run.stage != "selection":
            state = {"log_history": []}
            if not diverged:
                state = json.loads((run.folder / "trainer_state.json").read_text(encoding="utf-8"))
            row["curve"] = [
                [entry["step"], round(entry["loss"], 4)] for entry in state["log_history"] if "loss" in entry
            ]
        if run.key["model"] == "gmlp-dense":
            row["toeplitz_share"] = math.nan if diverged else toeplitz_share(run.folder)
        return row
    row["accuracy"] = run.results["eval_accuracy"]
    if run.stage == "finetuning":
        lines = [] if diverged else (run.folder / "predictions.tsv").read_text(encoding="utf-8").splitlines()[1:]
        answers = [line.split("\t")[1] for line in lines] or [None] * len(labels)
        row["right"] = "".join(str(int(one == str(label))) for one, label in zip(answers, labels, strict=True))
    return row


def toeplitz_share(folder: Path) -> float:
    """The Toeplitz share of W less its mean, averaged over blocks and heads."""
    from hf_gmlp.tools.analysis.filters import load_spatial_model
    from hf_gmlp.tools.analysis.toeplitz import shift_invariant_fraction, spatial_matrices

    matrices = spatial_matrices(load_spatial_model(folder))
    return statistics.fmean(shift_invariant_fraction(matrix - matrix.mean()) for matrix in matrices)


def slope(curve: Sequence[Sequence[float]]) -> float:
    """Nats that the training loss falls in a thousand steps, by a line through the last tenth of its steps."""
    last = [(step, loss) for step, loss in curve if step > 0.9 * curve[-1][0]]
    return math.nan if len(last) < 2 else -1000 * float(np.polyfit(*zip(*last), 1)[0])


class Results:
    """What `collect` found, by stage, model and seed."""

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

    def losses(self) -> dict[str, list[float]]:
        found = {name: self.runs("pretraining", model=name) for name in self.models}
        return {name: [run["loss"] for run in runs] for name, runs in found.items() if runs}

    def selection(self, name: str) -> dict[tuple[float, float], float]:
        return {(run["learning_rate"], run["multiplier"]): run["loss"] for run in self.runs("selection", model=name)}

    def dense(self, name: str) -> dict[int, list[dict]]:
        found = {steps: self.runs("dense", model=name, steps=steps) for steps in self.size.dense_steps}
        return {steps: runs for steps, runs in found.items() if runs}

    def right(self) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """For tasks, models and poolings: [seeds, samples]."""
        found: dict = {}
        for task, name, pooling in itertools.product(self.all["tasks"], FINETUNED, POOLINGS):
            if runs := self.runs("finetuning", task=task, model=name, pooling=pooling):
                rights = np.array([[int(one) for one in run["right"]] for run in runs])
                found.setdefault(task, {}).setdefault(name, {})[pooling] = rights
        return found

    def chosen_poolings(self) -> dict[str, dict[str, str]]:
        """The pooling with the best development accuracy; the mean where both have the same."""
        chosen: dict = {}
        runs = self.runs("finetuning-selection")
        for run in sorted(runs, key=lambda run: (run["accuracy"], run["pooling"] == "mean")):
            chosen.setdefault(run["task"], {})[run["model"]] = run["pooling"]
        return chosen

    def findings(self) -> list[protocol.Finding]:
        found = protocol.pretraining_findings(self.losses(), self.unigram)
        dense, twin = self.dense("gmlp-dense"), self.dense("gmlp")
        if dense.keys() == twin.keys() == {*self.size.dense_steps}:
            losses = [{steps: [run["loss"] for run in runs] for steps, runs in one.items()} for one in (dense, twin)]
            shares = {steps: [run["toeplitz_share"] for run in runs] for steps, runs in dense.items()}
            found += protocol.toeplitz_findings(shares, *losses, self.unigram)
        majority = {task: facts["majority"] for task, facts in self.all["tasks"].items()}
        return found + protocol.finetuning_findings(self.right(), self.chosen_poolings(), majority)

    def status(self, one: protocol.Finding) -> str:
        """The verdict if a fair comparison decides the claim, otherwise "open", with what is unfair."""
        if one.verdict not in (HELD, NOT_HELD) or one.judgement is None:
            return "open" if one.judgement else "see its parts"
        for name in one.models:
            if statistics.fmean(self.losses()[name]) > self.all["neighbors"]:
                return f"open: {SYSTEMS[name].title} is behind counting two neighbors"
        winner, *losers = one.models[:: 1 if one.verdict == HELD else -1] or [None]
        for loser in losers if all(SYSTEMS[name].parameters for name in one.models) else ():
            here = self.all["counts"][loser][0] / self.all["counts"][winner][0]
            if here < 0.9 * (paper := SYSTEMS[loser].parameters / SYSTEMS[winner].parameters):
                return f"open: {SYSTEMS[loser].title} has {here:.2f} times the parameters, in the paper {paper:.2f}"
        return one.verdict


def write(results: dict, folder: Path):
    """Writes results.json, report.md and the pictures that need nothing but numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(dumped(results), encoding="utf-8")
    found = Results(results)
    pictures = draw(found, folder)
    facts = results["circumstances"]
    minutes = sum(run["minutes"] for run in results["runs"])
    versions = ", ".join(f"{name} {facts[name]}" for name in ("torch", "transformers", "datasets") if name in facts)
    parts = [
        "# The paper's comparisons in small: results",
        f"Written by `make replicate` ({facts['date']}; size {results['size']}; {len(results['runs'])} runs, "
        f"{minutes / 60:.1f} hours of training). {facts['machine']}; Python {facts['python']}, {versions}. "
        f"What was run, and when a claim is held: [the protocol](../replication.md).",
    ]
    words = (
        "Perplexity on the development text after the steps to choose by, seed 0: that of the setting chosen for each "
        "model, and the best with one learning rate for all weights (x1). At the chosen multiplier, the perplexity "
        "changes by so much with the last doubling of the learning rate up to the chosen one, and with the next."
    )
    parts += ["## Settings", words, markdown_table(setting_rows(found))]
    words = (
        "Perplexity of the masked tokens of the evaluation text: mean ± standard deviation over the seeds. The slope "
        "is what the training loss still falls over its last tenth, in nats per 1,000 steps. FLOPs: a sequence forward."
    )
    parts += section("Table 3", words, perplexity_rows(found))
    words = (
        f"Batches of {found.size.dense_batch_size}. The share is that of the squared weights of W less its mean that "
        f"its nearest Toeplitz matrix has; noise has {2 / found.size.length:.3f}."
    )
    parts += section("W without the Toeplitz prior", words, dense_rows(found))
    words = (
        "Accuracy on the evaluation rows in percent: mean ± standard deviation over the seeds; in bold with the "
        "pooling that the development rows chose."
    )
    parts += section("Fine-tuning", words, finetuning_rows(found))
    words = (
        "Differences are in nats of held-out loss (of accuracies, and of W near-Toeplitz, in shares). The status is "
        "open also where a model is behind counting, or the loser is handicapped in parameters."
    )
    parts += section("Claims", words, claim_rows(found))
    parts += ["## Pictures"] if pictures else []
    parts += [f"{words}:\n\n![{words}]({name})" for name, words in pictures.items()]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def section(title: str, words: str, rows: list[list]) -> list[str]:
    """A section with a table; none if there are no rows under the header."""
    return [f"## {title}", words, markdown_table(rows)] if len(rows) > 1 else []


def dumped(results: dict) -> str:
    """JSON with a run on each line, which version control compares by."""
    runs = ",\n".join("  " + json.dumps(run) for run in results["runs"])
    rest = json.dumps({name: value for name, value in results.items() if name != "runs"}, indent=1)
    return rest[:-2] + ',\n "runs": [\n' + runs + "\n ]\n}\n"


def setting_rows(found: Results) -> list[list[str]]:
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
        rows.append([SYSTEMS[name].title, *cells])
    return rows


def perplexity_rows(found: Results) -> list[list[str]]:
    rows = [["model", "perplexity, paper", "perplexity, here", "seeds", "slope", "params, paper", "params", "FLOPs"]]
    for name in found.losses():
        system, runs = SYSTEMS[name], found.runs("pretraining", model=name)
        parameters, flops = found.all["counts"][name]
        printed = [system.perplexity or "", f"{system.parameters} M" if system.parameters else ""]
        fall = f"{statistics.fmean(slope(run['curve']) for run in runs):.3f}"
        here = [perplexity([run["loss"] for run in runs]), len(runs), fall]
        title = system.title if system in TABLE3 else f"*{system.title}*"
        rows.append([title, printed[0], *here, printed[1], f"{parameters / 1e6:.3f} M", f"{flops / 1e9:.3g} B"])
    baselines = {"counting two neighbors": found.all["neighbors"], "frequency of each token": found.unigram}
    rows += [[words, "", perplexity([loss]), "", "", "", "", ""] for words, loss in baselines.items() if len(rows) > 1]
    return rows


def dense_rows(found: Results) -> list[list[str]]:
    rows = [["steps", "perplexity with the prior", "without", "nats between", "Toeplitz share", "seeds"]]
    twins = found.dense("gmlp")
    for steps, runs in found.dense("gmlp-dense").items():
        losses, others = [run["loss"] for run in runs], [run["loss"] for run in twins.get(steps, [])]
        gap = spread([a - b for a, b in zip(losses, others)], 3) if others else ""
        shares = spread([run["toeplitz_share"] for run in runs], 3)
        rows.append([f"{steps:,}", perplexity(others) if others else "", perplexity(losses), gap, shares, len(runs)])
    return rows


def finetuning_rows(found: Results) -> list[list[str]]:
    rows = [["task", "commonest label", "tf-idf", "pooling", *(SYSTEMS[name].title for name in FINETUNED)]]
    chosen = found.chosen_poolings()
    for task, models in found.right().items():
        facts = found.all["tasks"][task]
        for pooling in POOLINGS:
            cells = []
            for name in FINETUNED:
                right = models.get(name, {}).get(pooling)
                text = "" if right is None else spread([100 * float(one) for one in right.mean(axis=1)], 1)
                cells.append(f"**{text}**" if text and chosen[task][name] == pooling else text)
            first = [TASKS[task], f"{100 * facts['majority']:.1f}", f"{100 * facts['tf-idf']:.1f}"]
            rows.append([*(first if pooling == POOLINGS[0] else ["", "", ""]), pooling, *cells])
    return rows


def claim_rows(found: Results) -> list[list[str]]:
    rows = [["claim", "paper", "difference", "95 % interval", "threshold", "verdict", "status"]]
    for one in found.findings():
        numbers = ["", "", ""]
        if judged := one.judgement:
            low, high = judged.mean - judged.margin, judged.mean + judged.margin
            numbers = [f"{judged.mean:+.3f}", f"{low:+.3f} to {high:+.3f}"]
            numbers.append(f"within ± {judged.below:.3f}" if judged.below < math.inf else f"above {judged.above:g}")
        # One seed has no interval.
        numbers = ["" if "nan" in number else number for number in numbers]
        rows.append([one.claim, one.paper, *numbers, one.verdict, found.status(one)])
    return rows


TABLES = {"settings": setting_rows, "perplexity": perplexity_rows, "claims": claim_rows}


def filled(text: str, found: Results) -> str:
    """The text of a page with the tables of `TABLES` written anew."""
    for name, rows in TABLES.items():
        start, mark, rest = text.partition(f"<!-- {name} -->")
        if mark:
            text = f"{start}{mark}\n\n{markdown_table(rows(found))}\n\n{rest[rest.index('<!-- end -->') :]}"
    return text


def perplexity(losses: Sequence[float]) -> str:
    return spread([math.exp(loss) for loss in losses], 1)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation (of a sample) as text; the value itself of a single one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def draw(found: Results, folder: Path) -> dict[str, str]:
    """Draws what needs nothing but numbers. Returns the files, each with what it shows."""
    drawn = {}
    if found.losses():
        draw_training(found, folder / "training.png")
        draw_perplexities(found, folder / "perplexity.png")
        drawn["training.png"] = "Training losses, seed 1"
        drawn["perplexity.png"] = "Held-out perplexity, a dot for each seed"
    if found.right():
        draw_accuracies(found, folder / "finetuning.png")
        drawn["finetuning.png"] = "Accuracy after fine-tuning, a dot for each seed"
    for name, words in MODEL_PICTURES.items():
        if (folder / name).is_file():
            drawn[name] = words
    return drawn


def draw_training(found: Results, path: Path):
    """Draws the losses of BERTs and Mixer, and of gMLPs, in two panels of one scale, with the unigram's level."""
    groups = {
        "BERT and Mixer": ["bert", "bert-relpos", "bert-noattn", "mixer"],
        "gMLP and aMLP": ["gmlp-linear", "gmlp-additive", "gmlp-multiplicative", "gmlp", "amlp"],
    }
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, (title, names) in zip(axes, groups.items()):
        for number, name in enumerate(name for name in names if name in found.losses()):
            curve = found.runs("pretraining", model=name)[0]["curve"]
            axis.plot(*zip(*curve), linewidth=1.3, color=f"C{number}", label=SYSTEMS[name].title)
        axis.axhline(found.unigram, color="0.4", linestyle="--", linewidth=1)
        axis.annotate("by frequency", (1, found.unigram), xycoords=("axes fraction", "data"), xytext=(-4, 4),
                      textcoords="offset points", ha="right", fontsize=8, color="0.3")  # fmt: skip
        axis.set(title=title, xlabel="optimizer step")
        axis.grid(color="0.92")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("training loss (nats per masked token)")
    save_picture(figure, path)


def draw_perplexities(found: Results, path: Path):
    """Draws a row for each model, with a dot for each seed and the paper's perplexity."""
    losses = found.losses()
    names = sorted(losses, key=lambda name: statistics.fmean(losses[name]), reverse=True)
    figure, axis = plt.subplots(figsize=(8, 0.42 * len(names) + 1.4), layout="constrained")
    levels = {"by two neighbors": math.exp(found.all["neighbors"]), "by frequency": math.exp(found.unigram)}
    values = list(levels.values())
    for place, name in enumerate(names):
        dots = [math.exp(loss) for loss in losses[name]]
        axis.plot(dots, [place] * len(dots), "o", color="C0", markersize=6, alpha=0.7)
        values += dots
    printed = {name: f"  ({SYSTEMS[name].perplexity})" if SYSTEMS[name].perplexity else "" for name in names}
    axis.set_yticks(range(len(names)), [SYSTEMS[name].title + printed[name] for name in names])
    axis.set_xscale("log")
    for words, level in levels.items():
        axis.axvline(level, color="0.4", linestyle="--", linewidth=1)
        axis.annotate(words, (level, 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=8, color="0.3")
    # Plain numbers instead of powers of ten.
    steps = [factor * 10**power for power in range(6) for factor in (1, 1.5, 2, 3, 5, 7)]
    ticks = [step for step in steps if 0.9 * min(values) <= step <= 1.1 * max(values)]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("held-out perplexity (log scale); in brackets the paper's")
    axis.grid(axis="x", color="0.92")
    save_picture(figure, path)


def draw_accuracies(found: Results, path: Path):
    """Draws a panel for each task, in one scale: dots of the seeds, and the level of the commonest label."""
    right = found.right()
    size = (3.6 * len(right) + 0.8, 4.2)
    figure, axes = plt.subplots(1, len(right), figsize=size, sharey=True, squeeze=False, layout="constrained")
    marks = {"cls": ("s", "C7", "[CLS]"), "mean": ("o", "C0", "mean")}
    titles = {"bert-relpos": "BERT +\nrel pos", "gmlp": "gMLP", "amlp": "aMLP"}
    for axis, (task, models) in zip(axes[0], right.items()):
        for place, name in enumerate(models):
            for shift, (pooling, rights) in zip((-0.12, 0.12), models[name].items()):
                marker, color, words = marks[pooling]
                values = 100 * rights.mean(axis=1)
                label = words if place == 0 else None
                axis.plot([place + shift] * len(values), values, marker, color=color, alpha=0.7, label=label)
        facts = found.all["tasks"][task]
        for words, level, style in (("commonest label", "majority", "--"), ("tf-idf", "tf-idf", ":")):
            axis.axhline(100 * facts[level], color="0.4", linestyle=style, linewidth=1, label=words)
        axis.set_xticks(range(len(models)), [titles[name] for name in models])
        axis.set_xlim(-0.5, len(models) - 0.5)
        axis.set_title(f"{TASKS[task].capitalize()} ({facts['rows']['evaluation']:,} rows)", fontsize=10)
        axis.grid(axis="y", color="0.92")
    axes[0, 0].set_ylabel("accuracy (%)")
    axes[0, -1].legend(fontsize=8)
    save_picture(figure, path)


MODEL_PICTURES = {
    "filters.png": "Spatial filters of the gMLP (Figure 4), seed 1",
    "matrices.png": "Spatial matrices of the gMLP without the Toeplitz prior (Figure 9), the longer training, seed 1",
    "attention.png": "Tiny attention of the aMLP over a pair of the repeated word (Figure 10), seed 1",
}


def draw_models(study, folder: Path):
    """Draws with `hf-gmlp plot` what needs the weights of finished runs."""
    from corpus import read_rows

    from hf_gmlp.tools import cli

    # The shortest pair that repeats the word: not all fit into n tokens.
    pairs = [row for row in read_rows(study.tasks["repeated"]["evaluation"]) if row["label"]]
    row = min(pairs, key=lambda row: len(row["sentence1"] + row["sentence2"]))
    wanted = {
        ("pretraining", "gmlp", study.size.steps): ["filters"],
        ("dense", "gmlp-dense", max(study.size.dense_steps)): ["matrices"],
        ("finetuning", "amlp", "repeated"): ["attention", "--sentences", row["sentence1"], row["sentence2"]],
    }
    for run in study.finished():
        words = wanted.get((run.stage, run.key["model"], run.key.get("steps", run.key.get("task"))))
        if words and run.key["seed"] == 1 and not run.diverged.is_file():
            kind, *more = words
            cli.main(["plot", kind, str(run.folder), "--output", str(folder / f"{kind}.png"), *more])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    write(results := json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
    for page in map(Path, sys.argv[3:]):
        page.write_text(filled(page.read_text(encoding="utf-8"), Results(results)), encoding="utf-8")
