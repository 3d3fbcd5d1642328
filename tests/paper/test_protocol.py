import math

import pytest

from paper import protocol
from paper.protocol import AHEAD, CONTRADICTED, HELD, MODELS, NEAR, NOISE, POWER, Claim


def paper_losses():
    """Return losses of three seeds around the paper's perplexities, with a tenth of its standard deviation of 0.01."""
    return {
        name: [math.log(model.perplexity + noise) for noise in (0.0011, -0.0009, 0.0)]
        for name, model in MODELS.items()
        if model.perplexity is not None
    }


def verdicts(losses, counts=7.0):
    return {finding.name: finding.verdict for finding in protocol.pretraining_findings({1000: losses}, counts)}


# A lead of 0.05 in the paper, without a margin and with one of 0.1.
PLAIN = Claim("ahead", "gmlp", "mixer", accuracies=True, printed=(85.0, 80.0))
FAR = Claim("far ahead", "gmlp", "mixer", 0.1, accuracies=True, printed=(85.0, 80.0))


@pytest.mark.parametrize(
    "leads, verdict, far",
    [
        ([0.2, 0.205, 0.195], HELD, HELD),
        ([0.05, 0.052, 0.048], HELD, CONTRADICTED),
        ([-0.05, -0.052, -0.048], CONTRADICTED, CONTRADICTED),
        # The interval at 95 % for nine claims is 0.036 to 0.193; at 95 % for one, 0.089 to 0.140.
        ([0.1257, 0.1113, 0.1062], HELD, AHEAD),
        # The half-widths are 0.041 and 1.5: one could show a lead of 0.05, and the other could not.
        ([0.005, -0.005, 0.003], NOISE, CONTRADICTED),
        ([0.1, 0.3, -0.1], POWER, POWER),
        ([0.1], POWER, POWER),
        ([0.1, math.nan, 0.1], protocol.DIVERGED, protocol.DIVERGED),
        ([math.inf, 0.1, 0.1], protocol.DIVERGED, protocol.DIVERGED),
    ],
)
def test_judge(leads, verdict, far):
    assert protocol.judge(PLAIN, leads).verdict == verdict
    assert protocol.judge(FAR, leads).verdict == far
    # The margin changes the verdict but not the interval.
    moved = protocol.judge(PLAIN, [lead + 5 for lead in leads], 5.0)
    assert moved.verdict == (AHEAD if verdict in (NOISE, POWER) and len(leads) > 1 else verdict)


@pytest.mark.parametrize(
    "leads, verdict",
    [
        ([0.01, -0.01, 0.0], HELD),
        ([0.2, 0.21, 0.19], CONTRADICTED),
        ([-0.2, -0.21, -0.19], CONTRADICTED),
        ([0.09, 0.1, 0.11], NOISE),
        ([0.3, -0.3, 0.0], POWER),
    ],
)
def test_near_is_judged_on_both_sides(leads, verdict):
    assert protocol.judge(NEAR, leads, margin=0.1).verdict == verdict


def test_the_papers_own_numbers_hold():
    verdict_of = verdicts(paper_losses())
    assert len(verdict_of) == 15 and set(verdict_of.values()) == {HELD}
    accuracies = {"bert-relpos": [0.95, 0.951, 0.949], "gmlp": [0.6, 0.62, 0.61], "amlp": [0.9, 0.92, 0.91]}
    assert [finding.verdict for finding in protocol.task_findings(accuracies)] == [HELD, HELD]
    # A task is inconclusive if BERT fails it, or if both models solve it.
    unsolved = [finding.verdict for finding in protocol.task_findings(accuracies | {"bert-relpos": [0.7, 0.75, 0.8]})]
    assert unsolved == [protocol.UNSOLVED] * 2
    solved = accuracies | {"gmlp": [0.98, 0.98, 0.98], "amlp": [0.99, 1.0, 0.99]}
    assert [finding.verdict for finding in protocol.task_findings(solved)] == [CONTRADICTED, protocol.CEILING]


