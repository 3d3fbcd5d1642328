"""The protocol of the replication as data, and the verdicts on its results. replication.md describes both."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import linregress, ttest_1samp
from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.presets import preset_path

from . import models  # noqa: F401  # adds the presets of the baseline models

# Confidence level of the interval (Student's t over the seeds) that decides a claim: 95 % for all nine claims together
# (Bonferroni).
CONFIDENCE = 1 - 0.05 / 9
# The lead in nats that counts as "far ahead": half of the paper's smaller lead, that over the Mixer (log 5.34 / 4.35).
FAR = 0.1
# All models are trained longer if the training loss of one still falls by this many nats over a tenth of its steps.
FALL = 0.03
# Gate: the accuracy that BERT must exceed for a verdict on the word-matching task.
SOLVED = 0.75
# Ceiling: if both models exceed this accuracy, the task cannot tell them apart.
CEILING_ACCURACY = 0.97
# The factors between one setting of a search and the next.
RATE_STEP, MULTIPLIER_STEP = 2.0, 5.0
SELECTION_SEEDS, SEEDS = (11, 12), (1, 2, 3)
# Models that are fine-tuned on the word-matching task, each with the setting at which its search starts.
TASK_MODELS, TASK_START = ("bert-relpos", "gmlp", "amlp"), (1e-3, 1.0)

HELD, CONTRADICTED, AHEAD = "held", "contradicted", "ahead, size open"
NOISE, POWER, CEILING = "no verdict (noise)", "no verdict (power)", "no verdict (ceiling)"
DIVERGED = "no verdict (gate: a training diverged)"
UNLEARNED = "no verdict (gate: a model is behind the bigram-context baseline)"
NO_ATTENTION = "no verdict (gate: attention gives BERT no certain gain)"
UNSOLVED = "no verdict (gate: BERT has not learned the task)"
YES, NO, OPEN = "yes", "no", "open"

Setting = tuple[float, float]


@dataclass(frozen=True)
class Size:
    """The sizes of all models and the lengths of their trainings. "gpu" has the sizes of Table 3."""

    layers: int  # layers of the BERTs; gMLPs have three times as many, the Mixer twice as many
    unit: int  # a third of the BERTs' d_model and of the Mixer's, half of the gMLPs'
    length: int  # n
    vocab_size: int
    batch_size: int  # sequences in a step
    selection_steps: tuple[int, ...]  # lengths of a search training; the next while a model is behind the count model
    steps: tuple[int, ...]  # lengths of a reported training; the next applies while the loss of a model still falls
    task_steps: tuple[int, int]  # fine-tuning steps of the search and of the reported runs
    words: str = " [a-z]{3,}"  # pattern of the tokens that are words of the word-matching task
    gmlp_ffn: float = 1.0  # factor of the gMLPs' d_ffn
    flags: tuple[tuple[str, object], ...] = ()  # more flags of every pretraining


SIZES = {
    "tiny": Size(1, 16, 32, 800, 16, (4, 8), (10, 20), (2, 4)),
    # Its words are digits and punctuation, since hardly any word is one token of 400. The small embedding takes more
    # from BERT, whose d_model is larger: the factor gives the gMLPs the paper's ratios to it.
    "small": Size(2, 48, 32, 400, 16, (2000, 4000), (8000, 16_000), (2500, 10_000), r"[^\sa-zA-Z]", 0.95),
    "gpu": Size(12, 256, 128, 32_000, 256, (2000, 4000), (20_000, 40_000), (2500, 10_000), flags=(("bf16", True),)),
}


@dataclass(frozen=True)
class Model:
    """A model of the comparison."""

    title: str  # as in the paper's tables
    preset: str  # the preset whose sizes are overridden
    kind: str  # "bert", "mixer" or "gmlp": how the sizes follow from a `Size`
    ffn: float  # d_ffn in units; for the Mixer, half of n is subtracted
    perplexity: float | None = None  # as the paper prints it (Tables 3 and 4)
    parameters: float | None = None  # the same, in millions
    depth: float = 1  # factor of the depth of a gMLP
    start: Setting = (2e-3, 5.0)  # start of its search: learning rate, and its multiplier for positional weights

    def overrides(self, size: Size) -> dict[str, object]:
        """Return the fields of the preset to override."""
        # The size of one of BERT's heads and of the tiny attention: a quarter of the unit as in the paper, at least 16.
        head, layers = max(16, size.unit // 4), size.layers
        fields: dict[str, object] = {"max_position_embeddings": size.length}
        fields["intermediate_size"] = int(self.ffn * size.unit) - (size.length // 2 if self.kind == "mixer" else 0)
        if self.kind == "gmlp":
            # The split halves d_ffn, so it must be even.
            fields["intermediate_size"] = 2 * round(self.ffn * size.unit * size.gmlp_ffn / 2)
            fields |= {"num_hidden_layers": max(1, round(3 * self.depth * layers)), "hidden_size": 2 * size.unit}
            # Gives the same loss in less time. BERT's head always computes all logits.
            fields["sparse_prediction"] = True
        elif self.kind == "mixer":
            # n does not shrink with the unit, so the token MLP has relatively more weights and d_ffn is smaller. With a
            # unit of 256, d_ffn is the 2304 of the paper.
            fields |= {"num_hidden_layers": 2 * layers, "hidden_size": 3 * size.unit}
            fields["spatial_intermediate_size"] = 3 * size.unit // 2
        else:
            fields |= {"num_hidden_layers": layers, "hidden_size": 3 * size.unit}
            fields["num_attention_heads"] = 3 * size.unit // head
        return fields | ({"attention_size": head} if self.preset == "amlp-base" else {})

    def config(self, size: Size) -> PreTrainedConfig:
        """Return the config of this size."""
        path = preset_path(self.preset)
        return AutoConfig.from_pretrained(path, vocab_size=size.vocab_size, **self.overrides(size))


def join_overrides(fields: Mapping[str, object]) -> str:
    """Return fields of a config as the value of --config_overrides."""
    return ",".join(f"{name}={str(value).lower()}" for name, value in fields.items())


# The result of the gMLP search, at which the searches of the later gMLPs start.
GMLP_SETTING: Setting = (1e-3, 125.0)
MODELS = {
    "bert-relpos": Model("BERT + rel pos", "bert-base-relpos", "bert", 12, 4.26, 110, start=(2e-3, 25.0)),
    "bert-noattn": Model("BERT + rel pos - attn", "bert-base-relpos-noattn", "bert", 12, 5.64, 96, start=(2e-3, 25.0)),
    "mixer": Model("MLP-Mixer", "mixer-mlm", "mixer", 9.25, 5.34, 112),
    "gmlp-linear": Model("Linear gMLP", "gmlp-linear", "gmlp", 8, 5.14, 92, start=GMLP_SETTING),
    "gmlp-additive": Model("Additive gMLP", "gmlp-additive", "gmlp", 8, 4.97, 92, start=GMLP_SETTING),
    "gmlp-multiplicative": Model("Multiplicative gMLP", "gmlp-multiplicative", "gmlp", 8, 4.53, 92, start=GMLP_SETTING),
    "gmlp": Model("Multiplicative, Split gMLP", "gmlp-36l", "gmlp", 12, 4.35, 102),
    "gmlp-half": Model("gMLP, depth 0.5x", "gmlp-18l", "gmlp", 12, 5.25, 59, depth=0.5),
    "gmlp-double": Model("gMLP, depth 2x", "gmlp-72l", "gmlp", 12, 3.79, 187, depth=2, start=GMLP_SETTING),
    "amlp": Model("aMLP", "amlp-base", "gmlp", 12, None, 109),
}


@dataclass(frozen=True)
class Claim:
    """A claim that one model is ahead of another, in nats of held-out loss or in accuracy."""

    text: str
    better: str
    worse: str
    margin: float = 0.0  # the lead that the claim asks for
    part_of: str = ""  # the claim that this is a part of; its verdict follows the last part
    accuracies: bool = False  # whether the lead is a difference of accuracies instead of losses
    printed: tuple[float, float] | None = None  # the paper's values for both models, if `MODELS` lacks them

    @property
    def paper(self) -> tuple[float, float]:
        """The paper's values for the better and the worse model: perplexities, or accuracies in percent."""
        better, worse = MODELS[self.better].perplexity, MODELS[self.worse].perplexity
        return self.printed or (better or math.nan, worse or math.nan)

    @property
    def paper_lead(self) -> float:
        """The lead in the paper, in the units of the leads measured here."""
        better, worse = self.paper
        return (better - worse) / 100 if self.accuracies else math.log(worse / better)


