"""The printed numbers against each other, ours against independent counts, results of runs in their rows."""

import json

import pytest
from transformers import AutoConfig

from hf_gmlp.presets import preset_path
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.run_folder import run_settings
from paper import tables
from paper.__main__ import main
from paper.tables import build_table, paper_table, to_markdown

from .conftest import finished_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cells():
    """(table, row, column) -> number of the paper."""
    found = {}
    for number in range(1, 11):
        for row in paper_table(number).rows:
            found |= {(number, row.name, column): cell.paper for column, cell in row.cells.items()}
    return found


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
    recipe = "config_name: gmlp-base\nlearning_rate: 2.0e-4\nwarmup_steps: 10000\n"
    (tmp_path / "table6" / "a.yaml").write_text(recipe)
    (tmp_path / "table6" / "b.yaml").write_text(recipe + "config_overrides: {hidden_dropout_prob: 0.1}\n")
    filled = build_table(8, folders=[tmp_path])
    cells = {row.name: row.cells["Full Results (Table 5)"] for row in filled.rows}
    names = ("Peak learning rate", "Warmup steps", "Hidden dropout", "Max sequence length")
    assert [str(cells[name]) for name in names] == ["!= 0.0002", "= 10K", "!= 0 or 0.1", ""]
    assert "No recipe for Ablation Studies" in to_markdown(filled)


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
    text = " ".join(to_markdown(build_table(3, [tmp_path])).split())
    assert "4.40 [1]" in text and "of which 5 belong to a row" in text
    assert (
        "[1] Perplexity of gmlp-36l: median of 5 runs (4.20 to 4.50); trained on test_tables.py; 7 steps of 8 samples; "
        f"in {tmp_path / 'seed-0'}, " in text
    )


def test_of_several_settings_the_best_is_shown(tmp_path):
    for rate, perplexities in ((1e-3, (5.0, 6.0)), (1e-4, (4.9, 5.2)), (1e-5, (3.0, float("nan")))):
        for seed, perplexity in enumerate(perplexities):
            mlm_run(tmp_path / f"{rate}-{seed}", "gmlp-18l", perplexity, seed, learning_rate=rate)
    filled = build_table(4, [tmp_path]).rows[1]
    assert filled.cells["Perplexity"].here == "5.05" and "the best of 3 settings" in filled.notes[0]


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 35}, {"toeplitz": False}, {"attention_size": 64}, {"max_position_embeddings": 256}],
)  # fmt: skip
def test_another_architecture_is_no_row(tmp_path, changes):
    mlm_run(tmp_path / "a", "gmlp-36l", 4.0, config=preset("gmlp-36l", **changes))
    filled = build_table(3, [tmp_path])
    assert not any(row.cells["Perplexity"].here for row in filled.rows)
    assert filled.notes[-1] == "Finished runs: 1, of which 0 belong to a row."


def test_bert_belongs_to_the_table_of_its_sequence_length(tmp_path):
    mlm_run(tmp_path / "short", "bert-base", 4.4, max_seq_length=128)
    mlm_run(tmp_path / "long", "bert-base", 4.2)
    assert found(3, tmp_path, "BERT-base") == {"Perplexity": "4.40"}
    # Published elsewhere, and trained by the authors: ours is beside the second.
    assert found(6, tmp_path, "BERT-base [2]", "BERT-base (ours)") == [{}, {"Perplexity": "4.20"}]


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


def test_images(tmp_path):
    head, results = "GMLPForImageClassification", {"eval_accuracy": 0.7231}
    finished_run(tmp_path / "ti", preset("gmlp-ti16-224", num_labels=1000), head, results)
    # Not ImageNet, and another resolution.
    finished_run(tmp_path / "s", preset("gmlp-s16-224", num_labels=10), head, results)
    finished_run(tmp_path / "b", preset("gmlp-b16-224", num_labels=1000, image_size=288), head, results)
    assert found(2, tmp_path, "gMLP-Ti (ours)", "gMLP-S (ours)", "gMLP-B (ours)") == [
        {"ImageNet Top-1 (%)": "72.3"},
        {},
        {},
    ]


def test_command(capsys):
    main(["table", "10"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert lines[0].startswith("**Table 10.**") and rows[-1].startswith("| here: bert-96x256 |")
    assert len({row.count("|") for row in rows}) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [(["11"], "no Table 11"), (["3", "--runs", "/nowhere"], "/nowhere"), (["3", "--runs", "{tmp}"], "no finished run")],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["table", *(word.format(tmp=tmp_path) for word in words)])
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
