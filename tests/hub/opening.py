"""Opens what was pushed in every way. test_publish.py runs this in a process that cannot import hf_gmlp.

Writes the result of each job, or its traceback, to a file.
"""

import json
import os
import sys
import traceback

# ruff: noqa: E402
sys.modules["hf_gmlp"] = None  # as if it were not installed: importing it fails

import numpy as np
import torch
import transformers
from huggingface_hub import HfApi, ModelCard
from PIL import Image
from transformers import pipeline

IDS = torch.arange(5, 15)[None]
REMOTE = {"trust_remote_code": True}
PIXELS = torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)


def open_as(auto_class, name, **options):
    model = getattr(transformers, auto_class).from_pretrained(name, **REMOTE, **options).eval()
    module = sys.modules[type(model).__module__]
    assert module.__name__.startswith("transformers_modules."), module
    # The code came from the Hub into the module cache of this process.
    assert module.__file__.startswith(os.environ["HF_HOME"]), module.__file__
    return model


@torch.no_grad()
def logits(auto_class, name, **options):
    model = open_as(auto_class, name, **options)
    inputs = PIXELS if "Image" in auto_class else IDS
    return model(inputs).logits.tolist()


def ask(task, name, question, **options):
    """Asks a pipeline made by the name of a task, and one made from what the repository says."""
    pipe = pipeline(task, model=name, **REMOTE, **options)
    assert type(pipe.model).__module__.startswith("transformers_modules.")
    assert pipeline(model=name, **REMOTE, **options).task == task
    return pipe(question)


def main_branch(job):
    return logits("AutoModelForMaskedLM", "me/text")


def pinned(job):
    return logits("AutoModelForMaskedLM", "me/text", revision=job["pinned"])


def branch(job):
    return logits("AutoModelForMaskedLM", "me/branches", revision="side/way")


def pull_request(job):
    return logits("AutoModelForMaskedLM", "me/branches", revision="refs/pr/1")


def private(job):
    return logits("AutoModelForCausalLM", "me/saved")


def images(job):
    processor = transformers.AutoImageProcessor.from_pretrained("me/pictures")
    size = processor(Image.new("RGB", (20, 30)), return_tensors="pt")["pixel_values"].shape
    return {"logits": logits("AutoModelForImageClassification", "me/pictures"), "size": list(size)}


def trained(job):
    return logits("AutoModelForSequenceClassification", "me/trained")


def merged(job):
    return logits("AutoModelForMaskedLM", "me/merged")


def adapter(job):
    from peft import PeftModel

    base = open_as("AutoModelForMaskedLM", "me/text")
    with torch.no_grad():
        return PeftModel.from_pretrained(base, "me/adapter").eval()(IDS).logits.tolist()


def cards(job):
    """Checks that the Hub accepts every card."""
    for name in job["repositories"]:
        ModelCard.load(name).validate()
    return len(job["repositories"])


def fill_mask(job):
    return [answer["score"] for answer in ask("fill-mask", "me/mlm", "The [MASK] statement is used for functions.")]


def text_generation(job):
    return ask("text-generation", "me/clm", "The statement", max_new_tokens=5, do_sample=False)[0]["generated_text"]


def text_classification(job):
    return ask("text-classification", "me/glue", "the film is lovely", top_k=None)


def image_classification(job):
    image = Image.fromarray(np.full((30, 40, 3), (200, 50, 40), dtype=np.uint8))
    return ask("image-classification", "me/images", image)


def question_answering(job):
    """Calls the model, since transformers no longer has a pipeline."""
    model = open_as("AutoModelForQuestionAnswering", "me/qa")
    tokenizer = transformers.AutoTokenizer.from_pretrained("me/qa", **REMOTE)
    inputs = tokenizer("Who traveled?", "The traveler was Greta.", return_tensors="pt")
    with torch.no_grad():
        output = model(inputs["input_ids"], inputs["attention_mask"])
    return [output.start_logits.tolist(), output.end_logits.tolist()]


def checkpoint(job):
    """Opens what a script pushed during training, in a folder of the repository."""
    return type(open_as("AutoModelForCausalLM", "me/clm", subfolder="last-checkpoint")).__name__


def pushed_again(job):
    """A model and a tokenizer pushed by this process, without the package, and opened from there."""
    model = open_as("AutoModelForMaskedLM", "me/text", revision=job["pinned"])
    model.push_to_hub("me/again")
    transformers.AutoTokenizer.from_pretrained("me/text", **REMOTE).push_to_hub("me/again")
    assert HfApi().model_info("me/again").library_name == "transformers"
    return logits("AutoModelForMaskedLM", "me/again")


if __name__ == "__main__":
    source, target = sys.argv[1:]
    with open(source) as file:
        job = json.load(file)
    results = {}
    for name in job["functions"]:
        try:
            results[name] = globals()[name](job)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    with open(target, "w") as file:
        json.dump(results, file)
