"""The tables of the paper, with ours under every row: sizes counted here, results of finished runs, values of recipes.

What the paper prints is in paper_tables.md, table by table, to be checked against it.
"""

import csv
import dataclasses
import io
import json
import math
import os
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, PreTrainedConfig

from ..errors import InputError
from ..models.configuration_gmlp import as_pair
from ..presets import PRESETS, preset_path
from ..training.recipes import RECIPES as RECIPE_FOLDER
from ..training.recipes import read_recipe
from .counts import paper_flops, paper_parameters
from .runs import Run, find_runs

PAPER_TABLES = Path(__file__).parent / "paper_tables.md"
TIMM = "timm/"
FORMATS = ("markdown", "csv")


@dataclass
class Cell:
    """
    One number of the paper and ours.

    Attributes:
        paper: As it is printed; "" where nothing is.
        here: Ours; "" where there is none.
        verdict: "=" if ours rounds to the paper's, else by how much it is off ("-0.6%"), or "!=" where that says
            nothing. "" of results, which are not expected to be the same.
        spread: Of a result, the least and the greatest of its runs, and how many these are.
        mark: Of a result, the number of the note that tells of its runs.
    """

    paper: str
    here: str = ""
    verdict: str = ""
    spread: tuple[str, str, int] | None = None
    mark: int | None = None


@dataclass
class Row:
    """A row of the paper: its name, the model that it is counted with (a preset, "timm/NAME" or ""), cells, notes."""

    name: str
    model: str
    cells: dict[str, Cell]
    notes: list[str] = field(default_factory=list)


@dataclass
class Table:
    """A table of the paper: its number and title, the head of its first column, the rows, the notes under it."""

    number: int
    title: str
    corner: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """The heads of all columns but the first."""
        return list(self.rows[0].cells)


@dataclass(frozen=True)
class Result:
    """A column that runs fill: their task, the metric in all_results.json, what it is multiplied by, its digits."""

    task: str
    metric: str
    scale: float = 100.0
    digits: int = 1

    @property
    def best(self) -> Callable:
        """`max`, or `min` of a perplexity."""
        return min if self.task == "mlm" else max


RESULTS = {
    "Perplexity": Result("mlm", "eval_perplexity", scale=1.0, digits=2),
    "SST-2": Result("sst2", "eval_accuracy"),
    "MNLI-m": Result("mnli", "eval_matched_accuracy"),
    "MNLI-mm": Result("mnli", "eval_mismatched_accuracy"),
    "SQuAD v1.1": Result("squad_v1", "eval_f1", scale=1.0),
    "SQuAD v2.0": Result("squad_v2", "eval_f1", scale=1.0),
    "ImageNet Top-1 (%)": Result("image", "eval_accuracy"),
}
# Tokens per sequence of the perplexities in a table (Table 8). BERT-base is in tables of both kinds.
SEQUENCE_LENGTHS = {3: 128, 4: 128, 6: 512, 10: 128}
IMAGENET_CLASSES = 1000
VOCABULARY = 32000

# What makes an architecture, by the names of the configs; dropout, labels and vocabulary do not.
ARCHITECTURE = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "type_vocab_size", "hidden_act", "spatial_gating", "toeplitz", "attention_size",
    "content_attention", "relative_attention_num_buckets", "relative_attention_max_distance",
    "spatial_intermediate_size", "image_size", "patch_size", "num_channels", "pooling",
)  # fmt: skip
# Presets that timm has under another name.
TIMM_TWINS = {
    "vit-b16-384": "vit_base_patch16_384",
    "vit-l16-384": "vit_large_patch16_384",
    "deit-ti16-224": "deit_tiny_patch16_224",
    "deit-s16-224": "deit_small_patch16_224",
    "deit-b16-224": "deit_base_patch16_224",
}

