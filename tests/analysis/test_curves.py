import json

import pytest
from PIL import Image

from hf_gmlp import GMLPConfig
from hf_gmlp.analysis.counts import paper_parameters
from hf_gmlp.analysis.curves import log_history, plot_training
from hf_gmlp.analysis.pictures import plt
from hf_gmlp.errors import InputError


def write_run(folder, history):
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return folder


def test_curves_of_a_finished_and_a_running_training(tmp_path):
    history = [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.0}, {"step": 20, "eval_loss": 2.1}]
    finished = write_run(tmp_path / "finished", history)
    write_run(tmp_path / "running" / "checkpoint-10", history[:1])
    assert log_history(finished) == history and log_history(tmp_path / "running") == history[:1]
    plot_training([finished, tmp_path / "running"], tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(maxcolors=1 << 24)}
    assert (31, 119, 180) in colors  # the dots of the first run


def test_labels_units_and_level(tmp_path, monkeypatch):
    history = [{"step": 1, "loss": 3.0}, {"step": 2, "eval_loss": 2.0}]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 9}
    runs = [write_run(tmp_path / name, history) for name in ("a/one", "b/one", "other", "bare")]
    for run, fields in zip(runs, ({}, {}, {"attention_size": 4})):
        (run / "config.json").write_text(
            GMLPConfig(**sizes, **fields, architectures=["GMLPForMaskedLM"]).to_json_string()
        )
    figures = []
    monkeypatch.setattr("hf_gmlp.analysis.curves.save_picture", lambda figure, path: figures.append(figure))
    plot_training(runs[:3], "c.png", unigram=20.0)
    plot_training(runs, "c.png")
    first, second = ([text.get_text() for text in figure.legends[0].get_texts()] for figure in figures)
    size = paper_parameters(GMLPConfig(**sizes)) / 1e6
    assert first[2:4] == [f"gMLP, {size:.3g} million parameters ({name}/one)" for name in "ab"]
    assert first[4].startswith("aMLP, ") and first[4].endswith("parameters") and second[-1] == "bare"
    assert first[-1] == "every token by its frequency: 3"
    (level,) = [line for line in figures[0].axes[0].lines if line.get_linestyle() == ":"]
    assert level.get_ydata()[0] == pytest.approx(2.9957, abs=1e-4)
    plt.close("all")
    # The last run says nothing of its task.
    labels = [figure.axes[0].get_ylabel() for figure in figures]
    assert labels == ["loss (nats per masked token, lower is better)", "loss (nats, less is better)"]


def test_bad_input(tmp_path):
    with pytest.raises(InputError, match="no training in"):
        plot_training([tmp_path], tmp_path / "curves.png")
    silent = write_run(tmp_path / "silent", [{"step": 3, "train_runtime": 1.0}])
    with pytest.raises(InputError, match="Nothing was logged"):
        plot_training([silent], tmp_path / "curves.png")
    with pytest.raises(InputError, match="no folder"):
        plot_training([silent], tmp_path / "nowhere" / "curves.png")
