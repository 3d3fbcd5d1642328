"""Exports to ONNX or OpenVINO with the exporters of transformers.

Nothing is written until the program has given the model's outputs for several batch sizes, lengths and paddings.
"""

import contextlib
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.export import Dim
from transformers import AutoImageProcessor, AutoModel, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.exporters.auto import EXPORT_BACKENDS, get_exporter_class, get_runner_class

from ..errors import InputError, first_line
from ..loading import open_config, open_model, open_tokenizer
from ..models.configuration_gmlp import as_pair
from ..models.modeling_gmlp import GMLPForCausalLM, check_cache

logger = logging.getLogger(__name__)

# Format -> file in the export.
FORMATS = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
TASKS = {
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "text-generation": "AutoModelForCausalLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
    "image-classification": "AutoModelForImageClassification",
}
# The largest difference from the model's output, relative to that output's largest value.
TOLERANCE = 1e-4
# A protobuf file holds at most 2 GiB.
ONE_FILE = int(1.9 * 2**30)

SPATIAL = "spatial_gating_unit.proj."

Inputs = dict[str, Any]


def export(
    checkpoint: str,
    out: str | Path,
    to: str,
    *,
    task: str | None = None,
    int8: bool = False,
    eval_file: str | None = None,
) -> list[str]:
    """Export a checkpoint, and return lines about the result.

    Args:
        checkpoint: A folder, or a name on the Hub.
        out: A new folder, or the folder of the checkpoint, which then gets a subfolder.
        to: A key of `FORMATS`.
        task: A key of `TASKS`; by default the task that the checkpoint was saved for.
        int8: Whether to write a program with 8-bit weights too.
        eval_file: Data of which to report the accuracy, as `evaluation_batches` reads them.

    Raises:
        InputError: If the model cannot be exported, or the program's outputs differ. Nothing is written then.
    """
    out, file = Path(out), Path(FORMATS[to])
    beside = out.is_dir() and out.resolve() == Path(checkpoint).resolve()
    taken = out / file.parent if beside else out
    if taken.exists():
        raise InputError(f"{taken} exists already: remove it, choose a new folder, or export into the checkpoint's.")
    model, task = open_for(checkpoint, task)
    module: Any = CausalStep(model) if task == "text-generation" else model
    if eval_file is not None:
        from .evaluation import accuracies, evaluation_batches

        batches = evaluation_batches(model, checkpoint, task, eval_file)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=out.parent) as temporary:
        stage = Path(temporary) / "export"
        (stage / file).parent.mkdir(parents=True)
        run = trace(module, to, stage / file)
        difference, _ = compare(module, run)
        if difference > TOLERANCE:
            raise InputError(f"The {to} program of {checkpoint} differs by {difference:.1e} of the largest output.")
        lines = [f"{task} as {to}: largest difference from the model {difference:.1e} of the largest output"]
        runs: dict[str, Callable[..., Any]] = {"model": module, to: run}
        if int8:
            runs["8 bits"] = QUANTIZERS[to](stage / file, run.metadata)
            difference, agreement = compare(module, runs["8 bits"])
            numbers = f"{agreement:.1%} of predictions agree with the model, largest difference {difference:.1e}"
            lines.append(f"{task} as {to} in 8 bits, on random input: {numbers}")
        if eval_file is not None:
            scores = accuracies(runs, batches, list(make_inputs(model, 1, 1)))
            words = ", ".join(f"{name} {score:.4f}" for name, score in scores.items())
            lines.append(f"accuracy on {eval_file}: {words}")
        if beside:
            (stage / file).parent.rename(taken)
        else:
            save_beside(checkpoint, model, stage)
            stage.rename(out)
    return [*lines, f"The export is in {(out / file).parent}."]


def open_for(checkpoint: str, task: str | None) -> tuple[PreTrainedModel, str]:
    """Return the model for a task, ready to be traced, and the name of the task."""
    config = open_config(checkpoint)
    if task is None:
        name = (config.architectures or [""])[0]
        heads = {auto_class.removeprefix("AutoModel"): task for task, auto_class in TASKS.items()}
        task = next((heads[head] for head in heads if head and head in name), "feature-extraction")
    if task not in TASKS:
        raise InputError(f"There is no task {task!r}. Choose one of: {', '.join(TASKS)}.")
    auto_class = getattr(transformers, TASKS[task])
    # The checkpoint of a language model has no pooler.
    options = {"add_pooling_layer": False} if auto_class is AutoModel else {}
    config.return_dict = True
    model = open_model(auto_class, checkpoint, config=config, dtype=torch.float32, **options)
    if task == "text-generation" and not isinstance(model, GMLPForCausalLM):
        raise InputError(f"{checkpoint} is not a causal gMLP or aMLP: other language models are not exported.")
    return model.eval().requires_grad_(False), task


