"""Supported tensor files are read, and others are refused."""

import argparse

import pytest
import torch
from torch import nn

from hf_gmlp.errors import InputError
from hf_gmlp.tools.conversion.checkpoints import read_tensors

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "blocks.10.b.bias": torch.ones(2)}


class Payload:
    """An object that writes a file when unpickled without restrictions."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    ("wrapper", "prefix"),
    [(None, ""), ("state_dict", "module."), ("model_ema", "_orig_mod."), ("model", "_orig_mod.module.")],
)
def test_tensors_in_checkpoints_of_training_scripts_are_found(tmp_path, wrapper, prefix):
    content = {prefix + name: tensor for name, tensor in TENSORS.items()}
    if wrapper is not None:
        flags = argparse.Namespace(lr=0.1)
        content = {"epoch": 3, "arch": "gmlp", "args": flags, "optimizer": {"state": {}}, wrapper: content}
        if wrapper.endswith("ema"):
            content["state_dict"] = {"other": torch.zeros(1)}
    torch.save(content, tmp_path / "weights.pth")
    read = read_tensors(tmp_path / "weights.pth")
    assert list(read) == list(TENSORS)
    assert all(torch.equal(read[name], TENSORS[name]) for name in TENSORS)


def test_nothing_in_a_file_is_executed(tmp_path):
    for name, content in {
        "payload.pth": TENSORS | {"extra": Payload(tmp_path / "executed")},
        "module.pth": nn.Linear(2, 3),
    }.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(InputError, match=name):
            read_tensors(tmp_path / name)
    assert not (tmp_path / "executed").exists()
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(InputError, match="note.txt"):
        read_tensors(tmp_path / "note.txt")


@pytest.mark.parametrize("content", [[torch.ones(2)], {"net": TENSORS}])
def test_files_without_named_tensors_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(InputError, match="weights.pth"):
        read_tensors(tmp_path / "weights.pth")
