"""Use the package where only its declared dependencies are installed; `run.py` starts it there.

It imports nothing from the tests, which that environment does not have.
"""

import importlib.util
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedModel
from transformers.utils import logging

import hf_gmlp

# Packages that only the extras, the tests or the training scripts install.
EXTRAS = ("accelerate", "datasets", "matplotlib", "PIL", "pytest", "scipy", "sentencepiece", "sklearn")
EXTRAS += ("timm", "torchvision")
COMMAND = Path(sysconfig.get_path("scripts")) / "hf-gmlp"
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
TEXT_SIZES = SIZES | {"vocab_size": 40, "max_position_embeddings": 12}


def check_environment():
    """Check that the package comes from this environment and that no extra is installed."""
    assert sys.prefix != sys.base_prefix, "not a virtual environment"
    site_packages = Path(sysconfig.get_path("purelib")).resolve()
    assert Path(hf_gmlp.__file__).resolve().is_relative_to(site_packages), hf_gmlp.__file__
    assert hf_gmlp.__version__ == version("hf-gmlp")
    importable = [name for name in EXTRAS if importlib.util.find_spec(name) is not None]
    assert not importable, f"installed, but not a declared dependency: {', '.join(importable)}"
    print(f"hf_gmlp {hf_gmlp.__version__} in {site_packages}, without {', '.join(EXTRAS)}")


def save_and_open(model: PreTrainedModel, folder: str, inputs: dict, auto_class: type = AutoModel):
    """Train a step if there are labels; check that its class and the Auto class open the saved model unchanged."""
    if "labels" in inputs:
        model.train()
        model(**inputs).loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    model.eval().save_pretrained(folder)
    with torch.no_grad():
        opened = type(model).from_pretrained(folder)
        torch.testing.assert_close(opened(**inputs)[0], model(**inputs)[0])
        opened = auto_class.from_pretrained(folder)
        # `AutoModel` opens only the encoder.
        expected = model.base_model if auto_class is AutoModel else model
        assert type(opened) is type(expected)
        torch.testing.assert_close(opened(**inputs)[0], expected(**inputs)[0])
    print(f"{type(model).__name__}: built, saved and opened")


def check_models():
    """Use a masked language model and an image model, whose processor needs an extra."""
    ids = torch.randint(5, TEXT_SIZES["vocab_size"], (2, 10))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    config = hf_gmlp.GMLPConfig(**TEXT_SIZES, attention_size=8)
    model = hf_gmlp.GMLPForMaskedLM(config)
    save_and_open(model, "masked-lm", inputs | {"labels": ids}, AutoModelForMaskedLM)

    model = hf_gmlp.GMLPVisionModel(hf_gmlp.GMLPVisionConfig(**SIZES, image_size=16, patch_size=4))
    save_and_open(model, "vision", {"pixel_values": torch.randn(2, 3, 16, 16)})


def check_presets():
    """Open every preset, and build a model from one. Those of timm's models need timm, which transformers says."""
    paths = [hf_gmlp.preset_path(name) for name in hf_gmlp.list_presets()]
    configs = [path for path in paths if "timm_wrapper" not in (path / "config.json").read_text(encoding="utf-8")]
    for path in configs:
        AutoConfig.from_pretrained(path)
    config = hf_gmlp.preset_config("amlp-base", num_hidden_layers=1, vocab_size=100)
    assert AutoModel.from_config(config).config.attention_size == 64
    print(f"presets: {len(configs)} of {len(paths)} open without timm")


def check_command():
    """Use the command `hf-gmlp`, also as a module: it lists presets, and finds recipes."""
    module = (sys.executable, "-I", "-m", "hf_gmlp")
    for command in ((*module, "presets"), (COMMAND, "presets", "amlp-base"), (COMMAND, "recipes")):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout, f"{command}: {done.stdout}{done.stderr}"
    # The last command lists the recipes.
    assert "paper/recipes/table6/amlp-base.yaml" in done.stdout, done.stdout
    from hf_gmlp.training.recipes import command_line

    assert command_line(["paper/recipes/table6/amlp-base.yaml"])[-1] == "--config_name=amlp-base"
    print("hf-gmlp: lists presets, finds recipes")


def check_missing_extras():
    """Check that commands without their extra name it in one sentence."""
    torch.save({"weight": torch.ones(2)}, "weights.pth")
    for arguments, sentence in (
        (["run", "mlm", "--help"], "hf-gmlp[train]"),
        (["convert", "timm", "weights.pth", "out"], "hf-gmlp[vision]"),
        # This command needs no extra, and refuses the weights.
        (["convert", "lucidrains", "weights.pth", "out"], "are not those of a gMLP"),
    ):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("Error: ") and sentence in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    print("missing extras: named in one sentence")


def main():
    """Run all checks in the current folder, which must be empty."""
    assert not any(Path.cwd().iterdir()), f"{Path.cwd()} must be empty"
    # Hide progress bars, and warnings about heads that are omitted on purpose.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    check_environment()
    check_models()
    check_presets()
    check_command()
    check_missing_extras()


if __name__ == "__main__":
    main()