# The recipes behind each column of Tables 7 to 9.
RECIPES = {
    "gMLP-Ti": ("table*/gmlp-ti16-224.yaml",),
    "gMLP-S": ("table*/gmlp-s16-224.yaml",),
    "gMLP-B": ("table*/gmlp-b16-224.yaml",),
    "Mixer-B": ("table*/mixer-b16*.yaml",),
    "Ablation Studies": ("table3/*.yaml", "table4/*.yaml"),
    "Full Results (Table 5)": ("table6/*.yaml",),
    "SST-2": ("finetune-sst2.yaml",),
    "MNLI": ("finetune-mnli.yaml",),
    "SQuAD v1.1/v2.0": ("finetune-squad-v1.yaml", "finetune-squad-v2.yaml"),
}


def table(
    number: int, runs: Sequence[str | Path] = (), recipes: str | Path | None = None, format: str = "markdown"
) -> str:
    """
    A table of the paper with ours, as text.

    Args:
        number: 1 to 10.
        runs: Folders in and below which finished runs lie, whose results are filled in.
        recipes: The folder of recipes that Tables 7 to 9 are held against; the project's by default.
        format: "markdown", where ours is a line under each row, or "csv", where it is columns beside the paper's.

    Raises:
        InputError: If there is no such table, format or folder, or no finished run in the folders.
    """
    if format not in FORMATS:
        raise InputError(f"There is no format {format!r}: choose one of {', '.join(FORMATS)}.")
    filled = build_table(number, runs, recipes)
    return to_csv(filled) if format == "csv" else to_markdown(filled)


def build_table(number: int, runs: Sequence[str | Path] = (), recipes: str | Path | None = None) -> Table:
    """A table of the paper with ours; arguments and errors as for `table`."""
    filled = paper_table(number)
    found = find_runs(runs) if runs else []
    if recipes is not None and not Path(recipes).is_dir():
        raise InputError(f"There is no folder {recipes} to read recipes from.")
    if number in (7, 8, 9):
        fill_recipes(filled, Path(recipes or RECIPE_FOLDER))
    else:
        fill_counts(filled)
    if found:
        fill_results(filled, found)
    return filled


