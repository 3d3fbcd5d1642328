"""Checkpoints where this package is not installed, and what `push_to_hub` uploads.

Fresh processes that cannot import hf_gmlp open what was saved here; each of them takes seconds to start, so that one of
them does the work of many tests.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import EntryNotFoundError
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    ViTImageProcessorPil,
    modeling_utils,
)
from transformers.utils import hub as transformers_hub
from yaml import YAMLError

import hf_gmlp
from hf_gmlp import (
    BertRelposForMaskedLM,
    GMLPConfig,
    GMLPForCausalLM,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPVisionConfig,
)
from hf_gmlp.cards import model_card

from . import samples

pytestmark = pytest.mark.slow

CODE_FILES = ("configuration_gmlp.py", "heads.py", "modeling_gmlp.py", "spatial_gating.py")
PACKAGE = Path(hf_gmlp.__file__).parent
TEXT_MAP, VISION_MAP = GMLPConfig.code_map, GMLPVisionConfig.code_map
CLASSES = sorted({*TEXT_MAP.values(), *VISION_MAP.values()})

# AutoBackbone asks the Hub whether the name is one of its repositories.
HUB_KNOWS_FOLDERS = """
from transformers.models.auto import auto_factory

auto_factory.hf_api = lambda: type("Hub", (), {"repo_exists": lambda self, name: True})()
"""

# Reads a list of jobs and writes their results. A job opens a folder as every class of `auto_classes`, runs the
# backbone on fixed inputs, and saves the model again.
OPEN = """
import json, sys
sys.modules["hf_gmlp"] = None  # as if it were not installed: importing it fails

import torch, transformers

def open_as(auto_class, folder, save_to):
    auto_class = getattr(transformers, auto_class)
    # A classifier may have another number of labels than the saved head: multiple choice has one.
    model, info = auto_class.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, ignore_mismatched_sizes=True
    )
    model.eval()
    if model.config.model_type == "gmlp":
        inputs = {"input_ids": torch.arange(5, 15)[None], "attention_mask": torch.tensor([[1] * 7 + [0] * 3])}
    else:
        inputs = {"pixel_values": torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)}
    with torch.no_grad():
        output = model.base_model(**inputs)
    # All image classes give the patches, but not all give the [CLS] token.
    maps = output.get("feature_maps")
    output = output.last_hidden_state[:, -16:] if maps is None else maps[-1].flatten(2).transpose(1, 2)
    if save_to:
        model.save_pretrained(save_to)
    module = type(model).__module__
    return {
        "class": type(model).__name__,
        "remote": module.startswith("transformers_modules."),
        "output": output.tolist(),
        "missing": sorted({*info["missing_keys"], *(mismatch[0] for mismatch in info["mismatched_keys"])}),
        "unexpected": sorted(info["unexpected_keys"]),
    }

results = []
for job in json.load(open(sys.argv[1])):
    results.append({name: open_as(name, job["folder"], job["save_to"].get(name)) for name in job["auto_classes"]})
