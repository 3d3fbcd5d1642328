"""What `make docs` does beyond mkdocs: README.md is the first page, and links to other files of the repository work."""

import os
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
BLOB = "https://github.com/hf-gmlp/hf-gmlp/blob/main/"
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")


def on_files(files, config):
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    # README.md lies beside docs/, not in it.
    folder = ROOT if page.file.src_uri == "index.md" else ROOT / "docs" / Path(page.file.src_uri).parent
    shown = (ROOT / "docs" / page.file.src_uri).parent

    def link(match):
        target = match[2].removeprefix(BLOB)
        if "://" in target:
            return match[0]
        # Links of README.md may be whole addresses, since a package index shows it too.
        path = ((ROOT if target != match[2] else folder) / target).resolve()
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} links to {match[2]}, which does not exist.")
        if path.is_relative_to(ROOT / "docs") and path.is_file():
            return f"{match[1]}{os.path.relpath(path, shown)}{match[3]}"
        return f"{match[1]}{BLOB}{path.relative_to(ROOT).as_posix()}{match[3]}"

    return LINK.sub(link, markdown)
