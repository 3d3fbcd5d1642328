import numpy as np
import pytest
from scipy.optimize import curve_fit

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from paper import scaling
from paper.__main__ import main
from paper.counts import paper_parameters
from paper.runs import find_runs
from paper.scaling import capacity, perplexity_points, power_laws, to_points, transfer

from .conftest import finished_run

pytestmark = pytest.mark.slow


@pytest.fixture
def pretrained(write_run, text_config):
    """Two seeds of gMLPs of four depths, whose median perplexity is 50 * millions of parameters ** -0.5; one aMLP."""

    def write(name, perplexity, steps=50, **fields):
        return write_run(name, "GMLPForMaskedLM", {"eval_perplexity": perplexity}, steps=steps, **fields)

    for layers in (1, 2, 4, 8):
        median = 50 * (paper_parameters(text_config(num_hidden_layers=layers)) / 1e6) ** -0.5
        write(f"mlm/gmlp-{layers}", median - 1, num_hidden_layers=layers)
        write(f"mlm/gmlp-{layers}-again", median + 1, num_hidden_layers=layers)
    write("mlm/amlp", 300.0, num_hidden_layers=2, attention_size=8)
    return write


@pytest.fixture
def finetuned(write_run, tmp_path):
    def write(name, base, accuracy, task="sst2", lr=1e-3, seed=1, **fields):
        settings = {"task_name": task, "learning_rate": lr, "seed": seed}
        settings["model_name_or_path"] = str(tmp_path / "runs" / "mlm" / base)
        return write_run(name, "GMLPForSequenceClassification", {"eval_accuracy": accuracy}, settings, **fields)

    return write


@pytest.fixture
def figures(monkeypatch):
    """Collect the figures instead of writing files."""
    figures = []
    monkeypatch.setattr(scaling, "save_picture", lambda figure, path: figures.append(figure))
    yield figures
    scaling.plt.close("all")


def test_power_laws_are_fitted_to_logarithms():
    x = np.array([1.0, 3.0, 10.0, 40.0])
    y = 7 * x**-0.3 * np.exp(np.random.default_rng(0).normal(size=4) * 0.1)
    law = power_laws(to_points(("gMLP", *point) for point in zip(x, y)))["gMLP"]
    # The reference is another scipy routine, whose covariance gives the same error.
    (slope, level), covariance = curve_fit(lambda u, a, b: a * u + b, np.log(x), np.log(y))
    assert (law.slope, law.intercept) == (pytest.approx(slope, rel=1e-6), pytest.approx(level, rel=1e-6))
    assert law.stderr == pytest.approx(np.sqrt(covariance[0, 0]), rel=1e-5)
    assert power_laws(to_points(("gMLP", *point) for point in zip(x[:3], y))) == {}


@pytest.mark.parametrize(("kind", "panels"), [("scaling", 3), ("transfer", 2), ("capacity", 1)])
def test_without_runs_the_figures_are_the_papers(tmp_path, figures, capsys, kind, panels):
    main(["plot", kind, "--output", str(tmp_path / "a.png")])
    assert len(figures[0].axes) == panels
    # Between the ends of Table 4: log(4.91 / 3.47) / log(365 / 67) = 0.205, log(5.25 / 3.43) / log(357 / 59) = 0.236.
    assert ("Transformer (paper): perplexity ~ parameters^(-0.201" in capsys.readouterr().out) == (kind == "scaling")


def test_runs_are_drawn_with_their_laws(tmp_path, pretrained, finetuned, figures, capsys):
    finetuned("rte", "amlp", 0.55, task="rte", attention_size=8)
    main(["plot", "scaling", "--runs", str(tmp_path), "--output", str(tmp_path / "a.png")])
    assert capsys.readouterr().out.startswith("gMLP: perplexity ~ parameters^(-0.500 ± 0.000)\nThe picture")
    assert [axis.get_title().rpartition(" ")[2] for axis in figures[0].axes] == ["pretraining", "RTE"]
    # Only the power law is a line; points are not connected.
    assert sum(line.get_linestyle() != "None" for line in figures[0].axes[0].lines) == 1


def test_accuracies_of_the_best_setting(tmp_path, pretrained, finetuned):
    for seed, accuracy in enumerate((0.70, 0.75, 0.90)):
        finetuned(f"sst2/good-{seed}", "gmlp-2", accuracy, lr=1e-3, seed=seed)
    finetuned("sst2/poor", "gmlp-2", 0.60, lr=1e-2)
    scratch = finetuned("sst2/scratch", "amlp", 0.99, attention_size=8)
    (scratch / "settings.json").write_text('{"task_name": "sst2", "config_name": "amlp-base"}')
    runs = find_runs([tmp_path])
    (panel,) = transfer(runs, paper=False)
    (base,) = (run for run in runs if run.folder.name == "gmlp-2")
    assert panel.points.y.tolist() == pytest.approx([70.0, 75.0, 90.0]) and set(panel.points.family) == {"gMLP"}
    assert set(panel.points.x) == {base.results["eval_perplexity"]}


def test_image_runs_beside_the_paper(tmp_path, vision_config):
    def image_run(layers, classes, accuracy):
        config, head = vision_config(num_hidden_layers=layers, num_labels=classes), "GMLPForImageClassification"
        finished_run(tmp_path / f"{layers}-{classes}", config, head, {"eval_accuracy": accuracy})

    for layers in (1, 2):
        image_run(layers, 10, 0.5 + layers / 100)
    printed, own = capacity(find_runs([tmp_path]))
    assert len(printed.points) == 19 and own.points.y.tolist() == pytest.approx([51, 52])


def test_what_cannot_be_compared(tmp_path, pretrained, capsys):
    with pytest.raises(SystemExit):
        main(["plot", "transfer", "--runs", str(tmp_path)])
    assert "transfer" in capsys.readouterr().err
    longer = pretrained("mlm/longer", 20.0, num_hidden_layers=16, steps=100)
    with pytest.raises(InputError, match="50 and 100 steps"):
        perplexity_points(find_runs([tmp_path]))
    (longer / "trainer_state.json").unlink()
    perplexity_points(find_runs([tmp_path]))
    (longer / "config.json").write_text(GMLPConfig(vocab_size=70, architectures=["GMLPForMaskedLM"]).to_json_string())
    with pytest.raises(InputError, match="40 and 70 tokens"):
        perplexity_points(find_runs([tmp_path]))
