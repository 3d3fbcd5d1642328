"""The notebooks in docs/ run from the first cell to the last, with smaller models and fewer steps than were saved."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "docs/notebooks"
SMALLER = {
    "max_steps": 60,
    "num_train_epochs": 4,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
}


def run(name, folder):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        for setting, value in SMALLER.items():
            cell.source = re.sub(rf"\b{setting}=\d+", f"{setting}={value}", cell.source)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "IProgress" not in text, "tqdm lacks ipywidgets"
    return text


def number(pattern, text):
    return float(re.search(pattern, text)[1])


@pytest.mark.heavy
def test_text(tmp_path):
    text = run("text", tmp_path)
    assert number(r"accuracy ([\d.]+);", text) > number(r"alone gives ([\d.]+)", text)
    assert number(r"\) ([\d.e-]+)\n", text) < 1e-5


@pytest.mark.heavy
def test_images(tmp_path):
    text = run("images", tmp_path)
    assert number(r"accuracy ([\d.]+) on 397", text) > 0.6


@pytest.mark.heavy
def test_generation(tmp_path):
    text = run("generation", tmp_path)
    assert number(r"([\d.]+) bits per byte on", text) < number(r"([\d.]+) bits per byte by", text)
    assert number(r"\) ([\d.e-]+)\n", text) < 1e-4


def test_notebooks_are_saved_with_their_outputs():
    for path in FOLDER.glob("*.ipynb"):
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in cells), path
        assert not any(output.output_type == "error" for cell in cells for output in cell.outputs), path
        # No traces of the machine that ran it.
        assert not re.search(r"/home/|/root/|/tmp/|site-packages", path.read_text(encoding="utf-8")), path
