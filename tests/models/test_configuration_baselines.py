"""The configurations, and checkpoints where this package is not installed."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

import hf_gmlp
from hf_gmlp import BertRelposConfig, TextMixerConfig

from ..test_hub import NEW_LAYERS, backbone_output, open_elsewhere
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


@pytest.mark.slow
def test_checkpoints_travel(baseline_config, perturbed_model, tmp_path):
    """Every head opens as every other class in a process without the package, which saves it completely again."""
    jobs, expected = [], {}
    for number, kind in enumerate(KINDS):
        config, folder, again = baseline_config(kind), tmp_path / kind, str(tmp_path / f"{kind}-again")
        # A different head of each is saved.
        own = list(config.code_map())[2 + number]
        model = perturbed_model(getattr(hf_gmlp, config.code_map()[own]), config)
        model.save_pretrained(folder)
        expected[kind] = own, backbone_output(model)
        jobs += [(auto_class, str(folder), again) for auto_class in config.code_map()] + [("AutoModel", again, None)]
    for (auto_class, folder, _), result in zip(jobs, open_elsewhere(jobs, tmp_path / "elsewhere"), strict=True):
        kind, _, copied = Path(folder).name.partition("-")
        own, output = expected[kind]
        assert result["remote"] and result["class"] == baseline_config(kind).code_map()[auto_class]
        torch.testing.assert_close(torch.tensor(result["output"]), output)
        assert all(key.removeprefix("model.").startswith(NEW_LAYERS) for key in result["missing"])
        assert not result["missing"] or copied or auto_class != own
        saved = {path.name for path in Path(folder).iterdir()}
        assert saved == {"config.json", "model.safetensors", *CODE_FILES}
        maps = [json.loads(path.read_text())["auto_map"] for path in tmp_path.glob(f"{kind}*/config.json")]
        assert len(maps) == 2 and maps[0] == maps[1]
