"""The protocol of the paper's comparisons at any size: the models, what is chosen for each, when a claim is held.

paper/replication.md gives it in words. Nothing here reads a result but through the arguments of its functions.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student
from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.presets import preset_path

CONFIDENCE = 0.95
"""Of the interval (Student's t over the seeds) that a claim is judged by."""

NEUTRAL = math.log(4.35 / 4.26)
"""Nats that the paper calls insignificant: between BERT + rel pos (4.26) and gMLP (4.35) in Table 3."""

FAR = 0.1
"""Nats from which a model is "far ahead": half of the paper's smaller lead, that over the Mixer (log 5.34 / 4.35)."""

TOEPLITZ = 0.5
"""Share of the squared weights of W less its mean from which it counts as near-Toeplitz; of noise it is 2 / n."""

LEARNED = 0.5
"""Nats that a model must be below the unigram's loss for a verdict about it."""

WIDE = 0.1
"""Nats: a claim within noise whose interval reaches further to either side is given more seeds."""

MULTIPLIERS = (1, 5, 30)
"""Of the learning rate of positional weights, from which each model's own is chosen."""

FINETUNE_LEARNING_RATES = (5e-4, 1e-3, 2e-3)
POOLINGS = ("cls", "mean")

SEEDS = (1, 2, 3)
MORE_SEEDS = (4, 5)
"""Of the models that are fine-tuned, and of those in a claim whose interval is too wide."""

HELD, NOT_HELD, NOISE = "held", "not held", "within noise"
ONE_SEED, DIVERGED = "no verdict (one seed)", "no verdict (diverged)"
UNLEARNED, NO_ATTENTION = "no verdict (near the unigram)", "no verdict (no certain gain from attention)"
GUESSED = "no verdict (near the commonest label)"


@dataclass(frozen=True)
class Size:
    """
    All models of one replication, and how long they are trained. With 12 layers and a unit of 256 they are those of
    Table 3.

    Attributes:
        layers: Of the BERTs. gMLPs have three times as many, the Mixer twice as many.
        unit: A third of the BERTs' d_model and of the Mixer's, half of the gMLPs'.
        length: n.
        vocab_size: SentencePieces.
        batch_size: Sequences a step.
        learning_rates: From which each model's own is chosen.
        selection_steps, steps: Of a training that settings are chosen by, and of one that is reported.
        dense_batch_size, dense_steps: For W without the Toeplitz prior and its twin, two lengths of training.
        pairs: Pairs to train on of the task of the repeated word.
        flags: More flags of every training.
    """

    layers: int
    unit: int
    length: int
    vocab_size: int
    batch_size: int
    learning_rates: tuple[float, ...]
    selection_steps: int
    steps: int
    dense_batch_size: int
    dense_steps: tuple[int, int]
    pairs: int
    flags: tuple[tuple[str, object], ...] = ()

    @property
    def head(self) -> int:
        """Width of one of BERT's heads and of the tiny attention: as in the paper a quarter of the unit, or 16."""
        return max(16, self.unit // 4)


SIZES = {
    "tiny": Size(1, 16, 32, 800, 16, (2e-3,), 4, 10, 32, (5, 10), 200),
    "small": Size(2, 32, 32, 4000, 64, (1e-3, 2e-3, 4e-3), 1000, 5000, 256, (500, 2000), 20_000),
    "medium": Size(4, 64, 128, 8000, 64, (5e-4, 1e-3, 2e-3), 2000, 20_000, 256, (2000, 8000), 20_000),
    "gpu": Size(
        12, 256, 128, 32_000, 256, (2e-4, 4e-4, 7e-4), 2000, 20_000, 1024, (2000, 8000), 100_000, (("bf16", True),)
    ),
}


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

SETTINGS_OF = {"gmlp-half": "gmlp", "gmlp-double": "gmlp"}
"""Models that take another's learning rate and multiplier: the same model, less or more deep."""

TASKS = {"repeated": "the repeated word", "single": "one sentence", "pair": "two sentences"}


@dataclass(frozen=True)
class Judgement:
    """
    What differences say of a claim, which is that they are between two thresholds.

    Attributes:
        mean: Of the differences.
        margin: Half of the confidence interval around it; NaN of a single one.
        above, below: The thresholds.
        verdict: HELD, NOT_HELD, NOISE, ONE_SEED or DIVERGED.
    """

    mean: float
    margin: float
    above: float
    below: float
    verdict: str


def judge(
    differences: Sequence[float], above: float = 0.0, below: float = math.inf, *, sampling_variance: float = 0.0
) -> Judgement:
    """
    Whether differences, one per seed, are between two thresholds: held if their confidence interval lies between them,
    not held if it lies outside, else within noise.

    Args:
        differences: Better minus worse, as the claim has it.
        above, below: The thresholds; "better" is above zero, "near" between two of both signs.
        sampling_variance: Of what the seeds share and the interval covers too: the choice of validation samples.
    """
    mean, margin = _interval(differences, sampling_variance)
    low, high = mean - margin, mean + margin
    if not math.isfinite(mean):
        verdict = DIVERGED
    elif math.isnan(margin):
        verdict = ONE_SEED
    else:
        verdict = HELD if above < low and high < below else NOT_HELD if high < above or below < low else NOISE
    return Judgement(mean, margin, above, below, verdict)


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a claim of several parts: held if all are, not held if one is not, else what keeps it open."""
    for verdict in (NOT_HELD, DIVERGED, UNLEARNED, NO_ATTENTION, GUESSED, ONE_SEED, NOISE):
        if verdict in verdicts:
            return verdict
    return HELD


def judge_paired(better: np.ndarray, worse: np.ndarray) -> Judgement:
    """
    Whether one classifier is right more often than another on the same samples. The interval covers both choices, of
    the seeds and of the validation samples: the variance of the mean difference over the one plus that over the other.

    Args:
        better, worse: [seeds, samples], whether each was classified rightly.
    """
    differences = better.astype(float) - worse.astype(float)
    variance = differences.mean(axis=0).var(ddof=1) / differences.shape[1]
    return judge(differences.mean(axis=1).tolist(), sampling_variance=float(variance))


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
    """
    A claim, or a part of one, with what was measured.

    Attributes:
        claim, paper: In words, and what the paper prints.
        judgement: The difference with its interval; none of a claim of several parts.
        verdict: That of the judgement, or UNLEARNED, NO_ATTENTION or GUESSED where a gate is closed.
        models: Names of the models compared, of two the one that should be ahead first.
    """

    claim: str
    paper: str
    judgement: Judgement | None
    verdict: str
    models: tuple[str, ...] = ()


def choose(losses: Mapping[tuple[float, float], float]) -> tuple[float, float]:
    """
    The learning rate and the multiplier with the least development loss; of equal ones the smaller multiplier.

    Raises:
        ValueError: If every training diverged.
    """
    finite = {setting: loss for setting, loss in losses.items() if math.isfinite(loss)}
    if not finite:
        raise ValueError("every training diverged")
    return min(finite, key=lambda setting: (finite[setting], setting[1], setting[0]))


def pretraining_findings(losses: dict[str, list[float]], unigram: float) -> list[Finding]:
    """
    The claims about pretraining (paper, sections 4 to 4.2), as far as their models are there.

    Args:
        losses: For names of `SYSTEMS`, the held-out loss in nats per masked token of each seed, in one order. Two
            models are compared on the seeds that both have.
        unigram: Loss of predicting each token by its frequency.
    """
    findings: list[Finding] = []

    def learned(*names: str) -> bool:
        return all(statistics.fmean(losses[name]) < unigram - LEARNED for name in names)

    def difference(worse: str, better: str) -> list[float]:
        return [b - a for a, b in zip(losses[better], losses[worse])]

    def ahead(claim: str, better: str, worse: str, by: float = 0.0) -> list[str]:
        """The verdict, in a list, on one model being ahead of another; none without the models."""
        if not {better, worse} <= losses.keys():
            return []
        judgement = judge(difference(worse, better), by)
        verdict = judgement.verdict if learned(better, worse) or judgement.verdict == DIVERGED else UNLEARNED
        first, second = SYSTEMS[worse].perplexity, SYSTEMS[better].perplexity
        paper = f"log({first} / {second}) = {math.log(first / second):+.4f}"
        findings.append(Finding(claim, paper, judgement, verdict, (better, worse)))
        return [verdict]

    def whole(claim: str, count: int, verdicts: list[str]):
        """The verdict on a claim of several parts, if all of them are there."""
        if len(verdicts) == count:
            findings.append(Finding(f"**{claim}**", "yes", None, together(verdicts)))

    ladder = {"gmlp": "split", "gmlp-multiplicative": "multiplicative", "gmlp-additive": "additive"}
    ladder["gmlp-linear"] = "linear"
    parts = []
    for better, worse in itertools.pairwise(ladder):
        parts += ahead(f"Perplexity of {ladder[better]} below {ladder[worse]}", better, worse)
    whole("Split < multiplicative < additive < linear", 3, parts)

    names = ("gmlp", "bert-relpos", "bert-noattn")
    if {*names} <= losses.keys():
        (lead,) = ahead("Attention helps BERT", "bert-relpos", "bert-noattn")
        within = max(0.0, statistics.fmean(difference("bert-noattn", "bert-relpos")) / 2)
        near = judge(difference("gmlp", "bert-relpos"), -within, within)
        verdict = near.verdict if learned(*names) else UNLEARNED
        if verdict != UNLEARNED and lead != HELD:
            verdict = NO_ATTENTION
        findings.append(
            Finding(
                "**gMLP near BERT**: gMLP less BERT is within half of what attention gives BERT",
                f"log(4.35 / 4.26) = {NEUTRAL:+.4f}, within ± {math.log(5.64 / 4.26) / 2:.4f}",
                near,
                verdict,
                names,
            )
        )
    parts = []
    for other in ("bert-noattn", "mixer"):
        parts += ahead(f"gMLP far ahead of {SYSTEMS[other].title}", "gmlp", other, FAR)
    whole("gMLP far ahead of attention-free BERT and Mixer", 2, parts)
    parts = ahead("Depth 0.5x to 1x lowers the perplexity", "gmlp", "gmlp-half")
    parts += ahead("Depth 1x to 2x lowers the perplexity", "gmlp-double", "gmlp")
    whole("Depth 0.5x, 1x, 2x improves", 2, parts)
    return findings


def too_wide(findings: Sequence[Finding]) -> set[str]:
    """The models of claims that more seeds may decide."""
    wide = (one for one in findings if one.verdict == NOISE and one.judgement and one.judgement.margin > WIDE)
    return {name for one in wide for name in one.models}


def toeplitz_findings(
    shares: Mapping[int, Sequence[float]],
    dense: Mapping[int, Sequence[float]],
    toeplitz: Mapping[int, Sequence[float]],
    unigram: float,
) -> list[Finding]:
    """
    The claims about W without the prior (paper, section 2 and Appendix C).

    Args:
        shares: For each length of training in steps, and for each seed, the Toeplitz share of W less its mean, averaged
            over the blocks.
        dense, toeplitz: Likewise the held-out losses of the model without the prior and of its twin.
        unigram: As in `pretraining_findings`.
    """
    findings = []
    gaps = {steps: [b - a for a, b in zip(toeplitz[steps], dense[steps])] for steps in sorted(dense)}
    for steps, gap in gaps.items():
        learned = max(map(statistics.fmean, (dense[steps], toeplitz[steps]))) < unigram - LEARNED
        claims = (
            ("W near-Toeplitz without being told", "Figure 9, no number", judge(shares[steps], TOEPLITZ)),
            ("The Toeplitz prior is quality-neutral (dense less prior)", "yes", judge(gap, -NEUTRAL, NEUTRAL)),
        )
        for claim, paper, judgement in claims:
            verdict = judgement.verdict if learned else UNLEARNED
            findings.append(Finding(f"**{claim}**, {steps:,} steps", paper, judgement, verdict))
    short, long = list(gaps.values())
    closer = judge([abs(a) - abs(b) for a, b in zip(short, long)])
    findings.append(Finding("Longer training brings both nearer", "not in the paper", closer, closer.verdict))
    return findings


def finetuning_findings(
    right: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
    chosen: Mapping[str, Mapping[str, str]],
    majority: Mapping[str, float],
) -> list[Finding]:
    """
    The claims about fine-tuning (paper, sections 4.2 and 4.3), each model with the pooling that development chose, and
    what the mean gives over [CLS]. There is no verdict on a task where neither model is ahead of the commonest label by
    two standard errors.

    Args:
        right: For tasks ("single", "pair", "repeated"), names of `FINETUNED` and poolings: [seeds, samples], whether
            each validation sample was classified rightly.
        chosen: For tasks and models, the pooling.
        majority: For tasks, the share of the commonest label.
    """
    claims = (
        ("aMLP ahead of gMLP", "amlp", "gmlp", ("repeated", "pair"), "MNLI-m 85.9 against 83.7 (Table 6)"),
        ("BERT ahead of gMLP", "bert-relpos", "gmlp", ("repeated", "pair"), "MNLI-m 83.3 against 80.9 (Table 4)"),
        ("gMLP ahead of BERT", "gmlp", "bert-relpos", ("single",), "SST-2 92.3 against 91.3 (Table 4)"),
    )
    findings = []

    def compare(claim: str, paper: str, task: str, better: np.ndarray, worse: np.ndarray, models: tuple[str, ...]):
        judgement = judge_paired(better, worse)
        share, samples = majority[task], better.shape[1]
        ahead = max(better.mean(), worse.mean()) > share + 2 * math.sqrt(share * (1 - share) / samples)
        verdict = judgement.verdict if ahead else GUESSED
        findings.append(Finding(claim, paper, judgement, verdict, models))

    for words, better, worse, tasks, paper in claims:
        for task in tasks:
            if {better, worse} <= right.get(task, {}).keys():
                first, second = (right[task][name][chosen[task][name]] for name in (better, worse))
                compare(f"**{words} on {TASKS[task]}**", paper, task, first, second, (better, worse))
    for task, models in right.items():
        for name, poolings in models.items():
            if set(POOLINGS) <= poolings.keys():
                claim = f"Mean pooling ahead of [CLS]: {SYSTEMS[name].title}, {TASKS[task]}"
                compare(claim, "not in the paper", task, poolings["mean"], poolings["cls"], (name,))
    return findings
