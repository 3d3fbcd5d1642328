"""The tables of the paper with this project's numbers under every row: sizes, results of finished runs, recipes.

paper_tables.md has what the paper prints.
"""

import dataclasses
import json
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.errors import InputError
from hf_gmlp.markdown import markdown_table
from hf_gmlp.models.configuration_gmlp import as_pair
from hf_gmlp.presets import PRESETS, preset_path
from hf_gmlp.tools.analysis.counts import paper_flops, paper_parameters
from hf_gmlp.training.recipes import read_recipe

from .runs import Run, best_setting, find_runs

FOLDER = Path(__file__).parent
RECIPE_FOLDERS = (FOLDER / "recipes", FOLDER.parent / "recipes")
TIMM = "timm/"
TIMM_NOTE = "The models of timm are counted if timm is installed (pip install timm)."


@dataclass
class Cell:
    """
    A number as the paper prints it, and this project's.

    Attributes:
        paper, here: Both as text.
        verdict: "=" if they agree as printed, otherwise the difference ("-0.6%"), or "!="; empty for results.
        mark: Of results, the number of a note about their runs.
    """

    paper: str
    here: str = ""
    verdict: str = ""
    mark: int | None = None

    def __str__(self) -> str:
        if self.verdict.endswith("%"):
            return f"{self.here} ({self.verdict})"
        return f"{self.verdict} {self.here}{f' [{self.mark}]' if self.mark else ''}".strip()


@dataclass
class Row:
    """A row: its name, the model that is counted for it (a preset, "timm/NAME" or ""), its cells, and notes."""

    name: str
    model: str
    cells: dict[str, Cell]
    notes: list[str] = field(default_factory=list)


@dataclass
class Table:
    """A table: its number, its title, the headers of its columns, its rows, and the notes below it."""

    number: int
    title: str
    corner: str
    columns: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """A column that runs fill: their task, the metric in all_results.json, its factor, the digits to show."""

    task: str
    metric: str
    scale: float = 100.0
    digits: int = 1

    @property
    def best(self) -> Callable:
        return min if self.task == "mlm" else max

    def of(self, run: Run) -> float:
        """The value of a run; the worst possible one if it diverged."""
        value = self.scale * float(run.results[self.metric])
        return -self.best(-math.inf, math.inf) if math.isnan(value) else value


RESULTS = {
    "Perplexity": Result("mlm", "eval_perplexity", scale=1.0, digits=2),
    "SST-2": Result("sst2", "eval_accuracy"),
    "MNLI-m": Result("mnli", "eval_matched_accuracy"),
    "MNLI-mm": Result("mnli", "eval_mismatched_accuracy"),
    "SQuAD v1.1": Result("squad_v1", "eval_f1", scale=1.0),
    "SQuAD v2.0": Result("squad_v2", "eval_f1", scale=1.0),
    "ImageNet Top-1 (%)": Result("image", "eval_accuracy"),
}
# Tokens per sequence of the perplexities in a table (Table 8): BERT-base is in tables of both kinds.
SEQUENCE_LENGTHS = {3: 128, 4: 128, 6: 512, 10: 128}
IMAGENET_CLASSES = 1000
VOCABULARY = 32000

# The fields of a config that make an architecture; dropout, labels and vocabulary do not.
ARCHITECTURE = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "type_vocab_size", "hidden_act", "spatial_gating", "toeplitz", "attention_size",
    "content_attention", "relative_attention_num_buckets", "relative_attention_max_distance",
    "spatial_intermediate_size", "image_size", "patch_size", "num_channels", "pooling",
)  # fmt: skip
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


def build_table(number: int, runs: Sequence[str | Path] = (), folders: Sequence[Path] = RECIPE_FOLDERS) -> Table:
    """
    Fill a table of the paper with this project's numbers.

    Args:
        number: 1 to 10.
        runs: Folders; the finished runs in and below them fill the results.
        folders: Of the recipes that Tables 7 to 9 are compared with.

    Raises:
        InputError: There is no such table or folder, or no finished run in the folders.
    """
    table = paper_table(number)
    found = find_runs(runs) if runs else []
    if number in (7, 8, 9):
        fill_recipes(table, folders)
    else:
        fill_counts(table)
    if found:
        fill_results(table, found)
    return table


