"""What the common tests would download, made here at every run: tiny checkpoints with tokenizers, and a picture."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.image_processing_utils import BaseImageProcessor
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

import hf_gmlp

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
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
    """Writes a checkpoint per class, the summary of them that the pipeline tests read, and a picture.

    The pipeline tests look for `<folder>/<model type>/<class>` and for `<folder>/reports/tiny_model_summary.json`.

    Args:
        folder: A cache of ours; what is in it is written anew, since the models may have changed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    summary = {}
    for class_name in TEXT_CLASSES + VISION_CLASSES:
        model = tiny_model(class_name)
        is_text = class_name in TEXT_CLASSES
        processor = word_tokenizer() if is_text else tiny_image_processor(type(model.config))
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
    """Returns a small aMLP of the class with random weights, far from zero so that the tokens do meet."""
    model_class = getattr(hf_gmlp, class_name)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "attention_size": 8, "num_labels": 3}
    if class_name in VISION_CLASSES:
        sizes |= {"image_size": 32, "patch_size": 8}
    else:
        sizes |= {"vocab_size": len(SPECIAL_TOKENS + WORDS), "max_position_embeddings": 32}
    torch.manual_seed(0)
    return model_class(model_class.config_class(**sizes, initializer_range=0.5, spatial_initializer_range=0.5))


def word_tokenizer() -> PreTrainedTokenizerBase:
    """Returns a tokenizer of a few words, with [CLS] A [SEP] B [SEP] and the special ids of `GMLPConfig`."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=32,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def tiny_image_processor(config_class: type) -> BaseImageProcessor:
    """Returns the image processor that the configuration is registered with, for 32 x 32 pixels."""
    return IMAGE_PROCESSOR_MAPPING[config_class]["torchvision"](size={"height": 32, "width": 32})


def write_picture(path: Path) -> None:
    """Writes a 640 x 480 RGB picture of waves, smooth as a photograph is.

    The backends of an image processor interpolate differently: on noise, the difference between them says nothing.
    """
    y, x = np.mgrid[0:480, 0:640]
    waves = [np.sin(x / 40) + np.cos(y / 50), np.sin((x + y) / 60), np.cos((x - y) / 70) * np.sin(y / 90)]
    picture = np.stack([(wave - wave.min()) / (wave.max() - wave.min()) for wave in waves], axis=-1)
    Image.fromarray((picture * 255).astype(np.uint8)).save(path)
