"""Writes at every run what the common tests would download: tiny checkpoints with tokenizers, and a picture."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedModel
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

import hf_gmlp

from ..samples import SPECIAL, word_tokenizer

WORDS = "the a cat dog mat sat on and ran to this example is . ,".split()
TEXT_CLASSES = (
    "GMLPModel",
    "GMLPForMaskedLM",
    "GMLPForCausalLM",
    "GMLPForSequenceClassification",
    "GMLPForTokenClassification",
)
VISION_CLASSES = ("GMLPVisionModel", "GMLPForImageClassification")
PICTURE = "waves.png"


def write_fixtures(folder: Path) -> None:
    """Writes a checkpoint for each class, the summary that the pipeline tests read, and a picture.

    The pipeline tests look for `<folder>/<model type>/<class>` and for `<folder>/reports/tiny_model_summary.json`.
    Whatever is in the folder is removed, since the models may have changed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    summary = {}
    for class_name in TEXT_CLASSES + VISION_CLASSES:
        model = tiny_model(class_name)
        is_text = class_name in TEXT_CLASSES
        if is_text:
            processor = word_tokenizer(WORDS, model_max_length=32)
        else:
            processors = IMAGE_PROCESSOR_MAPPING[type(model.config)]
            processor = processors["torchvision"](size={"height": 32, "width": 32})
        for part in (model, processor):
            part.save_pretrained(folder / model.config.model_type / class_name)
        names = [type(processor).__name__]
        summary[class_name] = {
            "tokenizer_classes": names if is_text else [],
            "processor_classes": [] if is_text else names,
        }
    (folder / "reports").mkdir()
    (folder / "reports" / "tiny_model_summary.json").write_text(json.dumps(summary, indent=2), encoding="utf-8")
    write_picture(folder / PICTURE)


def tiny_model(class_name: str) -> PreTrainedModel:
    """Returns a small aMLP with random weights so far from zero that each token affects the others."""
    model_class = getattr(hf_gmlp, class_name)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "attention_size": 8, "num_labels": 3}
    if class_name in VISION_CLASSES:
        sizes |= {"image_size": 32, "patch_size": 8}
    else:
        sizes |= {"vocab_size": len(SPECIAL + WORDS), "max_position_embeddings": 32}
    torch.manual_seed(0)
    return model_class(model_class.config_class(**sizes, initializer_range=0.5, spatial_initializer_range=0.5))


def write_picture(path: Path) -> None:
    """Writes a 640 x 480 RGB picture of waves, as smooth as a photograph.

    The backends of an image processor interpolate differently: on noise they would differ too much to compare.
    """
    y, x = np.mgrid[0:480, 0:640]
    waves = [np.sin(x / 40) + np.cos(y / 50), np.sin((x + y) / 60), np.cos((x - y) / 70) * np.sin(y / 90)]
    picture = np.stack([(wave - wave.min()) / (wave.max() - wave.min()) for wave in waves], axis=-1)
    Image.fromarray((picture * 255).astype(np.uint8)).save(path)
