"""The printed numbers against the text of the paper, ours against independent counts, results of runs in their rows."""

import json
import re
import sys

import pytest
import tables
from tables import build_table, paper_table, table
from transformers import AutoConfig, ViTConfig

from hf_gmlp.presets import PRESETS, preset_path
from hf_gmlp.tasks.glue.arguments import GlueArguments
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.tools.cli import main
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.run_folder import run_settings

from .conftest import finished_run

pytestmark = pytest.mark.slow

# The lines of the tables in the text of the paper (arXiv:2105.08050), without what PDF makes of formulas. Tables 7 to 9
# print once what neighboring columns share.
PAPER = {
    1: """
gMLP-Ti 30 128 768 5.9 2.7 1.00
gMLP-S 30 256 1536 19.5 8.9 0.95
gMLP-B 30 512 3072 73.4 31.6 0.80
""",
    2: """
ResNet-152 [16] 78.3 224 60 11.3
RegNetY-8GF [39] 81.7 224 39 8.0
EfficientNet-B0 [17] 77.1 224 5 0.39
EfficientNet-B3 [17] 81.6 300 12 1.8
EfficientNet-B7 [17] 84.3 600 66 37.0
NFNet-F0 [33] 83.6 192 72 12.4
ViT-B/16 [7] 77.9 384 86 55.4
ViT-L/16 [7] 76.5 384 307 190.7
DeiT-Ti [8] (ViT+reg) 72.2 224 5 1.3
DeiT-S [8] (ViT+reg) 79.8 224 22 4.6
DeiT-B [8] (ViT+reg) 81.8 224 86 17.5
Mixer-B/16 [20] 76.4 224 59 12.7
Mixer-B/16 (our setup) 77.3 224 59 12.7
Mixer-L/16 [20] 71.8 224 207 44.8
ResMLP-12 [22] 76.6 224 15 3.0
ResMLP-24 [22] 79.4 224 30 6.0
ResMLP-36 [22] 79.7 224 45 8.9
gMLP-Ti (ours) 72.3 224 6 1.4
gMLP-S (ours) 79.6 224 20 4.5
gMLP-B (ours) 81.6 224 73 15.8
""",
    3: """
BERTbase 4.37 110
BERTbase + rel pos 4.26 110
BERTbase + rel pos - attn 5.64 96
MLP-Mixer 5.34 112
Linear gMLP 5.14 92
Additive gMLP 4.97 92
Multiplicative gMLP 4.53 92
Multiplicative, Split gMLP 4.35 102
""",
    4: """
Transformer 6+6 67 4.91 90.4 81.5
gMLP 18 59 5.25 91.2 77.7
Transformer 12+12 110 4.26 91.3 83.3
gMLP 36 102 4.35 92.3 80.9
Transformer 24+24 195 3.83 92.1 85.2
gMLP 72 187 3.79 93.5 82.8
Transformer 48+48 365 3.47 92.8 86.3
gMLP 144 357 3.43 95.1 84.6
""",
    5: """
BERTbase 110 100.8 12+12 768 3072
gMLPbase 130 158.0 48 512 3072
aMLPbase 109 128.9 36 512 3072
BERTlarge 336 341.2 24+24 1024 4096
gMLPlarge 365 430.1 96 768 3072
aMLPlarge 316 370.3 72 768 3072
gMLPxlarge 941 1091.3 144 1024 4096
""",
    6: """
BERTbase [2] 92.7 84.4/- 88.5 76.3 768 (64 x 12) 110
BERTbase (ours) 4.17 93.8 85.6/85.7 90.2 78.6 768 (64 x 12) 110
gMLPbase 4.28 94.2 83.7/84.1 86.7 70.1 130
aMLPbase 3.95 93.4 85.9/85.8 90.7 80.9 64 109
BERTlarge [2] 93.7 86.6/- 90.9 81.8 1024 (64 x 16) 336
BERTlarge (ours) 3.35 94.3 87.0/87.4 92.0 81.0 1024 (64 x 16) 336
gMLPlarge 3.32 94.8 86.2/86.5 89.5 78.3 365
aMLPlarge 3.19 94.8 88.4/88.4 92.2 85.4 128 316
gMLPxlarge 2.89 95.6 87.7/87.7 90.9 82.1 941
""",
    7: """
Stochastic depth survival prob 1.00 0.95 0.80 0.95
Data augmentation AutoAugment
Repeated Augmentation off
Input resolution 224
Epochs 300
Batch size 4096
Warmup steps 10K
Hidden dropout 0
GeLU dropout 0
Attention dropout (if applicable) 0
Classification dropout 0
Random erasing prob 0
EMA decay 0
Cutmix alpha 1.0
Mixup alpha 0.8
Cutmix-Mixup switch prob 0.5
Label smoothing 0.1
Peak learning rate 1e-3
Learning rate decay cosine
Optimizer AdamW
Adam eps 1e-6
Adam (beta1, beta2) (0.9, 0.999)
Weight decay 0.05
Gradient clipping 1.0
""",
    8: """
Data C4/RealNews C4/English
Max sequence length 128 512
Batch size 2048 256
Peak learning rate 7e-4 1e-4
Number of steps 125K 1M
Warmup steps 10K
Hidden dropout 0
GeLU dropout 0
Attention dropout (if applicable) 0
Learning rate decay Linear
Optimizer AdamW
Adam eps 1e-6
Adam (beta1, beta2) (0.9, 0.999)
Weight decay 0.01
Gradient clipping 0
""",
    9: """
Max sequence length 128 512
Batch size {16, 32} 32
Peak learning rate {1e-5, 2e-5, 3e-5} 5e-5
Number of steps/epochs 5 epochs 8K
Warmup steps/portion 10% 1K
Hidden dropout 0.1
GeLU dropout 0
Attention dropout (if applicable) 0.1
Learning rate decay Linear
Optimizer AdamW
Adam eps 1e-6
Adam (beta1, beta2) (0.9, 0.999)
Weight decay 0.01
Gradient clipping 0
""",
    10: """
4.83 12+12 768 12 110
5.08 24+24 512 8 92
4.99 48+48 384 12 98
5.30 96+96 256 8 84
""",
}


