"""The paper's comparisons at any size: which models, at which widths, and when a claim counts as held."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student
from transformers import AutoConfig, PreTrainedConfig

from ..presets import preset_path

CONFIDENCE = 0.95
"""Of the interval (Student's t over the seeds) that a claim is judged by."""

NEUTRAL = math.log(4.35 / 4.26)
"""Nats that the paper calls insignificant: between BERT + rel pos (4.26) and gMLP (4.35) in Table 3."""

FAR = 0.1
"""Nats from which a model is "far ahead": half of the paper's smaller lead, that over the Mixer (log 5.34 / 4.35)."""

TOEPLITZ = 0.5
"""Share of the squared weights of W less its mean from which it counts as near-Toeplitz; of noise it is 2 / n."""

HELD, NOT_HELD, NOISE = "held", "not held", "within noise"
ONE_SEED, DIVERGED = "no verdict (one seed)", "no verdict (a run diverged)"


@dataclass(frozen=True)
class Size:
    """
    All models of one replication. With 12 layers and a unit of 256 they are those of Table 3.

    Attributes:
        layers: Of the BERTs. gMLPs have three times as many, the Mixer twice as many.
        unit: A third of the BERTs' d_model and of the Mixer's, half of the gMLPs'.
        length: n.
    """

    layers: int
    unit: int
    length: int = 128

    @property
    def head(self) -> int:
        """Width of one of BERT's heads and of the tiny attention: as in the paper a quarter of the unit, or 16."""
        return max(16, self.unit // 4)


SIZES = {"tiny": Size(1, 16, 32), "small": Size(2, 32), "medium": Size(4, 64), "gpu": Size(12, 256)}


@dataclass(frozen=True)
class System:
    """
    A model of the comparison.

    Attributes:
        name: Of its folders.
        title: As the paper's tables have it.
        preset: Its preset, whose sizes are changed.
        kind: "bert", "mixer" or "gmlp": how its sizes follow from a `Size`.
        ffn: d_ffn in units; of the Mixer, half of n is taken away.
        perplexity, parameters: What the paper prints (Tables 3 and 4), parameters in millions.
        depth: Of a gMLP, the factor of its depth.
        more: Other fields of the config.
    """

    name: str
    title: str
    preset: str
    kind: str
    ffn: float
    perplexity: float | None = None
    parameters: float | None = None
    depth: float = 1
    more: tuple[tuple[str, object], ...] = ()

    def overrides(self, size: Size) -> dict[str, object]:
        """What is to be changed in the preset."""
        fields: dict[str, object] = {
            "max_position_embeddings": size.length,
            "intermediate_size": int(self.ffn * size.unit),
        }
        if self.kind == "gmlp":
            fields |= {"num_hidden_layers": max(1, round(3 * self.depth * size.layers)), "hidden_size": 2 * size.unit}
        else:
            layers = size.layers * (2 if self.kind == "mixer" else 1)
            fields |= {"num_hidden_layers": layers, "hidden_size": 3 * size.unit}
        if self.kind == "mixer":
            # n does not shrink with the unit: what the matrices over the tokens weigh more, those over the channels
            # weigh less. With a unit of 256 this is the 2304 of the paper.
            fields["intermediate_size"] -= size.length // 2
            fields["spatial_intermediate_size"] = 3 * size.unit // 2
        if self.kind == "bert":
            fields["num_attention_heads"] = 3 * size.unit // size.head
        if self.name == "amlp":
            fields["attention_size"] = size.head
        # transformers' own BERT computes all logits.
        if self.preset != "bert-base":
            fields["sparse_prediction"] = True
        return fields | dict(self.more)

    def config(self, size: Size, vocab_size: int) -> PreTrainedConfig:
        """The config of this size."""
        return AutoConfig.from_pretrained(preset_path(self.preset), vocab_size=vocab_size, **self.overrides(size))


TABLE3 = (
    System("bert", "BERT", "bert-base", "bert", 12, 4.37, 110),
    System("bert-relpos", "BERT + rel pos", "bert-base-relpos", "bert", 12, 4.26, 110),
    System("bert-noattn", "BERT + rel pos - attn", "bert-base-relpos-noattn", "bert", 12, 5.64, 96),
    System("mixer", "MLP-Mixer", "mixer-mlm", "mixer", 9.25, 5.34, 112),
    System("gmlp-linear", "Linear gMLP", "gmlp-linear", "gmlp", 8, 5.14, 92),
    System("gmlp-additive", "Additive gMLP", "gmlp-additive", "gmlp", 8, 4.97, 92),
    System("gmlp-multiplicative", "Multiplicative gMLP", "gmlp-multiplicative", "gmlp", 8, 4.53, 92),
    System("gmlp", "Multiplicative, Split gMLP", "gmlp-36l", "gmlp", 12, 4.35, 102),
)
OTHERS = (
    System("gmlp-dense", "gMLP without the Toeplitz prior", "gmlp-36l", "gmlp", 12, more=(("toeplitz", False),)),
    System("gmlp-half", "gMLP, depth 0.5x", "gmlp-18l", "gmlp", 12, 5.25, 59, depth=0.5),
    System("gmlp-double", "gMLP, depth 2x", "gmlp-72l", "gmlp", 12, 3.79, 187, depth=2),
    System("amlp", "aMLP", "amlp-base", "gmlp", 12),
)
SYSTEMS = {system.name: system for system in TABLE3 + OTHERS}

FINETUNED = ("bert-relpos", "gmlp", "amlp")
"""What is fine-tuned, as in section 4.3; of the BERTs the one of section 4.2."""


@dataclass(frozen=True)
class Judgement:
    """
    What differences say of a claim, which is that they are above zero.

    Attributes:
        mean: Of the differences.
        margin: Half of the confidence interval around it; NaN of a single one.
        verdict: HELD, NOT_HELD, NOISE, ONE_SEED or DIVERGED.
    """

    mean: float
    margin: float
    verdict: str

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "-"
        return f"{self.mean:+.4f}" + ("" if math.isnan(self.margin) else f" ± {self.margin:.4f}")


def judge(differences: Sequence[float], *, sampling_variance: float = 0.0) -> Judgement:
    """
    Whether differences, one per seed, are above zero: held if their confidence interval lies above it, not held if it
    lies below, else within noise.

    Args:
        differences: Better minus worse, as the claim has it.
        sampling_variance: Of what the seeds share and the interval shall cover too: the choice of validation samples.
    """
    mean, margin = _interval(differences, sampling_variance)
    if not math.isfinite(mean):
        return Judgement(math.nan, math.nan, DIVERGED)
    if math.isnan(margin):
        return Judgement(mean, margin, ONE_SEED)
    return Judgement(mean, margin, HELD if mean - margin > 0 else NOT_HELD if mean + margin < 0 else NOISE)


def judge_neutral(differences: Sequence[float], within: float = NEUTRAL) -> Judgement:
    """
    Whether differences, one per seed, are nearly zero: held if their confidence interval lies inside of `within` on
    both sides of zero, not held if it lies outside, else within noise.
    """
    mean, margin = _interval(differences, 0.0)
    if not math.isfinite(mean):
        return Judgement(math.nan, math.nan, DIVERGED)
    if math.isnan(margin):
        return Judgement(mean, margin, ONE_SEED)
    inside, outside = abs(mean) + margin < within, abs(mean) - margin > within
    return Judgement(mean, margin, HELD if inside else NOT_HELD if outside else NOISE)


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a claim of several parts: held if all are, not held if one is not, else what keeps it open."""
    for verdict in (NOT_HELD, DIVERGED, ONE_SEED, NOISE):
        if verdict in verdicts:
            return verdict
    return HELD


def _interval(differences: Sequence[float], sampling_variance: float) -> tuple[float, float]:
    """Mean and half of the confidence interval; NaN of a single difference."""
    if not all(map(math.isfinite, differences)):
        return math.nan, math.nan
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return mean, math.nan
    error = math.sqrt(statistics.variance(differences) / count + sampling_variance)
    return mean, float(student.ppf((1 + CONFIDENCE) / 2, count - 1)) * error


@dataclass(frozen=True)
class Finding:
    """A claim, or a part of one, with what was measured."""

    claim: str
    paper: str
    measured: str
    verdict: str


def pretraining_findings(losses: dict[str, list[float]], toeplitz_shares: list[float]) -> list[Finding]:
    """
    The claims about pretraining (paper, sections 4 to 4.2 and Appendix C), as far as their models are there.

    Args:
        losses: For names of `SYSTEMS`, the held-out loss in nats per masked token of each seed, in one order.
        toeplitz_shares: For each seed, the Toeplitz share of W less its mean in the model without the prior, averaged
            over its blocks; or none.
    """
    findings: list[Finding] = []

    def ahead(claim: str, better: str, worse: str, by: float = 0.0) -> list[str]:
        """The verdict, in a list, on one model being ahead of another; none without the models."""
        if not {better, worse} <= losses.keys():
            return []
        judgement = judge([b - a - by for a, b in zip(losses[better], losses[worse])])
        first, second = SYSTEMS[worse].perplexity, SYSTEMS[better].perplexity
        paper = f"log({first} / {second}) = {math.log(first / second):+.4f}"
        measured = f"{judgement}, beyond {by} nats" if by else str(judgement)
        findings.append(Finding(claim, paper, measured, judgement.verdict))
        return [judgement.verdict]

    def whole(claim: str, count: int, verdicts: list[str]):
        """The verdict on a claim of several parts, if all of them are there."""
        if len(verdicts) == count:
            findings.append(Finding(f"**{claim}**", "yes", f"the {count} above together", together(verdicts)))

    ladder = {"gmlp": "split", "gmlp-multiplicative": "multiplicative", "gmlp-additive": "additive"}
    ladder["gmlp-linear"] = "linear"
    parts = []
    for better, worse in itertools.pairwise(ladder):
        parts += ahead(f"Perplexity of {ladder[better]} below {ladder[worse]}", better, worse)
    whole("Split < multiplicative < additive < linear", 3, parts)

    if {"gmlp", "bert-relpos", "bert-noattn", "mixer"} <= losses.keys():
        names = ("gmlp", "bert-relpos", "bert-noattn", "mixer")
        near = judge([(bert + min(rest)) / 2 - gmlp for gmlp, bert, *rest in zip(*(losses[name] for name in names))])
        paper = f"{(math.log(4.26) + math.log(5.34)) / 2 - math.log(4.35):+.4f}"
        claim = "**gMLP near BERT**: below the midpoint of BERT + rel pos and the better attention-free model"
        findings.append(Finding(claim, paper, str(near), near.verdict))
    parts = []
    for other in ("bert-noattn", "mixer"):
        parts += ahead(f"gMLP far ahead of {SYSTEMS[other].title}", "gmlp", other, FAR)
    whole("gMLP far ahead of attention-free BERT and Mixer", 2, parts)

    if toeplitz_shares:
        share = judge([value - TOEPLITZ for value in toeplitz_shares])
        measured = f"share {statistics.fmean(toeplitz_shares):.3f}: {share}, beyond {TOEPLITZ}"
        claim = "**W near-Toeplitz without being told**"
        findings.append(Finding(claim, "Figure 9, no number", measured, share.verdict))
    if {"gmlp", "gmlp-dense"} <= losses.keys():
        neutral = judge_neutral([b - a for a, b in zip(losses["gmlp"], losses["gmlp-dense"])])
        measured = f"dense less Toeplitz {neutral}; neutral within ± {NEUTRAL:.4f}"
        claim = "**The Toeplitz prior is quality-neutral**"
        findings.append(Finding(claim, "yes, no number", measured, neutral.verdict))

    parts = ahead("Depth 0.5x to 1x lowers the perplexity", "gmlp", "gmlp-half")
    parts += ahead("Depth 1x to 2x lowers the perplexity", "gmlp-double", "gmlp")
    whole("Depth 0.5x, 1x, 2x improves", 2, parts)
    return findings


def finetuning_findings(accuracies: dict[str, dict[str, list[float]]], samples: dict[str, int]) -> list[Finding]:
    """
    The claims about fine-tuning (paper, sections 4.2 and 4.3), as far as their models are there. The interval covers
    the choice of the validation samples too, as if each model had samples of its own, which is on the safe side.

    Args:
        accuracies: For "single" or "pair" or both and names of `FINETUNED`, the accuracy of each seed.
        samples: Validation samples of each task.
    """

    def compare(task: str, better: str, worse: str) -> Judgement:
        first, second = accuracies[task][better], accuracies[task][worse]
        shares = [statistics.fmean(values) for values in (first, second)]
        variance = sum(share * (1 - share) / samples[task] for share in shares)
        return judge([a - b for a, b in zip(first, second)], sampling_variance=variance)

    claims = (
        ("pair", "amlp", "gmlp", "**aMLP at least gMLP on pairs**", "MNLI-m 85.9 against 83.7 (Table 6)"),
        ("pair", "bert-relpos", "gmlp", "BERT ahead of gMLP on pairs", "MNLI-m 83.3 against 80.9 (Table 4)"),
        (
            "single",
            "gmlp",
            "bert-relpos",
            "gMLP ahead of BERT on one sentence",
            "SST-2 92.3 against 91.3 (Table 4)",
        ),
    )
    findings = []
    for task, better, worse, claim, paper in claims:
        if {better, worse} <= accuracies.get(task, {}).keys():
            judgement = compare(task, better, worse)
            findings.append(Finding(claim, paper, str(judgement), judgement.verdict))
    return findings


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation (of a sample) as text; the value itself of a single one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def markdown_table(rows: Sequence[Sequence[object]]) -> str:
    """Rows, the first of them the header, as a table in Markdown."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join(["---"] * len(rows[0])) + " |")
    return "\n".join(lines)


def fit_steps(
    steps: int, finetune_steps: int, minutes: float, jobs: int, fixed: float, per_step: float, per_finetune_step: float
) -> tuple[int, int]:
    """
    Steps of every pretraining and of every fine-tuning that fit into some minutes: both lowered by one factor, never
    raised, rounded down to tens where there are that many.

    Args:
        jobs: Runs side by side.
        fixed: Seconds of all runs together that do not depend on the steps: starting, evaluating.
        per_step, per_finetune_step: Seconds that one more step of every run costs, all runs together.

    Returns:
        Both numbers; 0 of the first if there is no time for any.
    """
    # A tenth is kept for pictures, and for a last run that nothing goes beside.
    left = 60 * minutes * 0.9 * jobs - fixed
    wanted = steps * per_step + finetune_steps * per_finetune_step
    factor = min(1.0, left / wanted)
    if factor <= 0:
        return 0, 0
    if factor == 1:
        return steps, finetune_steps

    def lowered(count: int) -> int:
        fitting = int(count * factor)
        return fitting - fitting % 10 if fitting >= 10 else fitting

    return lowered(steps), lowered(finetune_steps)