def paper_table(number: int) -> Table:
    """
    A table as the paper prints it, with nothing of ours.

    Raises:
        InputError: If the paper has no table of that number.
    """
    sections = re.split(r"^## Table (\d+)\. ", PAPER_TABLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = {int(name): text for name, text in zip(sections[1::2], sections[2::2])}
    if number not in texts:
        raise InputError(f"The paper has no Table {number}; it has Tables {min(texts)} to {max(texts)}.")
    title, *lines = texts[number].strip().splitlines()
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    notes = re.findall(r"^- (.*(?:\n  .*)*)", texts[number], flags=re.MULTILINE)
    rows = []
    for name, *values in body:
        model = values.pop() if header[-1] == "model" else ""
        rows.append(Row(name, model, {column: Cell(value) for column, value in zip(header[1:], values)}))
    return Table(number, title, header[0], rows, [re.sub(r"\n +", " ", note) for note in notes])


# Sizes.


def fill_counts(filled: Table):
    """Fills in parameters, FLOPs and sizes. Without timm, the models that only it has stay empty."""
    missing = False
    for row in filled.rows:
        if row.model.startswith(TIMM):
            pixels = int(row.cells["Input Resolution"].paper)
            try:
                parameters, flops = timm_counts(row.model.removeprefix(TIMM), pixels)
            except ImportError:
                missing = True
                continue
            config = None
        else:
            config = preset_config(row.model)
            parameters = preset_parameters(row.model)
            flops = preset_flops(row.model) if {"FLOPs (B)", "MAdds (B)"} & set(filled.columns) else 0
            note = PRESETS[row.model].note
            # Where what the paper says of sizes and what it counts do not go together.
            if note and filled.number in (3, 10) and str(filled.number) in PRESETS[row.model].paper:
                row.notes.append(note)
        counts = {"Params (M)": parameters / 1e6, "FLOPs (B)": flops / 1e9, "MAdds (B)": flops / 2e9}
        for column, cell in row.cells.items():
            if column in counts:
                cell.here, cell.verdict = compare_counts(cell.paper, counts[column])
            elif config is not None and column in SIZES:
                cell.here = SIZES[column](config)
                cell.verdict = "" if cell.here == cell.paper == "" else "=" if cell.here == cell.paper else "!="
    if missing:
        filled.notes.append("The models of timm are counted where timm is installed (pip install timm).")


def compare_counts(paper: str, here: float) -> tuple[str, str]:
    """Ours with a digit more than the paper prints, and "=" if it rounds to that, else the difference in percent."""
    digits = len(paper.partition(".")[2])
    rounded = f"{here:.{digits}f}" == paper
    return f"{here:.{digits + 1}f}", "=" if rounded else f"{100 * (here / float(paper) - 1):+.1f}%"


@cache
def preset_config(name: str) -> PreTrainedConfig:
    """The config of a preset; an image model has ImageNet's classes."""
    return AutoConfig.from_pretrained(preset_path(name), num_labels=IMAGENET_CLASSES)


@cache
def preset_parameters(name: str) -> int:
    """Parameters of a preset as the paper counts them."""
    return paper_parameters(preset_config(name))


@cache
def preset_flops(name: str) -> int:
    """FLOPs of a preset as the paper counts them."""
    return paper_flops(preset_config(name))


@cache
def timm_counts(name: str, pixels: int) -> tuple[int, int]:
    """
    Parameters with the classifier, and FLOPs (two per multiply-add of matrix products and convolutions) for one image
    of so many pixels a side, of one of timm's models.

    Raises:
        ImportError: If timm is not installed.
    """
    import timm

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = timm.create_model(name).eval()
        model(torch.empty(1, 3, pixels, pixels))
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops()


def layers_of(config: PreTrainedConfig) -> str:
    """L; of a Transformer the blocks of attention and those of feed-forward, as the paper writes "12+12"."""
    layers = config.num_hidden_layers
    return f"{layers}+{layers}" if config.model_type.startswith("bert") else str(layers)


def attention_of(config: PreTrainedConfig) -> str:
    """The width of attention, "768 (64 x 12)" of several heads, "64" of tiny attention, "" of none."""
    if not config.model_type.startswith("bert"):
        return str(config.attention_size or "")
    heads = config.num_attention_heads
    return f"{config.hidden_size} ({config.hidden_size // heads} x {heads})"


SIZES: dict[str, Callable[[PreTrainedConfig], str]] = {
    "#L": layers_of,
    "d_model": lambda config: str(config.hidden_size),
    "d_ffn": lambda config: str(config.intermediate_size),
    "#heads": lambda config: str(config.num_attention_heads),
    "Attn Size": attention_of,
    "Survival Prob": lambda config: f"{1 - config.drop_path_rate:.2f}",
    "Input Resolution": lambda config: str(config.image_size),
}


# Results.


def fill_results(filled: Table, runs: Sequence[Run]):
    """
    Fills in what finished runs reached. Runs of one setting with several seeds give their median, as in the paper; of
    several settings (a sweep) the best is taken, as there too. A note for every number tells which runs these are.
    """
    columns = [column for column in filled.columns if column in RESULTS]
    if not columns:
        filled.notes.append(f"Table {filled.number} has no results that runs could fill.")
        return
    used: set[Path] = set()
    for row in filled.rows:
        # A model that is there twice is first as others published it, and then as the authors trained it themselves.
        if row is not [other for other in filled.rows if other.model == row.model][-1]:
            continue
        for column in columns:
            members = [run for run in runs if belongs(run, row.model, RESULTS[column], filled.number)]
            if not members:
                continue
            used.update(run.folder for run in members)
            cell = row.cells[column]
            cell.mark = sum(other.mark is not None for line in filled.rows for other in line.cells.values()) + 1
            row.notes.append(f"[{cell.mark}] {column} of {row.model}: {fill_result(cell, RESULTS[column], members)}")
    filled.notes.append(f"Finished runs: {len(runs)}, of which {len(used)} belong to a row.")


def belongs(run: Run, model: str, result: Result, number: int) -> bool:
    """Whether a run has a result of this kind for a model of table `number`."""
    if run.task != result.task or result.metric not in run.results or not is_model(run.config, model):
        return False
    if result.task == "mlm":
        return sequence_length(run) == SEQUENCE_LENGTHS[number]
    return result.task != "image" or run.config.num_labels == IMAGENET_CLASSES


def is_model(config: PreTrainedConfig, model: str) -> bool:
    """Whether a config has the architecture of a preset or of one of timm's models ("timm/NAME")."""
    if config.model_type == "timm_wrapper":
        return config.architecture.split(".")[0] == TIMM_TWINS.get(model, model.removeprefix(TIMM))
    if model.startswith(TIMM):
        return False
    expected = preset_config(model)
    return all(architecture(config, name) == architecture(expected, name) for name in ARCHITECTURE)


def architecture(config: PreTrainedConfig, name: str) -> object:
    """A field of a config, None if it has none; image and patch sizes as (height, width)."""
    value = getattr(config, name, None)
    return as_pair(value) if name in ("image_size", "patch_size") and value is not None else value


def sequence_length(run: Run) -> int:
    """Tokens per sequence of a run: what it was told, else its model's n."""
    return int(run.settings.get("max_seq_length") or run.config.max_position_embeddings)


def fill_result(cell: Cell, result: Result, runs: Sequence[Run]) -> str:
    """Fills a cell from runs of its model and task, and tells of the runs."""
    elsewhere = {"seed", "output_dir"}
    settings: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps({name: value for name, value in run.settings.items() if name not in elsewhere}, sort_keys=True)
        settings.setdefault(key, []).append(run)

    def quality(run: Run) -> float:
        value = result.scale * float(run.results[result.metric])
        # A run that diverged is as bad as can be.
        return result.best(-math.inf, math.inf) * -1 if math.isnan(value) else value

    chosen = result.best(settings.values(), key=lambda members: statistics.median(map(quality, members)))
    values = [quality(run) for run in chosen]
    texts = [f"{number:.{result.digits}f}" for number in (statistics.median(values), min(values), max(values))]
    cell.here, cell.spread = texts[0], (texts[1], texts[2], len(chosen))
    words = [f"median of {len(chosen)} runs ({texts[1]} to {texts[2]})" if len(chosen) > 1 else "one run"]
    if len(settings) > 1:
        words.append(f"the best of {len(settings)} settings")
    if len(chosen) == 1:
        place = f"in {chosen[0].folder}"
    else:
        parent = os.path.commonpath([run.folder for run in chosen])
        place = f"{', '.join(os.path.relpath(run.folder, parent) for run in chosen)} in {parent}"
    return "; ".join([*words, *setup(chosen[0]), place]) + "."


def setup(run: Run) -> list[str]:
    """How a run was made, as far as it noted that: what may set it apart from the paper's."""
    settings, words = run.settings, []
    files = settings.get("train_file") or []
    files = [files] if isinstance(files, str) else files
    if files:
        words.append(f"trained on {', '.join(Path(file).name for file in files)}")
    elif settings.get("dataset_name"):
        words.append(f"{settings['dataset_name']} {settings.get('dataset_config_name') or ''}".strip())
    if run.steps is not None:
        batch = settings.get("global_batch_size")
        words.append(f"{run.steps:,} steps" + (f" of {int(batch):,} samples" if batch else ""))
    vocabulary = getattr(run.config, "vocab_size", None)
    if vocabulary not in (None, VOCABULARY):
        words.append(f"{vocabulary:,} tokens in the vocabulary and not {VOCABULARY:,}")
    return words


# Hyperparameters.


def fill_recipes(filled: Table, recipes: Path):
    """Fills in Tables 7 to 9 from the recipes of each column; a column without recipes stays empty."""
    for column in filled.columns:
        paths = [path for pattern in RECIPES[column] for path in sorted(recipes.glob(pattern))]
        if not paths:
            filled.notes.append(f"No recipe for {column} ({', '.join(RECIPES[column])}) in {recipes}.")
            continue
        read = [hyperparameters(path) for path in paths]
        for row in filled.rows:
            values = [values[row.name] for values in read if values.get(row.name) is not None]
            if values:
                fill_values(row.cells[column], values)


def fill_values(cell: Cell, values: list):
    """Fills a cell with the value that all recipes have, or with all of them if they differ."""
    distinct = {json.dumps(parsed(value)): value for value in values}
    cell.here = " or ".join(map(shown, distinct.values()))
    same = all(parsed(value) == parsed(cell.paper) for value in values)
    if same:
        # In the paper's own words, as "10K".
        cell.here = cell.paper
    cell.verdict = "=" if same else "!="


def parsed(value: object) -> list:
    """A value of a recipe, or one that the paper prints ("10K", "{16, 32}", "10%", "5 epochs"), for comparison."""
    if isinstance(value, list | tuple):
        return [part for item in value for part in parsed(item)]
    if not isinstance(value, str):
        return [float(value)]
    parts = []
    for word in value.strip("{}()").split(","):
        match = re.fullmatch(r"(\d[\d.]*(?:e-?\d+)?)([KM%]?)", word.strip())
        scales = {"": 1.0, "K": 1e3, "M": 1e6, "%": 0.01}
        parts.append(float(match[1]) * scales[match[2]] if match else word.strip().lower())
    return parts


def shown(value: object) -> str:
    """A value of a recipe as text."""
    if isinstance(value, list | tuple):
        return "{" + ", ".join(map(shown, value)) + "}"
    return value if isinstance(value, str) else f"{value:g}"


def hyperparameters(path: str | Path) -> dict[str, object]:
    """
    What a recipe says, by the names of Tables 7 to 9; what it leaves open is the default of its script. None where
    neither says it.

    Raises:
        InputError: If the recipe cannot be read.
    """
    # It takes seconds to import.
    from ..training.arguments import RunArguments

    flags = {one.name: one.default for one in dataclasses.fields(RunArguments)} | read_recipe(Path(path))
    name = str(flags.get("config_name"))
    model = preset_config(name).to_dict() if name in PRESETS else {}
    model |= flags.get("config_overrides") or {}
    epochs, steps = flags["num_train_epochs"], flags["max_steps"]
    batch = flags.get("sweep_batch_sizes") or flags["global_batch_size"]
    survival = round(1 - model["drop_path_rate"], 9) if "drop_path_rate" in model else None
    data = {"realnewslike": "C4/RealNews", "en": "C4/English"}
    augmentation = flags.get("auto_augment")
    return {
        "Data": data.get(flags.get("dataset_config_name"), flags.get("dataset_name")),
        "Max sequence length": flags.get("max_seq_length"),
        "Input resolution": flags.get("image_size") or model.get("image_size"),
        "Epochs": epochs,
        "Number of steps": steps,
        "Number of steps/epochs": steps if steps > 0 else f"{epochs:g} epochs",
        "Batch size": batch,
        "Warmup steps": flags["warmup_steps"],
        "Warmup steps/portion": flags["warmup_steps"],
        "Peak learning rate": flags.get("sweep_learning_rates") or flags["learning_rate"],
        "Learning rate decay": getattr(flags["lr_scheduler_type"], "value", flags["lr_scheduler_type"]),
        "Optimizer": "AdamW" if flags["optim"].startswith("adamw") else flags["optim"],
        "Adam eps": flags["adam_epsilon"],
        "Adam (beta1, beta2)": [flags["adam_beta1"], flags["adam_beta2"]],
        "Weight decay": flags["weight_decay"],
        "Gradient clipping": flags["max_grad_norm"],
        "Hidden dropout": model.get("hidden_dropout_prob"),
        "GeLU dropout": model.get("activation_dropout"),
        "Attention dropout (if applicable)": model.get("attention_probs_dropout_prob"),
        "Classification dropout": model.get("classifier_dropout"),
        "Stochastic depth survival prob": survival,
        # The policy that was learned on ImageNet.
        "Data augmentation": "AutoAugment" if augmentation == "imagenet" else augmentation,
        "Mixup alpha": flags.get("mixup_alpha"),
        "Cutmix alpha": flags.get("cutmix_alpha"),
        "Cutmix-Mixup switch prob": flags.get("switch_prob"),
        "Label smoothing": flags["label_smoothing_factor"],
        # No script of ours has these.
        "Repeated Augmentation": "off",
        "Random erasing prob": 0,
        "EMA decay": 0,
    }


# Text.


def render(rows: Iterable[Sequence[object]], format: str = "markdown") -> str:
    """
    Rows as text, the first being the heads of the columns: Markdown, padded so that it reads well in a terminal too, or
    CSV. None is an empty cell.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if format == "csv":
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(cells)
        return file.getvalue()
    cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    widths = [max(3, *map(len, column)) for column in zip(*cells)]
    # Names to the left, numbers to the right.
    lines = [[cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))] for row in cells]
    lines.insert(1, ["-" * (w - 1) + ":" if i else "-" * w for i, w in enumerate(widths)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_markdown(filled: Table) -> str:
    """A table under its title: each row of the paper, under it ours; then the notes."""
    rows: list[list[str]] = [[filled.corner, *filled.columns]]
    for row in filled.rows:
        rows.append([row.name, *(cell.paper for cell in row.cells.values())])
        if row.model or any(cell.here for cell in row.cells.values()):
            rows.append([f"here: {row.model}" if row.model else "here", *map(_here, row.cells.values())])
    # A note that several rows have is there once, under the names of their models.
    notes: dict[str, list[str]] = {note: [] for note in filled.notes}
    for row in filled.rows:
        for note in row.notes:
            notes.setdefault(note, []).extend([] if note.startswith("[") else [row.model])
    about = "a value of our recipes" if filled.number in (7, 8, 9) else "a size counted here"
    legend = f'What the paper prints and, under "here", ours; = marks {about} that is the paper\'s.'
    text = f"**Table {filled.number}.** {filled.title}\n\n{legend}\n\n{render(rows)}\n"
    for note, models in notes.items():
        line = f"- {', '.join(models)}: {note}" if models else f"- {note}"
        text += textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"
    return text.rstrip("\n") + "\n"


def _here(cell: Cell) -> str:
    if cell.verdict.endswith("%"):
        return f"{cell.here} ({cell.verdict})"
    return f"{cell.verdict} {cell.here}{f' [{cell.mark}]' if cell.mark else ''}".strip()


def to_csv(filled: Table) -> str:
    """A table with one line for each row of the paper: every number of it, ours beside it, and how they compare."""
    header = [filled.corner, "model here"]
    for column in filled.columns:
        more = ("least", "greatest", "runs") if column in RESULTS else ("compared",)
        header += [f"{column} ({kind})" for kind in ("paper", "here", *more)]
    rows: list[list] = [[*header, "notes"]]
    for row in filled.rows:
        line: list = [row.name, row.model]
        for column, cell in row.cells.items():
            line += [cell.paper, cell.here]
            line += (cell.spread or ("", "", "")) if column in RESULTS else [cell.verdict]
        rows.append([*line, " ".join(row.notes)])
    return render(rows, "csv")