@pytest.fixture(scope="module")
def cells():
    """(table, row, column) -> number of the paper."""
    found = {}
    for number in range(1, 11):
        for row in paper_table(number).rows:
            found |= {(number, row.name, column): cell.paper for column, cell in row.cells.items()}
    return found


@pytest.mark.parametrize("number", PAPER)
def test_every_number_is_the_papers(number):
    lines = PAPER[number].strip().splitlines()
    rows = paper_table(number).rows
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines):
        values = [cell.paper for cell in row.cells.values() if cell.paper]
        if number in (7, 8, 9):
            values = [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
            assert line == f"{row.name} {' '.join(values)}"
            continue
        if number == 6:
            at = list(row.cells).index("MNLI-m") - (row.cells["Perplexity"].paper == "")
            values[at : at + 2] = ["/".join(values[at : at + 2])]
        name, numbers = line[: -len(" ".join(values))], line[-len(" ".join(values)) :]
        assert numbers == " ".join(values)
        # The lines are in one order, and formulas stand behind the names.
        name = name.strip().replace("base", "-base").replace("large", "-large").replace("-xlarge", "xlarge")
        assert row.name.startswith(name.replace("gMLPx-large", "gMLP-xlarge"))


def test_numbers_that_the_text_repeats(cells):
    def number(table, row, column):
        return float(cells[table, row, column])

    # The introduction: MLP-Mixer, "66% less parameters", "3% more accurate".
    mixer, small = "Mixer-B/16 [20]", "gMLP-S (ours)"
    assert round(1 - number(2, small, "Params (M)") / number(2, mixer, "Params (M)"), 2) == 0.66
    assert round(number(2, small, "ImageNet Top-1 (%)") - number(2, mixer, "ImageNet Top-1 (%)")) == 3
    # "87.7% accuracy on MNLI and 82.1% F1 on SQuAD v2.0"; "0.8% on MNLI-m in the 300M-param regime"; "+4.4%".
    assert (cells[6, "gMLP-xlarge", "MNLI-m"], cells[6, "gMLP-xlarge", "SQuAD v2.0"]) == ("87.7", "82.1")
    differences = {
        ("MNLI-m", "BERT-large (ours)", "gMLP-large"): 0.8,
        ("SQuAD v2.0", "aMLP-large", "BERT-large (ours)"): 4.4,
        # Section 4.4.
        ("SQuAD v2.0", "BERT-base (ours)", "gMLP-base"): 8.5,
        ("SQuAD v2.0", "BERT-large (ours)", "gMLP-large"): 2.7,
        ("SQuAD v1.1", "BERT-large [2]", "gMLP-large"): 1.4,
    }
    for (column, high, low), difference in differences.items():
        assert round(number(6, high, column) - number(6, low, column), 1) == difference
    # Section 4.1.
    assert cells[3, "BERT-base + rel pos", "Perplexity"] == "4.26"
    assert paper_table(3).rows[-1].cells["Perplexity"].paper == "4.35"


def test_tables_agree_with_each_other(cells):
    # FLOPs are twice the multiply-adds, each rounded.
    for size in ("Ti", "S", "B"):
        flops, madds = (float(cells[n, f"gMLP-{size}{ours}", f"{kind} (B)"]) for n, ours, kind in
                        ((1, "", "FLOPs"), (2, " (ours)", "MAdds")))  # fmt: skip
        assert abs(flops / 2 - madds) <= 0.0501
        assert cells[1, f"gMLP-{size}", "Survival Prob"] == cells[7, "Stochastic depth survival prob", f"gMLP-{size}"]
    # One model, one number, in whichever table; and what the presets say of it.
    printed: dict[tuple, set] = {}
    for number in (3, 4, 5, 6, 10):
        for row in paper_table(number).rows:
            printed.setdefault((row.model, "Params (M)"), set()).add(float(row.cells["Params (M)"].paper))
            for column in ("Perplexity", "FLOPs (B)"):
                if column in row.cells and row.cells[column].paper and number in (3, 4, 5):
                    printed.setdefault((row.model, column), set()).add(float(row.cells[column].paper))
    assert all(len(values) == 1 for values in printed.values())
    for (model, column), values in printed.items():
        if column != "Perplexity":
            assert values == {PRESETS[model].parameters if column == "Params (M)" else PRESETS[model].flops}


@pytest.mark.parametrize("number", [1, 3, 4, 10])
def test_sizes_and_counts_come_out(number):
    for row in build_table(number).rows:
        for column, cell in row.cells.items():
            if column in tables.RESULTS:
                assert cell.here == cell.verdict == ""
            elif (row.model, column) == ("bert-base-relpos-noattn", "Params (M)"):
                assert (cell.here, cell.verdict) == ("95.5", "-0.6%")
            elif (row.model, column) == ("gmlp-s16-224", "FLOPs (B)"):
                assert (cell.here, cell.verdict) == ("8.84", "-0.7%")
            else:
                assert cell.verdict == "=", (row.name, column, cell)


def test_counts_of_models_that_only_timm_has():
    timm = pytest.importorskip("timm")
    row = next(row for row in build_table(2).rows if row.name.startswith("ResMLP-12"))
    model = timm.create_model("resmlp_12_224")
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert row.cells["Params (M)"].here == f"{millions:.1f}"
    # By hand: a linear layer over 196 tokens and two over 384 channels in each of 12 blocks; stem and classifier.
    madds = 12 * (196 * 196 * 384 + 2 * 196 * 384 * 1536) + 196 * 768 * 384 + 384 * 1000
    assert row.cells["MAdds (B)"].here == f"{madds / 1e9:.2f}"


def test_without_timm_its_models_stay_empty(monkeypatch):
    # Uncached; None is what is not installed.
    monkeypatch.setattr(tables, "timm_counts", tables.timm_counts.__wrapped__)
    monkeypatch.setitem(sys.modules, "timm", None)
    filled = build_table(2)
    assert filled.rows[0].cells["Params (M)"].here == "" and "pip install timm" in filled.notes[-1]
    assert filled.rows[-1].cells["Params (M)"].verdict == "="


@pytest.mark.parametrize("number", [7, 8, 9])
def test_recipes_hold_the_papers_hyperparameters(number):
    filled = build_table(number)
    for row in filled.rows:
        for column, cell in row.cells.items():
            if any(f"No recipe for {column}" in note for note in filled.notes):
                assert cell.here == ""
            elif cell.here:
                assert (cell.verdict, cell.here) == ("=", cell.paper), (row.name, column)
            else:
                # A model that lacks it says nothing of it.
                assert number == 7 and column == "Mixer-B"
    if number != 7:
        assert all(cell.here for row in filled.rows for cell in row.cells.values())


def test_a_recipe_that_differs_shows(tmp_path):
    (tmp_path / "table6").mkdir()
    recipe = "config_name: gmlp-base\nlearning_rate: 2.0e-4\nwarmup_steps: 10000\nadam_beta2: 0.98\n"
    (tmp_path / "table6" / "a.yaml").write_text(recipe + "optim: adafactor\n")
    (tmp_path / "table6" / "b.yaml").write_text(
        recipe + "config_overrides: {hidden_dropout_prob: 0.1}\nmax_steps: 1000000\n"
    )
    shown = {row.name: row.cells["Full Results (Table 5)"] for row in build_table(8, recipes=tmp_path).rows}
    expected = {
        "Peak learning rate": ("!=", "0.0002"),
        "Warmup steps": ("=", "10K"),
        "Hidden dropout": ("!=", "0 or 0.1"),
        "Number of steps": ("!=", "-1 or 1e+06"),
        "Optimizer": ("!=", "adafactor or AdamW"),
        "Adam (beta1, beta2)": ("!=", "{0.9, 0.98}"),
        "Max sequence length": ("", ""),
    }
    assert {name: (shown[name].verdict, shown[name].here) for name in expected} == expected
    assert "No recipe for Ablation Studies" in table(8, recipes=tmp_path)


# Runs.


def preset(name: str, **changes):
    return AutoConfig.from_pretrained(preset_path(name), **changes)


def mlm_run(folder, name, perplexity, seed=0, config=None, **settings):
    """With the settings that run_mlm.py itself would note."""
    flags = {"config_name": name, "train_file": __file__, "do_train": True, "seed": seed, **settings}
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    types = (ModelArguments, MLMArguments, RunArguments)
    finished_run(folder, config or preset(name), "GMLPForMaskedLM", {"eval_perplexity": perplexity}, steps=7)
    arguments = parse_arguments(types, "", [*words, "--use_cpu", "--output_dir", str(folder)])
    (folder / "settings.json").write_text(json.dumps(run_settings(*arguments)))


def found(number, folder, *names):
    """Column -> what was filled in, for the row of a model; or of several, by name."""
    rows = {row.name: row for row in build_table(number, [folder]).rows}
    filled = [
        {c: cell.here for c, cell in rows[name].cells.items() if c in tables.RESULTS and cell.here} for name in names
    ]
    return filled[0] if len(filled) == 1 else filled


def test_seeds_give_a_median_with_its_spread(tmp_path):
    for seed, perplexity in enumerate((4.5, 4.30, 4.404, 4.45, 4.2)):
        mlm_run(tmp_path / f"seed-{seed}", "gmlp-36l", perplexity, seed)
    row = build_table(3, [tmp_path]).rows[-1]
    assert row.cells["Perplexity"].here == "4.40"
    # The same model is in Table 4, and in no other row.
    for number in (3, 4):
        here = [row.model for row in build_table(number, [tmp_path]).rows if row.cells["Perplexity"].here]
        assert here == ["gmlp-36l"]
    text = " ".join(table(3, [tmp_path]).split())
    assert "4.40 [1]" in text and "of which 5 belong to a row" in text
    assert (
        "[1] Perplexity of gmlp-36l: median of 5 runs (4.20 to 4.50); trained on test_tables.py; 7 steps of 8 samples; "
        f"seed-0, seed-1, seed-2, seed-3, seed-4 in {tmp_path}." in text
    )


def test_of_several_settings_the_best_is_shown(tmp_path):
    for rate, perplexities in ((1e-3, (5.0, 6.0)), (1e-4, (4.9, 5.2)), (1e-5, (3.0, float("nan")))):
        for seed, perplexity in enumerate(perplexities):
            mlm_run(tmp_path / f"{rate}-{seed}", "gmlp-18l", perplexity, seed, learning_rate=rate)
    filled = build_table(4, [tmp_path]).rows[1]
    assert filled.cells["Perplexity"].here == "5.05" and "the best of 3 settings" in filled.notes[0]


def test_a_vocabulary_of_ones_own_is_said(tmp_path):
    mlm_run(tmp_path / "a", "gmlp-18l", 40.0, config=preset("gmlp-18l", vocab_size=8000))
    assert "8,000 tokens in the vocabulary instead of 32,000" in build_table(4, [tmp_path]).rows[1].notes[0]


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 35}, {"toeplitz": False}, {"attention_size": 64}, {"spatial_gating": "additive"},
     {"intermediate_size": 2048}, {"max_position_embeddings": 256}, {"hidden_size": 768}],
)  # fmt: skip
def test_another_architecture_is_no_row(tmp_path, changes):
    mlm_run(tmp_path / "a", "gmlp-36l", 4.0, config=preset("gmlp-36l", **changes))
    filled = build_table(3, [tmp_path])
    assert not any(row.cells["Perplexity"].here for row in filled.rows)
    assert filled.notes[-1] == "Finished runs: 1, of which 0 belong to a row."


