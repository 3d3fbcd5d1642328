import json

import numpy as np
import pytest
from PIL import Image
from runs import find_runs
from scaling import (
    accuracy_points,
    finetuning_tasks,
    image_points,
    image_points_of_paper,
    paper_points,
    perplexity_points,
    plot_capacity,
    plot_scaling,
    plot_transfer,
    power_law,
    transfer_points,
)
from scipy.optimize import curve_fit

from hf_gmlp import GMLPConfig, GMLPVisionConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.pictures import plt
from hf_gmlp.tools.cli import main

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


def colors(path):
    with Image.open(path) as picture:
        return {color for _, color in picture.convert("RGB").getcolors(maxcolors=1 << 24)}


def test_power_law_is_recovered():
    x = np.array([1.0, 3.0, 10.0, 40.0])
    exact = power_law(x, 7 * x**-0.3)
    assert (exact.factor, exact.exponent, exact.points) == (pytest.approx(7), pytest.approx(-0.3), 4)
    assert exact.error == pytest.approx(0, abs=1e-7)
    # With noise, as another routine of scipy's fits a line to the logarithms; its covariance has the same error.
    y = 7 * x**-0.3 * np.exp(np.random.default_rng(0).normal(size=4) * 0.1)
    fit = power_law(x, y)
    (slope, level), covariance = curve_fit(lambda u, a, b: a * u + b, np.log(x), np.log(y))
    assert fit.exponent == pytest.approx(slope, rel=1e-6) and fit.factor == pytest.approx(np.exp(level), rel=1e-6)
    assert fit.error == pytest.approx(np.sqrt(covariance[0, 0]), rel=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2, 3], [3, 2, 1], "at least 4 sizes, got 3"),
        ([1, 2, 3, 3, 1], [3, 2, 2, 3, 4], "at least 4 sizes, got 3"),
        ([1, 2, 3, 4], [3, 2, float("inf"), 1], "positive, finite numbers"),
        ([1, 2, 0, 4], [3, 2, 1, 1], "positive, finite numbers"),
        ([1, 2, 3, 4], [3, float("nan"), 1, 1], "positive, finite numbers"),
    ],
)
def test_no_power_law(x, y, message):
    with pytest.raises(InputError, match=message):
        power_law(x, y)


def test_numbers_of_the_paper():
    # From the text of the paper, by hand.
    points = paper_points("Params (M)", "Perplexity")
    assert [(p.x, p.y) for p in points["gMLP (paper)"]] == [(59, 5.25), (102, 4.35), (187, 3.79), (357, 3.43)]
    points = paper_points("Perplexity", "MNLI-m")
    assert (points["Transformer (paper)"][0].x, points["Transformer (paper)"][0].y) == (3.47, 86.3)
    images = {label: (x, y) for label, x, y in image_points_of_paper()}
    assert len(images) == 20 and images["gMLP-B"] == (73, 81.6) and images["ViT-L/16 @384"] == (307, 76.5)
    assert images["Mixer-B/16"] == (59, 76.4) and images["Mixer-B/16 (as gMLP)"] == (59, 77.3)


def test_perplexities_of_runs(tmp_path, pretrained):
    points = perplexity_points(find_runs([tmp_path]))
    assert list(points) == ["gMLP", "aMLP"] and [len(p.values) for p in points["gMLP"]] == [2, 2, 2, 2]
    assert [p.x for p in points["gMLP"]] == sorted(p.x for p in points["gMLP"])
    fits = plot_scaling(tmp_path / "s.png", find_runs([tmp_path]))
    assert list(fits) == ["gMLP"]
    assert (fits["gMLP"].exponent, fits["gMLP"].factor) == (pytest.approx(-0.5), pytest.approx(50))
    # gMLP blue, aMLP red.
    assert {(31, 119, 180), (214, 39, 40)} <= colors(tmp_path / "s.png")