class CausalStep(nn.Module):
    """A causal model as a function of tokens and cache.

    The cache is {block: {"key": v}}, or in an aMLP {"key": v, "value": keys and values of tiny attention side by side},
    all [B, 1, t, width].
    """

    def __init__(self, model: GMLPForCausalLM):
        super().__init__()
        self.model, self.config = model, model.config

    def empty(self, batch: int, length: int = 0) -> dict[str, dict[str, torch.Tensor]]:
        """Return a cache of zeros."""
        widths = {"key": self.config.spatial_size, "value": 2 * self.config.attention_size}
        return {
            str(block): {name: torch.zeros(batch, 1, length, width) for name, width in widths.items() if width}
            for block in range(self.config.num_hidden_layers)
        }

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_key_values: dict) -> dict:
        cache, size = DynamicCache(), self.config.attention_size
        check_cache(cache, self.config, self.model.model.layers)
        layers = 2 if size else 1  # of the cache for each block
        for block, past in enumerate(past_key_values.values()):
            fill(cache.layers[layers * (block + 1) - 1], past["key"], past["key"][..., :0])
            if size:
                fill(cache.layers[layers * block], past["value"][..., :size], past["value"][..., size:])
        output = self.model(input_ids, attention_mask, past_key_values=cache, use_cache=True)
        present: dict[str, dict[str, torch.Tensor]] = {}
        for block in range(self.config.num_hidden_layers):
            present[str(block)] = {"key": cache.layers[layers * (block + 1) - 1].keys}
            if size:
                layer = cache.layers[layers * block]
                present[str(block)]["value"] = torch.cat([layer.keys, layer.values], -1)
        return {"logits": output.logits, "present": present}


def fill(layer: Any, keys: torch.Tensor, values: torch.Tensor):
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values


def is_image(module: nn.Module) -> bool:
    return getattr(module, "main_input_name", "") == "pixel_values"


def make_inputs(module: Any, batch: int, length: int, padding: str = "", past: int = 0) -> Inputs:
    """Return random inputs; with padding "left" or "right", every second sequence has some."""
    config = module.config
    if is_image(module):
        return {"pixel_values": torch.randn(batch, config.num_channels, *as_pair(config.image_size))}
    shape = (batch, 3, length) if "MultipleChoice" in type(module).__name__ else (batch, length)
    mask = torch.ones(*shape[:-1], past + length, dtype=torch.long)
    hidden = (past + length) // 3
    if padding and hidden:
        mask[::2, ..., slice(hidden) if padding == "left" else slice(-hidden, None)] = 0
    inputs = {"input_ids": torch.randint(config.vocab_size, shape), "attention_mask": mask}
    if isinstance(module, CausalStep):
        return inputs | {"past_key_values": module.empty(batch, past)}
    if getattr(config, "type_vocab_size", 0):
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape)
    return inputs


def dynamic_shapes(module: Any, inputs: Inputs, to: str) -> Inputs:
    """Return which sizes may change: batch, choices and length."""
    if is_image(module):
        return {"pixel_values": {0: Dim.AUTO(min=1, max=2**15) if to == "openvino" else Dim("batch")}}
    n = module.config.max_position_embeddings
    if to == "openvino" or isinstance(module, CausalStep):
        # The sizes of cache and mask depend on each other, and the slices in OpenVINO's exporter would exclude n.
        batch, length, past = Dim.AUTO(min=1, max=2**15), Dim.AUTO(min=1, max=n), Dim.AUTO(min=0, max=n)
    else:
        batch, length, past = Dim("batch"), Dim("length", max=n), None
    choices = Dim.AUTO(min=1, max=64) if to == "openvino" else Dim("choices")
    sizes = {2: {0: batch, 1: length}, 3: {0: batch, 1: choices, 2: length}, 4: {0: batch, 2: past}}
    return torch.utils._pytree.tree_map(lambda x: sizes[x.dim()], inputs)


