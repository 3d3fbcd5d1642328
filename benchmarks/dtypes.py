"""Inference in float32, in bfloat16 and by exported programs on one core, in one process and one run.

    python -m benchmarks.dtypes --texts sst2/validation.jsonl --pictures FOLDER
    python -m benchmarks.dtypes --models amlp-mini-sst2 bert-mini --rows 64

Models: those of the folder "checkpoints", and random ones of transformers and of a preset, of which the largest have a
quarter of their layers. Inputs: the first column of a file of texts, and the pictures in a folder; by default, the
lines of README.md and the pictures of docs. Texts are sorted by length, as in `hf-gmlp predict`, and truncated to 128
tokens. Models and systems take turns within every round. Times are CPU times of the process, and results are medians.

A system has a ratio only if at least 99.5 % of its classes are those of float32 (on at most 1,000 rows) or, for
embeddings and random models, if the cosine of its outputs and those of float32 is at least 0.995 for every timed row.

The results are appended to benchmarks/results/dtypes-DATE.csv.
"""

import argparse
import datetime
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from torch.nn import functional as F
from transformers import AutoModel, BertConfig, PreTrainedConfig, PreTrainedModel, ViTConfig

from common.machine import circumstances
from hf_gmlp import errors, preset_config
from hf_gmlp.cards import markdown_table
from hf_gmlp.data.files import stream_rows
from hf_gmlp.data.images import find_images
from hf_gmlp.loading import open_config, open_image_processor, open_model, open_tokenizer, task_of
from hf_gmlp_cli import run_export

from . import harness
from .peers import parameters_of, perturb

