"""The protocol of the replication as data, and the verdicts that follow from its results. In words: replication.md."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import ttest_1samp
from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.presets import preset_path

# Of the interval (Student's t over the seeds) that a claim is judged by.
CONFIDENCE = 0.95
# Nats that the paper calls insignificant: between BERT + rel pos (4.26) and gMLP (4.35) in Table 3.
NEUTRAL = math.log(4.35 / 4.26)
# Nats from which a model is "far ahead": half of the paper's smaller lead, that over the Mixer (log 5.34 / 4.35).
FAR = 0.1
# Fraction of the variance of W from which it counts as near-Toeplitz; of noise it is 2 / n.
TOEPLITZ = 0.5
# A gate: nats that a model must be below the unigram's loss for a verdict about it.
LEARNED = 0.5
# Nats: a claim within noise whose interval reaches further to either side is given more seeds.
WIDE = 0.1
# Of the learning rate of positional weights, from which each model's own is chosen.
MULTIPLIERS = (1, 5, 30)
SEEDS, MORE_SEEDS = (1, 2, 3), (4, 5)
# Models that always get more seeds.
FIVE_SEEDS = ("bert-relpos", "gmlp", "amlp")
# Models that take another's learning rate and multiplier.
SETTINGS_OF = {"gmlp-half": "gmlp", "gmlp-double": "gmlp"}

HELD, NOT_HELD, NOISE = "held", "not held", "within noise"
ONE_SEED, DIVERGED = "no verdict (one seed)", "no verdict (diverged)"
UNLEARNED, NO_ATTENTION = "no verdict (near the unigram)", "no verdict (no certain gain from attention)"


@dataclass(frozen=True)
class Size:
    """The sizes of all models, and how long they are trained. With 12 layers and a unit of 256 as in Table 3."""

    layers: int  # of the BERTs; gMLPs have three times as many, the Mixer twice as many
    unit: int  # a third of the BERTs' d_model and of the Mixer's, half of the gMLPs'
    length: int  # n
    vocab_size: int
    batch_size: int  # sequences in a step
    learning_rates: tuple[float, ...]  # from which each model's own is chosen
    selection_steps: int  # of a training that settings are chosen by
    steps: int  # of a training that is reported
    dense_batch_size: int  # for W without the Toeplitz prior and its twin
    dense_steps: tuple[int, int]  # their two lengths of training
    flags: tuple[tuple[str, object], ...] = ()  # more flags of every training


SIZES = {
    "tiny": Size(1, 16, 32, 800, 16, (2e-3,), 4, 10, 32, (5, 10)),
    "small": Size(2, 32, 32, 4000, 64, (1e-3, 2e-3, 4e-3), 1000, 5000, 256, (500, 2000)),
    "medium": Size(4, 64, 128, 8000, 64, (5e-4, 1e-3, 2e-3), 2000, 20_000, 256, (2000, 8000)),
    "gpu": Size(12, 256, 128, 32_000, 256, (2e-4, 4e-4, 7e-4), 2000, 20_000, 1024, (2000, 8000), (("bf16", True),)),
}


@dataclass(frozen=True)
class Model:
    """A model of the comparison."""

    title: str  # as in the paper's tables
    preset: str  # whose sizes are changed
    kind: str  # "bert", "mixer" or "gmlp": how the sizes follow from a `Size`
    ffn: float  # d_ffn in units; of the Mixer, half of n is subtracted
    perplexity: float | None = None  # as the paper prints it (Tables 3 and 4)
    parameters: float | None = None  # the same, in millions
    depth: float = 1  # of a gMLP, the factor of its depth
    changes: tuple[tuple[str, object], ...] = ()  # other fields of the config

    def overrides(self, size: Size) -> dict[str, object]:
        """Return what is to be changed in the preset."""
        # As in the paper a quarter of the unit, or 16: one of BERT's heads, and the tiny attention.
        head, layers = max(16, size.unit // 4), size.layers
        fields: dict[str, object] = {"max_position_embeddings": size.length}
        fields["intermediate_size"] = int(self.ffn * size.unit) - (size.length // 2 if self.kind == "mixer" else 0)
        if self.kind == "gmlp":
            fields |= {"num_hidden_layers": max(1, round(3 * self.depth * layers)), "hidden_size": 2 * size.unit}
        elif self.kind == "mixer":
            # n does not shrink with the unit: the channels have less weights where the tokens have more. With a unit of
            # 256, d_ffn is the 2304 of the paper.
            fields |= {"num_hidden_layers": 2 * layers, "hidden_size": 3 * size.unit}
            fields["spatial_intermediate_size"] = 3 * size.unit // 2
        else:
            fields |= {"num_hidden_layers": layers, "hidden_size": 3 * size.unit}
            fields["num_attention_heads"] = 3 * size.unit // head
        if self.preset == "amlp-base":
            fields["attention_size"] = head
        # transformers' own BERT computes all logits.
        if self.preset != "bert-base":
            fields["sparse_prediction"] = True
        return fields | dict(self.changes)

    def config(self, size: Size) -> PreTrainedConfig:
        """Return the config of this size."""
        path = preset_path(self.preset)
        return AutoConfig.from_pretrained(path, vocab_size=size.vocab_size, **self.overrides(size))


TABLE3 = {
    "bert": Model("BERT", "bert-base", "bert", 12, 4.37, 110),
    "bert-relpos": Model("BERT + rel pos", "bert-base-relpos", "bert", 12, 4.26, 110),
    "bert-noattn": Model("BERT + rel pos - attn", "bert-base-relpos-noattn", "bert", 12, 5.64, 96),
    "mixer": Model("MLP-Mixer", "mixer-mlm", "mixer", 9.25, 5.34, 112),
    "gmlp-linear": Model("Linear gMLP", "gmlp-linear", "gmlp", 8, 5.14, 92),
    "gmlp-additive": Model("Additive gMLP", "gmlp-additive", "gmlp", 8, 4.97, 92),
    "gmlp-multiplicative": Model("Multiplicative gMLP", "gmlp-multiplicative", "gmlp", 8, 4.53, 92),
    "gmlp": Model("Multiplicative, Split gMLP", "gmlp-36l", "gmlp", 12, 4.35, 102),
}
MODELS = TABLE3 | {
    "gmlp-dense": Model("gMLP without the Toeplitz prior", "gmlp-36l", "gmlp", 12, changes=(("toeplitz", False),)),
    "gmlp-half": Model("gMLP, depth 0.5x", "gmlp-18l", "gmlp", 12, 5.25, 59, depth=0.5),
    "gmlp-double": Model("gMLP, depth 2x", "gmlp-72l", "gmlp", 12, 3.79, 187, depth=2),
    "amlp": Model("aMLP", "amlp-base", "gmlp", 12),
}


@dataclass(frozen=True)
class Claim:
    """A claim that one model is ahead of another, in nats of held-out loss."""

    text: str
    better: str
    worse: str
    above: float = 0.0  # the lead that the claim asks for
    part_of: str = ""  # a claim of several parts, whose verdict follows the last of them


LADDER = "Split < multiplicative < additive < linear"
WITHOUT_ATTENTION = "gMLP far ahead of attention-free BERT and Mixer"
DEPTH = "Depth 0.5x, 1x, 2x improves"
ATTENTION = Claim("Attention helps BERT", "bert-relpos", "bert-noattn")
CLAIMS = (
    Claim("Perplexity of split below multiplicative", "gmlp", "gmlp-multiplicative", part_of=LADDER),
    Claim("Perplexity of multiplicative below additive", "gmlp-multiplicative", "gmlp-additive", part_of=LADDER),
    Claim("Perplexity of additive below linear", "gmlp-additive", "gmlp-linear", part_of=LADDER),
    ATTENTION,
    Claim("gMLP far ahead of BERT + rel pos - attn", "gmlp", "bert-noattn", FAR, WITHOUT_ATTENTION),
    Claim("gMLP far ahead of MLP-Mixer", "gmlp", "mixer", FAR, WITHOUT_ATTENTION),
    Claim("Depth 0.5x to 1x lowers the perplexity", "gmlp", "gmlp-half", part_of=DEPTH),
    Claim("Depth 1x to 2x lowers the perplexity", "gmlp-double", "gmlp", part_of=DEPTH),
)


@dataclass(frozen=True)
class Finding:
    """A claim, or a part of one, with what was measured."""

    claim: str
    paper: str  # what the paper prints
    verdict: str  # HELD, NOT_HELD or NOISE, or why there is none
    mean: float | None = None  # of the differences, one per seed; None of a claim of several parts
    margin: float = math.nan  # half of the confidence interval around the mean; NaN of a single seed
    above: float = 0.0  # the differences should be between these
    below: float = math.inf
    models: tuple[str, ...] = ()  # that are compared, of two the one that should be ahead first


def judge(
    claim: str,
    paper: str,
    differences: Sequence[float],
    above: float = 0.0,
    below: float = math.inf,
    models: tuple[str, ...] = (),
    gate: str = "",
) -> Finding:
    """Judge whether differences, one per seed, are between two thresholds.

    They are if their confidence interval lies between them, are not if it lies outside; else the claim is within noise.
    `gate` is the reason why there is no verdict, if there is one.
    """
    mean, margin, verdict = statistics.fmean(differences), math.nan, gate or ONE_SEED
    if not math.isfinite(mean):
        verdict = DIVERGED
    elif len(differences) > 1:
        low, high = ttest_1samp(differences, 0).confidence_interval(CONFIDENCE)
        margin, inside = float(high - low) / 2, above < low and high < below
        verdict = gate or (HELD if inside else NOT_HELD if high < above or below < low else NOISE)
    return Finding(claim, paper, verdict, mean, margin, above, below, models)


def all_of(claim: str, verdicts: Sequence[str]) -> Finding:
    """Judge a claim of several parts: held if all are, not held if one is not, else what keeps it open."""
    order = (NOT_HELD, DIVERGED, UNLEARNED, NO_ATTENTION, ONE_SEED, NOISE, HELD)
    return Finding(f"**{claim}**", "yes", min(verdicts, key=order.index))


def choose(losses: Mapping[tuple[float, float], float]) -> tuple[float, float]:
    """Return the learning rate and multiplier with the least development loss; of equal ones the smaller multiplier."""
    finite = {setting: loss for setting, loss in losses.items() if math.isfinite(loss)}
    if not finite:
        raise ValueError("every training diverged")
    return min(finite, key=lambda setting: (finite[setting], setting[1], setting[0]))


def pretraining_findings(losses: Mapping[str, Sequence[float]], unigram: float) -> list[Finding]:
    """Judge the claims about pretraining (paper, sections 4 to 4.2) whose models are there.

    Args:
        losses: For names of `MODELS`, the held-out loss in nats per masked token of each seed. Two models are compared
            on the seeds that both have.
        unigram: Loss of predicting each token by its frequency.
    """
    findings: list[Finding] = []

    def gate(*names: str) -> str:
        return "" if all(statistics.fmean(losses[name]) < unigram - LEARNED for name in names) else UNLEARNED

    def lead(better: str, worse: str) -> list[float]:
        return [b - a for a, b in zip(losses[better], losses[worse])]

    for number, claim in enumerate(CLAIMS):
        models = claim.better, claim.worse
        if not {*models} <= losses.keys():
            continue
        first, second = MODELS[claim.worse].perplexity or math.nan, MODELS[claim.better].perplexity or math.nan
        paper = f"log({first} / {second}) = {math.log(first / second):+.4f}"
        findings.append(judge(claim.text, paper, lead(*models), claim.above, math.inf, models, gate(*models)))
        if claim is ATTENTION and "gmlp" in losses:
            three = ("gmlp", *models)
            within = max(0.0, statistics.fmean(lead("bert-relpos", "bert-noattn")) / 2)
            closed = gate(*three) or ("" if findings[-1].verdict == HELD else NO_ATTENTION)
            text = "**gMLP near BERT**: gMLP less BERT is within half of what attention gives BERT"
            paper = f"log(4.35 / 4.26) = {NEUTRAL:+.4f}, within ± {math.log(5.64 / 4.26) / 2:.4f}"
            findings.append(judge(text, paper, lead("bert-relpos", "gmlp"), -within, within, three, closed))
        if claim.part_of and claim.part_of not in {other.part_of for other in CLAIMS[number + 1 :]}:
            parts = {other.text for other in CLAIMS if other.part_of == claim.part_of}
            verdicts = [finding.verdict for finding in findings if finding.claim in parts]
            findings += [all_of(claim.part_of, verdicts)] if len(verdicts) == len(parts) else []
    return findings


def too_wide(findings: Sequence[Finding]) -> set[str]:
    """Return the models of claims that more seeds may decide."""
    wide = [finding for finding in findings if finding.verdict == NOISE and finding.margin > WIDE]
    return {name for finding in wide for name in finding.models}


def toeplitz_findings(
    fractions: Mapping[int, Sequence[float]],
    dense: Mapping[int, Sequence[float]],
    toeplitz: Mapping[int, Sequence[float]],
    unigram: float,
) -> list[Finding]:
    """Judge the claims about W without the prior (paper, section 2 and Appendix C).

    Args:
        fractions: For each length of training in steps and each seed, the fraction of the variance of W that its
            nearest Toeplitz matrix has, averaged over the blocks.
        dense, toeplitz: Likewise the held-out losses of the model without the prior and of its twin.
        unigram: As in `pretraining_findings`.
    """
    findings = []
    gaps = {steps: [b - a for a, b in zip(toeplitz[steps], dense[steps])] for steps in sorted(dense)}
    for steps, gap in gaps.items():
        losses = statistics.fmean(dense[steps]), statistics.fmean(toeplitz[steps])
        gate = "" if max(losses) < unigram - LEARNED else UNLEARNED
        text = f"**W near-Toeplitz without being told**, {steps:,} steps"
        findings.append(judge(text, "Figure 9, no number", fractions[steps], TOEPLITZ, gate=gate))
        text = f"**The Toeplitz prior is quality-neutral (dense less prior)**, {steps:,} steps"
        findings.append(judge(text, "yes", gap, -NEUTRAL, NEUTRAL, gate=gate))
    closer = [abs(a) - abs(b) for a, b in zip(*gaps.values())]
    return [*findings, judge("Longer training brings both nearer", "not in the paper", closer)]
