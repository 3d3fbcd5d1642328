"""`hf-gmlp export`: ONNX and OpenVINO programs, made with the exporters and quantizers of transformers.

Nothing is written until the program's outputs equal the model's for several batch sizes, lengths and paddings, and
those of an 8-bit program are near enough.
"""

import contextlib
import copy
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir
import torch
import transformers
from onnxruntime.quantization import QuantType
from transformers import PreTrainedModel
from transformers.exporters import (
    ExportQuantizer,
    NNCFOpenVINOQuantizer,
    NNCFWeightCompressionConfig,
    OnnxRuntimeDynamicConfig,
    OnnxRuntimeQuantizer,
)
from transformers.exporters.auto import get_exporter_class, get_runner_class
from transformers.exporters.utils import get_leaf_tensors

from ..errors import InputError
from ..loading import open_config, open_image_processor, open_model, open_tokenizer
from ..models.configuration_gmlp import as_pair

# Format -> file of the program, and file of the program with 8-bit weights.
FORMATS = {
    "onnx": ("onnx/model.onnx", "onnx/model_quantized.onnx"),
    "openvino": ("openvino/openvino_model.xml", "openvino/openvino_model_int8.xml"),
}
Program = Callable[..., Any]
# Largest allowed difference between the outputs of program and model, relative to the largest value of the output.
TOLERANCE = 1e-4
# An 8-bit program must give the same class in this fraction of rows, or of tokens, with probabilities that differ by at
# most this much, and embeddings (means of the hidden states of a text) of at least this cosine.
SAME_CLASS, PROBABILITY, COSINE = 0.99, 0.02, 0.995
# Numbers of tokens of the texts that measure it, and the number of texts of each length.
LENGTHS, TEXTS = (32, 128, 512), 64
# Largest number of parameters in single precision for a protobuf file, which is limited to 2 GiB.
ONE_FILE = 480_000_000


def export(
    checkpoint: str, out: str | Path, to: str, *, int8: bool = False, texts: Sequence[str] | None = None
) -> list[str]:
    """Export a checkpoint, and return lines about the result.

    Args:
        checkpoint: A folder, or a name on the Hub.
        out: A new folder.
        to: A key of `FORMATS`.
        int8: Whether to write a program with 8-bit weights too.
        texts: Texts on which to measure the 8-bit program of a text model, cut to several lengths. By default, random
            tokens, earlier ones of the vocabulary more often.

    Raises:
        InputError: If the model cannot be exported, if the program's outputs differ, or if those of the 8-bit program
            differ too much. Then nothing is written.
    """
    out = Path(out)
    if out.exists():
        raise InputError(f"{out} exists already: remove it, or choose a new folder.")
    model = open_for_export(checkpoint)
    processor = (open_image_processor if is_image(model) else open_tokenizer)(checkpoint)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=out.parent) as temporary:
        stage = Path(temporary) / "export"
        programs = write_programs(model, to, stage, int8)
        lines, title = [], type(model).__name__
        for name, program in programs.items():
            difference = largest_difference(model, program)
            lines.append(f"{title} as {name}: largest difference from the model {difference:.1e} of the largest output")
            # A NaN is refused too.
            if name == to and not difference <= TOLERANCE:
                raise InputError(f"{lines[-1]}. Nothing was written.")
            if name != to:
                lines.append(check_int8(model, program, samples_of(model, processor, texts)))
        for part in (processor, *([model.generation_config] if model.can_generate() else [])):
            part.save_pretrained(stage)
        # Programs need no code. With an `auto_map`, AutoTokenizer would ask whether to run code.
        config = json.loads(model.config.to_json_string())
        config.pop("auto_map", None)
        (stage / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        stage.rename(out)
    return [*lines, f"The export is in {out}."]


def open_for_export(checkpoint: str) -> PreTrainedModel:
    """Load the model as the class that it was saved as, ready to be traced."""
    config = open_config(checkpoint)
    title = (config.architectures or ["model without a name"])[0]
    head = "".join(title.partition("For")[1:])
    config.return_dict = True
    model = open_model(getattr(transformers, f"AutoModel{head}"), checkpoint, config=config, dtype=torch.float32)
    if type(model).__name__ != title:
        raise InputError(f"{checkpoint} is a {title}, which no Auto class of that name loads: it cannot be exported.")
    return model.eval().requires_grad_(False)


def is_image(model: PreTrainedModel) -> bool:
    return model.main_input_name == "pixel_values"


def make_inputs(model: PreTrainedModel, batch: int, length: int, padding: str = "", past: int = 0) -> dict[str, Any]:
    """Return random inputs.

    Args:
        padding: The side, "left" or "right", on which every second sequence is padded; "" for none.
        past: For a causal model, the number of the `length` tokens that are in the cache.
    """
    config, title = model.config, type(model).__name__
    if is_image(model):
        return {"pixel_values": torch.randn(batch, config.num_channels, *as_pair(config.image_size))}
    shape = (batch, 3, length) if "MultipleChoice" in title else (batch, length)
    inputs = {"input_ids": torch.randint(config.vocab_size, shape), "attention_mask": torch.ones(shape).long()}
    hidden = length // 3
    if padding and hidden:
        inputs["attention_mask"][::2, ..., slice(hidden) if padding == "left" else slice(-hidden, None)] = 0
    if "CausalLM" in title:
        cache = model(**{name: value[:, : past + 1] for name, value in inputs.items()}, use_cache=True).past_key_values
        cache.crop(-1)
        return inputs | {"input_ids": inputs["input_ids"][:, past:], "past_key_values": cache}
    if getattr(config, "type_vocab_size", 0):
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape)
    return inputs


