"""Loss curves of finished or running trainings."""

import json
import math
import os
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from ..errors import InputError
from .pictures import check_picture, draw_level, in_words, legend_below, plt, save_picture
from .runs import family, parameters


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


def plot_training(runs: list[str | Path], path: str | Path, *, unigram: float | None = None):
    """
    Loss against steps, a color for each run: training loss as a thin line, evaluation loss as dots on a dashed line.

    Args:
        runs: Output folders of training scripts.
        path: The picture to write, its kind by its ending.
        unigram: A perplexity whose loss is drawn as a level: that of predicting every token by its frequency.

    Raises:
        InputError: If a folder holds no run, nothing was logged, or the folder of `path` does not exist.
    """
    check_picture(path)
    histories = {run: log_history(run) for run in map(Path, runs)}
    if not any("loss" in entry or "eval_loss" in entry for history in histories.values() for entry in history):
        raise InputError("Nothing was logged in these runs; train with a smaller --logging_steps.")
    configs = {run: _config(run) for run in histories}
    labels = run_labels(configs)
    colors = [f"C{i}" if len(histories) <= 10 else plt.get_cmap("tab20")(i % 20) for i in range(len(histories))]
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    # What is thin and what is dashed is said once, in gray, and not of every run.
    for key, kind, style in (
        ("loss", "on the training data", {"linewidth": 1.0, "alpha": 0.8}),
        ("eval_loss", "on held-out data", {"linewidth": 1.0, "linestyle": "--", "marker": "o", "markersize": 4}),
    ):
        curves = [[(entry["step"], entry[key]) for entry in history if key in entry] for history in histories.values()]
        for color, points in zip(colors, curves):
            if points:
                axis.plot(*zip(*points), color=color, **style)
        if any(curves):
            axis.plot([], [], color="0.4", label=kind, **style)
    if len(labels) > 1:
        for color, label in zip(colors, labels.values()):
            axis.plot([], [], color=color, linewidth=3, label=label)
    if unigram is not None:
        draw_level(axis, math.log(unigram), f"every token by its frequency alone: {math.log(unigram):.3g}")
    units = {_unit(config) for config in configs.values()}
    axis.set_xlabel("optimizer step")
    axis.set_ylabel(f"loss ({units.pop() if len(units) == 1 else 'nats'}, less is better)")
    axis.grid(color="0.9")
    legend_below(figure)
    title = "Loss during training" + (f": {labels[next(iter(labels))]}" if len(labels) == 1 else "")
    axis.set_title(title, fontsize=10, parse_math=False)
    save_picture(figure, path)


def run_labels(configs: dict[Path, PreTrainedConfig | None]) -> dict[Path, str]:
    """
    What a legend calls each run: the family and size of its model, as "gMLP, 1.2 million parameters", and with it the
    folder where several are alike; the folder alone where there is no config.

    Args:
        configs: By the folder of the run.
    """
    words = {run: _words(config) for run, config in configs.items()}
    labels = {}
    for run, said in words.items():
        alike = [other.resolve() for other in words if words[other] == said]
        # Of folders of one name, all that their paths do not share.
        folder = run.resolve().relative_to(os.path.commonpath([path.parent for path in alike]))
        labels[run] = f"{said} ({folder})" if said and len(alike) > 1 else said or str(folder)
    return labels


def _config(run: Path) -> PreTrainedConfig | None:
    """The config of a run's model, or of its last checkpoint's; None if there is none that opens."""
    files = [run / "config.json"]
    files += sorted(run.glob("checkpoint-*/config.json"), key=lambda path: -path.stat().st_mtime)
    try:
        return next((AutoConfig.from_pretrained(file.parent) for file in files if file.is_file()), None)
    except (OSError, ValueError):
        return None


def _words(config: PreTrainedConfig | None) -> str:
    if config is None:
        return ""
    try:
        return f"{in_words(family(config))}, {parameters(config) / 1e6:.3g} million parameters"
    except (TypeError, ValueError):
        # An architecture whose parameters the paper's way of counting does not know.
        return in_words(family(config))


def _unit(config: PreTrainedConfig | None) -> str:
    head = (config.architectures or [""])[0] if config is not None else ""
    if head.endswith("ForMaskedLM"):
        return "nats per masked token"
    return "nats per token" if head.endswith("ForCausalLM") else "nats"