def paper_table(number: int) -> Table:
    """Return a table as the paper prints it; raise InputError if the paper does not have it."""
    text = (FOLDER / "paper_tables.md").read_text(encoding="utf-8")
    sections = re.split(r"^## Table (\d+)\. ", text, flags=re.MULTILINE)
    texts = {int(name): text for name, text in zip(sections[1::2], sections[2::2])}
    if number not in texts:
        raise InputError(f"The paper has no Table {number}. It has Tables {min(texts)} to {max(texts)}.")
    title, *lines = texts[number].strip().splitlines()
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    notes = re.findall(r"^- (.*(?:\n  .*)*)", texts[number], flags=re.MULTILINE)
    with_models = header[-1] == "model"
    columns = header[1:-1] if with_models else header[1:]
    rows = [
        Row(name, values[-1] if with_models else "", {column: Cell(value) for column, value in zip(columns, values)})
        for name, *values in body
    ]
    return Table(number, title, header[0], columns, rows, [re.sub(r"\n +", " ", note) for note in notes])


# Sizes.


def fill_counts(table: Table):
    """Fill in parameters, FLOPs and sizes. Models of timm stay empty if it is not installed."""
    for row in table.rows:
        config = None
        if row.model.startswith(TIMM):
            try:
                parameters, flops = timm_counts(row.model, int(row.cells["Input Resolution"].paper))
            except ImportError:
                table.notes += [] if TIMM_NOTE in table.notes else [TIMM_NOTE]
                continue
        else:
            config = preset_config(row.model)
            parameters = paper_parameters(config)
            flops = paper_flops(config) if {"FLOPs (B)", "MAdds (B)"} & set(table.columns) else 0
            preset = PRESETS[row.model]
            # Where what the paper says of sizes and what it counts do not go together.
            if preset.note and table.number in (3, 10) and str(table.number) in preset.paper:
                row.notes.append(preset.note)
        counts = {"Params (M)": parameters / 1e6, "FLOPs (B)": flops / 1e9, "MAdds (B)": flops / 2e9}
        for column, cell in row.cells.items():
            if column in counts:
                cell.here, cell.verdict = compare_counts(cell.paper, counts[column])
            elif config is not None and column in SIZES:
                cell.here = SIZES[column](config)
                cell.verdict = "" if cell.here == cell.paper == "" else "=" if cell.here == cell.paper else "!="


def compare_counts(paper: str, here: float) -> tuple[str, str]:
    """Return a count with one digit more than printed, and "=" if it rounds to that, else the difference."""
    digits = len(paper.partition(".")[2])
    rounded = f"{here:.{digits}f}" == paper
    return f"{here:.{digits + 1}f}", "=" if rounded else f"{100 * (here / float(paper) - 1):+.1f}%"


@cache
def preset_config(name: str) -> PreTrainedConfig:
    return AutoConfig.from_pretrained(preset_path(name), num_labels=IMAGENET_CLASSES)


@cache
def timm_counts(name: str, pixels: int) -> tuple[int, int]:
    """Return parameters with the classifier, and FLOPs for one square image, of a model of timm."""
    import timm

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = timm.create_model(name.removeprefix(TIMM)).eval()
        model(torch.empty(1, 3, pixels, pixels))
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops()


def attention_of(config: PreTrainedConfig) -> str:
    """Return the width of attention: "768 (64 x 12)" for several heads, "64" for tiny attention, "" for none."""
    if not config.model_type.startswith("bert"):
        return str(config.attention_size or "")
    heads = config.num_attention_heads
    return f"{config.hidden_size} ({config.hidden_size // heads} x {heads})"