def test_dropout_and_padding_are_no_architecture(tmp_path):
    mlm_run(tmp_path / "a", "gmlp-36l", 4.0, config=preset("gmlp-36l", hidden_dropout_prob=0.1, mask_padding=False))
    assert build_table(3, [tmp_path]).rows[-1].cells["Perplexity"].here == "4.00"


def test_bert_belongs_to_the_table_of_its_sequence_length(tmp_path):
    mlm_run(tmp_path / "short", "bert-base", 4.4, max_seq_length=128)
    mlm_run(tmp_path / "long", "bert-base", 4.2)
    assert found(3, tmp_path, "BERT-base") == {"Perplexity": "4.40"}
    # Published elsewhere, and trained by the authors: ours is beside the second.
    assert found(6, tmp_path, "BERT-base [2]", "BERT-base (ours)") == [{}, {"Perplexity": "4.20"}]
    assert build_table(10, [tmp_path]).rows[0].cells["Perplexity"].here == "4.40"


def test_fine_tuning_is_told_by_its_task(tmp_path):
    def fine_tuned(name, head, results, **settings):
        config = preset("amlp-base", num_labels=3)
        finished_run(tmp_path / name, config, f"GMLPFor{head}", results, settings={"seed": 1, **settings})

    classifier = "SequenceClassification"
    for seed, accuracy in ((1, 0.93), (2, 0.95), (3, 0.94)):
        fine_tuned(f"sst2/seed-{seed}", classifier, {"eval_accuracy": accuracy}, task_name="sst2", seed=seed)
    fine_tuned("rte", classifier, {"eval_accuracy": 0.99}, task_name="rte")
    fine_tuned("own", classifier, {"eval_accuracy": 0.98})
    fine_tuned("mnli", classifier, {"eval_matched_accuracy": 0.8524, "eval_mismatched_accuracy": 0.8561})
    fine_tuned("squad1", "QuestionAnswering", {"eval_f1": 90.04, "eval_exact_match": 80.0})
    fine_tuned("squad2", "QuestionAnswering", {"eval_f1": 80.06, "eval_HasAns_f1": 81.0})
    assert found(6, tmp_path, "aMLP-base") == {
        "SST-2": "94.0", "MNLI-m": "85.2", "MNLI-mm": "85.6", "SQuAD v1.1": "90.0", "SQuAD v2.0": "80.1",
    }  # fmt: skip
    assert "Finished runs: 8, of which 6 belong to a row." in build_table(6, [tmp_path]).notes
    # Every number has a mark of its own.
    marks = re.findall(r"\[(\d)\] \w+", table(6, [tmp_path]))
    assert sorted(marks) == list("12345")


