"""A hook of the site: replaces the line FLAGS of a page by tables of the scripts' own flags."""

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent


def dataclasses_of_flags():
    """Return the dataclasses that define flags, each with the scripts that take them."""
    scripts = {}
    for path in sorted(ROOT.glob("run_*.py")):
        module = import_module(f"hf_gmlp.tasks.{path.stem.removeprefix('run_')}.run")
        for name in dict.fromkeys(re.findall(r"\b[A-Z]\w*Arguments\b", inspect.getsource(module.main))):
            for one in getattr(module, name).__mro__:
                if one.__module__.startswith("hf_gmlp.") and is_dataclass(one):
                    scripts.setdefault(one, [])
                    scripts[one] += [path.name] if path.name not in scripts[one] else []
    return sorted(scripts.items(), key=lambda item: -len(item[1]))


def table_of_flags(one, scripts):
    title = inspect.getdoc(one).splitlines()[0].rstrip(".")
    rows = [f"## {title}", "", ", ".join(f"`{name}`" for name in scripts), ""]
    rows += ["| flag | value | default | meaning |", "| --- | --- | --- | --- |"]
    for field in (field for field in fields(one) if field.name in inspect.get_annotations(one)):
        text = field.metadata.get("help", "")
        interval = f" In {text.interval}." if getattr(text, "interval", None) else ""
        value = inspect.formatannotation(field.type).replace(" | None", "").replace("|", "\\|")
        default = field.default if field.default_factory is MISSING else field.default_factory()
        shown = "" if default is None else f"`{default}`"
        rows.append(f"| `--{field.name}` | {value} | {shown} | {text}{interval} |")
    return "\n".join(rows)


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri == "reference/flags.md":
        return markdown.replace("FLAGS", "\n\n".join(table_of_flags(*item) for item in dataclasses_of_flags()))
