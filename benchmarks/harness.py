"""Shared code of the benchmarks: measure time and memory, and print and write the results."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pandas as pd
import torch

from common.machine import circumstances
from hf_gmlp.cards import markdown_table

from . import checks, peers
from .memory import kept_bytes
from .peers import COMPILED, OWN, System, base_of

RESULTS = Path(__file__).with_name("results")
Step = Callable[[], object]


def make_parser(description: str | None, rounds: int, suites: Iterable[str] = ()) -> argparse.ArgumentParser:
    """Return a parser with the flags that the benchmarks share; those with suites also have --suites and --compile."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test with tiny sizes, and a single round")
    if suites:
        parser.add_argument("--suites", nargs="+", choices=suites, default=list(suites), help="default: all")
        parser.add_argument("--compile", action="store_true", help="also measure with torch.compile")
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder (default: %(default)s)")
    parser.set_defaults(rounds=rounds, threads=1)
    return parser


class Bench:
    """A benchmark run in single precision on a CPU, with its results. gpu.py has a subclass for GPUs.

    Attributes:
        rows: One dictionary for each measured value.
    """

    def __init__(self, arguments: argparse.Namespace, device: str = "cpu") -> None:
        self.arguments, self.device = arguments, torch.device(device)
        self.rows: list[dict] = []

    def precision(self) -> AbstractContextManager:
        return nullcontext()

    def seconds(self, step: Step) -> float:
        """Return the seconds of a warmed-up step: CPU time with one thread, otherwise wall-clock time."""
        clock = time.thread_time if self.arguments.threads == 1 else time.perf_counter
        start = clock()
        step()
        return clock() - start

    def times(self, steps: dict[str, Step], rounds: int | None = None) -> dict[str, list[float]]:
        """Return the seconds of every step in every round. Steps take turns, after an untimed run of each."""
        for step in steps.values():
            step()
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(rounds or (1 if self.arguments.quick else self.arguments.rounds)):
            for name, step in steps.items():
                times[name].append(self.seconds(step))
        return times

    def forward_step(self, system: System) -> Step:
        def step() -> None:
            with torch.no_grad(), self.precision():
                system.run()

        return step

    def training_step(self, system: System) -> Step:
        """Run forward and backward, without an optimizer, which would be the same for all systems."""

        def step() -> None:
            with self.precision():
                loss = system.loss()
            loss.backward()
            system.model.zero_grad()

        return step

    def kept(self, system: System) -> float:
        """Return the MiB that a forward pass keeps for the backward pass."""
        with self.precision():
            own = [*system.model.parameters(), *system.model.buffers(), system.inputs]
            return kept_bytes(system.loss, own) / 2**20

    def measure(self, systems: dict[str, System]) -> dict[str, dict[str, list[float]]]:
        """Return the values of every round by measure (with its unit) and system."""
        results = {}
        for system in systems.values():
            system.model.eval()
        steps = {name: self.forward_step(x) for name, x in systems.items() if base_of(name) == name or COMPILED in name}
        results["forward, ms"] = self.times(steps)
        for system in systems.values():
            system.model.train()
        results["training, ms"] = self.times({name: self.training_step(system) for name, system in systems.items()})
        for values in results.values():
            values.update({name: [1e3 * second for second in seconds] for name, seconds in values.items()})
        return results | {
            "kept for backward, MiB": {name: [self.kept(x)] for name, x in systems.items() if COMPILED not in name}
        }

    def compare(self, suite: str, make: Callable[..., System], names: list[str], columns: list[dict[str, int]]) -> None:
        """Measure systems at all sizes, and print hf_gmlp's values and the ratios of other systems to them. A ratio is
        the median of the ratios within each round, since other load on the machine slows down both systems.
        """
        lines: dict[str, list[str]] = {}
        for sizes in columns:
            systems = {name: peers.build(make, name, self.device, **sizes) for name in names}
            checks.check(systems)
            for measure, by_system in self.measure(systems).items():
                for name, values in by_system.items():
                    count = peers.parameters_of(systems[name].model)
                    self.add(suite, name, measure, statistics.median(values), parameters=count, **sizes)
                    ratio = statistics.median(value / own for value, own in zip(values, by_system[OWN]))
                    cell, label = f"{ratio:.2f}", f"{measure.partition(',')[0]}: {name} / {OWN}"
                    if name == OWN:
                        cell, label = f"{statistics.median(values):.1f}", f"{measure}: {OWN}"
                    lines.setdefault(label, []).append(cell)
            del systems
        heading = [" x ".join(str(size[key]) for key in ("batch", "tokens") if key in size) for size in columns]
        print(f"\n{suite}: {columns[0]['layers']} blocks, {' x '.join(key for key in columns[0] if key != 'layers')}\n")
        print(markdown_table([["", *heading], *([label, *cells] for label, cells in lines.items())]), flush=True)

    def add(self, suite: str, system: str, measure: str, value: float, **columns) -> None:
        what, _, unit = measure.rpartition(", ")
        self.rows.append({"suite": suite, "system": system, "measure": what, "value": value, "unit": unit} | columns)


def about(**details) -> dict:
    """Return the date, the machine and the versions that belong to every measured number, and `details`."""
    return circumstances("transformers", "timm", "g-mlp-pytorch") | details


def write_results(path: Path, rows: list[dict], common: dict) -> None:
    """Append rows to a CSV file, each preceded by the columns of `common`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # As objects, integers stay integers in a column that some rows lack.
    table = pd.DataFrame([common | row for row in rows], dtype=object)
    table = table.map(lambda value: f"{value:.6g}" if isinstance(value, float) else value, na_action="ignore")
    earlier = [pd.read_csv(path, dtype=str)] if path.exists() else []
    pd.concat([*earlier, table]).to_csv(path, index=False)
    print(f"Written: {path}", flush=True)