def test_the_settings_of_a_single_run_name_its_task(tmp_path):
    flags = [
        "--config_name",
        "gmlp-18l",
        "--task_name",
        "sst2",
        "--do_train",
        "--use_cpu",
        "--output_dir",
        str(tmp_path / "a"),
    ]
    finished_run(tmp_path / "a", preset("gmlp-18l"), "GMLPForSequenceClassification", {"eval_accuracy": 0.5})
    settings = run_settings(*parse_arguments((ModelArguments, GlueArguments, RunArguments), "", flags))
    (tmp_path / "a" / "settings.json").write_text(json.dumps(settings))
    assert build_table(4, [tmp_path]).rows[1].cells["SST-2"].here == "50.0"


def test_images(tmp_path):
    head = "GMLPForImageClassification"
    results = {"eval_accuracy": 0.7231, "eval_top5_accuracy": 0.9}
    finished_run(tmp_path / "ti", preset("gmlp-ti16-224", num_labels=1000), head, results)
    # Not ImageNet, another resolution, another pooling.
    finished_run(tmp_path / "s", preset("gmlp-s16-224", num_labels=10), head, results)
    finished_run(tmp_path / "b", preset("gmlp-b16-224", num_labels=1000, image_size=288), head, results)
    finished_run(tmp_path / "m", preset("gmlp-b16-224", num_labels=1000, pooling="mean"), head, results)
    vit = ViTConfig(image_size=224, num_labels=1000)
    finished_run(tmp_path / "vit", vit, "ViTForImageClassification", {"eval_accuracy": 0.81})
    filled = {row.name: row.cells["ImageNet Top-1 (%)"].here for row in build_table(2, [tmp_path]).rows}
    assert {name: here for name, here in filled.items() if here} == {
        "gMLP-Ti (ours)": "72.3",
        "DeiT-B [8] (ViT+reg)": "81.0",
    }


