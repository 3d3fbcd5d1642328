"""Exported programs compute the outputs of the model."""

import ctypes
import gc
import os
import sys

import numpy as np
import pytest
import torch

import hf_gmlp
from hf_gmlp.errors import InputError
from hf_gmlp.processor import evaluation_processor
from hf_gmlp_cli import main

from ..numerics import assert_close
from ..samples import word_tokenizer

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
openvino = pytest.importorskip("openvino")
exporting = pytest.importorskip("hf_gmlp.tools.export")

pytestmark = pytest.mark.slow


class SignalStack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


@pytest.fixture(autouse=True)
def no_freed_signal_stack():
    """Unset the signal stack that OpenVINO 2026.4 may leave freed on processors with AMX.

    Otherwise the next signal, such as that of a process that ended, would crash the tests.
    """
    yield
    gc.collect()
    if sys.platform == "linux":
        # 2 is SS_DISABLE.
        assert ctypes.CDLL(None).sigaltstack(ctypes.byref(SignalStack(None, 2, 0)), None) == 0


@pytest.fixture
def saved(perturbed_model, text_config, vision_config, tmp_path):
    """saved(head, **fields) saves a model with perturbed weights, and returns the model and its folder."""

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


HEADS = {
    "ForMaskedLM": {},
    "ForMultipleChoice": {},
    "ForSequenceClassification": {"toeplitz": False, "attention_size": 8, "pooling": "mean"},
    "ForTokenClassification": {"toeplitz": False, "spatial_heads": 4, "type_vocab_size": 0, "mask_padding": False},
    "ForQuestionAnswering": {"attention_size": 8, "return_dict": False},
    "Model": {"spatial_heads": 4, "max_position_embeddings": 300, "spatial_reach": 5},
}


@pytest.mark.heavy
@pytest.mark.parametrize("head", HEADS)
def test_every_text_head_in_onnx(saved, tmp_path, head):
    model, folder = saved(head, **HEADS[head])
    lines = exporting.export(str(folder), tmp_path / "out", "onnx")
    assert "largest difference" in lines[0]
    files = ("config.json", "tokenizer.json", "onnx/model.onnx")
    assert all((tmp_path / "out" / file).is_file() for file in files)
    # A program needs no code, for which AutoTokenizer would ask.
    assert "auto_map" not in (tmp_path / "out" / "config.json").read_text() and not [*(tmp_path / "out").glob("*.py")]
    program = session(tmp_path / "out" / "onnx" / "model.onnx")
    # The export does not check this batch size.
    shape = (5, 2, 11) if head == "ForMultipleChoice" else (5, 11)
    inputs = {"input_ids": torch.randint(40, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}
    inputs["attention_mask"][1, ..., -4:] = 0
    if model.config.type_vocab_size:
        inputs["token_type_ids"] = torch.randint(2, shape)
    assert {tensor.name for tensor in program.get_inputs()} == set(inputs)
    with torch.no_grad():
        expected = model(**inputs, return_dict=True)
    names = [tensor.name for tensor in program.get_outputs()]
    for name, output in zip(names, program.run(None, {name: value.numpy() for name, value in inputs.items()})):
        assert_close(output, expected[name], depth=2)
    outputs = {"Model": ["last_hidden_state", "pooler_output"], "ForQuestionAnswering": ["start_logits", "end_logits"]}
    assert names == outputs.get(head, ["logits"])


@pytest.mark.heavy
def test_images_in_onnx_and_openvino_in_eight_bits(saved, tmp_path, monkeypatch):
    # The classes of a model with random weights are near one another.
    monkeypatch.setattr(exporting, "SAME_CLASS", 0.8)
    monkeypatch.setattr(exporting, "PROBABILITY", 0.2)
    model, folder = saved("ForImageClassification")
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = model(pixels).logits
    for to, names in exporting.FORMATS.items():
        main(["export", str(folder), str(tmp_path / to), "--to", to, "--int8"])
        for name, tolerance in zip(names, (1e-4, 0.25)):
            path = tmp_path / to / name
            if to == "onnx":
                logits = session(path).run(["logits"], {"pixel_values": pixels.numpy()})[0]
            else:
                settings = {"INFERENCE_PRECISION_HINT": "f32"}
                logits = openvino.Core().compile_model(path, "CPU", settings)({"pixel_values": pixels})["logits"]
            assert np.abs(logits - expected.numpy()).max() < tolerance * expected.abs().max()
        weights = [(tmp_path / to / name).with_suffix(".bin" if to == "openvino" else ".onnx") for name in names]
        assert weights[1].stat().st_size < weights[0].stat().st_size


@pytest.mark.heavy
@pytest.mark.parametrize(("to", "fields"), [("openvino", {}), ("onnx", {"toeplitz": False, "attention_size": 8})])
def test_a_causal_model_generates_from_its_cache(saved, tmp_path, to, fields):
    _, folder = saved("ForCausalLM", **fields)
    model = exporting.open_for_export(str(folder))
    program = exporting.write_programs(model, to, tmp_path / "out", int8=False)[to]
    prompt = torch.randint(5, 40, (2, 3))
    expected = model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    # Start with an empty cache, then pass the returned one.
    cache = exporting.make_inputs(model, 2, 3, past=0)["past_key_values"]
    tokens, new = prompt, prompt
    for _ in range(8):
        outputs = program(input_ids=new, attention_mask=torch.ones_like(tokens), past_key_values=cache)
        logits, cache = outputs.logits[:, -1], outputs.past_key_values
        logits[:, 3] = -torch.inf  # [SEP], which `min_new_tokens` excludes
        new = logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, new], 1)
    assert tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMaskedLM", "Model"])