SPLIT = "The split gating is better than the other three"
ORDER = "Multiplicative gating is better than additive, and additive than linear"
WITHOUT_ATTENTION = "gMLP is far ahead of BERT without attention and of the Mixer"
DEPTH = "More depth lowers the perplexity of gMLP"
ATTENTION = Claim("Attention helps BERT", "bert-relpos", "bert-noattn")
# Its margin is computed from the gain of BERT from attention.
NEAR = Claim("gMLP is near BERT: within half of what attention gives BERT", "gmlp", "bert-relpos")
CLAIMS = (
    Claim("Split ahead of multiplicative", "gmlp", "gmlp-multiplicative", part_of=SPLIT),
    Claim("Split ahead of additive", "gmlp", "gmlp-additive", part_of=SPLIT),
    Claim("Split ahead of linear", "gmlp", "gmlp-linear", part_of=SPLIT),
    Claim("Multiplicative ahead of additive", "gmlp-multiplicative", "gmlp-additive", part_of=ORDER),
    Claim("Additive ahead of linear", "gmlp-additive", "gmlp-linear", part_of=ORDER),
    ATTENTION,
    Claim("gMLP far ahead of BERT without attention", "gmlp", "bert-noattn", FAR, WITHOUT_ATTENTION),
    Claim("gMLP far ahead of the Mixer", "gmlp", "mixer", FAR, WITHOUT_ATTENTION),
    Claim("Full depth ahead of half the depth", "gmlp", "gmlp-half", part_of=DEPTH),
    Claim("Twice the depth ahead of full depth", "gmlp-double", "gmlp", part_of=DEPTH),
    # The base models of Table 6.
    Claim("aMLP is ahead of gMLP in perplexity", "amlp", "gmlp", printed=(3.95, 4.28)),
)
# MNLI-m in Tables 4 and 6.
TASK_CLAIMS = (
    Claim("BERT is ahead of gMLP at matching words", "bert-relpos", "gmlp", accuracies=True, printed=(83.3, 80.9)),
    Claim("aMLP is ahead of gMLP at matching words", "amlp", "gmlp", accuracies=True, printed=(85.9, 83.7)),
)