def trace(module: nn.Module, to: str, path: Path) -> Any:
    """Write the program of a model, and return the program as read back from its file."""
    causal = isinstance(module, CausalStep)
    try:
        inputs = make_inputs(module, 2, 2, "right", past=2) if causal else make_inputs(module, 2, 3, "right")
        exporter = get_exporter_class(to)()
        config = EXPORT_BACKENDS[to].config(dynamic=True, dynamic_shapes=dynamic_shapes(module, inputs, to))
        if to == "openvino":
            config.stateful = False
        # torch's exporter prints its progress.
        with quiet(), contextlib.redirect_stdout(sys.stderr):
            program, metadata = exporter.export_program(module, inputs, config)
        if to == "onnx":
            name_sizes(program.graph)
            save_onnx(program, path)
        else:
            exporter.save_program(program, path)
        return open_program(to, path, metadata)
    except ImportError as error:
        raise InputError(f'--to {to} needs packages that are missing: pip install "hf-gmlp[export]".') from error
    except Exception as error:
        why = first_line(error).rstrip(".")
        raise InputError(f"A {type(module).__name__} cannot be exported to {to}: {why}.") from error


def open_program(to: str, path: Path, metadata: Any) -> Any:
    """Return a program that can be called."""
    options: dict[str, Any] = {}
    if to == "openvino":
        # On some processors OpenVINO would compute in half precision. The device AUTO opens the CPU's plugin twice, and
        # on processors with AMX leaves the process a freed stack for signals: the next one, as Ctrl-C, would end it.
        options = {"config": {"INFERENCE_PRECISION_HINT": "f32"}, "device": "cpu"}
    return get_runner_class(to).from_program(get_exporter_class(to).load_program(path), metadata, **options)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings of exporters and quantizers, which are about their own code."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def name_sizes(graph: Any):
    """Give the sizes that may change the names that transformers.js needs to make an empty cache."""
    import onnx_ir

    axes = {2: ["batch_size", "sequence_length"], 3: ["batch_size", "num_choices", "sequence_length"]}
    axes[4] = ["batch_size", "", "past_sequence_length", ""]
    names: dict[str, str | None] = {"None": None}
    for value in graph.inputs:
        for size, name in zip(value.shape, axes[len(value.shape)]):
            # A mask covers the cache and the new tokens: its length is a sum.
            names.setdefault(str(size), "total_sequence_length" if "+" in str(size) else name)
    for value in [*graph.inputs, *(value for node in graph for value in node.outputs)]:
        if value.shape is not None:
            sizes = [size if isinstance(size, int) else names.get(str(size), str(size)) for size in value.shape]
            value.shape = onnx_ir.Shape(sizes)


def save_onnx(program: Any, path: Path):
    """Write one file, which a browser can load, or if that would be too large, the weights in a second file."""
    import onnx_ir

    size = sum(one.const_value.nbytes for one in program.graph.initializers.values() if one.const_value is not None)
    onnx_ir.save(program, path, external_data=f"{path.name}_data" if size > ONE_FILE else None)


def quantize_onnx(path: Path, metadata: Any) -> Callable[..., Any]:
    """Write model_quantized.onnx beside an ONNX file: linear layers and embeddings in 8 bits, the rest unchanged."""
    import onnx_ir
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    program = onnx_ir.load(path)
    graph = program.graph
    for node in [node for node in graph if node.op_type == "Transpose"]:
        weight = node.inputs[0]
        if weight is not None and weight.const_value is not None:
            # The decoder shares the embeddings. Transposed at every call, it would not be computed in 8 bits.
            array = np.ascontiguousarray(weight.const_value.numpy().T)
            turned = onnx_ir.val(f"{weight.name}_turned", const_value=onnx_ir.tensor(array))
            graph.register_initializer(turned)
            onnx_ir.convenience.replace_all_uses_with(node.outputs[0], turned)
            graph.remove(node, safe=True)
    # The spatial W is gathered as embeddings are, but stays in single precision.
    spatial = [node.name for node in graph if any(SPATIAL in str(value) for value in node.inputs)]
    # Seven bits, because processors without VNNI overflow at eight. Convolutions are slower in integers.
    config = OnnxRuntimeDynamicConfig(
        op_types_to_quantize=["MatMul", "Gemm", "Gather"], per_channel=True, reduce_range=True, nodes_to_exclude=spatial
    )
    quantized = path.with_name("model_quantized.onnx")
    with quiet():
        save_onnx(OnnxRuntimeQuantizer(config).quantize(program, {}, "onnx"), quantized)
    return open_program("onnx", quantized, metadata)