def test_runs_of_timms_models(tmp_path):
    pytest.importorskip("timm")
    from transformers import TimmWrapperConfig

    for name, accuracy in (("mixer_b16_224.goog_in21k_ft_in1k", 0.77), ("deit_tiny_patch16_224", 0.72)):
        config = TimmWrapperConfig(architecture=name.split(".")[0], num_labels=1000)
        finished_run(tmp_path / name, config, "TimmWrapperForImageClassification", {"eval_accuracy": accuracy})
    filled = {row.name: row.cells["ImageNet Top-1 (%)"].here for row in build_table(2, [tmp_path]).rows}
    assert {name: here for name, here in filled.items() if here} == {
        "Mixer-B/16 (our setup)": "77.0",
        "DeiT-Ti [8] (ViT+reg)": "72.0",
    }


def test_an_unfinished_run_is_no_run(tmp_path):
    mlm_run(tmp_path / "a", "gmlp-36l", 4.0)
    mlm_run(tmp_path / "b", "gmlp-36l", 3.0)
    (tmp_path / "b" / "all_results.json").unlink()
    row = build_table(3, [tmp_path, tmp_path / "a"]).rows[-1]
    assert row.cells["Perplexity"].here == "4.00" and ": one run;" in row.notes[0]


def test_a_table_without_results_says_so(tmp_path):
    mlm_run(tmp_path / "a", "gmlp-36l", 4.0)
    assert "Table 1 has no results that runs could fill." in table(1, [tmp_path])