@dataclass(frozen=True)
class Finding:
    """A claim with its measurements, or a claim of several parts."""

    claim: Claim | str  # the name of a claim of several parts
    verdict: str
    lead: float | None = None  # mean over the seeds; None for a claim of several parts
    half_width: float = math.nan  # half of the confidence interval around the mean; NaN for a single seed
    ahead: str = ""  # whether the lead is certainly above zero: YES, NO or OPEN
    margin: float = 0.0  # the lead that the claim asks for, or that NEAR allows; NaN if there is none
    by_margin: str = ""  # like `ahead`, for the margin
    steps: int | None = None  # length of the pretrainings

    @property
    def name(self) -> str:
        return self.claim if isinstance(self.claim, str) else self.claim.text

    @property
    def is_part(self) -> bool:
        """Whether the claim is a part of another claim."""
        return isinstance(self.claim, Claim) and bool(self.claim.part_of)


def neighbors(setting: Setting) -> list[Setting]:
    """Return the neighbors of a setting: half and twice the learning rate, a fifth and five times the multiplier."""
    rate, multiplier = setting
    rates = [(rate * factor, multiplier) for factor in (1 / RATE_STEP, RATE_STEP)]
    multipliers = [(rate, multiplier * factor) for factor in (1 / MULTIPLIER_STEP, MULTIPLIER_STEP)]
    # Round, so that a setting is the same whichever way the search reaches it.
    return [(float(f"{a:.6g}"), float(f"{b:.6g}")) for a, b in rates + multipliers]


