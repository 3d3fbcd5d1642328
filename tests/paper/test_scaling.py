import json

import numpy as np
import pytest
from scipy.optimize import curve_fit

from hf_gmlp import GMLPConfig, GMLPVisionConfig
from hf_gmlp.errors import InputError
from paper import scaling
from paper.__main__ import main
from paper.runs import find_runs
from paper.scaling import accuracy_points, perplexity_points, plot_capacity, plot_scaling, plot_transfer, power_law

from .conftest import finished_run

pytestmark = pytest.mark.slow


@pytest.fixture
def write_run(tmp_path):
    """write_run(name, head, results, settings, **fields) writes what a finished run leaves, and gives its folder."""

    def write(name, head, results, settings=None, steps=50, config=GMLPConfig, **fields):
        config = config(**({"hidden_size": 16, "intermediate_size": 32} | fields))
        return finished_run(tmp_path / "runs" / name, config, head, results, settings or {}, steps)

    return write


@pytest.fixture
def pretrained(write_run):
    """Two seeds of gMLPs of four depths, whose median perplexity is 50 * millions of parameters ** -0.5; one aMLP."""

    def write(name, perplexity, **fields):
        results = {"eval_perplexity": perplexity, "eval_predicted_tokens": 1000}
        return write_run(name, "GMLPForMaskedLM", results, vocab_size=60, max_position_embeddings=16, **fields)

    for layers in (1, 2, 4, 8):
        folder = write(f"mlm/gmlp-{layers}", 1.0, num_hidden_layers=layers)
        median = 50 * (find_runs([folder])[0].millions) ** -0.5
        (folder / "all_results.json").write_text(json.dumps({"eval_perplexity": median - 1}))
        write(f"mlm/gmlp-{layers}-again", median + 1, num_hidden_layers=layers)
    write("mlm/amlp", 300.0, num_hidden_layers=2, attention_size=8)
    return write