def quantize_openvino(path: Path, metadata: Any) -> Callable[..., Any]:
    """Write openvino_model_int8.xml beside an OpenVINO file: weights in 8 bits, which are computed with in floats."""
    import nncf
    import openvino

    quantized = path.with_name("openvino_model_int8.xml")
    with quiet(), contextlib.redirect_stdout(sys.stderr):
        program = nncf.compress_weights(openvino.Core().read_model(path), mode=nncf.CompressWeightsMode.INT8_ASYM)
        openvino.save_model(program, quantized, compress_to_fp16=False)
    return open_program("openvino", quantized, metadata)


QUANTIZERS = {"onnx": quantize_onnx, "openvino": quantize_openvino}


def flatten(tree: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of nested dictionaries by their path, as the exporters name them."""
    if isinstance(tree, torch.Tensor):
        return {prefix.removeprefix("."): tree}
    return {name: leaf for key in tree or () for name, leaf in flatten(tree[key], f"{prefix}.{key}").items()}


@torch.no_grad()
def compare(module: Any, run: Callable[..., Any]) -> tuple[float, float]:
    """Run a program and its model on the same random inputs.

    Returns:
        The largest difference of an output, relative to that output's largest value, and the fraction of predictions
        (of the largest logit) that agree.
    """
    n = 1 if is_image(module) else module.config.max_position_embeddings
    cases = [(1, n, ""), (4, n, ""), (3, 1, ""), (2, n // 2 + 1, "right"), (4, n // 3 + 1, "left"), (8, n, "right")]
    differences, equal = [], []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pairs = [pair for case in cases for pair in steps(module, make_inputs(module, *case))]
    for inputs, expected in pairs:
        outputs = flatten(run(**inputs))
        for name, value in expected.items():
            other = outputs[name]
            if other.shape != value.shape:
                raise InputError(f"The program gives {name} in shape {list(other.shape)}, not {list(value.shape)}.")
            if value.dim() == 4:
                value, other = value[:, 0], other[:, 0]
            if "attention_mask" in inputs and value.dim() >= 2 and name != "pooler_output":
                # Outputs at padding do not matter.
                real = inputs["attention_mask"][..., -value.shape[1] :] != 0
                if value.shape[: real.dim()] == real.shape:
                    value, other = value[real], other[real]
            differences.append((value - other).abs().max() / value.abs().max().clamp(min=1e-6))
            if "logits" in name and value.shape[-1] > 1:
                equal.append((value.argmax(-1) == other.argmax(-1)).float().flatten())
    # Unlike Python's max, this is NaN if any difference is.
    difference = torch.stack(differences).max()
    if difference.isnan():
        raise InputError("The program differs by nan: some outputs are not numbers. Nothing was written.")
    return float(difference), float(torch.cat(equal).mean()) if equal else 1.0


def steps(module: Any, inputs: Inputs) -> Iterator[tuple[Inputs, dict[str, torch.Tensor]]]:
    """Yield inputs and the model's outputs. A causal model takes a prompt, then several tokens, then single tokens."""
    if not isinstance(module, CausalStep):
        yield inputs, flatten(module(**inputs))
        return
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    length, cache = ids.shape[1], inputs["past_key_values"]
    ends = sorted({max(1, length // 2), max(1, length - 2), max(1, length - 1), length})
    for start, end in zip([0, *ends], ends):
        step = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], "past_key_values": cache}
        output = module(**step)
        yield step, flatten(output)
        cache = output["present"]


def save_beside(checkpoint: str, model: PreTrainedModel, folder: Path):
    """Save config with code, tokenizer or image processor, and generation config."""
    model.config.save_pretrained(folder)
    opener = AutoImageProcessor.from_pretrained if is_image(model) else open_tokenizer
    try:
        opener(checkpoint).save_pretrained(folder)
    except (OSError, InputError) as error:
        logger.warning("The export has no tokenizer or image processor: %s", first_line(error))
    if isinstance(model, GMLPForCausalLM):
        generation_config: Any = model.generation_config or GenerationConfig()
        generation_config.save_pretrained(folder)