def test_accuracies_of_the_best_setting(tmp_path, pretrained, finetuned):
    for seed, accuracy in enumerate((0.70, 0.75, 0.90)):
        finetuned(f"sst2/good-{seed}", "gmlp-2", accuracy, lr=1e-3, seed=seed, num_hidden_layers=2)
    # The best single run is here, and the worse median.
    for seed, accuracy in enumerate((0.60, 0.65, 0.95)):
        finetuned(f"sst2/poor-{seed}", "gmlp-2", accuracy, lr=1e-2, seed=seed, num_hidden_layers=2)
    finetuned("sst2/amlp", "amlp", 0.8, num_hidden_layers=2, attention_size=8)
    finetuned("rte/amlp", "amlp", 0.55, task="rte", num_hidden_layers=2, attention_size=8)
    scratch = finetuned("sst2/scratch", "amlp", 0.99, num_hidden_layers=2, attention_size=8)
    (scratch / "settings.json").write_text('{"task_name": "sst2", "config_name": "amlp-base"}')
    runs = find_runs([tmp_path])
    assert finetuning_tasks(runs) == ["sst2", "rte"]
    by_size = accuracy_points(runs, "sst2")
    assert by_size["gMLP"][0].values == pytest.approx((70.0, 75.0, 90.0)) and by_size["gMLP"][0].y == pytest.approx(75)
    assert by_size["aMLP"][0].values == pytest.approx((80.0,))
    assert by_size["gMLP"][0].x == perplexity_points(runs)["gMLP"][1].x
    by_perplexity = transfer_points(runs, "sst2")
    base = next(run for run in runs if run.name == "runs/mlm/gmlp-2")
    assert by_perplexity["gMLP"][0].x == base.results["eval_perplexity"] and by_perplexity["aMLP"][0].x == 300
    plot_transfer(tmp_path / "t.png", runs)
    assert {(31, 119, 180), (214, 39, 40)} <= colors(tmp_path / "t.png")
    # Orange: the paper's Transformer.
    assert (255, 127, 14) not in colors(tmp_path / "t.png")
    plot_transfer(tmp_path / "p.png", runs, paper=True)
    assert (255, 127, 14) in colors(tmp_path / "p.png")
    plot_scaling(tmp_path / "s.png", runs, paper=True)
    with Image.open(tmp_path / "t.png") as two, Image.open(tmp_path / "s.png") as three:
        # Perplexity, SST-2 and RTE stand in one row.
        assert three.size[0] > 1.2 * two.size[0] and three.size[1] < 1.2 * two.size[1]


def test_without_runs_the_figures_are_the_papers(tmp_path, capsys):
    main(["plot", "scaling", "--output", str(tmp_path / "s.png")])
    printed = capsys.readouterr().out
    # Between the ends of Table 4: log(4.91 / 3.47) / log(365 / 67) = 0.205, log(5.25 / 3.43) / log(357 / 59) = 0.236.
    assert "Transformer (paper): perplexity ~ parameters^(-0.201" in printed and "gMLP (paper)" in printed
    main(["plot", "transfer", "--output", str(tmp_path / "t.png")])
    main(["plot", "capacity", "--output", str(tmp_path / "c.png")])
    for name in ("s.png", "t.png", "c.png"):
        assert {(31, 119, 180), (255, 127, 14)} <= colors(tmp_path / name)


def test_image_runs_beside_the_paper(tmp_path, write_run, pretrained):
    sizes = {"image_size": 8, "patch_size": 4, "config": GMLPVisionConfig}
    for layers in (1, 2):
        for seed, accuracy in ((1, 0.5), (2, 0.54)):
            write_run(
                f"images/{layers}-{seed}", "GMLPForImageClassification", {"eval_accuracy": accuracy + layers / 100},
                num_hidden_layers=layers, num_labels=10, **sizes,
            )  # fmt: skip
    runs = find_runs([tmp_path / "runs"])
    points = image_points(runs)["gMLP"]
    assert [point.y for point in points] == pytest.approx([53, 54]) and points[0].x < points[1].x < 0.1
    plot_capacity(tmp_path / "alone.png")
    plot_capacity(tmp_path / "both.png", runs)
    with Image.open(tmp_path / "alone.png") as alone, Image.open(tmp_path / "both.png") as both:
        assert both.size[1] > 1.5 * alone.size[1] and both.size[0] == alone.size[0]
    write_run("images/other", "GMLPForImageClassification", {"eval_accuracy": 0.1}, num_labels=5, **sizes)
    with pytest.raises(InputError, match="5 and 10 classes"):
        plot_capacity(tmp_path / "both.png", find_runs([tmp_path / "runs"]))
    for name, epochs in (("short", 1.0), ("long", 20.0)):
        results = {"eval_accuracy": 0.1, "epoch": epochs}
        write_run(f"lengths/{name}", "GMLPForImageClassification", results, **sizes)
    with pytest.raises(InputError, match="1 and 20 epochs"):
        plot_capacity(tmp_path / "both.png", find_runs([tmp_path / "runs/lengths"]))


@pytest.fixture
def drawn(monkeypatch):
    """drawn(plot, ...) draws, and gives the figure in place of writing it, without the places of no panel."""

    def draw(plot, *args, **kwargs):
        figures = []
        with monkeypatch.context() as patch:
            patch.setattr("scaling.save_picture", lambda figure, path: figures.append(figure))
            plot("picture.png", *args, **kwargs)
        plt.close(figures[0])
        for axis in figures[0].axes:
            if not axis.axison:
                axis.remove()
        return figures[0]

    return draw


def lines(axis):
    """The points of every line that joins some, levels left out."""
    joined = [line for line in axis.lines if line.get_linestyle() != "None" and len(line.get_xdata()) > 1]
    return [line for line in joined if line.get_linestyle() != ":"]


def legend(figure):
    return "\n".join(text.get_text() for text in figure.legends[0].get_texts())


