"""Pushes models in every way. test_publish.py runs this in a process with a Hub at HF_ENDPOINT.

Writes the result of each job, or its traceback, to a file.
"""

import json
import sys
import traceback
from pathlib import Path

import torch
from huggingface_hub import HfApi
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments, ViTImageProcessorPil

from hf_gmlp import (
    GMLPConfig,
    GMLPForCausalLM,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    GMLPForSequenceClassification,
    GMLPVisionConfig,
)
from hf_gmlp.cards import model_card
from tests import samples

WORDS = "the a capital of france is paris rome nice dull film sentence to try once upon time .".split()
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
IDS = torch.arange(5, 15)[None]
api = HfApi()


def text_model(model_class=GMLPForMaskedLM, seed=1, **fields):
    return perturbed(model_class(GMLPConfig(**SIZES, attention_size=8, max_position_embeddings=12, **fields)), seed)


def perturbed(model, seed=1):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@torch.no_grad()
def logits(model):
    return model(IDS).logits.tolist()


def word_tokenizer():
    return samples.word_tokenizer(WORDS, punctuation=True, model_max_length=12)


def text(folder):
    """A model and its tokenizer; then a person's edit, and other weights."""
    first, second = text_model(), text_model(seed=2)
    first.push_to_hub("me/text", tags=["cats"])
    word_tokenizer().push_to_hub("me/text")
    pinned = api.model_info("me/text").sha
    written = Path(api.hf_hub_download("me/text", "README.md")).read_text(encoding="utf-8")
    edited = written.replace("library_name:", "license: cc-by-4.0\nthumbnail: cat.png\nlibrary_name:", 1)
    api.upload_file(path_or_fileobj=edited.encode(), path_in_repo="README.md", repo_id="me/text")
    second.push_to_hub("me/text", commit_message="Second", commit_description="Longer trained")
    return {"first": logits(first), "second": logits(second), "pinned": pinned, "card": written}


def elsewhere(folder):
    """A branch, a pull request, one more commit to it."""
    branch, proposed = text_model(seed=3), text_model(seed=4)
    branch.push_to_hub("me/branches", revision="side/way")
    proposal = proposed.push_to_hub("me/branches", create_pr=True)
    proposed.push_to_hub("me/branches", revision="refs/pr/1", commit_message="Once more", tags=["mended"])
    return {"branch": logits(branch), "proposed": logits(proposed), "revision": proposal.pr_revision}


def saved(folder):
    """save_pretrained(push_to_hub=True)."""
    model = text_model(GMLPForCausalLM)
    options = {"push_to_hub": True, "repo_id": "me/saved", "private": True}
    model.save_pretrained(folder / "saved", max_shard_size="10KB", **options)
    word_tokenizer().save_pretrained(folder / "saved-tokenizer", push_to_hub=True, repo_id="me/saved")
    return {"logits": logits(model), "card": str(model_card(model, "me/saved"))}


def images(folder):
    sizes = {key: value for key, value in SIZES.items() if key != "vocab_size"}
    config = GMLPVisionConfig(**sizes, image_size=16, patch_size=4, id2label={0: "cat", 1: "dog"})
    model = perturbed(GMLPForImageClassification(config))
    ViTImageProcessorPil(size={"height": 16, "width": 16}).push_to_hub("me/pictures")
    model.push_to_hub("me/pictures")
    with torch.no_grad():
        return {"logits": model(torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)).logits.tolist()}


def trainer(folder):
    """Trains with the library's Trainer, which pushes every checkpoint."""
    model = text_model(GMLPForSequenceClassification, id2label={0: "dull", 1: "nice"})
    args = TrainingArguments(str(folder / "trained"), max_steps=2, save_steps=1, learning_rate=0.01, use_cpu=True,
                             report_to="none", disable_tqdm=True, push_to_hub=True, hub_model_id="me/trained",
                             hub_always_push=True)  # fmt: skip
    rows = [{"input_ids": [2, 5 + i, 6, 3], "labels": i % 2} for i in range(8)]
    trainer = Trainer(model, args, train_dataset=rows, processing_class=word_tokenizer())
    trainer.train()
    trainer.push_to_hub(dataset="Two words", license="mit", language="en", tags="cats")
    return {"logits": logits(trainer.model.eval())}


def adapters(folder):
    """LoRA on a model of the Hub: the adapter and the merged model."""
    config = LoraConfig(r=2, target_modules=["proj_in"], init_lora_weights=False)
    torch.manual_seed(1)
    adapted = get_peft_model(AutoModelForMaskedLM.from_pretrained("me/text"), config).eval()
    adapted.push_to_hub("me/adapter")
    expected = logits(adapted)
    adapted.merge_and_unload().push_to_hub("me/merged")
    return {"logits": expected}


JOBS = (text, elsewhere, saved, images, trainer, adapters)


def main(folder: Path, target: Path):
    results = {}
    for job in JOBS:
        try:
            results[job.__name__] = job(folder)
        except Exception:
            results[job.__name__] = {"error": traceback.format_exc()}
    target.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
