"""The notebooks in docs/ run from the first cell to the last, with the bundled models."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/notebooks"


def run(name, folder):
    """Run a notebook in a copy of its folder, beside the bundled models, and return its printed output."""
    (folder / "docs/notebooks").mkdir(parents=True)
    (folder / "checkpoints").symlink_to(ROOT / "checkpoints")
    shutil.copy(ROOT / "docs/ship.png", folder / "docs")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder / "docs/notebooks")}}
    NotebookClient(notebook, timeout=900, resources=resources).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "IProgress" not in text, "tqdm lacks ipywidgets"
    return text


def number(pattern, text):
    return float(re.search(pattern, text)[1])


@pytest.mark.heavy
def test_the_text_notebook_beats_its_baseline(tmp_path):
    text = run("text", tmp_path)
    assert number(r"accuracy ([\d.]+);", text) > number(r"alone gives ([\d.]+)", text)
    assert number(r"\) ([\d.e-]+)\n", text) < 1e-5


@pytest.mark.heavy
def test_the_image_notebook_beats_its_baseline(tmp_path):
    text = run("images", tmp_path)
    assert number(r"accuracy ([\d.]+) on", text) > number(r"on the pixels: ([\d.]+)", text)


@pytest.mark.heavy
def test_the_notebook_about_photos_beats_colors(tmp_path):
    text = run("photos", tmp_path)
    assert number(r"gmlp-mini-photos: ([\d.]+)", text) > number(r"colors: ([\d.]+) of", text)
    assert number(r"accuracy ([\d.]+) \(", text) > number(r"same splits: ([\d.]+)", text)


@pytest.mark.heavy
def test_the_generation_notebook_beats_its_baseline(tmp_path):
    text = run("generation", tmp_path)
    assert number(r"perplexity (\d+) on held-out", text) < number(r"perplexity (\d+) of a unigram", text)
    assert number(r"\) ([\d.e-]+)\n", text) < 1e-4


@pytest.mark.heavy
def test_the_search_notebook_beats_its_baseline(tmp_path):
    text = run("search", tmp_path)
    assert number(r"gmlp-mini-sentences: ([\d.]+)", text) > number(r"tf-idf: ([\d.]+)", text)


def test_notebooks_are_saved_with_their_outputs():
    for path in FOLDER.glob("*.ipynb"):
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in cells), path
        assert not any(output.output_type == "error" for cell in cells for output in cell.outputs), path
        # Outputs contain no traces of the machine that ran the notebook.
        assert not re.search(r"/home/|/root/|/tmp/|site-packages", path.read_text(encoding="utf-8")), path
