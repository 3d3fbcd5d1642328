"""The configurations, and checkpoints where this package is not installed."""

import json

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

import hf_gmlp
from hf_gmlp import BertRelposConfig, TextMixerConfig

from ..test_hub import run_elsewhere
from .conftest import KINDS

CODE_FILES = ("configuration_baselines.py", "heads.py", "modeling_baselines.py")


@pytest.mark.parametrize(
    "config_class, fields, message",
    [
        (BertRelposConfig, {"hidden_size": 100}, "`hidden_size`.*`num_attention_heads`"),
        (BertRelposConfig, {"relative_attention_num_buckets": 30}, "multiple of 4"),
        (BertRelposConfig, {"relative_attention_max_distance": 8}, "`relative_attention_max_distance`"),
        (TextMixerConfig, {"spatial_intermediate_size": 0}, "`spatial_intermediate_size`"),
    ],
)
def test_bad_values(config_class, fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        config_class(**fields)


@pytest.mark.parametrize("config_class", [BertRelposConfig, TextMixerConfig])
def test_every_class_is_registered(config_class):
    small = config_class(vocab_size=9, hidden_size=12, num_hidden_layers=1, intermediate_size=4)
    assert set(config_class().auto_map) == {"AutoConfig", *config_class.code_map()}
    for auto_class, model_class in config_class.code_map().items():
        model = getattr(transformers, auto_class).from_config(small)
        assert type(model) is getattr(hf_gmlp, model_class)
        assert type(model)._auto_class in (auto_class, "AutoModelForMaskedLM")


# ---------------------------------------------------------------------------------------------------------------------
# Where the package is not installed

OPEN = """
import json, sys
sys.modules["hf_gmlp"] = None  # importing it fails

import torch, transformers

answers = {}
for folder, code_map in json.load(open("jobs.json")).items():
    for name, class_name in code_map.items():
        model, info = getattr(transformers, name).from_pretrained(
            folder, trust_remote_code=True, output_loading_info=True
        )
        assert type(model).__name__ == class_name and type(model).__module__.startswith("transformers_modules.")
        inputs = torch.arange(5, 15)[None], torch.tensor([[1] * 7 + [0] * 3])
        with torch.no_grad():
            output = model.eval().base_model(*inputs).last_hidden_state
        answers[f"{folder} {name}"] = [output.tolist(), sorted(info["missing_keys"])]
    model.save_pretrained(f"{folder}-again")
    again = transformers.AutoModel.from_pretrained(f"{folder}-again", trust_remote_code=True).eval()
    with torch.no_grad():
        assert torch.equal(again(*inputs).last_hidden_state, output)
json.dump(answers, open("answers.json", "w"))
"""


@pytest.mark.slow
def test_checkpoints_travel(baseline_config, far_model, tmp_path):
    """Every head opens as every other class in a process without the package, which saves it whole again."""
    jobs, expected = {}, {}
    for kind in KINDS:
        config = baseline_config(kind)
        # A different head of each is saved.
        auto_class = list(config.code_map())[2 + KINDS.index(kind)]
        model = far_model(getattr(hf_gmlp, config.code_map()[auto_class]), config)
        model.save_pretrained(tmp_path / kind)
        jobs[kind] = config.code_map()
        inputs = torch.arange(5, 15)[None], torch.tensor([[1] * 7 + [0] * 3])
        with torch.no_grad():
            expected[kind] = (auto_class, model.base_model(*inputs).last_hidden_state)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    run_elsewhere(OPEN, tmp_path)

    answers = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))
    heads = ("head.", "decoder.", "classifier.", "qa_outputs.", "pooler.")
    for kind, code_map in jobs.items():
        own, output = expected[kind]
        for auto_class in code_map:
            answer, missing = answers[f"{kind} {auto_class}"]
            torch.testing.assert_close(torch.tensor(answer), output)
            assert all(key.removeprefix("model.").startswith(heads) for key in missing)
            assert auto_class != own or not missing
        saved = {path.name for path in (tmp_path / f"{kind}-again").iterdir()}
        assert saved == {"config.json", "model.safetensors", *CODE_FILES}
        maps = [
            json.loads((tmp_path / folder / "config.json").read_text(encoding="utf-8"))["auto_map"]
            for folder in (kind, f"{kind}-again")
        ]
        assert maps[0] == maps[1]