json.dump(results, open(sys.argv[2], "w"))
"""


def run_elsewhere(script: str, folder: Path, *arguments: str, **variables: str) -> str:
    """
    The output of a script, run in a fresh process with an empty cache, from a folder where there is no hf_gmlp.

    Args:
        variables: More of the environment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(script, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= variables | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf_home"),
        "HF_MODULES_CACHE": str(folder / "modules"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "script.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def open_elsewhere(jobs: list[dict], folder: Path) -> list[dict]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    run_elsewhere(HUB_KNOWS_FOLDERS + OPEN, folder, "jobs.json", "results.json")
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def backbone_output(model: torch.nn.Module) -> torch.Tensor:
    """Returns what `open_as` computes in the fresh process."""
    if model.config.model_type == "gmlp":
        inputs = {"input_ids": torch.arange(5, 15)[None], "attention_mask": torch.tensor([[1] * 7 + [0] * 3])}
    else:
        inputs = {"pixel_values": torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)}
    with torch.no_grad():
        output = model.eval().base_model(**inputs)
    maps = output.get("feature_maps")
    return output.last_hidden_state[:, -16:] if maps is None else maps[-1].flatten(2).transpose(1, 2)


def code_map_of(class_name: str) -> dict[str, str]:
    return TEXT_MAP if class_name in TEXT_MAP.values() else VISION_MAP


def outputs_by_class(model: torch.nn.Module, folder: Path) -> dict[str, torch.Tensor]:
    """Returns the same output for all classes except the causal one, which makes any checkpoint causal."""
    code_map = code_map_of(type(model).__name__)
    outputs = dict.fromkeys(code_map, backbone_output(model))
    if "AutoModelForCausalLM" in code_map:
        outputs["AutoModelForCausalLM"] = backbone_output(GMLPForCausalLM.from_pretrained(folder))
    return outputs


def make_model(class_name, text_config, vision_config, far_model):
    make_config = text_config if code_map_of(class_name) is TEXT_MAP else vision_config
    return far_model(getattr(hf_gmlp, class_name), make_config(attention_size=8, spatial_gating="split"))


@pytest.fixture(scope="module")
def checkpoints(text_config, vision_config, far_model, tmp_path_factory):
    """
    Saved here: every class, and what a Trainer saves.

    Returns:
        {name: (folder, {auto class: class}, {auto class: output of the backbone})}
    """
    root = tmp_path_factory.mktemp("saved")
    found = {}
    for class_name in CLASSES:
        model = make_model(class_name, text_config, vision_config, far_model)
        model.save_pretrained(root / class_name)
        found[class_name] = (root / class_name, code_map_of(class_name), outputs_by_class(model, root / class_name))

    model = far_model(GMLPForSequenceClassification, text_config())
    samples = [{"input_ids": torch.arange(5, 11), "labels": i % 3} for i in range(8)]
    arguments = TrainingArguments(
        output_dir=str(root / "trainer"),
        max_steps=2,
        save_steps=2,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=samples)
    trainer.train()
    folder = root / "trainer" / "checkpoint-2"
    found["trainer"] = (folder, TEXT_MAP, outputs_by_class(model, folder))
    return found


@pytest.fixture(scope="module")
def opened(checkpoints, tmp_path_factory):
    """
    Every checkpoint opened as every class in a fresh process, which saves it again as two of them: as the class that it
    was saved from, and as the first of the heads.

    Returns:
        {name: {auto class: what came of it}}, {name: {auto class: folder}}; the first folder is of the own class.
    """
    again = tmp_path_factory.mktemp("again")
    jobs, folders = [], {}
    for name, (folder, code_map, _) in checkpoints.items():
        class_name = "GMLPForSequenceClassification" if name == "trainer" else name
        own = next(auto_class for auto_class, saved in code_map.items() if saved == class_name)
        head = "AutoModelForSequenceClassification" if code_map is TEXT_MAP else "AutoModelForImageClassification"
        folders[name] = {auto_class: str(again / f"{name}-{auto_class}") for auto_class in (own, head)}
        jobs.append({"folder": str(folder), "auto_classes": list(code_map), "save_to": folders[name]})
    results = open_elsewhere(jobs, tmp_path_factory.mktemp("elsewhere"))
    return dict(zip(checkpoints, results)), folders


def assert_opened(results, code_map, expected):
    for auto_class, result in results.items():
        assert result["class"] == code_map[auto_class]
        assert result["remote"]
        torch.testing.assert_close(torch.tensor(result["output"]), expected[auto_class])


@pytest.mark.parametrize("name", [*CLASSES, "trainer"])
def test_opens_as_every_class_without_the_package(checkpoints, opened, name):
    folder, code_map, expected = checkpoints[name]
    results = opened[0][name]
    assert results.keys() == code_map.keys()
    assert_opened(results, code_map, expected)
    assert {path.name for path in folder.glob("*.py")} == set(CODE_FILES)


@pytest.mark.parametrize("name", [*CLASSES, "trainer"])
def test_only_heads_are_new(opened, name):
    """As the class it was saved from, a checkpoint is complete; as another, only the head is missing."""
    results, own = opened[0][name], next(iter(opened[1][name]))
    assert results[own]["missing"] == results[own]["unexpected"] == []
    heads = ("head.", "decoder.", "classifier.", "qa_outputs.", "pooler.")
    for result in results.values():
        for key in result["missing"]:
            assert key.removeprefix("model.").startswith(heads), key


def test_saved_again_without_the_package(checkpoints, opened, tmp_path):
    """A checkpoint saved by a process without the package opens in the next such process."""
    jobs, expected = [], []
    for name, (original, code_map, output) in checkpoints.items():
        auto_map = json.loads((original / "config.json").read_text(encoding="utf-8"))["auto_map"]
        for auto_class, folder in opened[1][name].items():
            folder = Path(folder)
            assert {path.name for path in folder.glob("*.py")} == set(CODE_FILES)
            for code in CODE_FILES:
                assert (folder / code).read_bytes() == (original / code).read_bytes()
            assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["auto_map"] == auto_map
            # As the class that it was saved as, and as another.
            other = "AutoModel" if auto_class != "AutoModel" else list(code_map)[-1]
            jobs.append({"folder": str(folder), "auto_classes": [auto_class, other], "save_to": {}})
            expected.append((code_map, output | {other: output[auto_class]}))
    for results, (code_map, output) in zip(open_elsewhere(jobs, tmp_path / "third"), expected, strict=True):
        assert_opened(results, code_map, output)


def test_the_code_saved_is_that_of_the_package(checkpoints):
    for folder, _, _ in checkpoints.values():
        for name in CODE_FILES:
            assert (folder / name).read_bytes() == (PACKAGE / "models" / name).read_bytes()


def test_configs_without_weights(text_config, vision_config, tmp_path):
    """A folder without weights makes new models elsewhere, and so does a folder that is saved there from it."""
    text_config(num_labels=5).save_pretrained(tmp_path / "text")
    vision_config(num_labels=5).save_pretrained(tmp_path / "image")
    script = """
import sys
sys.modules["hf_gmlp"] = None
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoModelForImageClassification

source, target = sys.argv[1:]
for name, head in (("text", AutoModelForSequenceClassification), ("image", AutoModelForImageClassification)):
    config = AutoConfig.from_pretrained(f"{source}/{name}", trust_remote_code=True)
    # Before any model is made, when the code of the models is not loaded yet.
    config.save_pretrained(f"{target}/{name}")
    for auto_class in (AutoModel, head):
        model = auto_class.from_config(config, trust_remote_code=True)
        assert type(model).__module__.startswith("transformers_modules."), type(model)
    assert model.classifier.out_features == 5
    assert (model.spatial_projections()[0].bias == 1).all()
    model.save_pretrained(f"{target}/{name}-model")
    auto_class.from_pretrained(f"{target}/{name}-model", trust_remote_code=True)
"""
    run_elsewhere(script, tmp_path / "first", str(tmp_path), str(tmp_path / "again"))
    for name in ("text", "image"):
        saved = {path.name for path in (tmp_path / "again" / name).iterdir()}
        assert saved == {"config.json", *CODE_FILES}
    run_elsewhere(script, tmp_path / "second", str(tmp_path / "again"), str(tmp_path / "once_more"))


def test_presets_without_the_package_say_how_to_get_them(checkpoints, tmp_path):
    script = """
import sys
sys.modules["hf_gmlp"] = None
from transformers import AutoConfig

config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
try:
    type(config).from_preset("amlp-base")
except ValueError as error:
    print(error)
"""
    assert "install it" in run_elsewhere(script, tmp_path, str(checkpoints["GMLPModel"][0]))


OWN_MODULE = """
from hf_gmlp import GMLPConfig, GMLPForMaskedLM


class LoudConfig(GMLPConfig):
    model_type = "loud_gmlp"
    volume: float = 1.0


class LoudForMaskedLM(GMLPForMaskedLM):
    config: LoudConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * self.config.volume
        return output


LoudConfig.register_for_auto_class()
LoudForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
"""


def test_a_subclass_travels_with_its_code(text_config, far_model, monkeypatch, tmp_path):
    """The subclass keeps its file and map through two fresh processes; the second opens what the first has saved."""
    (tmp_path / "loud_gmlp.py").write_text(OWN_MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    loud_gmlp = importlib.import_module("loud_gmlp")
    fields = {key: value for key, value in text_config().to_diff_dict().items() if key != "auto_map"}
    model = far_model(loud_gmlp.LoudForMaskedLM, loud_gmlp.LoudConfig(**fields, volume=3.0))
    model.save_pretrained(tmp_path / "first")
    ids = torch.arange(5, 15)[None]
    torch.save((ids, model(ids).logits.detach()), tmp_path / "output.pt")
    script = """
import sys
import torch
from transformers import AutoModelForMaskedLM

source, target, expected = sys.argv[1:]
model = AutoModelForMaskedLM.from_pretrained(source, trust_remote_code=True).eval()
assert type(model).__name__ == "LoudForMaskedLM" and type(model.config).__name__ == "LoudConfig"
ids, logits = torch.load(expected)
torch.testing.assert_close(model(ids).logits, logits)
model.save_pretrained(target)
"""
    for source, target in (("first", "second"), ("second", "third")):
        folders = [str(tmp_path / name) for name in (source, target, "output.pt")]
        # The file imports the package, so it must be available.
        run_elsewhere(script, tmp_path / f"with {source}", *folders, PYTHONPATH=str(PACKAGE.parent))
        saved = json.loads((tmp_path / source / "config.json").read_text(encoding="utf-8"))
        assert saved["auto_map"] == {
            "AutoConfig": "loud_gmlp.LoudConfig",
            "AutoModelForMaskedLM": "loud_gmlp.LoudForMaskedLM",
        }
        assert (tmp_path / target / "loud_gmlp.py").read_text(encoding="utf-8") == OWN_MODULE


def test_the_package_is_used_where_it_is_installed(checkpoints):
    folder = checkpoints["GMLPForMaskedLM"][0]
    assert type(AutoModelForMaskedLM.from_pretrained(folder)) is GMLPForMaskedLM
    assert type(AutoConfig.from_pretrained(folder)) is GMLPConfig


# ---------------------------------------------------------------------------------------------------------------------
# push_to_hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Replaces the Hub; keeps the calls and a copy of what was uploaded."""
    fake = SimpleNamespace(calls={}, uploaded=tmp_path / "uploaded", card=None)

    class FakeApi:
        def create_repo(self, repo_id, **kwargs):
            return SimpleNamespace(repo_id=f"me/{repo_id}" if "/" not in repo_id else repo_id)

        def create_branch(self, **kwargs):
            pass

        def create_commit(self, operations, **kwargs):
            fake.calls |= kwargs
            fake.uploaded.mkdir()
            for operation in operations:
                shutil.copy(operation.path_or_fileobj, fake.uploaded / operation.path_in_repo)
            return "https://hub.example/commit"

    def load(place, **kwargs):
        if Path(place).is_file():
            return load_file(place, **kwargs)
        if fake.card is None:
            raise EntryNotFoundError(f"There is no card in {place}.")
        return ModelCard(fake.card)

    load_file = ModelCard.load
    monkeypatch.setattr(transformers_hub, "hf_api" if hasattr(transformers_hub, "hf_api") else "HfApi", FakeApi)
    monkeypatch.setattr(modeling_utils, "hf_api", FakeApi, raising=False)
    monkeypatch.setattr(ModelCard, "load", load)
    return fake


@pytest.mark.parametrize("class_name", CLASSES)
def test_push_to_hub_uploads_a_whole_model(text_config, vision_config, far_model, hub, class_name):
    model = make_model(class_name, text_config, vision_config, far_model)
    assert model.push_to_hub("mine", tags=["cats"], commit_message="Why") == "https://hub.example/commit"
    assert hub.calls["repo_id"] == "me/mine" and hub.calls["commit_message"] == "Why"
    uploaded = {path.name for path in hub.uploaded.iterdir()}
    generation = {"generation_config.json"} if model.can_generate() else set()
    assert uploaded == {"config.json", "model.safetensors", "README.md", *CODE_FILES, *generation}
    card = ModelCard.load(hub.uploaded / "README.md")
    assert card.data.model_name == "me/mine" and "# me/mine" in card.text and "cats" in card.data.tags
    assert not re.search(r"\[More Information|<!-- (?!Generated by hf_gmlp)|{{|TODO", str(card))
    reopened = type(model).from_pretrained(hub.uploaded)
    torch.testing.assert_close(backbone_output(reopened), backbone_output(model))


def test_push_to_hub_keeps_the_card_that_a_person_wrote(text_config, far_model, hub):
    model = far_model(GMLPForMaskedLM, text_config())
    hub.card = "---\nlicense: [\n---\n\nMy own words.\n"
    with pytest.raises(YAMLError):
        model.push_to_hub("mine")
    assert not hub.uploaded.exists()
    hub.card = "---\nlicense: cc-by-4.0\n---\n\nMy own words.\n"
    model.push_to_hub("mine")
    card = ModelCard.load(hub.uploaded / "README.md")
    assert card.text.strip() == "My own words." and card.data.license == "cc-by-4.0"
    assert card.data.pipeline_tag == "fill-mask"


def test_saving_with_a_push_is_the_same_push(text_config, far_model, hub, tmp_path):
    model = far_model(GMLPForMaskedLM, text_config())
    model.save_pretrained(tmp_path / "mine", push_to_hub=True)
    saved = (hub.uploaded / "README.md").read_text()
    assert "# me/mine" in saved and (hub.uploaded / "model.safetensors").is_file()
    shutil.rmtree(hub.uploaded)
    model.push_to_hub("mine")
    assert (hub.uploaded / "README.md").read_text() == saved


def test_push_to_hub_without_the_package(checkpoints, tmp_path):
    """Without the package, the library uploads a checkpoint with its code and the library's card."""
    script = """
import sys
from pathlib import Path
sys.modules["hf_gmlp"] = None
from types import SimpleNamespace
from huggingface_hub.errors import EntryNotFoundError
from transformers import AutoModelForMaskedLM
from transformers.utils import hub

model = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)

class FakeApi:
    def create_repo(self, repo_id, **kwargs):
        return SimpleNamespace(repo_id=repo_id)

    def create_commit(self, repo_id, operations, **kwargs):
        Path("uploaded").mkdir()
        for operation in operations:
            Path("uploaded", operation.path_in_repo).write_bytes(Path(operation.path_or_fileobj).read_bytes())

def no_card(*args, **kwargs):
    raise EntryNotFoundError("There is no card yet.")

hub.hf_api = FakeApi
hub.ModelCard.load = no_card
model.push_to_hub("me/mine")
"""
    run_elsewhere(script, tmp_path, str(checkpoints["GMLPForMaskedLM"][0]))
    uploaded = {path.name for path in (tmp_path / "uploaded").iterdir()}
    assert uploaded == {"config.json", "model.safetensors", "README.md", *CODE_FILES}
    assert "automatically generated" in (tmp_path / "uploaded" / "README.md").read_text(encoding="utf-8")


def test_other_models_are_pushed_as_in_the_library():
    assert BertRelposForMaskedLM.push_to_hub is PreTrainedModel.push_to_hub


@pytest.fixture(scope="module")
def snippets(text_config, vision_config, far_model, tmp_path_factory):
    """Runs the code in the card of every class in one fresh process: {class: what it printed}"""
    root = tmp_path_factory.mktemp("snippets")
    Image.new("RGB", (20, 30), "orange").save(root / "picture.jpg")
    codes = {}
    for class_name in CLASSES:
        folder = root / class_name
        model = make_model(class_name, text_config, vision_config, far_model)
        model.save_pretrained(folder)
        if model.config.model_type == "gmlp":
            words = "the a capital of france is sentence to try .".split()
            samples.word_tokenizer(words, punctuation=True, model_max_length=12).save_pretrained(folder)
        else:
            ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
        text = model_card(model, str(folder)).text
        (codes[class_name],) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (root / "codes.json").write_text(json.dumps(codes), encoding="utf-8")
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
    run_elsewhere(HUB_KNOWS_FOLDERS + script, root)
    return json.loads((root / "printed.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "class_name, printed",
    [
        ("GMLPForMaskedLM", "token_str"),
        ("GMLPForCausalLM", "generated_text"),
        ("GMLPForSequenceClassification", "LABEL_"),
        ("GMLPForTokenClassification", "entity"),
        ("GMLPForImageClassification", "LABEL_"),
        ("GMLPModel", ""),
        ("GMLPVisionModel", ""),
        ("GMLPVisionBackbone", ""),
        ("GMLPForQuestionAnswering", ""),
        ("GMLPForMultipleChoice", ""),
    ],
)
def test_the_code_in_a_card_runs(snippets, class_name, printed):
    name, output = snippets[class_name]
    assert name == class_name
    assert printed in output
