"""Size, time and accuracy of exported models beside their originals, in turns in one process. For example

    hf-gmlp export gmlp gmlp-x --to onnx --int8 && hf-gmlp export gmlp gmlp-ov --to openvino
    python -m benchmarks.export --models gmlp bert --onnx gmlp-x bert-x --openvino gmlp-ov bert-ov \\
        --sentences sst2/validation.jsonl --length 32

Models are folders of run_glue.py or run_image_classification.py. A program is timed only if its predictions on the data
are those of its model, or in 8 bits nearly so. Times are CPU times of one thread, medians over all rounds.
"""

import argparse
import json
import statistics
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import openvino
import torch
import transformers
from PIL import Image

from hf_gmlp import errors
from hf_gmlp.markdown import markdown_table

from .machine import circumstances

Inputs = dict[str, torch.Tensor]
Run = Callable[[Inputs], torch.Tensor]
Batches = list[tuple[Inputs, torch.Tensor]]
EVALUATION_BATCH = 50


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, help="folders of trained models")
    parser.add_argument("--onnx", nargs="+", required=True, help="their exports with --to onnx --int8, in that order")
    parser.add_argument("--openvino", nargs="*", default=[], help="their exports with --to openvino, in that order")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--sentences", help="a jsonl file with sentence and label")
    data.add_argument("--images", help="a zip file with a folder of images for every class")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 8], help="default: 1 8")
    parser.add_argument("--length", type=int, default=32, help="tokens of a timed sentence (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="default: %(default)s")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    sizes = arguments.batch_sizes
    table = [["model", "runtime", "parameters", "MB", "accuracy", "as PyTorch"]]
    table[0] += [*(f"ms, batch {size}" for size in sizes), *(f"speed, batch {size}" for size in sizes)]
    # For each row of the table its model, and for each batch size what is timed.
    models, steps = [], []
    for at, folder in enumerate(arguments.models):
        model, batches = read_model(folder, arguments)
        labels, expected = torch.cat([labels for _, labels in batches]), None
        for title, (run, file) in programs_of(at, model, arguments).items():
            found = torch.cat([run(inputs).argmax(-1) for inputs, _ in batches])
            expected = found if expected is None else expected
            agreement = (found == expected).float().mean().item()
            if agreement < (0.9 if "int8" in title else 0.999):
                raise errors.InputError(f"{title} agrees with {folder} on only {agreement:.1%} of the data.")
            cells = [Path(folder).name, title, f"{model.num_parameters() / 1e6:.2f} M"]
            cells += [f"{file.stat().st_size / 1e6:.2f}", f"{(found == labels).float().mean().item():.1%}"]
            table.append([*cells, f"{agreement:.1%}"])
            models.append(at)
            steps.append([(run, timed_inputs(model, batches, size, arguments)) for size in sizes])
    times = [[[] for _ in sizes] for _ in steps]
    for turn in range(arguments.rounds + 3):
        for at, runs in enumerate(steps):
            for i, (run, inputs) in enumerate(runs):
                begin = time.process_time()
                run(inputs)
                # The first turns warm up.
                if turn >= 3:
                    times[at][i].append((time.process_time() - begin) * 1e3)

    for at, cells in enumerate(table[1:]):
        first = models.index(models[at])
        cells += [f"{statistics.median(values):.2f}" for values in times[at]]
        # The median of each turn's ratio: other work on the machine slows both.
        for own, values in zip(times[first], times[at]):
            cells.append(f"{statistics.median(one / other for one, other in zip(own, values)):.2f}")
    facts = circumstances("transformers", "onnxruntime", "openvino")
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")
    print(markdown_table(table))


def read_model(folder: str, arguments: argparse.Namespace) -> tuple[transformers.PreTrainedModel, Batches]:
    """A model, and the data as batches of inputs and labels."""
    if arguments.images:
        model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
        return model, read_images(folder, arguments.images, model.config.label2id)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    return model, read_sentences(folder, arguments.sentences, model.config.label2id)


def read_sentences(folder: str, file: str, label_ids: dict[str, int]) -> Batches:
    """Read a line of {"sentence": ..., "label": ...} for every sentence."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    batches = []
    for start in range(0, len(rows), EVALUATION_BATCH):
        part = rows[start : start + EVALUATION_BATCH]
        encoded = tokenizer([row["sentence"] for row in part], padding=True, truncation=True, return_tensors="pt")
        labels = [label_ids.get(str(row["label"]), row["label"]) for row in part]
        batches.append((dict(encoded), torch.tensor(labels)))
    return batches


def read_images(folder: str, file: str, label_ids: dict[str, int]) -> Batches:
    """Read a zip file with a folder for every class."""
    processor, batches = transformers.AutoImageProcessor.from_pretrained(folder), []
    with zipfile.ZipFile(file) as archive:
        names = [name for name in sorted(archive.namelist()) if Path(name).parent.name in label_ids]
        names = [name for name in names if not name.endswith("/")]
        for start in range(0, len(names), EVALUATION_BATCH):
            part = names[start : start + EVALUATION_BATCH]
            images = [Image.open(archive.open(name)).convert("RGB") for name in part]
            labels = torch.tensor([label_ids[Path(name).parent.name] for name in part])
            batches.append((dict(processor(images, return_tensors="pt")), labels))
    return batches


def programs_of(at: int, model: torch.nn.Module, arguments: argparse.Namespace) -> dict[str, tuple[Run, Path]]:
    """A model and its exports: how each is run, and the file with its weights."""
    exported = Path(arguments.onnx[at]) / "onnx"
    programs = {"PyTorch": (torch_run(model), Path(arguments.models[at]) / "model.safetensors")}
    for title, name in (("ONNX Runtime", "model.onnx"), ("ONNX Runtime, int8", "model_quantized.onnx")):
        programs[title] = (onnx_run(exported / name), exported / name)
    if arguments.openvino:
        path = Path(arguments.openvino[at]) / "openvino" / "openvino_model.xml"
        programs["OpenVINO"] = (openvino_run(path), path.with_suffix(".bin"))
    return programs


def torch_run(model: torch.nn.Module) -> Run:
    return torch.inference_mode()(lambda inputs: model(**inputs).logits)


def onnx_run(path: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: torch.from_numpy(session.run(["logits"], {name: inputs[name].numpy() for name in names})[0])


def openvino_run(path: Path) -> Run:
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    names = [one.any_name for one in compiled.inputs]
    return lambda inputs: torch.from_numpy(compiled({name: inputs[name].numpy() for name in names})["logits"].copy())


def timed_inputs(
    model: transformers.PreTrainedModel, batches: Batches, size: int, arguments: argparse.Namespace
) -> Inputs:
    if arguments.images:
        return {"pixel_values": batches[0][0]["pixel_values"][:size].contiguous()}
    ids = torch.randint(5, model.config.vocab_size, (size, arguments.length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


if __name__ == "__main__":
    errors.run(main)
