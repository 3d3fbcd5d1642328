"""Loss curves of finished or running trainings."""

import json
from pathlib import Path

from ..errors import InputError
from .pictures import check_picture, plt, save_picture


def log_history(run: str | Path) -> list[dict[str, float]]:
    """
    What Trainer logged in a run, in order: of a finished run its trainer_state.json, else that of its last checkpoint.

    Raises:
        InputError: If the folder holds no run.
    """
    run = Path(run)
    states = [run / "trainer_state.json"]
    states += sorted(run.glob("checkpoint-*/trainer_state.json"), key=lambda path: -path.stat().st_mtime)
    for state in states:
        if state.is_file():
            return json.loads(state.read_text(encoding="utf-8"))["log_history"]
    raise InputError(f"There is no training in {run}: neither trainer_state.json nor checkpoint-*/trainer_state.json.")


def plot_training(runs: list[str | Path], path: str | Path):
    """
    Loss against steps, a color for each run: training loss as a thin line, evaluation loss as dots on a line.

    Args:
        runs: Output folders of training scripts.
        path: The picture to write, its kind by its ending.

    Raises:
        InputError: If a folder holds no run, nothing was logged, or the folder of `path` does not exist.
    """
    check_picture(path)
    histories = {str(run): log_history(run) for run in runs}
    if not any("loss" in entry or "eval_loss" in entry for history in histories.values() for entry in history):
        raise InputError("Nothing was logged in these runs; train with a smaller --logging_steps.")
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for i, (run, history) in enumerate(histories.items()):
        for key, style in (("loss", {"linewidth": 1.0, "alpha": 0.8}), ("eval_loss", {"marker": "o", "markersize": 4})):
            points = [(entry["step"], entry[key]) for entry in history if key in entry]
            if points:
                kind = "training" if key == "loss" else "held out"
                label = f"{Path(run).name}, {kind}" if len(histories) > 1 else kind
                dashes = {"linestyle": "--"} if key == "eval_loss" else {}
                axis.plot(*zip(*points), color=f"C{i}", label=label, **style, **dashes)
    axis.set_xlabel("optimizer step")
    axis.set_ylabel("loss (nats)")
    axis.grid(color="0.9")
    axis.legend(fontsize=8)
    axis.set_title("Training" if len(histories) > 1 else f"Training of {Path(next(iter(histories))).name}", fontsize=10)
    save_picture(figure, path)
