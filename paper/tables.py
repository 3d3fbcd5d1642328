"""The tables of the paper, with this project's counts and the results of finished runs below each row.

The paper's numbers are in paper_tables.md.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, PreTrainedConfig

from hf_gmlp.cards import markdown_table
from hf_gmlp.errors import InputError
from hf_gmlp.presets import preset_path

from . import models  # noqa: F401  # adds the presets of the baseline models
from .counts import paper_flops, paper_parameters
from .runs import Run, best_setting, find_runs

PRINTED = Path(__file__).with_name("paper_tables.md")
IMAGENET_CLASSES = 1000
# Columns filled from runs: task, metric in all_results.json, and scale factor.
RESULTS = {
    "Perplexity": ("mlm", "eval_perplexity", 1),
    "SST-2": ("sst2", "eval_accuracy", 100),
    "MNLI-m": ("mnli", "eval_matched_accuracy", 100),
    "MNLI-mm": ("mnli", "eval_mismatched_accuracy", 100),
    "SQuAD v1.1": ("squad_v1", "eval_f1", 1),
    "SQuAD v2.0": ("squad_v2", "eval_f1", 1),
    "ImageNet Top-1 (%)": ("image", "eval_accuracy", 100),
}
# Sequence length of the perplexities in a table (Table 8). It varies, and BERT-base is in tables of both lengths.
SEQUENCE_LENGTHS = {3: 128, 4: 128, 6: 512, 10: 128}
# Config fields that define an architecture, unlike dropout, labels and vocabulary.
ARCHITECTURE = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "type_vocab_size", "hidden_act", "spatial_gating", "toeplitz", "attention_size",
    "content_attention", "relative_attention_num_buckets", "relative_attention_max_distance",
    "spatial_intermediate_size", "image_size", "patch_size", "num_channels", "pooling",
)  # fmt: skip


@dataclass
class Row:
    """A row of a table."""

    name: str  # as printed
    model: str  # the model to count: a preset, or "timm/NAME"
    paper: dict[str, str]  # the printed cells, by column
    here: dict[str, str] = field(default_factory=dict)  # this project's; "=" marks agreement with the printed number


@dataclass
class Table:
    """A table of the paper."""

    number: int
    title: str
    header: list[str]
    rows: list[Row]
    notes: list[str]  # lines below the table


def print_table(number: int, runs: Sequence[str | Path]) -> None:
    """Print a table of the paper with this project's numbers."""
    print(to_markdown(build_table(number, runs)), end="")


def build_table(number: int, runs: Sequence[str | Path] = ()) -> Table:
    """Fill a table of the paper with this project's numbers.

    Args:
        number: 1 to 10.
        runs: Folders; results come from the finished runs in and below them.

    Raises:
        InputError: There is no such table or folder, or no finished run in the folders.
    """
    table = paper_table(number)
    # Tables 7 to 9 list hyperparameters, which are not counted.
    if number not in (7, 8, 9):
        fill_counts(table)
        if runs:
            fill_results(table, find_runs(runs))
    return table


def paper_table(number: int) -> Table:
    """Return a table as the paper prints it; raise InputError if the paper does not have it."""
    _, *parts = re.split(r"^## Table (\d+)\. ", PRINTED.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(map(int, parts[::2]), parts[1::2]))
    if number not in sections:
        raise InputError(f"The paper has no Table {number}. It has Tables {min(sections)} to {max(sections)}.")
    title, *lines = sections[number].strip().splitlines()
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    notes = re.findall(r"^- (.*(?:\n  .*)*)", sections[number], flags=re.MULTILINE)
    # Flags are printed as a column, but models are not.
    if header[-1] == "flag":
        header, body = [*header, ""], [[*cells, ""] for cells in body]
    rows = [Row(name, model, dict(zip(header[1:], cells))) for name, *cells, model in body]
    return Table(number, title, header[:-1], rows, [re.sub(r"\n +", " ", note) for note in notes])