@pytest.mark.parametrize("texts", [None, ["w1 w2 w3", "w4 [SEP] w5"]])
def test_an_eight_bit_program_must_be_near(saved, head, texts):
    """Noise on the outputs stands for 8 bits: little of it is accepted and described, much is refused."""
    model, folder = saved(head)
    model, tokenizer = exporting.open_for_export(str(folder)), exporting.open_tokenizer(folder)

    def noisy(std):
        def program(**inputs):
            return {name: x + std * torch.randn_like(x) for name, x in model(**inputs).items()}

        return program

    line = exporting.check_int8(model, noisy(1e-5), exporting.samples_of(model, tokenizer, texts))
    assert ("cosine of embeddings at least 1.0000" if head == "Model" else "same class in 100.0%") in line
    with pytest.raises(InputError, match="export without 8 bits"):
        exporting.check_int8(model, noisy(3.0), exporting.samples_of(model, tokenizer, texts))


def test_the_gated_product_is_not_quantized(saved, tmp_path):
    _, folder = saved("ForSequenceClassification")
    model = exporting.open_for_export(str(folder))
    exporting.write_programs(model, "onnx", tmp_path / "out", int8=True)
    files = (tmp_path / "out" / name for name in exporting.FORMATS["onnx"])
    shapes = [
        [[*tensor.dims] for tensor in onnx.load(file).graph.initializer if tensor.data_type == 1] for file in files
    ]
    # The last product of each block has weights [16, 16], the first one [16, 32].
    assert shapes[1].count([16, 16]) == 2 and [16, 32] in shapes[0] and [16, 32] not in shapes[1]


@pytest.mark.parametrize("fault", [0.01, torch.nan])
def test_a_program_with_other_outputs_is_not_written(saved, tmp_path, monkeypatch, fault):
    model, folder = saved("ForMaskedLM")
    before = set(os.listdir(tmp_path))

    def wrong(_, to, folder, int8):
        return {to: lambda **inputs: {"logits": model(**inputs).logits + fault * (len(inputs["input_ids"]) == 1)}}

    monkeypatch.setattr(exporting, "write_programs", wrong)
    with pytest.raises(InputError, match="largest difference"):
        exporting.export(str(folder), tmp_path / "out", "onnx")
    assert set(os.listdir(tmp_path)) == before
    with pytest.raises(InputError, match="exists already"):
        exporting.export(str(folder), folder, "onnx")
