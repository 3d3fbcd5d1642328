"""Hooks of the site: pages from outside of docs/ and from notebooks, and links to other files, which lead to GitHub."""

import os
import re
from pathlib import Path

from nbconvert import MarkdownExporter
from properdocs.exceptions import PluginError
from properdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parent.parent
BLOB = "https://github.com/hf-gmlp/hf-gmlp/blob/main/"
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")
# A file outside of docs/, or a notebook -> its path on the site.
PAGES = {ROOT / "README.md": "index.md"}
for pattern in (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "paper/claims.md",
    "paper/replication*.md",
    "paper/replication/**/*.md",
    "paper/replication/**/*.png",
):
    PAGES |= {path: path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
NOTEBOOKS = {path: f"notebooks/{path.stem}.md" for path in ROOT.glob("docs/notebooks/*.ipynb")}


def on_files(files, config):
    pages = Files([file for file in files if Path(file.abs_src_path) not in NOTEBOOKS])
    for path, page in PAGES.items():
        pages.append(File.generated(config, page, abs_src_path=str(path)))
    for path, page in NOTEBOOKS.items():
        # They are shown as they were run and saved; the tests run them anew.
        names = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
        text, resources = MarkdownExporter().from_filename(str(path), resources=names)
        pages.append(File.generated(config, page, content=text))
        for name, picture in resources["outputs"].items():
            pages.append(File.generated(config, f"notebooks/{name}", content=picture))
    colors = {".highlight": "default", "[data-bs-theme=dark] .highlight": "github-dark"}
    styles = [HtmlFormatter(style=style).get_style_defs(selector) for selector, style in colors.items()]
    pages.append(File.generated(config, "pygments.css", content="\n".join(styles)))
    return pages


def on_page_markdown(markdown, page, config, files):
    source = Path(page.file.abs_src_path or ROOT / "docs" / page.file.src_uri)

    def link(match):
        target = match[2].removeprefix(BLOB)
        if "://" in target or files.get_file_from_path(f"notebooks/{target}"):
            return match[0]
        # README.md may use full addresses, because a package index shows it too.
        path = ((source.parent if target == match[2] else ROOT) / target).resolve()
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} links to {match[2]}, which does not exist.")
        target_page = (PAGES | NOTEBOOKS).get(path)
        if target_page is None and path.is_relative_to(ROOT / "docs") and path.is_file():
            target_page = path.relative_to(ROOT / "docs").as_posix()
        if target_page is None:
            return f"{match[1]}{BLOB}{path.relative_to(ROOT).as_posix()}{match[3]}"
        return f"{match[1]}{os.path.relpath(target_page, Path(page.file.src_uri).parent)}{match[3]}"

    return LINK.sub(link, markdown)