SIZES: dict[str, Callable[[PreTrainedConfig], str]] = {
    # For a Transformer the blocks of attention and of feed-forward.
    "#L": lambda config: "+".join([str(config.num_hidden_layers)] * (2 if config.model_type.startswith("bert") else 1)),
    "d_model": lambda config: str(config.hidden_size),
    "d_ffn": lambda config: str(config.intermediate_size),
    "#heads": lambda config: str(config.num_attention_heads),
    "Attn Size": attention_of,
    "Survival Prob": lambda config: f"{1 - config.drop_path_rate:.2f}",
    "Input Resolution": lambda config: str(config.image_size),
}


# Results.


def fill_results(table: Table, runs: Sequence[Run]):
    """Fill in results as the paper does: the median over seeds, of several settings the best. Notes name the runs."""
    columns = [column for column in table.columns if column in RESULTS and table.rows[0].model]
    if not columns:
        table.notes.append(f"Table {table.number} has no results that runs could fill.")
        return
    used: set[Path] = set()
    mark = 0
    # A model that is there twice is first as others published it, and then as the authors trained it.
    for row in {row.model: row for row in table.rows}.values():
        for column in columns:
            members = [run for run in runs if belongs(run, row.model, RESULTS[column], table.number)]
            if members:
                used.update(run.folder for run in members)
                mark += 1
                row.cells[column].mark = mark
                note = fill_result(row.cells[column], RESULTS[column], members)
                row.notes.append(f"[{mark}] {column} of {row.model}: {note}.")
    table.notes.append(f"Finished runs: {len(runs)}, of which {len(used)} belong to a row.")


def belongs(run: Run, model: str, result: Result, number: int) -> bool:
    """Return whether a run has a result of this kind for a model of table `number`."""
    if run.task != result.task or result.metric not in run.results or not is_model(run.config, model):
        return False
    if result.task == "mlm":
        length = run.settings.get("max_seq_length") or run.config.max_position_embeddings
        return int(length) == SEQUENCE_LENGTHS[number]
    return result.task != "image" or run.config.num_labels == IMAGENET_CLASSES


def is_model(config: PreTrainedConfig, model: str) -> bool:
    """Return whether a config has the architecture of a preset, or is a model of timm ("timm/NAME")."""
    if config.model_type == "timm_wrapper":
        return f"{TIMM}{config.architecture}".split(".")[0] == model
    if model.startswith(TIMM):
        return False
    expected = preset_config(model)
    return all(architecture(config, name) == architecture(expected, name) for name in ARCHITECTURE)


def architecture(config: PreTrainedConfig, name: str) -> object:
    """Return a field of a config, None if it does not have it; image and patch sizes as (height, width)."""
    value = getattr(config, name, None)
    return as_pair(value) if name in ("image_size", "patch_size") and value is not None else value


def fill_result(cell: Cell, result: Result, runs: Sequence[Run]) -> str:
    """Fill a cell from the runs of its model and task, and return a note about these runs."""
    chosen, settings = best_setting(runs, result.of, result.best)
    values = [result.of(run) for run in chosen]
    cell.here, least, most = (f"{f(values):.{result.digits}f}" for f in (statistics.median, min, max))
    words = [f"median of {len(chosen)} runs ({least} to {most})" if len(chosen) > 1 else "one run"]
    if settings > 1:
        words.append(f"the best of {settings} settings")
    files, steps = chosen[0].settings.get("train_file"), chosen[0].steps
    if files:
        names = (Path(file).name for file in ([files] if isinstance(files, str) else files))
        words.append(f"trained on {', '.join(names)}")
    if steps is not None:
        words.append(f"{steps:,} steps of {chosen[0].settings.get('global_batch_size', '?')} samples")
    vocabulary = getattr(chosen[0].config, "vocab_size", VOCABULARY)
    if vocabulary != VOCABULARY:
        words.append(f"{vocabulary:,} tokens in the vocabulary instead of {VOCABULARY:,}")
    return "; ".join([*words, "in " + ", ".join(str(run.folder) for run in chosen)])


