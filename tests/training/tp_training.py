"""Compare a checkpoint whose weights are split between two processes with one on a single process.

Run by test_distributed.py: torchrun --nproc_per_node 2 tp_training.py TEXT_CHECKPOINT IMAGE_CHECKPOINT.
"""

import sys

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageClassification, AutoModelForMaskedLM
from transformers.distributed import DistributedConfig

import hf_gmlp  # noqa: F401
from tests.numerics import assert_close


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(auto_class: type, folder: str, inputs: dict[str, torch.Tensor], shared: set[str]):
    """Compare logits and gradients, in training and without gradients, and the saved weights."""
    model = auto_class.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto"))
    expected = auto_class.from_pretrained(folder)
    assert {name.split(".")[-2] for name, x in model.named_parameters() if isinstance(x, DTensor)} == shared
    assert model.base_model.layers[0].proj_in.weight.to_local().shape[0] == model.config.intermediate_size // 2
    for network in (model, expected):
        network.zero_grad()
        network(**inputs).loss.backward()
    gradients = {name: full(own.grad) for name, own in model.named_parameters()}
    assert_close(gradients, {name: own.grad for name, own in expected.named_parameters()}, depth=2)
    with torch.no_grad():
        assert_close(model(**inputs).logits, expected(**inputs).logits, depth=2)
    model.save_pretrained(f"{folder}/saved")
    torch.distributed.barrier()
    for own, parameter in zip(auto_class.from_pretrained(f"{folder}/saved").parameters(), expected.parameters()):
        assert torch.equal(own, parameter)


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 30, (3, 8), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 6:] = mask[1, :2] = 0
    shared = {"proj_in", "proj_out", "word_embeddings", "decoder"}
    # The decoder shares the embedding weight but has its own bias.
    compare(AutoModelForMaskedLM, sys.argv[1], {"input_ids": ids, "attention_mask": mask, "labels": ids}, shared)
    pixels = torch.randn(3, 3, 16, 16, generator=generator)
    images = {"pixel_values": pixels, "labels": torch.tensor([0, 1, 2])}
    compare(AutoModelForImageClassification, sys.argv[2], images, {"proj_in", "proj_out"})
