"""A hook of the site: replaces the line FLAGS of a page with tables of the flags of each script."""

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent


def scripts_of_flags():
    """Return the scripts, each with the dataclasses that define its flags."""
    scripts = {}
    for path in sorted(ROOT.glob("run_*.py")):
        module = import_module(f"hf_gmlp.tasks.{path.stem.removeprefix('run_')}")
        named = [getattr(module, name) for name in re.findall(r"\b[A-Z]\w*Arguments\b", inspect.getsource(module.main))]
        bases = dict.fromkeys(base for arguments in named for base in arguments.__mro__)
        scripts[path.name] = [base for base in bases if base.__module__.startswith("hf_gmlp.") and is_dataclass(base)]
    return scripts


def flags_by_script():
    """Return the flags that all scripts share, then those of each script, as sections with tables."""
    scripts = scripts_of_flags()
    shared = [arguments for arguments in next(iter(scripts.values())) if all(arguments in s for s in scripts.values())]
    sections = ["## All scripts", *map(table_of_flags, shared)]
    for script, classes in scripts.items():
        sections += [f"## `{script}`", *(table_of_flags(arguments) for arguments in classes if arguments not in shared)]
    return "\n\n".join(sections)


def table_of_flags(arguments):
    """Return a heading and the table of the flags that this dataclass itself defines."""
    rows = [f"### {inspect.getdoc(arguments).splitlines()[0].rstrip('.')}", ""]
    rows += ["| flag | value | default | meaning |", "| --- | --- | --- | --- |"]
    own = inspect.get_annotations(arguments)
    for field in (field for field in fields(arguments) if field.init and field.name in own):
        text = field.metadata.get("help", "")
        value = inspect.formatannotation(field.type).replace(" | None", "").replace("|", "\\|")
        default = field.default if field.default_factory is MISSING else field.default_factory()
        default = "" if default is None else f"`{default}`"
        rows.append(f"| `--{field.name}` | {value} | {default} | {text} |")
    return "\n".join(rows)


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri == "reference/flags.md":
        return markdown.replace("FLAGS", flags_by_script())