# Hyperparameters.


def fill_recipes(table: Table, folders: Sequence[Path]):
    """Fill in Tables 7 to 9 from the recipes of each column; a column without recipes stays empty."""
    for column in table.columns:
        paths = [path for pattern in RECIPES[column] for folder in folders for path in sorted(folder.glob(pattern))]
        if not paths:
            places = " or ".join(map(str, folders))
            table.notes.append(f"No recipe for {column} ({', '.join(RECIPES[column])}) in {places}.")
        recipes = [hyperparameters(path) for path in paths]
        for row in table.rows:
            values = [recipe[row.name] for recipe in recipes if recipe.get(row.name) is not None]
            if values:
                fill_values(row.cells[column], values)


def fill_values(cell: Cell, values: list):
    """Fill a cell with the value that all recipes have, or with all of them if they differ."""
    if all(parsed(value) == parsed(cell.paper) for value in values):
        # In the paper's words, such as "10K".
        cell.here, cell.verdict = cell.paper, "="
    else:
        distinct = {json.dumps(parsed(value)): value for value in values}
        cell.here, cell.verdict = " or ".join(map(as_text, distinct.values())), "!="


def parsed(value: object) -> list:
    """Return a value of a recipe, or one that the paper prints ("10K", "{16, 32}", "10%"), for comparison."""
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


def as_text(value: object) -> str:
    """Return a value of a recipe as text."""
    if isinstance(value, list | tuple):
        return "{" + ", ".join(map(as_text, value)) + "}"
    return value if isinstance(value, str) else f"{value:g}"


def hyperparameters(path: Path) -> dict[str, object]:
    """Return the values of a recipe, or the defaults of its script, by the names of Tables 7 to 9."""
    # Takes seconds to import.
    from hf_gmlp.training.arguments import RunArguments

    flags = {one.name: one.default for one in dataclasses.fields(RunArguments)} | read_recipe(path)
    name = str(flags.get("config_name"))
    model = preset_config(name).to_dict() if name in PRESETS else {}
    model |= flags.get("config_overrides") or {}
    epochs, steps = flags["num_train_epochs"], flags["max_steps"]
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
        "Batch size": flags.get("sweep_batch_sizes") or flags["global_batch_size"],
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
        # The scripts do not have these.
        "Repeated Augmentation": "off",
        "Random erasing prob": 0,
        "EMA decay": 0,
    }


# Text.


def to_markdown(table: Table) -> str:
    """Return a table under its title: each row of the paper with this project's under it, then the notes."""
    rows: list[list[str]] = [[table.corner, *table.columns]]
    for row in table.rows:
        rows.append([row.name, *(cell.paper for cell in row.cells.values())])
        if row.model or any(cell.here for cell in row.cells.values()):
            rows.append([f"here: {row.model}" if row.model else "here", *map(str, row.cells.values())])
    # Padded, to be read in a terminal.
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows = [[cell.ljust(width) for cell, width in zip(row, widths)] for row in rows]
    # A note of several rows is printed once, with the names of their models.
    notes: dict[str, list[str]] = {note: [] for note in table.notes}
    for row in table.rows:
        for note in row.notes:
            notes.setdefault(note, []).extend([] if note.startswith("[") else [row.model])
    about = "a value of the recipes" if table.number in (7, 8, 9) else "a size counted here"
    legend = f'Rows named "here" have this project\'s numbers; = marks {about} that agrees with the paper.'
    text = f"**Table {table.number}.** {table.title}\n\n{legend}\n\n{markdown_table(rows)}\n\n"
    for note, models in notes.items():
        line = f"- {', '.join(models)}: {note}" if models else f"- {note}"
        text += textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"
    return text.rstrip("\n") + "\n"


def print_table(number: int, runs: Sequence[str]):
    """Print a table of the paper with this project's numbers."""
    print(to_markdown(build_table(number, runs)), end="")
