"""Commands load only the libraries that they need: each takes seconds to import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_gmlp import GMLPConfig, GMLPForSequenceClassification, GMLPModel

from .samples import write_rows

pytestmark = pytest.mark.slow
SLOW = ("datasets", "evaluate", "gradio", "matplotlib", "scipy.stats", "sklearn", "torch", "transformers.pipelines")
# Run each line, and print those of the modules that are loaded after it.
PROGRAM = """
import sys
for line in sys.argv[2:]:
    exec(line)
    print("loaded:", *(name for name in sys.argv[1].split() if name in sys.modules))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, word_tokenizer):
    folder = tmp_path_factory.mktemp("start")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": len(word_tokenizer)}
    for name, model_class in {"classifier": GMLPForSequenceClassification, "encoder": GMLPModel}.items():
        model_class(GMLPConfig(**sizes, pooling="mean")).save_pretrained(folder / name)
        word_tokenizer.save_pretrained(folder / name)
    write_rows(folder / "two.csv", [{"text": "w1 w2"}, {"text": "w3"}])
    write_rows(folder / "rows.csv", [{"text": f"w{i} w{i % 5}", "label": "ab"[i % 2]} for i in range(32)])
    return folder


def run(*lines: str, folder: Path | None = None) -> list[set[str]]:
    """Return the slow modules that each line of a new process loads, besides those of the lines before it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, " ".join(SLOW), *lines]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    loaded = [set(line.split()[1:]) for line in printed]
    return [after - before for before, after in zip([set(), *loaded], loaded)]


def test_help_loads_nothing():
    line = "from contextlib import suppress; from hf_gmlp_cli import main\nwith suppress(SystemExit): main(['--help'])"
    assert run(line) == [set()]


def test_texts_are_predicted_without_scores_and_classified_without_fine_tuning(folder):
    package, module, predict, classify = run(
        "import hf_gmlp",
        "import hf_gmlp.tools.predict",
        "import hf_gmlp_cli; hf_gmlp_cli.main(['predict', 'classifier', 'two.csv', '--output', 'out.csv'])",
        "hf_gmlp_cli.main(['classify', 'encoder', 'rows.csv', '--output', 'out'])",
        folder=folder,
    )
    assert package == {"torch"} and module == {"datasets"} and predict == set()
    # The report has a picture of the confusion matrix.
    assert classify <= {"evaluate", "matplotlib", "scipy.stats", "sklearn", "transformers.pipelines"}
    assert "sklearn" in classify and (folder / "out.csv").exists()


def test_a_page_is_served_without_scores(folder):
    (module,) = run("import hf_gmlp.tools.serve", folder=folder)
    assert module <= {"datasets", "gradio", "torch", "transformers.pipelines"} and "gradio" in module