def test_verdicts_change_with_the_numbers():
    losses = paper_losses()
    losses["gmlp-additive"], losses["gmlp-linear"] = losses["gmlp-linear"], losses["gmlp-additive"]
    losses["mixer"] = [loss + 0.05 for loss in losses["gmlp"]]
    losses["gmlp-double"] = [loss + shift for loss, shift in zip(losses["gmlp"], (0.1, -0.1, 0.0))]
    verdict_of = verdicts(losses)
    assert verdict_of["Split ahead of multiplicative"] == verdict_of[protocol.SPLIT] == HELD
    assert verdict_of["Additive ahead of linear"] == verdict_of[protocol.ORDER] == CONTRADICTED
    # Ahead, but not far.
    assert verdict_of["gMLP far ahead of the Mixer"] == verdict_of[protocol.WITHOUT_ATTENTION] == CONTRADICTED
    assert verdict_of["gMLP far ahead of BERT without attention"] == HELD
    assert verdict_of["Full depth ahead of half the depth"] == HELD and verdict_of[protocol.DEPTH] == POWER


def test_claims_are_judged_at_the_largest_number_of_common_steps():
    losses = paper_losses()
    longer = {name: [loss - 0.5 for loss in losses[name]] for name in ("gmlp", "bert-noattn")}
    longer["bert-noattn"] = longer["gmlp"]
    findings = {finding.name: finding for finding in protocol.pretraining_findings({10: losses, 20: longer}, 7.0)}
    bert, mixer = (findings[f"gMLP far ahead of {name}"] for name in ("BERT without attention", "the Mixer"))
    assert (bert.steps, bert.lead, bert.verdict) == (20, 0.0, CONTRADICTED)
    assert (mixer.steps, mixer.verdict) == (10, HELD)
    assert findings["Attention helps BERT"].lead == pytest.approx(math.log(5.64 / 4.26), abs=0.01)


def test_gates_keep_verdicts_back():
    losses = paper_losses()
    # No model is ahead of the count model.
    assert set(verdicts(losses, counts=losses["gmlp-double"][0] - 0.3).values()) == {protocol.UNLEARNED}
    # If only one model is behind it, claims about the others keep their verdicts.
    verdict_of = verdicts(losses, counts=math.log(5.5))
    assert verdict_of["gMLP far ahead of BERT without attention"] == protocol.UNLEARNED
    assert verdict_of["gMLP far ahead of the Mixer"] == HELD and verdict_of[NEAR.text] == protocol.UNLEARNED
    # If attention does not improve BERT, nearness to it has no verdict.
    losses["bert-noattn"] = [loss + shift for loss, shift in zip(losses["bert-relpos"], (0.01, -0.01, 0.0))]
    assert verdicts(losses)[NEAR.text] == protocol.NO_ATTENTION


def test_the_fall_of_a_loss():
    curve = [[step, 5 - step / 1000 if step < 800 else 4 - step / 10_000] for step in range(10, 1001, 10)]
    # 100 steps of 1e-4 each.
    assert protocol.fall(curve) == pytest.approx(0.01)
    assert math.isnan(protocol.fall([[10, math.inf]]))


def bowl(setting):
    """Return a loss with its minimum at 0.016 and 0.2; one setting diverges."""
    rate, multiplier = setting
    if rate > 0.05:
        return math.inf
    return abs(math.log(rate / 0.016)) + 0.1 * abs(math.log(multiplier / 0.2))


def test_search_extends_until_the_best_setting_is_inside():
    losses = {}
    rounds = 0
    while settings := protocol.next_settings(losses, (2e-3, 5.0)):
        assert not {*settings} & losses.keys()
        losses |= {setting: bowl(setting) for setting in settings}
        rounds += 1
    assert protocol.choose(losses) == (0.016, 0.2) and {*protocol.neighbors((0.016, 0.2))} <= losses.keys()
    assert 3 < rounds < 8 and len(losses) < 20
    # A longer search starts from the best setting of the shorter one.
    assert len(protocol.next_settings({}, (0.016, 0.2))) == 5
    # Ties go to the smaller multiplier.
    assert protocol.choose({(1e-3, 25): 3.5, (2e-3, 5): 3.5, (2e-3, 30): math.nan, (4e-3, 1): math.inf}) == (2e-3, 5)
