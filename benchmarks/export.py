#!/usr/bin/env python
"""Size, time and accuracy of exported models beside their originals, in turns in one process. For example

    hf-gmlp export gmlp gmlp-x --to onnx --int8 && hf-gmlp export gmlp gmlp-ov --to openvino
    python benchmarks/export.py --models gmlp bert --onnx gmlp-x bert-x --openvino gmlp-ov bert-ov \\
        --sentences sst2/validation.jsonl --length 32

Models are folders of run_glue.py or run_image_classification.py. A program is timed only if its predictions on the data
are those of its model, or in 8 bits nearly so. Times are of one thread of the CPU, medians of all turns: the clock on
the wall says little where other work runs.
"""

import argparse
import json
import statistics
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnxruntime
import openvino
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import hf_gmlp  # noqa: F401
from hf_gmlp.analysis.machine import circumstances

Inputs = dict[str, torch.Tensor]
Run = Callable[[Inputs], torch.Tensor]


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

    def run(inputs: Inputs) -> torch.Tensor:
        return torch.from_numpy(compiled({name: inputs[name].numpy() for name in names})["logits"].copy())

    return run


def torch_run(model: torch.nn.Module) -> Run:
    @torch.inference_mode()
    def run(inputs: Inputs) -> torch.Tensor:
        return model(**inputs).logits

    return run


def read_sentences(folder: str, file: str, label_ids: dict[str, int], batch: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Batches of encoded sentences, {"sentence": ..., "label": ...} in every line, and their labels."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    batches = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        encoded = tokenizer([row["sentence"] for row in part], padding=True, truncation=True, return_tensors="pt")
        labels = [label_ids.get(str(row["label"]), row["label"]) for row in part]
        batches.append((dict(encoded), torch.tensor(labels)))
    return batches


def read_images(folder: str, file: str, label_ids: dict[str, int], batch: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Batches of processed images from a zip file with a folder for every class, and their labels."""
    processor, images, labels = AutoImageProcessor.from_pretrained(folder), [], []
    with zipfile.ZipFile(file) as archive:
        for name in sorted(archive.namelist()):
            label = Path(name).parent.name
            if label in label_ids and not name.endswith("/"):
                images.append(Image.open(archive.open(name)).convert("RGB"))
                labels.append(label_ids[label])
    starts = range(0, len(images), batch)
    return [
        (dict(processor(images[at : at + batch], return_tensors="pt")), torch.tensor(labels[at : at + batch]))
        for at in starts
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, help="folders of trained models")
    parser.add_argument("--onnx", nargs="+", required=True, help="their exports with --to onnx --int8, in that order")
    parser.add_argument("--openvino", nargs="*", default=[], help="their exports with --to openvino, in that order")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--sentences", help="a jsonl file with sentence and label")
    data.add_argument("--images", help="a zip file with a folder of images for every class")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--length", type=int, default=32, help="tokens of a timed sentence")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    auto = AutoModelForImageClassification if arguments.images else AutoModelForSequenceClassification
    rows, runs = [], {}
    for at, folder in enumerate(arguments.models):
        model = auto.from_pretrained(folder).eval()
        exported = Path(arguments.onnx[at]) / "onnx"
        programs = {"PyTorch": (torch_run(model), Path(folder) / "model.safetensors")}
        for title, name in (("ONNX Runtime", "model.onnx"), ("ONNX Runtime, int8", "model_quantized.onnx")):
            programs[title] = (onnx_run(exported / name), exported / name)
        if arguments.openvino:
            path = Path(arguments.openvino[at]) / "openvino" / "openvino_model.xml"
            programs["OpenVINO"] = (openvino_run(path), path.with_suffix(".bin"))
        read = read_images if arguments.images else read_sentences
        batches = read(folder, arguments.images or arguments.sentences, model.config.label2id, 50)
        labels, expected = torch.cat([labels for _, labels in batches]), None
        for title, (run, file) in programs.items():
            found = torch.cat([run(inputs).argmax(-1) for inputs, _ in batches])
            expected = found if expected is None else expected
            agreement = (found == expected).float().mean().item()
            if agreement < (0.9 if "int8" in title else 0.999):
                raise SystemExit(f"{folder} in {title} agrees with its model on {agreement:.1%} only.")
            rows.append(
                {
                    "model": Path(folder).name,
                    "runtime": title,
                    "parameters": model.num_parameters(),
                    "MB": file.stat().st_size / 1e6,
                    "accuracy": (found == labels).float().mean().item(),
                    "agreement": agreement,
                }
            )
            for size in arguments.batch_sizes:
                if arguments.images:
                    inputs = {"pixel_values": batches[0][0]["pixel_values"][:size].contiguous()}
                else:
                    ids = torch.randint(5, model.config.vocab_size, (size, arguments.length))
                    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
                    inputs["token_type_ids"] = torch.zeros_like(ids)
                runs[len(rows) - 1, size] = (run, inputs)
    times: dict[tuple[int, int], list[float]] = {key: [] for key in runs}
    for turn in range(arguments.rounds + 3):
        for key, (run, inputs) in runs.items():
            begin = time.process_time()
            run(inputs)
            if turn >= 3:
                times[key].append((time.process_time() - begin) * 1e3)

    print(
        *(f"{name}: {value}" for name, value in circumstances("transformers", "onnxruntime", "openvino").items()),
        sep="\n",
    )
    sizes = arguments.batch_sizes
    header = [
        "model",
        "runtime",
        "parameters",
        "MB",
        "accuracy",
        "as PyTorch",
        *(f"ms, batch {size}" for size in sizes),
    ]
    header += [f"speed, batch {size}" for size in sizes]
    print("|", " | ".join(header), "|\n|", " | ".join("---" for _ in header), "|")
    for at, row in enumerate(rows):
        medians = [statistics.median(times[at, size]) for size in sizes]
        first = next(one for one, other in enumerate(rows) if other["model"] == row["model"])
        # Ratios of a turn, then their median: what else ran on the machine slowed both.
        ratios = [
            statistics.median(mine / other for mine, other in zip(times[first, size], times[at, size]))
            for size in sizes
        ]
        cells = [row["model"], row["runtime"], f"{row['parameters'] / 1e6:.2f} M", f"{row['MB']:.2f}"]
        cells += [f"{row['accuracy']:.1%}", f"{row['agreement']:.1%}", *(f"{value:.2f}" for value in medians)]
        print("|", " | ".join([*cells, *(f"{value:.2f}" for value in ratios)]), "|")


if __name__ == "__main__":
    main()
