"""Checkpoints in environments without this package.

Fresh processes that cannot import hf_gmlp open the checkpoints saved here. Each takes seconds to start, so one process
does the work of many tests.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

import hf_gmlp
from hf_gmlp import GMLPConfig, GMLPForCausalLM, GMLPVisionConfig
from hf_gmlp.cards import model_card

from . import samples

pytestmark = pytest.mark.slow

CODE_FILES = ("configuration_gmlp.py", "modeling_gmlp.py")
PACKAGE = Path(hf_gmlp.__file__).parent
TEXT_MAP, VISION_MAP = GMLPConfig.code_map, GMLPVisionConfig.code_map
# Weights that are newly initialized if a checkpoint of another head lacks them.
NEW_LAYERS = ("head.", "decoder.", "classifier.", "qa_outputs.", "pooler.")
# Auto class -> class of a checkpoint that is opened as every class, and another Auto class that also saves it.
SAVED = {
    "AutoModelForMaskedLM": ("GMLPForMaskedLM", "AutoModelForSequenceClassification"),
    "AutoModelForImageClassification": ("GMLPForImageClassification", "AutoModel"),
}

# AutoBackbone would ask the Hub whether the name is a repository.
HUB_ACCEPTS_FOLDERS = """
from transformers.models.auto import auto_factory

auto_factory.hf_api = lambda: type("Hub", (), {"repo_exists": lambda self, name: True})()
"""

# Script that opens folders as the Auto classes listed in a file, saves some of the models again, and writes results.
OPEN = """
import json, sys
sys.modules["hf_gmlp"] = None  # as if it were not installed: importing it fails

import transformers

results = []
for auto_class, folder, save_to in json.load(open("jobs.json")):
    # A classifier may have another number of labels than the saved head: multiple choice has one.
    model, info = getattr(transformers, auto_class).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, ignore_mismatched_sizes=True
    )
    if save_to:
        model.save_pretrained(save_to)
    results.append({
        "class": type(model).__name__,
        "remote": type(model).__module__.startswith("transformers_modules."),
        "output": backbone_output(model).tolist(),
        "missing": sorted({*info["missing_keys"], *(mismatch[0] for mismatch in info["mismatched_keys"])}),
        "unexpected": sorted(info["unexpected_keys"]),
    })
json.dump(results, open("results.json", "w"))
"""


@torch.no_grad()
def backbone_output(model: torch.nn.Module) -> torch.Tensor:
    """Run the backbone on fixed inputs. For images, return only the patches, since a backbone omits the [CLS] token."""
    if model.config.model_type != "gmlp_vision":
        inputs = {"input_ids": torch.arange(5, 15)[None], "attention_mask": torch.tensor([[1] * 7 + [0] * 3])}
    else:
        inputs = {"pixel_values": torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)}
    output = model.eval().base_model(**inputs)
    maps = output.get("feature_maps")
    return output.last_hidden_state[:, -16:] if maps is None else maps[-1].flatten(2).transpose(1, 2)


def run_elsewhere(script: str, folder: Path):
    """Run a script in a fresh process with an empty cache, from a folder where there is no hf_gmlp."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(script, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HOME": str(folder / "hf_home"), "HF_MODULES_CACHE": str(folder / "modules")}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def code_map_of(class_name: str) -> dict[str, str]:
    return TEXT_MAP if class_name in TEXT_MAP.values() else VISION_MAP


def make_model(class_name, text_config, vision_config, perturbed_model):
    make_config = text_config if code_map_of(class_name) is TEXT_MAP else vision_config
    return perturbed_model(getattr(hf_gmlp, class_name), make_config(attention_size=8))


