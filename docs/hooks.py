"""mkdocs hooks: README.md is the first page, paper/ has pages too, and links to other files lead to GitHub."""

import os
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
BLOB = "https://github.com/hf-gmlp/hf-gmlp/blob/main/"
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")
# File outside of docs/ -> its path on the site.
OUTSIDE = {ROOT / "README.md": "index.md"}
for pattern in (
    "paper/claims.md",
    "paper/replication*.md",
    "paper/replication/**/*.md",
    "paper/replication/**/*.png",
    "benchmarks/results/*.png",
):
    OUTSIDE |= {path: path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}


def on_files(files, config):
    for path, shown in OUTSIDE.items():
        files.append(File.generated(config, shown, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    source = Path(page.file.abs_src_path)

    def link(match):
        target = match[2].removeprefix(BLOB)
        if "://" in target:
            return match[0]
        # README.md may use full addresses, because a package index shows it too.
        path = ((source.parent if target == match[2] else ROOT) / target).resolve()
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} links to {match[2]}, which does not exist.")
        shown = OUTSIDE.get(path)
        if shown is None and path.is_relative_to(ROOT / "docs") and path.is_file():
            shown = path.relative_to(ROOT / "docs").as_posix()
        if shown is None:
            return f"{match[1]}{BLOB}{path.relative_to(ROOT).as_posix()}{match[3]}"
        return f"{match[1]}{os.path.relpath(shown, Path(page.file.src_uri).parent)}{match[3]}"

    return LINK.sub(link, markdown)