def write_programs(model: PreTrainedModel, to: str, folder: Path, int8: bool) -> dict[str, Program]:
    """Write the program of a model, and with `int8` an 8-bit one; return them by name, loaded from their files."""
    exporter, (path, int8_path) = get_exporter_class(to)(), (folder / file for file in FORMATS[to])
    config, options = exporter.config_class(dynamic=True), {}
    if to == "openvino":
        # The cache stays an input and an output.
        config.stateful = False
        # By default, OpenVINO computes in half precision on some processors. On processors with AMX, its default device
        # AUTO leaves a freed signal stack behind, and the next signal, such as Ctrl-C, crashes the process.
        options = {"config": {"INFERENCE_PRECISION_HINT": "f32"}, "device": "cpu"}

    def write(program: Any, path: Path) -> Program:
        path.parent.mkdir(parents=True, exist_ok=True)
        if to == "onnx" and model.num_parameters() < ONE_FILE:
            # A single file, which a browser can load.
            onnx_ir.save(program, path)
        else:
            exporter.save_program(program, path)
        return get_runner_class(to).from_program(exporter.load_program(path), metadata, **options)

    # torch's exporter prints its progress.
    with contextlib.redirect_stdout(sys.stderr):
        # A sample of one or two blocks of a banded W would fix their number.
        length = 5 if is_image(model) else model.config.max_position_embeddings // 2 + 1
        program, metadata = exporter.export_program(model, make_inputs(model, 2, length, "left", past=2), config)
        programs = {to: write(program, path)}
        if int8:
            program = exporter.load_program(path)
            quantizer = NNCFOpenVINOQuantizer(NNCFWeightCompressionConfig())
            quantizer = quantizer if to == "openvino" else onnx_quantizer(model, program)
            programs[f"{to} in 8 bits"] = write(quantizer.quantize(program, {}, to), int8_path)
    return programs


def onnx_quantizer(model: PreTrainedModel, program: onnx_ir.Model) -> ExportQuantizer:
    """Return a quantizer of all products but the last of each block and of tiny attention. The gated values that the
    first multiplies have outliers, the more the longer the text, and all values of a batch share one scale. The second
    adds its errors to the gate."""
    config, shapes = model.config, list[list[int]]()
    if hasattr(config, "spatial_size"):
        shapes = [[config.spatial_size, config.hidden_size], [config.attention_size, config.spatial_size]]
    weights = {name for name, value in program.graph.initializers.items() if list(value.shape or ()) in shapes}
    products = [node for node in program.graph if node.op_type == "MatMul"]
    kept = [node.name for node in products if any(value is not None and value.name in weights for value in node.inputs)]
    # Convolutions would be slower in integers. Unsigned weights, since the products of signed ones overflow on
    # processors without VNNI unless they have seven bits, which are less accurate.
    types = ["MatMul", "Gemm", "Gather"]
    options = {"weight_type": QuantType.QUInt8, "nodes_to_exclude": kept}
    return OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(types, per_channel=True, **options))


