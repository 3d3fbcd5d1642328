"""Exports: a program that is written has the outputs of the model."""

import ctypes
import gc
import os
import re
import sys

import pytest
import torch

import hf_gmlp
from hf_gmlp.errors import InputError
from hf_gmlp.processor import evaluation_processor
from hf_gmlp.tools import export as exporting
from hf_gmlp.tools.cli import main
from hf_gmlp.tools.export import export

from ..numerics import assert_close
from ..samples import CONVOLUTIONAL, word_tokenizer

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class SignalStack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


@pytest.fixture(autouse=True)
def no_freed_signal_stack():
    """On processors with AMX, OpenVINO gives the thread a stack for signals, and may leave it freed (2026.4): the next
    signal, such as that of a process that ended, would end the tests.
    """
    yield
    gc.collect()
    if sys.platform == "linux":
        # 2 is SS_DISABLE.
        assert ctypes.CDLL(None).sigaltstack(ctypes.byref(SignalStack(None, 2, 0)), None) == 0


@pytest.fixture
def saved(perturbed_model, text_config, vision_config, tmp_path):
    """saved(head, **fields) saves a model with perturbed weights, and returns it and its folder."""

    def save(head, **fields):
        vision = head in ("ForImageClassification", "VisionModel")
        config = (vision_config if vision else text_config)(**fields)
        model = perturbed_model(getattr(hf_gmlp, f"GMLP{head}"), config)
        model.save_pretrained(tmp_path / "model")
        if vision:
            evaluation_processor((16, 16)).save_pretrained(tmp_path / "model")
        else:
            word_tokenizer([]).save_pretrained(tmp_path / "model")
        return model, tmp_path / "model"

    return save


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


HEADS = {
    "ForMaskedLM": {},
    "ForMultipleChoice": {},
    "ForSequenceClassification": {"toeplitz": False, "attention_size": 8, "pooling": "mean"},
    "ForTokenClassification": {"toeplitz": False, "spatial_heads": 4, "type_vocab_size": 0, "mask_padding": False},
    "ForQuestionAnswering": {"attention_size": 8, "return_dict": False},
    "Model": {"spatial_heads": 4},
}


