"""The machine and the versions to record with every measured number."""

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def circumstances(*packages: str) -> dict[str, str]:
    """Return the date, the machine, and the versions of Python, torch and the installed ones of `packages`."""
    machine = f"{processor_name()}, {os.cpu_count()} cores, {platform.system()}"
    facts = {"date": datetime.date.today().isoformat(), "machine": machine, "python": platform.python_version()}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    for package in ("torch", *packages):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