ROOT = Path(__file__).parents[1]
TEXT, CLASSIFIER, PICTURE = "gmlp-mini-sentences", "amlp-mini-sst2", "gmlp-mini-cifar10"
# Random models, with the sizes of a published or bundled one.
_MINI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
# Texts are short, and exports are compared at all lengths.
_SHORT = {"vocab_size": 30522, "max_position_embeddings": 128}
_SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
RANDOM: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert-mini": lambda: BertConfig(**_MINI, **_SHORT),
    "vit-mini": lambda: ViTConfig(**_SMALL, image_size=32, patch_size=4, num_labels=10),
    "gmlp-base-12-layers": lambda: preset_config("gmlp-base", **_SHORT, num_hidden_layers=12),
    "bert-base-3-layers": lambda: BertConfig(**_SHORT, num_hidden_layers=3),
}
MODELS = [TEXT, CLASSIFIER, PICTURE, *RANDOM]
FLOAT32, AUTOCAST, BFLOAT16 = "float32", "autocast", "bfloat16"
# File of an export, and the options of its runtime.
PROGRAMS: dict[str, tuple[str, dict]] = {
    "ONNX": ("onnx/model.onnx", {}),
    "ONNX 8 bits": ("onnx/model_quantized.onnx", {}),
    "OpenVINO float32": ("openvino/openvino_model.xml", {"INFERENCE_PRECISION_HINT": "f32"}),
    "OpenVINO bfloat16": ("openvino/openvino_model.xml", {"INFERENCE_PRECISION_HINT": "bf16"}),
    "OpenVINO 8 bits": ("openvino/openvino_model_int8.xml", {"INFERENCE_PRECISION_HINT": "f32"}),
}
SYSTEMS = [FLOAT32, AUTOCAST, BFLOAT16, *PROGRAMS]
BATCHES = (1, 32)
# Rows on which classes are compared, and the smallest agreement of a system that has a ratio.
CHECKED, AGREEMENT = 1000, 0.995
Batch = dict[str, torch.Tensor]
# The output [B, D] for a batch.
Run = Callable[[Batch], torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="default: all")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="default: all")
    parser.add_argument("--texts", default=str(ROOT / "README.md"), help="file of texts (default: %(default)s)")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs", help="folder (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=32, help="rows per timed pass (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each system (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=harness.RESULTS, help="output folder (default: %(default)s)")
    parser.set_defaults(threads=1, quick=False)
    arguments = parser.parse_args()
    errors.run_command(lambda: benchmark(arguments))


class ProcessBench(harness.Bench):
    def seconds(self, step: harness.Step) -> float:
        """Return the CPU seconds of all threads, since OpenVINO computes in its own."""
        start = time.process_time()
        step()
        return time.process_time() - start


def benchmark(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    bench = ProcessBench(arguments)
    common = circumstances("transformers", "onnxruntime", "openvino") | {"instructions": instructions()}
    print(", ".join(f"{key} {value}" for key, value in common.items()))
    rows: dict[str, list] = {"texts": read_texts(arguments.texts), "pictures": read_pictures(arguments.pictures)}
    agreements: dict[tuple[str, str], float] = {}
    steps: dict[Any, harness.Step] = {}
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            path = model_path(name, Path(folder))
            model = open_as_saved(path)
            sizes[name] = parameters_of(model)
            inputs = rows["pictures" if model.main_input_name == "pixel_values" else "texts"]
            timed = [inputs[i % len(inputs)] for i in range(arguments.rows)]
            batches = {size: make_batches(timed, path, size) for size in BATCHES}
            checked = make_batches(inputs, path, 32) if name in (CLASSIFIER, PICTURE) else batches[32]
            expected = torch.empty(0)
            for system in dict.fromkeys([FLOAT32, *arguments.systems]):
                run = open_system(system, path, model, Path(folder))
                outputs = collect(run, checked)
                expected = outputs if system == FLOAT32 else expected
                agreements[name, system] = agreement(outputs, expected, is_classifier=checked is not batches[32])
                steps |= {(name, system, size): partial(collect, run, part) for size, part in batches.items()}
        times: Any = bench.times(steps)
    for (name, system, size), seconds in times.items():
        details = {"parameters": sizes[name], "batch": size, "agreement": agreements[name, system]}
        rate = arguments.rows / statistics.median(seconds)
        bench.add(name, system, "rows, per CPU second", rate, **details)
    for size in BATCHES:
        table = [[f"batch size {size}", "parameters", "float32, rows per CPU second", *arguments.systems]]
        for name in arguments.models:
            rate = arguments.rows / statistics.median(times[name, FLOAT32, size])
            cells = [cell(times, agreements, name, system, size) for system in arguments.systems]
            table.append([name, f"{sizes[name] / 1e6:.1f} M", f"{rate:.0f}", *cells])
        print(f"\n{markdown_table(table)}", flush=True)
    harness.write_results(arguments.out / f"dtypes-{datetime.date.today().isoformat()}.csv", bench.rows, common)


def cell(times: Any, agreements: dict[tuple[str, str], float], name: str, system: str, size: int) -> str:
    """Return how many times as fast as float32 a system is (the median of all rounds), or how little it agrees."""
    if agreements[name, system] < AGREEMENT:
        return f"agrees {agreements[name, system]:.3f}"
    pairs = zip(times[name, FLOAT32, size], times[name, system, size])
    return f"{statistics.median(own / other for own, other in pairs):.2f}"


def instructions() -> str:
    """Return the sets of instructions that decide how fast bfloat16 and integers are."""
    available = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    names = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return " ".join(name for name in names if available.get(name)) or "unknown"


def read_texts(path: str) -> list[str]:
    """Return the first texts of a file."""
    is_table = not path.endswith(".md")
    lines = (str(next(iter(row.values()))) for row in stream_rows(path)) if is_table else Path(path).open("r")
    return list(itertools.islice(filter(str.strip, lines), CHECKED))


def read_pictures(folder: Path) -> list[Image.Image]:
    """Return pictures of a folder."""
    paths = find_images(folder)
    return [Image.open(folder / path).convert("RGB") for path in paths[:CHECKED]]


def model_path(name: str, folder: Path) -> Path:
    """Return the folder of a checkpoint; a random one is written into `folder`."""
    if name not in RANDOM:
        return ROOT / "checkpoints" / name
    torch.manual_seed(0)
    config = RANDOM[name]()
    is_picture = isinstance(config, ViTConfig)
    task = "ImageClassification" if is_picture else "SequenceClassification"
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    perturb(model)
    model.save_pretrained(folder / name)
    source = ROOT / "checkpoints" / (PICTURE if is_picture else TEXT)
    processor = (open_image_processor if is_picture else open_tokenizer)(source)
    processor.save_pretrained(folder / name)
    return folder / name


def open_as_saved(path: Path) -> PreTrainedModel:
    """Load a classifier, or an encoder without a head."""
    task = task_of(open_config(path))
    return open_model(getattr(transformers, f"AutoModelFor{task}") if task else AutoModel, path).eval()


def make_batches(rows: list, path: Path, size: int) -> list[Batch]:
    """Return the rows in batches of `size`; texts are sorted by length and truncated to 128 tokens."""
    if isinstance(rows[0], Image.Image):
        processor = open_image_processor(path)
        return [processor(rows[i : i + size], return_tensors="pt") for i in range(0, len(rows), size)]
    tokenizer = open_tokenizer(path)
    rows = sorted(rows, key=lambda text: -len(tokenizer(text)["input_ids"]))
    options: dict[str, Any] = {"padding": True, "truncation": True, "max_length": 128, "return_tensors": "pt"}
    return [dict(tokenizer(rows[i : i + size], **options)) for i in range(0, len(rows), size)]


def open_system(system: str, path: Path, model: PreTrainedModel, folder: Path) -> Run:
    """Return what computes the logits or embeddings of a batch."""
    if system in PROGRAMS:
        return open_program(system, path, folder)
    if system == BFLOAT16:
        model = open_as_saved(path).bfloat16()

    def run(batch: Batch) -> torch.Tensor:
        batch = {key: value.to(model.dtype) if value.is_floating_point() else value for key, value in batch.items()}
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=system == AUTOCAST):
            outputs = model(**batch)
        return outputs["logits" if "logits" in outputs else "pooler_output"].float()

    return run


def open_program(system: str, path: Path, folder: Path) -> Run:
    """Export a model with `hf-gmlp export` into `folder`, and return what runs the program in one thread."""
    file, options = PROGRAMS[system]
    to = file.partition("/")[0]
    out = folder / f"{path.name} as {to}"
    if not out.exists():
        run_export(checkpoint=str(path), out=out, to=to, int8=True)
    program = out / file
    if to == "openvino":
        import openvino

        compiled = openvino.Core().compile_model(program, "CPU", options | {"INFERENCE_NUM_THREADS": 1})
        names = [value.get_any_name() for value in compiled.inputs]
        outputs = [name for value in compiled.outputs for name in value.get_names()]
    else:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(program, settings, providers=["CPUExecutionProvider"])
        names, outputs = [x.name for x in session.get_inputs()], [x.name for x in session.get_outputs()]
    output = next(name for name in ("logits", "pooler_output") if name in outputs)

    def run(batch: Batch) -> torch.Tensor:
        zeros = torch.zeros_like(next(iter(batch.values())))
        arrays = {name: batch.get(name, zeros).numpy() for name in names}
        result = compiled(arrays)[output] if to == "openvino" else session.run([output], arrays)[0]
        return torch.from_numpy(result.copy())

    return run


def collect(run: Run, batches: list[Batch]) -> torch.Tensor:
    return torch.cat([run(batch) for batch in batches])


def agreement(outputs: torch.Tensor, expected: torch.Tensor, is_classifier: bool) -> float:
    """Return the fraction of equal classes, or the smallest cosine of the rows of two outputs [rows, D]."""
    if is_classifier:
        return float((outputs.argmax(-1) == expected.argmax(-1)).float().mean())
    return float(F.cosine_similarity(outputs, expected).min())


if __name__ == "__main__":
    main()