def fill_counts(table: Table) -> None:
    """Fill in parameters and FLOPs."""
    for row in table.rows:
        if row.model.startswith("timm/"):
            parameters, flops = timm_counts(row.model, int(row.paper["Input Resolution"]))
        else:
            config = preset_config(row.model)
            parameters = paper_parameters(config)
            flops = paper_flops(config) if {"FLOPs (B)", "MAdds (B)"} & row.paper.keys() else 0
        counts = {"Params (M)": parameters / 1e6, "FLOPs (B)": flops / 1e9, "MAdds (B)": flops / 2e9}
        row.here = {name: compare_counts(row.paper[name], count) for name, count in counts.items() if name in row.paper}


def compare_counts(printed: str, count: float) -> str:
    """Return a count with one more digit than printed, with "=" if it rounds to that, else with the difference."""
    digits = len(printed.partition(".")[2])
    text = f"{count:.{digits + 1}f}"
    return f"= {text}" if f"{count:.{digits}f}" == printed else f"{text} ({100 * (count / float(printed) - 1):+.1f}%)"


@cache
def preset_config(name: str) -> PreTrainedConfig:
    """Return the config of a preset; for an image model, with the number of ImageNet classes."""
    return AutoConfig.from_pretrained(preset_path(name), num_labels=IMAGENET_CLASSES)


@cache
def timm_counts(name: str, pixels: int) -> tuple[int, int]:
    """Return the parameters of a timm model, with classifier, and its FLOPs for one square image."""
    import timm

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = timm.create_model(name.removeprefix("timm/")).eval()
        model(torch.empty(1, 3, pixels, pixels))
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops()


def fill_results(table: Table, runs: Sequence[Run]) -> None:
    """Fill in the median over the seeds of the best setting, as in the paper. Notes name the runs."""
    mark = 0
    # If a model has two rows, the first is the published result and the second the authors' own training.
    for row in {row.model: row for row in table.rows}.values():
        for column in [column for column in row.paper if column in RESULTS]:
            task, metric, scale = RESULTS[column]
            members = [run for run in runs if run.task == task and metric in run.results]
            members = [run for run in members if belongs(run, row.model, table.number)]
            if not members:
                continue
            chosen, settings = best_setting(members, metric, min if task == "mlm" else max)
            values, mark = [scale * run.results[metric] for run in chosen], mark + 1
            digits = 2 if task == "mlm" else 1
            median, minimum, maximum = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
            row.here[column] = f"{median} [{mark}]"
            table.notes.append(
                f"[{mark}] {column} of {row.model}: median of {len(chosen)} runs ({minimum} to {maximum}), the best of "
                f"{settings} settings, after {chosen[0].steps} steps, in {', '.join(str(run.folder) for run in chosen)}"
            )
    table.notes.append(f"{len(runs)} finished runs fill {mark} cells.")


def belongs(run: Run, model: str, number: int) -> bool:
    """Return whether a run matches a row: its model, and the sequence length or classes of Table `number`."""
    config = run.config
    if run.task == "mlm":
        length = run.settings.get("max_seq_length") or config.max_position_embeddings
        if int(length) != SEQUENCE_LENGTHS[number]:
            return False
    if run.task == "image" and config.num_labels != IMAGENET_CLASSES:
        return False
    if model.startswith("timm/"):
        return f"timm/{getattr(config, 'architecture', '')}".partition(".")[0] == model
    expected = preset_config(model)
    return all(getattr(config, name, None) == getattr(expected, name, None) for name in ARCHITECTURE)


def to_markdown(table: Table) -> str:
    """Format a table: the title, each row of the paper followed by this project's, and the notes."""
    rows = [table.header]
    for row in table.rows:
        rows.append([row.name, *row.paper.values()])
        if row.here:
            rows.append([f"here: {row.model}", *(row.here.get(column, "") for column in row.paper)])
    # Pad the cells, so that the table is readable in a terminal.
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = markdown_table([[cell.ljust(width) for cell, width in zip(row, widths)] for row in rows])
    legend = 'Rows named "here" have this project\'s numbers; = marks a size counted here that agrees with the paper.'
    notes = "".join(f"- {note}\n" for note in ([legend] if table.rows[0].here else []) + table.notes)
    return f"**Table {table.number}.** {table.title}\n\n{padded}\n\n{notes}"
