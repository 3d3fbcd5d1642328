"""Loss curves of finished or running trainings."""

import json
import math
import os
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from ..errors import InputError
from .counts import paper_parameters
from .pictures import check_picture, draw_level, family, legend_below, plt, save_picture


def log_history(run: str | Path) -> list[dict[str, float]]:
    """
    Returns what Trainer logged, in order, from a run's trainer_state.json or else from that of its last checkpoint.

    Raises:
        InputError: If the folder does not hold a run.
    """
    state = _newest(Path(run), "trainer_state.json")
    if state is None:
        raise InputError(
            f"There is no training in {run}: neither trainer_state.json nor checkpoint-*/trainer_state.json."
        )
    return json.loads(state.read_text(encoding="utf-8"))["log_history"]


def plot_training(runs: list[str | Path], path: str | Path, *, unigram: float | None = None):
    """
    Draws the losses of runs (output folders of training scripts) against their steps: training loss as a thin line,
    evaluation loss as dots on a dashed line. `unigram` is the perplexity of predicting every token by its frequency,
    drawn as a level.

    Raises:
        InputError: If a folder does not hold a run, nothing was logged, or the picture cannot be written.
    """
    check_picture(path)
    histories = {run: log_history(run) for run in map(Path, runs)}
    if not any("loss" in entry or "eval_loss" in entry for history in histories.values() for entry in history):
        raise InputError("Nothing was logged in these runs. Train with a smaller --logging_steps.")
    configs = {run: _config(run) for run in histories}
    labels = run_labels(configs)
    colors = [f"C{i}" if len(histories) <= 10 else plt.get_cmap("tab20")(i % 20) for i in range(len(histories))]
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    # The legend explains thin and dashed lines once, in gray, instead of for every run.
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
        draw_level(axis, math.log(unigram), f"every token by its frequency: {math.log(unigram):.3g}")
    units = {_unit(config) for config in configs.values()}
    axis.set_xlabel("optimizer step")
    axis.set_ylabel(f"loss ({units.pop() if len(units) == 1 else 'nats'}, lower is better)")
    axis.grid(color="0.9")
    legend_below(figure)
    title = "Loss during training" + (f": {labels[next(iter(labels))]}" if len(labels) == 1 else "")
    axis.set_title(title, fontsize=10, parse_math=False)
    save_picture(figure, path)


def run_labels(configs: dict[Path, PreTrainedConfig | None]) -> dict[Path, str]:
    """
    Returns what a legend calls each run: the family and size of its model, followed by the folder if several are alike;
    only the folder if there is no config.
    """
    words = {run: _words(config) for run, config in configs.items()}
    labels = {}
    for run, said in words.items():
        alike = [other.resolve() for other in words if words[other] == said]
        # Folders of the same name are told apart by all that their paths do not share.
        folder = run.resolve().relative_to(os.path.commonpath([path.parent for path in alike]))
        labels[run] = f"{said} ({folder})" if said and len(alike) > 1 else said or str(folder)
    return labels


def _newest(run: Path, name: str) -> Path | None:
    """A file of a run, or else of its last checkpoint."""
    checkpoints = sorted(run.glob(f"checkpoint-*/{name}"), key=lambda path: -path.stat().st_mtime)
    return next((path for path in (run / name, *checkpoints) if path.is_file()), None)


def _config(run: Path) -> PreTrainedConfig | None:
    path = _newest(run, "config.json")
    try:
        return path and AutoConfig.from_pretrained(path.parent)
    except (OSError, ValueError):
        return None


def _words(config: PreTrainedConfig | None) -> str:
    if config is None:
        return ""
    try:
        return f"{family(config)}, {paper_parameters(config) / 1e6:.3g} million parameters"
    except (TypeError, ValueError):
        # The paper's way of counting does not know this architecture.
        return family(config)


def _unit(config: PreTrainedConfig | None) -> str:
    head = (config.architectures or [""])[0] if config is not None else ""
    if head.endswith("ForMaskedLM"):
        return "nats per masked token"
    return "nats per token" if head.endswith("ForCausalLM") else "nats"