def test_fewer_than_four_sizes_are_points_without_a_law(tmp_path, pretrained, finetuned, drawn):
    three = find_runs([tmp_path / f"runs/mlm/gmlp-{layers}" for layers in (1, 2, 4)])
    for paper in (False, True):
        figure = drawn(plot_scaling, three, paper=paper)
        assert "gMLP: 3 sizes of pretraining, too few for a law" in legend(figure)
        assert len(lines(figure.axes[0])) == (2 if paper else 0)
    assert plot_scaling(tmp_path / "s.png", three) == {}
    # One with seeds alone, whose law would lead from seed to seed; and fine-tunings without their pretrainings.
    assert plot_scaling(tmp_path / "s.png", find_runs([tmp_path / "runs/mlm/amlp"])) == {}
    figure = drawn(plot_scaling, find_runs([finetuned("tuned", "elsewhere", 0.6)]))
    assert [axis.get_title() for axis in figure.axes] == ["After fine-tuning on SST-2"]


def test_lines_join_sizes_and_never_seeds(tmp_path, pretrained, finetuned, drawn):
    for layers in (1, 2):
        finetuned(f"tuned/{layers}", f"gmlp-{layers}", 0.7 + layers / 100, num_hidden_layers=layers)
    (line,) = lines(drawn(plot_transfer, find_runs([tmp_path / "runs"])).axes[0])
    assert len(line.get_xdata()) == 2
    # Another seed of one of the sizes, with a perplexity of its own.
    finetuned("tuned/again", "gmlp-2-again", 0.71, num_hidden_layers=2)
    axis = drawn(plot_transfer, find_runs([tmp_path / "runs"])).axes[0]
    assert not lines(axis) and sum(len(line.get_xdata()) for line in axis.lines if line.get_marker() == "o") == 3
    # Against parameters, the two are one point.
    (line,) = lines(drawn(plot_scaling, find_runs([tmp_path / "runs"])).axes[1])
    assert len(line.get_xdata()) == 2


def test_levels_and_one_scale_of_accuracies(tmp_path, pretrained, finetuned, drawn):
    finetuned("sst2", "gmlp-2", 0.9, num_hidden_layers=2)
    finetuned("many", "gmlp-2", 0.6, task="my_task", num_hidden_layers=2, num_labels=8)
    figure = drawn(plot_scaling, find_runs([tmp_path / "runs"]), unigram=700.0)
    levels = [[line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == ":"] for axis in figure.axes]
    # The chance of one in eight, far below all points, would flatten them.
    assert levels == [[700], [50], []]
    assert "every token by its frequency: 700" in legend(figure)
    _, sst2, many = figure.axes
    assert sst2.get_ylim() == many.get_ylim() and 45 < many.get_ylim()[0] < 50 and many.get_ylim()[1] > 90
    assert many.get_title() == "After fine-tuning on my task" and "(%; chance, 12.5)" in many.get_ylabel()
    # The paper's tasks have three classes and two.
    for plot in (plot_scaling, plot_transfer):
        assert ["33.3" in axis.get_ylabel() for axis in drawn(plot).axes[-2:]] == [True, False]
        assert "chance, 50)" in drawn(plot).axes[-1].get_ylabel()


def test_what_cannot_be_compared(tmp_path, pretrained, finetuned, write_run):
    runs = tmp_path / "runs"
    with pytest.raises(InputError, match="no finished image classifier"):
        plot_capacity(tmp_path / "c.png", find_runs([runs]))
    with pytest.raises(InputError, match="No fine-tuning was found"):
        plot_transfer(tmp_path / "t.png", find_runs([runs]))
    longer = pretrained("mlm/longer", 20.0, num_hidden_layers=16, steps=100)
    with pytest.raises(InputError, match="50 and 100 steps"):
        plot_scaling(tmp_path / "s.png", find_runs([runs]))
    (longer / "trainer_state.json").write_text('{"global_step": 50}')
    (longer / "all_results.json").write_text('{"eval_perplexity": 20.0, "eval_predicted_tokens": 2000}')
    with pytest.raises(InputError, match="1,000 to 2,000 masked tokens"):
        plot_scaling(tmp_path / "s.png", find_runs([runs]))
    (longer / "config.json").write_text(GMLPConfig(vocab_size=70, architectures=["GMLPForMaskedLM"]).to_json_string())
    for plot in (plot_scaling, plot_transfer):
        with pytest.raises(InputError, match="vocabularies of 60 and 70 tokens"):
            plot(tmp_path / "s.png", find_runs([runs]))
    (longer / "all_results.json").write_text('{"eval_perplexity": NaN}')
    with pytest.raises(InputError, match="longer diverged"):
        plot_scaling(tmp_path / "s.png", find_runs([runs]))
    finetuned("tuned", "elsewhere", float("nan"), task=None)
    with pytest.raises(InputError, match="no point to draw"):
        plot_scaling(tmp_path / "s.png", find_runs([runs / "tuned"]), paper=True)
    assert not (tmp_path / "s.png").exists()