def test_opens_as_every_class_without_the_package(text_config, vision_config, perturbed_model, tmp_path):
    """A fresh process opens what another has saved, and only heads are newly initialized."""
    checkpoints, jobs, jobs_of_copies = {}, [], []
    for own, (class_name, other) in SAVED.items():
        model, folder = make_model(class_name, text_config, vision_config, perturbed_model), tmp_path / class_name
        model.save_pretrained(folder)
        assert {path.name for path in folder.glob("*.py")} == set(CODE_FILES)
        outputs = dict.fromkeys(code_map_of(class_name), backbone_output(model))
        if "AutoModelForCausalLM" in outputs:
            # This class sets any checkpoint to causal.
            outputs["AutoModelForCausalLM"] = backbone_output(GMLPForCausalLM.from_pretrained(folder))
        checkpoints[own] = folder, outputs
        for auto_class in outputs:
            copy = str(tmp_path / f"{own}-{auto_class}") if auto_class in (own, other) else None
            jobs.append((auto_class, str(folder), copy))
            jobs_of_copies += [(name, copy, None) for name in {own, auto_class}] if copy else []
    script = HUB_ACCEPTS_FOLDERS + "import torch\n\n" + inspect.getsource(backbone_output) + OPEN
    for name, opened in (("first", jobs), ("second", jobs_of_copies)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "jobs.json").write_text(json.dumps(opened), encoding="utf-8")
        run_elsewhere(script, tmp_path / name)
        results = json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8"))
        for (auto_class, folder, _), result in zip(opened, results, strict=True):
            own = next(own for own, (original, _) in checkpoints.items() if own in folder or str(original) == folder)
            assert result["remote"] and result["class"] == code_map_of(SAVED[own][0])[auto_class]
            torch.testing.assert_close(torch.tensor(result["output"]), checkpoints[own][1][auto_class])
            assert all(key.removeprefix("model.").startswith(NEW_LAYERS) for key in result["missing"])
            if auto_class == own and name == "first":
                assert result["missing"] == result["unexpected"] == []
    for own, (original, _) in checkpoints.items():
        for auto_class in {own, SAVED[own][1]}:
            copy = tmp_path / f"{own}-{auto_class}"
            for code in CODE_FILES:
                assert (copy / code).read_bytes() == (PACKAGE / "models" / code).read_bytes()
            maps = [json.loads((folder / "config.json").read_text())["auto_map"] for folder in (original, copy)]
            assert maps[0] == maps[1]


# Class -> text that the code in its card prints.
PRINTED = {
    "GMLPForMaskedLM": "token_str",
    "GMLPForCausalLM": "generated_text",
    "GMLPForSequenceClassification": "LABEL_",
    "GMLPForTokenClassification": "entity",
    "GMLPForImageClassification": "LABEL_",
}


def test_the_code_in_a_card_runs(text_config, vision_config, perturbed_model, tmp_path):
    Image.new("RGB", (20, 30), "orange").save(tmp_path / "picture.jpg")
    codes = {}
    for class_name in sorted({*TEXT_MAP.values(), *VISION_MAP.values()}):
        folder = tmp_path / class_name
        model = make_model(class_name, text_config, vision_config, perturbed_model)
        model.save_pretrained(folder)
        if model.config.model_type == "gmlp":
            words = "the a capital of france is sentence to try .".split()
            samples.word_tokenizer(words, punctuation=True, model_max_length=12).save_pretrained(folder)
        else:
            ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
        text = model_card(model, str(folder)).text
        (codes[class_name],) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "codes.json").write_text(json.dumps(codes), encoding="utf-8")
    script = """
import contextlib, io, json, sys
sys.modules["hf_gmlp"] = None

printed = {}
for class_name, code in json.load(open("codes.json")).items():
    namespace, output = {}, io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, namespace)
    printed[class_name] = [type(namespace["model"]).__name__, output.getvalue()]
json.dump(printed, open("printed.json", "w"))
"""
    run_elsewhere(HUB_ACCEPTS_FOLDERS + script, tmp_path)
    for class_name, (name, output) in json.loads((tmp_path / "printed.json").read_text(encoding="utf-8")).items():
        assert name == class_name and PRINTED.get(class_name, "") in output
