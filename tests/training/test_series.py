"""Many runs in one call: their folders, what they may not be, and their comparison."""

import json
import math
import statistics

import numpy as np
import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue.arguments import GlueArguments, SentenceModelArguments
from hf_gmlp.training import series
from hf_gmlp.training.arguments import RunArguments, parse_arguments
from hf_gmlp.training.run_folder import total_batch_size, write_text

TYPES = (SentenceModelArguments, GlueArguments, RunArguments)


def parse(folder, *flags):
    usual = ["--config_name", "gmlp-18l", "--do_train", "--do_eval", "--use_cpu", "--output_dir", folder]
    return parse_arguments(TYPES, "A test.", [*map(str, usual), *map(str, flags)])


def plan(folder, *flags):
    return [run for run, _ in series.plan_runs(*parse(folder, *flags))]


def test_a_run_for_every_setting_and_seed(tmp_path):
    lists = ("--sweep_batch_sizes", 16, 32, "--sweep_learning_rates", 1e-5, 3e-5, "--seeds", 1, 2)
    runs = plan(tmp_path, *lists, "--warmup_steps", 0.1, "--per_device_train_batch_size", 24)
    assert [str(run.output_dir).removeprefix(f"{tmp_path}/") for run in runs] == [
        f"batch-{batch}-lr-{rate}/seed-{seed}" for batch in (16, 32) for rate in ("1e-05", "3e-05") for seed in (1, 2)
    ]
    assert [(total_batch_size(run), run.learning_rate, run.seed) for run in runs] == [
        (batch, rate, seed) for batch in (16, 32) for rate in (1e-5, 3e-5) for seed in (1, 2)
    ]
    # 32 = 2 x 16, as 24 does not divide it.
    assert {(run.per_device_train_batch_size, run.gradient_accumulation_steps) for run in runs} == {(16, 1), (16, 2)}
    assert {run.warmup_steps for run in runs} == {0.1}


def test_one_run_stays_in_the_output_folder(tmp_path):
    (run,) = plan(tmp_path)
    assert run.output_dir == str(tmp_path)
    (run,) = plan(tmp_path, "--seeds", 7)
    assert run.output_dir == str(tmp_path / "seed-7") and run.seed == 7


def test_flags_that_do_not_go_together(tmp_path):
    for flags, message in [
        (("--seeds", 1, "--do_eval", "false"), "give --do_train and --do_eval"),
        (("--seeds", 1, "--push_to_hub"), "for a single run"),
        (("--seeds", 1, 1), "names a value twice: 1, 1"),
        (("--sweep_batch_sizes", 0), "--sweep_batch_sizes must be in"),
        (("--max_seq_length", 4), "must be in"),
        (("--max_eval_samples", 0), "--max_eval_samples must be in"),
        (("--text_column_names", "a", "b", "c"), "one or two columns; to join more, give"),
    ]:
        with pytest.raises(InputError, match=message):
            plan(tmp_path, *flags)


def test_runs_of_other_flags_are_not_taken_over(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(name)
    files = [("--train_file", tmp_path / f"{name}.csv") for name in ("a", "b")]
    (_, settings), _ = series.plan_runs(*parse(tmp_path, "--seeds", 1, 2, *files[0]))
    (tmp_path / "seed-1").mkdir()
    write_text(tmp_path / "seed-1" / "settings.json", json.dumps(settings))
    write_text(tmp_path / "seed-1" / "all_results.json", "{}")
    # The same once more, with another seed; how it is computed does not matter.
    assert len(plan(tmp_path, "--seeds", 1, 2, 3, *files[0], "--preprocessing_num_workers", 2)) == 3
    for flags, message in [
        (files[1], "seed-1 .*train_file"),
        ((*files[0], "--validation_file", tmp_path / "b.csv"), "validation_file"),
        ((*files[0], "--learning_rate", 1), "learning_rate"),
        ((*files[0], "--gradient_accumulation_steps", 2), "global_batch_size"),
        ((*files[0], "--config_overrides", "hidden_size=8"), "config_overrides"),
    ]:
        with pytest.raises(InputError, match=message):
            plan(tmp_path, "--seeds", 1, *flags)
    write_text(tmp_path / "seed-1" / "settings.json", "")
    with pytest.raises(InputError, match="seed-1 holds a finished run of another command"):
        plan(tmp_path, "--seeds", 1, *files[0])


def test_summary(tmp_path, capsys):
    arguments = parse(tmp_path, "--sweep_learning_rates", 1e-5, 2e-5, "--seeds", 1, 2, 3, 4)
    runs = [run for run, _ in series.plan_runs(*arguments)]
    accuracies = {1e-5: [0.9, 0.5, 0.8, 0.6], 2e-5: [0.7, 0.99, 0.1, 0.6]}
    for run in runs:
        folder = tmp_path / f"lr-{run.learning_rate:g}" / f"seed-{run.seed}"
        folder.mkdir(parents=True)
        accuracy = accuracies[run.learning_rate][run.seed - 1]
        results = {"train_loss": 1, "eval_accuracy": accuracy, "eval_loss": 2 - accuracy, "eval_runtime": 3.0}
        (folder / "all_results.json").write_text(json.dumps(results))
    rows = series.summarize(runs)
    for row in rows:
        values = accuracies[row["learning_rate"]]
        assert row["seeds"] == [1, 2, 3, 4] and list(row["metrics"]) == ["eval_accuracy", "eval_loss"]
        assert row["folder"] == str(tmp_path / f"lr-{row['learning_rate']:g}")
        assert row["metrics"]["eval_accuracy"] == {
            "median": pytest.approx(np.median(values)),
            "min": min(values),
            "max": max(values),
            "std": pytest.approx(np.std(values, ddof=1), abs=1e-6),
        }
    # By the median: the greatest single accuracy is in the other row.
    best = series.report_series(arguments[2], rows, "eval_accuracy")
    assert best["learning_rate"] == 1e-5
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "metric": "eval_accuracy", "best": rows[0], "settings": rows
    }  # fmt: skip
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table if "e-05" in line] == ["*", "batch"]
    assert table[-4].startswith("* batch 8, learning rate 1e-05, 4 runs, eval_accuracy 0.7000 (0.5000 to 0.9000, std ")
    # The less the better, if that is asked for.
    _, _, args = parse(tmp_path, "--metric_for_best_model", "loss")
    assert series.report_series(args, rows, "eval_loss")["learning_rate"] == 1e-5
    rows[0]["metrics"]["eval_loss"]["median"] = 5.0
    assert series.report_series(args, rows, "eval_loss")["learning_rate"] == 2e-5
    # A run that diverged is never the best.
    rows[1]["metrics"]["eval_loss"]["median"] = float("nan")
    assert series.report_series(args, rows, "eval_loss")["learning_rate"] == 1e-5
    assert series.report_series(arguments[2], rows[::-1], "eval_accuracy")["learning_rate"] == 1e-5
    for text in ("[]", "{", "{}"):
        (folder / "all_results.json").write_text(text)
        with pytest.raises(InputError, match="is damaged: remove it"):
            series.summarize(runs)


def test_spread_of_one_run():
    assert series.spread([0.5]) == {"median": 0.5, "min": 0.5, "max": 0.5, "std": 0.0}
    assert all(map(math.isnan, series.spread([float("nan"), 1.0]).values()))
    assert series.spread([1.0, 2.0])["std"] == pytest.approx(statistics.stdev([1.0, 2.0]), abs=1e-6)
