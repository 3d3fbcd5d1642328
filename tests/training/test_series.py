import json
import math

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.glue import GlueArguments, SentenceModelArguments
from hf_gmlp.training import series
from hf_gmlp.training.arguments import RunArguments, parse_arguments
from hf_gmlp.training.run_folder import check_rows, resume_point, write_json

TYPES = (SentenceModelArguments, GlueArguments, RunArguments)


def plan(folder, *flags):
    command = ["--config_name", "gmlp-18l", "--do_train", "--do_eval", "--use_cpu", "--output_dir", folder, *flags]
    return series.plan_runs(*parse_arguments(TYPES, "A test.", list(map(str, command))))


def test_a_run_for_every_seed(tmp_path):
    assert [(run.output_dir, settings) for run, settings in plan(tmp_path)] == [(str(tmp_path), None)]
    runs = [run for run, _ in plan(tmp_path, "--seeds", 7, 8)]
    assert [(run.output_dir, run.seed) for run in runs] == [(str(tmp_path / f"seed-{seed}"), seed) for seed in (7, 8)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seeds", 1, "--do_eval", "false"), "--do_eval"),
        (("--seeds", 1, "--resume_from_checkpoint", "x"), "--resume_from_checkpoint"),
        (("--seeds", 1, 1), "1, 1"),
        (("--seeds", -1), "--seeds must be in"),
    ],
)
def test_conflicting_flags_are_refused(tmp_path, flags, message):
    with pytest.raises(InputError, match=message):
        plan(tmp_path, *flags)


def test_finished_runs_with_equal_flags_are_kept(tmp_path):
    (_, settings), _ = plan(tmp_path, "--seeds", 1, 2)
    (tmp_path / "seed-1").mkdir()
    write_json(tmp_path / "seed-1" / "settings.json", settings | {"train_rows": 300})
    write_json(tmp_path / "seed-1" / "all_results.json", {})
    # Seeds may be added, and flags that do not affect the weights may change.
    assert len(plan(tmp_path, "--seeds", 1, 2, 3, "--preprocessing_num_workers", 2)) == 3
    with pytest.raises(InputError, match="seed-1 .*learning_rate"):
        plan(tmp_path, "--seeds", 1, "--learning_rate", 1)
    # All seeds need the same number of rows, in any order.
    (run, settings), _ = plan(tmp_path, "--seeds", 2, 1)
    resume_point(run, settings)
    with pytest.raises(InputError, match="train_rows was 300 and is 200"):
        check_rows(run, 200)
    write_json(tmp_path / "seed-2" / "settings.json", settings | {"train_rows": 200})
    write_json(tmp_path / "seed-2" / "all_results.json", {})
    with pytest.raises(InputError, match="train_rows was 200 and is 300"):
        plan(tmp_path, "--seeds", 1, 2)


@pytest.mark.parametrize("accuracies", [[0.9, 0.5, 0.8, 0.7], [0.9, math.nan, 0.8, 0.7]])
def test_medians_over_the_seeds_are_reported(tmp_path, capsys, accuracies):
    runs = [run for run, _ in plan(tmp_path, "--seeds", 1, 2, 3, 4)]
    for run, accuracy in zip(runs, accuracies):
        (tmp_path / f"seed-{run.seed}").mkdir()
        results = {"train_loss": 1, "eval_accuracy": accuracy, "eval_loss": 2 - accuracy, "eval_runtime": 3.0}
        write_json(tmp_path / f"seed-{run.seed}" / "all_results.json", results)
    series.report_series(tmp_path, runs)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seeds"] == [1, 2, 3, 4] and list(summary["metrics"]) == ["eval_accuracy", "eval_loss"]
    numbers = summary["metrics"]["eval_accuracy"]
    if any(map(math.isnan, accuracies)):
        assert all(map(math.isnan, numbers.values()))
    else:
        assert numbers == {"median": 0.75, "min": 0.5, "max": 0.9, "std": 0.170783}
        assert "eval_accuracy  0.7500 (0.5000 to 0.9000" in capsys.readouterr().out
