import json

import pytest
from PIL import Image

from hf_gmlp.analysis.curves import log_history, plot_training
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


def test_bad_input(tmp_path):
    with pytest.raises(InputError, match="no training in"):
        plot_training([tmp_path], tmp_path / "curves.png")
    silent = write_run(tmp_path / "silent", [{"step": 3, "train_runtime": 1.0}])
    with pytest.raises(InputError, match="Nothing was logged"):
        plot_training([silent], tmp_path / "curves.png")
    with pytest.raises(InputError, match="no folder"):
        plot_training([silent], tmp_path / "nowhere" / "curves.png")