def next_settings(losses: Mapping[Setting, float], start: Setting) -> list[Setting]:
    """Return the settings to try next: none if the neighbors of the best one have all been tried.

    Args:
        losses: The mean development loss of every setting tried, infinite where a training diverged.
    """
    if not losses:
        return [start, *neighbors(start)]
    return [setting for setting in neighbors(choose(losses)) if setting not in losses]


def choose(losses: Mapping[Setting, float]) -> Setting:
    """Return the setting with the lowest development loss; ties go to the smaller multiplier."""
    finite = {setting: loss for setting, loss in losses.items() if math.isfinite(loss)}
    if not finite:
        raise ValueError("No setting to choose: every training diverged.")
    return min(finite, key=lambda setting: (finite[setting], setting[1], setting[0]))


def fall(curve: Sequence[Sequence[float]]) -> float:
    """Return the fall of the training loss in nats per tenth of its steps, from a line through the last fifth.

    Args:
        curve: [points, 2], steps and losses.
    """
    end = curve[-1][0]
    last = np.array([(step, loss) for step, loss in curve if step > 0.8 * end])
    return math.nan if len(last) < 2 else -0.1 * end * float(np.polyfit(last[:, 0], last[:, 1], 1)[0])


def longest(
    results: Mapping[int, Mapping[str, Sequence[float]]], *names: str
) -> tuple[int, dict[str, Sequence[float]]]:
    """Return the largest number of steps for which all the models have results, and the results; (0, empty) if none.

    Args:
        results: By number of steps and model.
    """
    steps = max((steps for steps, losses in results.items() if {*names} <= losses.keys()), default=0)
    return steps, {name: results[steps][name] for name in names if steps}


