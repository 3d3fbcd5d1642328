"""Many runs in one call: their folders, what they may not be, and their comparison."""

import json
import math

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue.arguments import GlueArguments, SentenceModelArguments
from hf_gmlp.training import series
from hf_gmlp.training.arguments import RunArguments, parse_arguments
from hf_gmlp.training.run_folder import total_batch_size, write_json

TYPES = (SentenceModelArguments, GlueArguments, RunArguments)


def parse(folder, *flags):
    usual = ["--config_name", "gmlp-18l", "--do_train", "--do_eval", "--use_cpu", "--output_dir", folder]
    return parse_arguments(TYPES, "A test.", [*map(str, usual), *map(str, flags)])


def plan(folder, *flags):
    return [run for run, _ in series.plan_runs(*parse(folder, *flags))]


def test_a_run_for_every_setting_and_seed(tmp_path):
    lists = ("--sweep_batch_sizes", 16, 32, "--sweep_learning_rates", 1e-5, 3e-5, "--seeds", 1, 2)
    runs = plan(tmp_path, *lists, "--per_device_train_batch_size", 24)
    assert {
        str(run.output_dir).removeprefix(f"{tmp_path}/"): (total_batch_size(run), run.learning_rate, run.seed)
        for run in runs
    } == {
        f"batch-{batch}-lr-{rate}/seed-{seed}": (batch, float(rate), seed)
        for batch in (16, 32)
        for rate in ("1e-05", "3e-05")
        for seed in (1, 2)
    }


def test_one_run_stays_in_the_output_folder(tmp_path):
    assert [run.output_dir for run in plan(tmp_path)] == [str(tmp_path)]
    (run,) = plan(tmp_path, "--seeds", 7)
    assert run.output_dir == str(tmp_path / "seed-7") and run.seed == 7
    (run,) = plan(tmp_path, "--sweep_learning_rates", 0.5)
    assert run.output_dir == str(tmp_path / "lr-0.5") and run.learning_rate == 0.5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seeds", 1, "--do_eval", "false"), "--do_eval"),
        (("--seeds", 1, "--push_to_hub"), "--push_to_hub"),
        (("--seeds", 1, 1), "1, 1"),
        (("--sweep_batch_sizes", 0), "--sweep_batch_sizes"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path, flags, message):
    with pytest.raises(InputError, match=message):
        plan(tmp_path, *flags)


@pytest.fixture
def finished(tmp_path):
    """The flags of a series whose run of seed 1 is finished."""
    (tmp_path / "a.csv").write_text("a")
    flags = ("--train_file", tmp_path / "a.csv")
    (_, settings), _ = series.plan_runs(*parse(tmp_path, "--seeds", 1, 2, *flags))
    (tmp_path / "seed-1").mkdir()
    write_json(tmp_path / "seed-1" / "settings.json", settings)
    write_json(tmp_path / "seed-1" / "all_results.json", {})
    return flags


def test_seeds_may_be_added(finished, tmp_path):
    # How it is computed does not matter.
    assert len(plan(tmp_path, "--seeds", 1, 2, 3, *finished, "--preprocessing_num_workers", 2)) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_file", "b.csv"),
        ("learning_rate", 1),
        ("global_batch_size", 16),
        ("config_overrides", "hidden_size=8"),
    ],
)
def test_runs_of_other_flags_are_not_taken_over(finished, tmp_path, name, value):
    (tmp_path / "b.csv").write_text("b")
    value = tmp_path / value if str(value).endswith(".csv") else value
    with pytest.raises(InputError, match=f"seed-1 .*{name}"):
        plan(tmp_path, "--seeds", 1, *finished, f"--{name}", value)


ACCURACIES = {1e-5: [0.9, 0.5, 0.8, 0.6], 2e-5: [0.7, 0.99, 0.1, 0.6]}


@pytest.fixture
def runs(tmp_path):
    runs = plan(tmp_path, "--sweep_learning_rates", 1e-5, 2e-5, "--seeds", 1, 2, 3, 4)
    for run in runs:
        folder = tmp_path / f"lr-{run.learning_rate:g}" / f"seed-{run.seed}"
        folder.mkdir(parents=True)
        accuracy = ACCURACIES[run.learning_rate][run.seed - 1]
        results = {"train_loss": 1, "eval_accuracy": accuracy, "eval_loss": 2 - accuracy, "eval_runtime": 3.0}
        write_json(folder / "all_results.json", results)
    return runs


def test_summary_is_the_median_of_the_seeds(runs, tmp_path, capsys):
    rows = series.summarize(runs)
    for row in rows:
        values = ACCURACIES[row["learning_rate"]]
        assert row["seeds"] == [1, 2, 3, 4] and list(row["metrics"]) == ["eval_accuracy", "eval_loss"]
        assert row["folder"] == str(tmp_path / f"lr-{row['learning_rate']:g}")
        assert row["metrics"]["eval_accuracy"] == series.spread(values)
    # The greatest single accuracy is in the other row.
    _, _, args = parse(tmp_path)
    assert series.report_series(args, rows, "eval_accuracy") is rows[0]
    assert "* batch 8, learning rate 1e-05, 4 runs, eval_accuracy 0.7000 (0.5000 to" in capsys.readouterr().out
    content = json.loads((tmp_path / "summary.json").read_text())
    assert content == {"metric": "eval_accuracy", "best": rows[0], "settings": rows}


def test_the_best_has_the_least_loss_and_did_not_diverge(runs, tmp_path):
    rows, (_, _, args) = series.summarize(runs), parse(tmp_path)
    rows[0]["metrics"]["eval_loss"]["median"] = 5.0
    assert series.report_series(args, rows, "eval_loss") is rows[1]
    rows[1]["metrics"]["eval_loss"]["median"] = math.nan
    assert series.report_series(args, rows, "eval_accuracy") is rows[0]


def test_the_metric_that_decides(tmp_path):
    keys = ["eval_matched_accuracy", "eval_mismatched_accuracy", "eval_loss"]
    assert series.main_metric(parse(tmp_path)[-1], keys) == "eval_matched_accuracy"
    assert series.main_metric(parse(tmp_path)[-1], []) is None
    chosen = ("--metric_for_best_model", "mismatched_accuracy")
    assert series.main_metric(parse(tmp_path, *chosen)[-1], keys) == "eval_mismatched_accuracy"
    with pytest.raises(InputError, match="eval_matched_accuracy, .*bleu"):
        series.main_metric(parse(tmp_path, "--metric_for_best_model", "bleu")[-1], keys)