@pytest.fixture
def finetuned(write_run, tmp_path):
    def write(name, base, accuracy, task="sst2", lr=1e-3, seed=1, **fields):
        settings = {"task_name": task, "learning_rate": lr, "seed": seed}
        settings["model_name_or_path"] = str(tmp_path / "runs" / "mlm" / base)
        sizes = {"vocab_size": 60, "max_position_embeddings": 16}
        head = "GMLPForSequenceClassification"
        return write_run(name, head, {"eval_accuracy": accuracy}, settings, **(sizes | fields))

    return write


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, in place of files."""
    figures = []
    monkeypatch.setattr(scaling, "save_picture", lambda figure, path: figures.append(figure))
    yield figures
    scaling.plt.close("all")


def test_power_law_is_recovered():
    x = np.array([1.0, 3.0, 10.0, 40.0])
    exact = power_law(x, 7 * x**-0.3)
    assert (exact.factor, exact.exponent) == (pytest.approx(7), pytest.approx(-0.3))
    # With noise, as another routine of scipy's fits a line to the logarithms; its covariance has the same error.
    y = 7 * x**-0.3 * np.exp(np.random.default_rng(0).normal(size=4) * 0.1)
    fit = power_law(x, y)
    (slope, level), covariance = curve_fit(lambda u, a, b: a * u + b, np.log(x), np.log(y))
    assert fit.exponent == pytest.approx(slope, rel=1e-6) and fit.factor == pytest.approx(np.exp(level), rel=1e-6)
    assert fit.error == pytest.approx(np.sqrt(covariance[0, 0]), rel=1e-5)


@pytest.mark.parametrize(
    ("x", "y"), [([1, 2, 3, 3, 1], [3, 2, 2, 3, 4]), ([1, 2, 0, 4], [3, 2, 1, 1]), ([1, 2, 3, 4], [3, np.nan, 1, 1])]
)
def test_no_power_law(x, y):
    with pytest.raises(InputError, match="power law"):
        power_law(x, y)


def test_numbers_of_the_paper():
    points = scaling.paper_points("Params (M)", "Perplexity")
    assert [(p.x, p.y) for p in points["gMLP (paper)"]] == [(59, 5.25), (102, 4.35), (187, 3.79), (357, 3.43)]
    images = scaling.image_points_of_paper()
    assert [(p.x, p.y) for p in images["gMLP"]] == [(6, 72.3), (20, 79.6), (73, 81.6)]


@pytest.mark.parametrize(("kind", "panels"), [("scaling", 3), ("transfer", 2), ("capacity", 1)])
def test_without_runs_the_figures_are_the_papers(tmp_path, drawn, capsys, kind, panels):
    main(["plot", kind, "--output", str(tmp_path / "a.png")])
    assert len(drawn[0].axes) == panels
    # Between the ends of Table 4: log(4.91 / 3.47) / log(365 / 67) = 0.205, log(5.25 / 3.43) / log(357 / 59) = 0.236.
    assert ("Transformer (paper): perplexity ~ parameters^(-0.201" in capsys.readouterr().out) == (kind == "scaling")


def test_perplexities_have_a_law(tmp_path, pretrained, drawn):
    runs = find_runs([tmp_path])
    points = perplexity_points(runs)
    assert list(points) == ["gMLP", "aMLP"] and [len(p.values) for p in points["gMLP"]] == [2, 2, 2, 2]
    laws = plot_scaling(tmp_path / "s.png", runs)
    assert list(laws) == ["gMLP"]
    assert (laws["gMLP"].exponent, laws["gMLP"].factor) == (pytest.approx(-0.5), pytest.approx(50))
    # Too few sizes for a law.
    runs = find_runs([tmp_path / f"runs/mlm/gmlp-{layers}" for layers in (1, 2, 4)])
    assert plot_scaling(tmp_path / "s.png", runs) == {} and not lines(drawn[1].axes[0])


def test_accuracies_of_the_best_setting(tmp_path, pretrained, finetuned, drawn):
    for seed, accuracy in enumerate((0.70, 0.75, 0.90)):
        finetuned(f"sst2/good-{seed}", "gmlp-2", accuracy, lr=1e-3, seed=seed, num_hidden_layers=2)
    # The best single run is here, and the worse median.
    for seed, accuracy in enumerate((0.60, 0.65, 0.95)):
        finetuned(f"sst2/poor-{seed}", "gmlp-2", accuracy, lr=1e-2, seed=seed, num_hidden_layers=2)
    finetuned("rte/amlp", "amlp", 0.55, task="rte", num_hidden_layers=2, attention_size=8)
    scratch = finetuned("sst2/scratch", "amlp", 0.99, num_hidden_layers=2, attention_size=8)
    (scratch / "settings.json").write_text('{"task_name": "sst2", "config_name": "amlp-base"}')
    runs = find_runs([tmp_path])
    assert scaling.finetuning_tasks(runs) == ["sst2", "rte"]
    by_size = accuracy_points(runs, "sst2")
    assert list(by_size) == ["gMLP"] and by_size["gMLP"][0].values == pytest.approx((70.0, 75.0, 90.0))
    by_perplexity = scaling.transfer_points(runs, "sst2")
    base = next(run for run in runs if run.name == "runs/mlm/gmlp-2")
    assert by_perplexity["gMLP"][0].x == base.results["eval_perplexity"]
    plot_scaling(tmp_path / "s.png", runs, paper=True)
    assert [axis.get_title().rpartition(" ")[2] for axis in drawn[0].axes] == ["pretraining", "SST-2", "RTE"]
    assert "chance: 50" in drawn[0].axes[1].get_ylabel()


def lines(axis):
    """Return the lines that join some points."""
    return [line for line in axis.lines if line.get_linestyle() != "None" and len(line.get_xdata()) > 1]


def test_lines_join_sizes_and_never_seeds(tmp_path, pretrained, finetuned, drawn):
    for layers in (1, 2):
        finetuned(f"tuned/{layers}", f"gmlp-{layers}", 0.7 + layers / 100, num_hidden_layers=layers)
    plot_transfer(tmp_path / "t.png", find_runs([tmp_path / "runs"]))
    # Another seed of one of the sizes, with a perplexity of its own.
    finetuned("tuned/again", "gmlp-2-again", 0.71, num_hidden_layers=2)
    plot_transfer(tmp_path / "t.png", find_runs([tmp_path / "runs"]))
    assert [len(lines(figure.axes[0])) for figure in drawn] == [1, 0]


def test_image_runs_beside_the_paper(tmp_path, write_run, drawn):
    def image_run(name, accuracy, classes=10, layers=1, **results):
        head, sizes = "GMLPForImageClassification", {"image_size": 8, "patch_size": 4, "config": GMLPVisionConfig}
        sizes |= {"num_hidden_layers": layers, "num_labels": classes}
        write_run(name, head, {"eval_accuracy": accuracy, **results}, **sizes)

    for layers in (1, 2):
        for seed, accuracy in ((1, 0.5), (2, 0.54)):
            image_run(f"images/{layers}-{seed}", accuracy + layers / 100, layers=layers)
    runs = find_runs([tmp_path / "runs"])
    points = scaling.image_points(runs)["gMLP"]
    assert [point.y for point in points] == pytest.approx([53, 54]) and points[0].x < points[1].x < 0.1
    plot_capacity(tmp_path / "both.png", runs)
    assert len(drawn[0].axes) == 2
    image_run("images/other", 0.1, classes=5)
    with pytest.raises(InputError, match="5 and 10 classes"):
        plot_capacity(tmp_path / "both.png", find_runs([tmp_path / "runs"]))


def test_what_cannot_be_compared(tmp_path, pretrained, write_run):
    runs = tmp_path / "runs"
    with pytest.raises(InputError, match="image classifier"):
        plot_capacity(tmp_path / "c.png", find_runs([runs]))
    with pytest.raises(InputError, match="No fine-tuning"):
        plot_transfer(tmp_path / "t.png", find_runs([runs]))
    longer = pretrained("mlm/longer", 20.0, num_hidden_layers=16, steps=100)
    with pytest.raises(InputError, match="50 and 100 steps"):
        plot_scaling(tmp_path / "s.png", find_runs([runs]))
    (longer / "trainer_state.json").write_text('{"global_step": 50}')
    (longer / "all_results.json").write_text('{"eval_perplexity": 20.0, "eval_predicted_tokens": 2000}')
    with pytest.raises(InputError, match="1,000 to 2,000 masked tokens"):
        plot_scaling(tmp_path / "s.png", find_runs([runs]))
    (longer / "config.json").write_text(GMLPConfig(vocab_size=70, architectures=["GMLPForMaskedLM"]).to_json_string())
    with pytest.raises(InputError, match="60 and 70 tokens"):
        plot_scaling(tmp_path / "s.png", find_runs([runs]))
    (longer / "all_results.json").write_text('{"eval_perplexity": NaN}')
    with pytest.raises(InputError, match="longer diverged"):
        plot_scaling(tmp_path / "s.png", find_runs([runs]))