def subtract(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the differences of two sets of values, seed by seed."""
    return [value - other for value, other in zip(values, others, strict=True)]


def side(low: float, high: float, threshold: float) -> str:
    """Return YES if an interval is above a threshold, NO if it is below, and OPEN otherwise or for NaN."""
    return YES if low > threshold else NO if high < threshold else OPEN


def interval(values: Sequence[float], level: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Student's t confidence interval around the mean of at least two values, by default at the level
    `CONFIDENCE`."""
    low, high = ttest_1samp(values, 0).confidence_interval(level)
    return float(low), float(high)


def slopes_of(results: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Return the slope of log perplexity against log parameters for each seed that all sizes have in common.

    Args:
        results: For each size, the number of parameters, and the loss of each seed.
    """
    sizes = np.log([parameters for parameters, _ in results])
    return [float(linregress(sizes, losses).slope) for losses in zip(*(losses for _, losses in results))]


def judge(
    claim: Claim, leads: Sequence[float], margin: float | None = None, no_verdict: str = "", steps: int | None = None
) -> Finding:
    """Judge whether the lead of a claim exceeds its margin or, for NEAR, stays within it on both sides.

    A claim is held if the whole confidence interval is on its side of the margin, and contradicted if the whole
    interval is on the other side. If the interval is above zero but contains the margin, the verdict is "ahead, size
    open". Otherwise there is no verdict: because of noise if the interval is narrow enough to show a lead of the
    paper's size, else because of a lack of power.

    Args:
        leads: One lead per seed, in nats or accuracy.
        margin: The margin; by default, that of the claim.
        no_verdict: The reason for giving no verdict, if any.
    """
    lead, half_width = statistics.fmean(leads), math.nan
    margin = claim.margin if margin is None else margin
    if not math.isfinite(lead):
        no_verdict = DIVERGED
    elif len(leads) > 1:
        low, high = interval(leads)
        half_width = (high - low) / 2
    low, high = lead - half_width, lead + half_width
    ahead, by_margin = side(low, high, 0.0), side(low, high, margin)
    if claim is NEAR:
        by_margin = YES if -margin < low and high < margin else NO if low > margin or high < -margin else OPEN
    if by_margin != OPEN:
        verdict = HELD if by_margin == YES else CONTRADICTED
    elif ahead == YES and claim is not NEAR:
        verdict = AHEAD
    else:
        # For a single seed the half-width is NaN, and every comparison with it is false.
        verdict = NOISE if half_width < (margin if claim is NEAR else abs(claim.paper_lead)) else POWER
    return Finding(claim, no_verdict or verdict, lead, half_width, ahead, margin, by_margin, steps)


def all_of(claim: str, verdicts: Sequence[str]) -> Finding:
    """Judge a claim of several parts: contradicted if any part is, else the verdict of its least certain part."""
    order = (CONTRADICTED, DIVERGED, UNLEARNED, NO_ATTENTION, POWER, NOISE, AHEAD, HELD)
    return Finding(claim, min(verdicts, key=order.index))


def gate(losses: Mapping[str, Sequence[float]], counts: float) -> str:
    """Return `UNLEARNED` if the mean loss of a model is not below that of the bigram-context baseline, `counts`."""
    return UNLEARNED if any(statistics.fmean(values) >= counts for values in losses.values()) else ""


def pretraining_findings(results: Mapping[int, Mapping[str, Sequence[float]]], counts: float) -> list[Finding]:
    """Judge the claims about pretraining (paper, sections 4 to 4.2) whose models have results.

    Args:
        results: For a number of steps, and names of `MODELS`, the held-out loss in nats per masked token of each seed.
        counts: The loss of the bigram-context baseline.
    """
    findings: list[Finding] = []
    for claim in CLAIMS:
        steps, losses = longest(results, claim.better, claim.worse)
        if not losses:
            continue
        leads = subtract(losses[claim.worse], losses[claim.better])
        findings.append(judge(claim, leads, no_verdict=gate(losses, counts), steps=steps))
        steps, losses = longest(results, claim.better, claim.worse, "gmlp")
        if claim is ATTENTION and losses:
            findings.append(judge_near(losses, gate(losses, counts), steps))
        parts = [other for other in CLAIMS if other.part_of == claim.part_of]
        if claim.part_of and claim is parts[-1]:
            verdicts = [finding.verdict for finding in findings if finding.claim in parts]
            findings += [all_of(claim.part_of, verdicts)] if len(verdicts) == len(parts) else []
    return findings


def judge_near(losses: Mapping[str, Sequence[float]], no_verdict: str, steps: int) -> Finding:
    """Judge NEAR, whose margin is half of BERT's gain from attention, if the gain is certain."""
    gains = subtract(losses["bert-noattn"], losses["bert-relpos"])
    margin = statistics.fmean(gains) / 2
    if judge(ATTENTION, gains).ahead != YES:
        margin, no_verdict = math.nan, no_verdict or NO_ATTENTION
    return judge(NEAR, subtract(losses["bert-relpos"], losses["gmlp"]), margin, no_verdict, steps)


def task_findings(accuracies: Mapping[str, Sequence[float]]) -> list[Finding]:
    """Judge the claims about the word-matching task (section 4.3) from the accuracy of each model and seed."""
    findings = []
    for claim in TASK_CLAIMS:
        if {claim.better, claim.worse} <= accuracies.keys():
            better, worse = accuracies[claim.better], accuracies[claim.worse]
            why = "" if statistics.fmean(accuracies["bert-relpos"]) > SOLVED else UNSOLVED
            if min(statistics.fmean(better), statistics.fmean(worse)) > CEILING_ACCURACY:
                why = why or CEILING
            findings.append(judge(claim, subtract(better, worse), no_verdict=why))
    return findings