def samples_of(model: PreTrainedModel, processor: Any, texts: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Return the inputs on which an 8-bit program is measured: single texts of several lengths, or images of noise."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if is_image(model):
            yield from (make_inputs(model, 1, 0) for _ in range(TEXTS))
            return
        n = model.config.max_position_embeddings
        every = range(len(processor))
        vocabulary = torch.tensor([i for i in every if i not in processor.all_special_ids] or [*every])
        frequencies = 1 / (10.0 + torch.arange(len(vocabulary)))  # Zipf's law
        for length in sorted({min(length, n) for length in LENGTHS}):
            for i in range(TEXTS):
                inputs = make_inputs(model, 1, length)
                if "token_type_ids" in inputs:
                    inputs["token_type_ids"].zero_()
                ids = vocabulary[frequencies.multinomial(inputs["input_ids"].numel(), replacement=True)]
                if texts:
                    ids = processor(texts[i % len(texts)], truncation=True, max_length=length, return_tensors="pt")
                    ids = ids["input_ids"].expand(*inputs["input_ids"].shape[:-1], -1)
                    inputs = {name: x[..., : ids.shape[-1]] if torch.is_tensor(x) else x for name, x in inputs.items()}
                yield inputs | {"input_ids": ids.reshape(inputs["input_ids"].shape)}


@torch.no_grad()
def check_int8(model: PreTrainedModel, program: Program, samples: Iterable[dict[str, Any]]) -> str:
    """Return a line about the outputs of an 8-bit program; raise an InputError if they differ too much."""
    same, probabilities, cosines = [], [], []
    for inputs in samples:
        outputs = get_leaf_tensors(program(**copy.deepcopy(inputs)))
        for name, value in get_leaf_tensors(model(**inputs)).items():
            if name.endswith("logits") and value.shape[-1] > 1:
                same += (value.argmax(-1) == outputs[name].argmax(-1)).flatten().tolist()
                probabilities.append(float((value.softmax(-1) - outputs[name].softmax(-1)).abs().max()))
            elif name in ("last_hidden_state", "logits"):
                mean, other = (x.flatten(0, -2).mean(0) for x in (value, outputs[name]))
                cosines.append(float(torch.cosine_similarity(mean, other, dim=0)))
    if probabilities:
        fraction, largest = sum(same) / len(same), max(probabilities)
        line, is_near = f"same class in {fraction:.1%}, probabilities within {largest:.3f}", fraction >= SAME_CLASS
        is_near = is_near and largest <= PROBABILITY
    else:
        line, is_near = f"cosine of embeddings at least {min(cosines):.4f}", min(cosines) >= COSINE
    line = f"8 bits on {len(probabilities or cosines)} inputs: {line}"
    if not is_near:
        raise InputError(
            f"{line}, but at least {SAME_CLASS:.0%} and at most {PROBABILITY}, or a cosine of {COSINE}, are needed. "
            f"Nothing was written: export without 8 bits."
        )
    return line


@torch.no_grad()
def largest_difference(model: PreTrainedModel, program: Program) -> float:
    """Return the largest difference between program and model on random inputs, relative to the output's maximum."""
    longest = 1 if is_image(model) else model.config.max_position_embeddings
    n = min(longest, 1024)  # attention over several sequences of 8,192 tokens would need tens of gigabytes
    cases = [(1, longest, "", 0), (4, n, "", n - 1), (3, 1, "", 0), (2, n // 2 + 1, "right", n // 4)]
    cases += [(4, n // 3 + 1, "left", n // 4), (8, n, "left", n // 2)]
    differences = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        samples = [make_inputs(model, *case) for case in cases]
    for inputs in samples:
        outputs = get_leaf_tensors(program(**copy.deepcopy(inputs)))
        for name, value in get_leaf_tensors(model(**inputs)).items():
            if value.numel() == 0:
                # The cache of v has empty values.
                continue
            if outputs[name].shape != value.shape:
                return math.nan
            differences.append((value - outputs[name]).abs().max() / value.abs().max().clamp(min=1e-6))
    # Unlike Python's max, torch's maximum is NaN if any difference is NaN.
    return float(torch.stack(differences).max())