# Text.


@pytest.mark.parametrize("number", range(1, 11))
def test_markdown_is_aligned_and_narrow(number):
    filled = paper_table(number)
    # As wide as it gets: every number there twice, with what is said of it.
    for row in filled.rows:
        for column, cell in row.cells.items():
            cell.here, cell.mark = cell.paper, 99 if column in tables.RESULTS else None
            cell.verdict = "-43.7%" if re.fullmatch(r"[\d.]+", cell.paper) and "(" in column else "="
    lines = tables.to_markdown(filled).splitlines()
    header, rule, *body = [line for line in lines if line.startswith("|")]
    assert len(body) == 2 * len(filled.rows) and set(rule) == set("|- ")
    assert {len(line) for line in body} == {len(header)} and all(len(line) <= 140 for line in lines)
    for line in (rule, *body):
        assert line.count("|") == len(filled.columns) + 2
    first = [cell.strip() for cell in body[0].strip("|").split("|")]
    assert first == [filled.rows[0].name, *(cell.paper for cell in filled.rows[0].cells.values())]


def test_command(tmp_path, capsys):
    main(["table", "10"])
    printed = capsys.readouterr().out
    assert printed.startswith("**Table 10.**") and "| here: bert-96x256 |" in printed
    main(["table", "10", "--output", str(tmp_path / "t.md")])
    assert "Table 10 is in" in capsys.readouterr().out
    assert (tmp_path / "t.md").read_text(encoding="utf-8") == printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["11"], "no Table 11. It has Tables 1 to 10"),
        (["3", "--runs", "/nowhere/at/all"], "/nowhere/at/all"),
        (["3", "--runs", "{tmp}"], "no finished run"),
        (["8", "--recipes", "/nowhere/at/all"], "no folder /nowhere/at/all"),
        (["3", "--output", "/nowhere/at/all.md"], "no folder /nowhere/at"),
        (["3", "--output", "{tmp}"], "already exists"),
    ],
)
def test_bad_input_is_one_sentence(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["table", *(word.format(tmp=tmp_path) for word in words)])
    captured = capsys.readouterr()
    assert stop.value.code == 2 and message in captured.err and "Traceback" not in captured.err and not captured.out