@pytest.mark.heavy
@pytest.mark.parametrize("head", HEADS)
def test_every_text_head_in_onnx(saved, tmp_path, head):
    model, folder = saved(head, **HEADS[head])
    lines = export(str(folder), tmp_path / "out", "onnx")
    assert "largest difference" in lines[0]
    assert {"config.json", "tokenizer.json", "modeling_gmlp.py", "onnx/model.onnx"} <= files(tmp_path / "out")
    program = session(tmp_path / "out" / "onnx" / "model.onnx")
    # A batch that the export did not compare.
    shape = (5, 2, 11) if head == "ForMultipleChoice" else (5, 11)
    inputs = {"input_ids": torch.randint(40, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}
    inputs["attention_mask"][1, ..., -4:] = 0
    if model.config.type_vocab_size:
        inputs["token_type_ids"] = torch.randint(2, shape)
    assert {one.name for one in program.get_inputs()} == set(inputs)
    with torch.no_grad():
        expected = model(**inputs, return_dict=True)
    names = [one.name for one in program.get_outputs()]
    for name, found in zip(names, program.run(None, {name: value.numpy() for name, value in inputs.items()})):
        assert_close(found, expected[name], depth=2)
    wanted = {"Model": ["last_hidden_state"], "ForQuestionAnswering": ["start_logits", "end_logits"]}
    assert names == wanted.get(head, ["logits"])


@pytest.mark.parametrize("fields", [{}, CONVOLUTIONAL], ids=["default", "convolutional"])
def test_an_image_classifier_beside_its_weights_in_eight_bits(saved, fields):
    model, folder = saved("ForImageClassification", **fields)
    before = files(folder)
    main(["export", str(folder), str(folder), "--to", "onnx", "--int8"])
    assert files(folder) - before == {"onnx/model.onnx", "onnx/model_quantized.onnx"}
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = model(pixels).logits
    for name, tolerance in (("model", 1e-4), ("model_quantized", 0.25)):
        program = session(folder / "onnx" / f"{name}.onnx")
        found = torch.from_numpy(program.run(["logits"], {"pixel_values": pixels.numpy()})[0])
        assert (found - expected).abs().max() < tolerance * expected.abs().max()
    with pytest.raises(InputError, match="onnx"):
        export(str(folder), folder, "onnx")


def test_openvino_in_eight_bits(saved, tmp_path, capfd):
    openvino = pytest.importorskip("openvino")
    model, folder = saved("ForImageClassification")
    main(["export", str(folder), str(tmp_path / "out"), "--to", "openvino", "--int8"])
    assert "as openvino in 8 bits" in capfd.readouterr().out
    sizes = [(tmp_path / "out/openvino" / f"openvino_model{kind}.bin").stat().st_size for kind in ("", "_int8")]
    assert sizes[1] < 0.5 * sizes[0]
    program = openvino.Core().compile_model(tmp_path / "out/openvino/openvino_model_int8.xml", "CPU")
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = model(pixels).logits
    found = torch.from_numpy(program({"pixel_values": pixels.numpy()})["logits"])
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


def test_accuracy_on_data(saved, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    _, folder = saved("ForSequenceClassification")
    (tmp_path / "dev.csv").write_text("sentence,label\none,0\ntwo words,1\nand three words,2\n")
    main(["export", str(folder), str(tmp_path / "out"), "--to", "onnx", "--int8", "--eval_file",
          str(tmp_path / "dev.csv")])  # fmt: skip
    output = capfd.readouterr()
    assert re.search(r"accuracy on \S+dev.csv: model (\S+), onnx \1, 8 bits [01]\.", output.out)
    # The exporters' own warnings are hidden.
    assert "Failed to infer" not in output.err and "pre-processing before quantization" not in output.err


def test_only_linear_layers_and_embeddings_are_in_eight_bits(saved, tmp_path, monkeypatch):
    import onnx

    # A W that is too large to be folded into other constants.
    _, folder = saved("ForImageClassification", image_size=64)
    # As if the model were too large for one file.
    monkeypatch.setattr(exporting, "ONE_FILE", 0)
    export(str(folder), tmp_path / "out", "onnx", int8=True)
    assert {"onnx/model.onnx_data", "onnx/model_quantized.onnx_data"} <= files(tmp_path / "out")
    graph = onnx.load(tmp_path / "out" / "onnx" / "model_quantized.onnx").graph
    kinds = {one.name: one.data_type for one in graph.initializer}
    spatial = {f"model.layers.{block}.spatial_gating_unit.proj.weight" for block in range(2)}
    assert {kinds[name] for name in spatial} == {onnx.TensorProto.FLOAT}
    quantized = [name for node in graph.node if node.op_type == "MatMulInteger" for name in node.input if name in kinds]
    # Weights and their zero points: two layers in each of two blocks, and two more after them.
    assert len(quantized) == 2 * (2 * 2 + 2)
    assert all(kinds[name] == onnx.TensorProto.INT8 for name in quantized)
    # Only W times v stays in single precision.
    assert sum(node.op_type == "MatMul" for node in graph.node) == 2


@pytest.mark.heavy
@pytest.mark.parametrize("fields", [{}, {"toeplitz": False, "attention_size": 8}], ids=["toeplitz", "dense aMLP"])
def test_a_causal_model_generates_from_its_cache(saved, tmp_path, fields):
    model, folder = saved("ForCausalLM", **fields)
    export(str(folder), tmp_path / "out", "onnx")
    assert "generation_config.json" in files(tmp_path / "out")
    program = session(tmp_path / "out" / "onnx" / "model.onnx")
    prompt = torch.randint(5, 40, (2, 3))
    expected = model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    # As transformers.js generates: first an empty cache, then the one that was returned.
    past = [one for one in program.get_inputs() if one.name.startswith("past")]
    assert all(one.shape[:3] == ["batch_size", 1, "past_sequence_length"] for one in past)
    shapes = {one.name: [2, 1, 0, one.shape[3]] for one in past}
    assert set(shapes) == {
        f"past_key_values.{block}.{part}" for block in range(2) for part in (("key", "value") if fields else ("key",))
    }
    cache = {name: torch.zeros(shape).numpy() for name, shape in shapes.items()}
    tokens, new = prompt, prompt
    for _ in range(8):
        mask = torch.ones_like(tokens)
        outputs = program.run(None, {"input_ids": new.numpy(), "attention_mask": mask.numpy()} | cache)
        outputs = dict(zip([one.name for one in program.get_outputs()], outputs))
        logits = torch.from_numpy(outputs.pop("logits"))[:, -1]
        logits[:, 3] = -torch.inf  # [SEP], which `min_new_tokens` excludes
        new = logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, new], 1)
        cache = {name.replace("present", "past_key_values"): value for name, value in outputs.items()}
    assert tokens.tolist() == expected.tolist()


@pytest.mark.heavy
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForCausalLM"])
def test_openvino(saved, tmp_path, head):
    pytest.importorskip("openvino")
    _, folder = saved(head, attention_size=8)
    export(str(folder), tmp_path / "out", "openvino")
    assert {"openvino/openvino_model.xml", "openvino/openvino_model.bin"} <= files(tmp_path / "out")


@pytest.mark.parametrize("fault", [0.01, torch.nan])
def test_a_program_with_other_outputs_is_not_written(saved, tmp_path, monkeypatch, fault):
    model, folder = saved("ForMaskedLM")
    shown = set(os.listdir(tmp_path))

    def wrong(module, to, path):
        path.write_bytes(b"something")
        return lambda **inputs: {"logits": model(**inputs).logits.detach() + fault * (len(inputs["input_ids"]) == 1)}

    monkeypatch.setattr(exporting, "trace", wrong)
    with pytest.raises(InputError, match="differs by"):
        export(str(folder), tmp_path / "out", "onnx")
    assert set(os.listdir(tmp_path)) == shown


def test_errors_of_exports(saved, tmp_path):
    _, folder = saved("ForMaskedLM")
    (tmp_path / "full").mkdir()
    for out, to, options, message in (
        ("full", "onnx", {}, "full"),
        ("out", "onnx", {"task": "question-answering"}, "qa_outputs"),
    ):
        with pytest.raises(InputError, match=message):
            export(str(folder), tmp_path / out, to, **options)
    assert not (tmp_path / "out").exists()


def test_the_task_is_what_the_checkpoint_was_saved_as(saved):
    for head, task in (("ForCausalLM", "text-generation"), ("Model", "feature-extraction")):
        _, folder = saved(head)
        assert exporting.open_for(str(folder), None)[1] == task
