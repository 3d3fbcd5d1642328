import math

import pytest
from transformers import AutoConfig

from hf_gmlp.presets import preset_path
from hf_gmlp.tools.analysis.counts import paper_parameters
from paper import protocol
from paper.protocol import HELD, MODELS, NOISE, NOT_HELD, SIZES


def paper_losses():
    """Three seeds around the paper's perplexities, with its standard deviation of 0.01."""
    return {
        name: [math.log(model.perplexity + noise) for noise in (0.011, -0.009, 0.0)]
        for name, model in MODELS.items()
        if model.perplexity is not None
    }


def verdicts(losses, unigram=7.0):
    findings = protocol.pretraining_findings(losses, unigram)
    return {finding.claim.split(":")[0].strip("*"): finding.verdict for finding in findings}


@pytest.mark.parametrize("name", MODELS)
def test_the_largest_size_is_the_papers(name):
    model = MODELS[name]
    preset = AutoConfig.from_pretrained(preset_path(model.preset))
    changed = {"max_position_embeddings": 128, "sparse_prediction": True, "toeplitz": False}
    for field, value in model.overrides(SIZES["gpu"]).items():
        assert value == changed.get(field, getattr(preset, field)) or (field, value) == ("max_position_embeddings", 128)


@pytest.mark.parametrize("size", ["tiny", "small", "medium"])
def test_blocks_of_gmlp_and_bert_weigh_the_same_at_every_size(size):
    def blocks(name):
        config = MODELS[name].config(SIZES[size])
        return paper_parameters(config) - (config.vocab_size + config.type_vocab_size) * config.hidden_size

    assert blocks("gmlp") == pytest.approx(blocks("bert-relpos"), rel=0.07)
    # Of Table 3: (112 - 25) / (110 - 25), (92 - 16) / (110 - 25), (96 - 25) / (110 - 25).
    assert blocks("mixer") / blocks("bert-relpos") == pytest.approx(1.02, abs=0.03)
    assert blocks("gmlp-linear") / blocks("bert-relpos") == pytest.approx(0.89, abs=0.06)
    assert blocks("bert-noattn") / blocks("bert-relpos") == pytest.approx(0.83, abs=0.04)


def judge(differences, *thresholds):
    return protocol.judge("", "", differences, *thresholds)


@pytest.mark.parametrize(
    "differences, verdict, near",
    [
        ([0.1, 0.11, 0.09], HELD, NOT_HELD),
        ([-0.1, -0.11, -0.09], NOT_HELD, NOT_HELD),
        ([0.1, 0.3, -0.1], NOISE, NOISE),
        ([0.001, -0.001, 0.0005], NOISE, HELD),
        ([0.1], protocol.ONE_SEED, protocol.ONE_SEED),
        ([0.1, math.nan, 0.1], protocol.DIVERGED, protocol.DIVERGED),
        ([math.inf, 0.1, 0.1], protocol.DIVERGED, protocol.DIVERGED),
    ],
)
def test_judge(differences, verdict, near):
    assert judge(differences).verdict == verdict
    assert judge(differences, -protocol.NEUTRAL, protocol.NEUTRAL).verdict == near
    # The threshold moves the verdict, and not the interval.
    assert judge([difference + 5 for difference in differences], 5.0).verdict == verdict


def test_the_papers_own_numbers_hold():
    found = verdicts(paper_losses())
    assert len(found) == 12 and set(found.values()) == {HELD}


def test_claims_turn_with_the_numbers():
    losses = paper_losses()
    losses["gmlp-additive"], losses["gmlp-linear"] = losses["gmlp-linear"], losses["gmlp-additive"]
    losses["mixer"] = [loss + 0.05 for loss in losses["gmlp"]]
    losses["gmlp-double"] = [loss + shift for loss, shift in zip(losses["gmlp"], (0.1, -0.1, 0.0))]
    found = verdicts(losses)
    assert found["Perplexity of split below multiplicative"] == HELD
    assert found["Perplexity of additive below linear"] == NOT_HELD
    assert found["Split < multiplicative < additive < linear"] == NOT_HELD
    # Ahead, but not far.
    assert found["gMLP far ahead of MLP-Mixer"] == NOT_HELD and found["gMLP far ahead of BERT + rel pos - attn"] == HELD
    assert found["gMLP far ahead of attention-free BERT and Mixer"] == NOT_HELD
    assert found["Depth 0.5x to 1x lowers the perplexity"] == HELD
    assert found["Depth 0.5x, 1x, 2x improves"] == NOISE


def test_gates_keep_verdicts_back():
    losses = paper_losses()
    # Nobody has learned much more than frequencies.
    assert set(verdicts(losses, unigram=losses["gmlp-double"][0] + 0.3).values()) == {protocol.UNLEARNED}
    # One has not: claims about others stand.
    found = verdicts(losses, unigram=math.log(5.5) + 0.5)
    assert found["gMLP far ahead of BERT + rel pos - attn"] == protocol.UNLEARNED
    assert found["gMLP far ahead of MLP-Mixer"] == HELD and found["gMLP near BERT"] == protocol.UNLEARNED
    # A BERT that is no better for its attention is nothing to be near to.
    losses["bert-noattn"] = [loss + shift for loss, shift in zip(losses["bert-relpos"], (0.01, -0.01, 0.0))]
    assert verdicts(losses)["gMLP near BERT"] == protocol.NO_ATTENTION


def test_more_seeds_where_the_interval_is_wide():
    losses = paper_losses()
    assert protocol.too_wide(protocol.pretraining_findings(losses, 7.0)) == set()
    losses["gmlp-double"] = [loss + shift for loss, shift in zip(losses["gmlp"], (0.1, -0.1, 0.0))]
    assert protocol.too_wide(protocol.pretraining_findings(losses, 7.0)) == {"gmlp", "gmlp-double"}


def test_toeplitz_claims():
    toeplitz = {500: [4.00, 4.01, 3.99], 2000: [3.50, 3.51, 3.49]}
    dense = {500: [4.20, 4.22, 4.18], 2000: [3.505, 3.514, 3.496]}
    fractions = {500: [0.3, 0.31, 0.29], 2000: [0.8, 0.81, 0.82]}
    verdict = [finding.verdict for finding in protocol.toeplitz_findings(fractions, dense, toeplitz, 6.0)]
    assert verdict == [NOT_HELD, NOT_HELD, HELD, HELD, HELD]


def test_the_setting_with_the_least_loss_is_chosen():
    losses = {(1e-3, 1): 4.0, (1e-3, 5): 3.5, (2e-3, 5): 3.5, (2e-3, 30): math.nan, (4e-3, 1): math.inf}
    assert protocol.choose(losses) == (1e-3, 5)
