"""Several documents in a row, beside the same tokens in plain or padded rows. Run by cpu.py."""

import random
import statistics
from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence

from hf_gmlp.markdown import markdown_table
from hf_gmlp.models.configuration_gmlp import GMLPConfig
from hf_gmlp.models.modeling_gmlp import GMLPModel

from .checks import compare
from .harness import Bench
from .peers import fixed_ids, perturb

VOCABULARY = 32
Inputs = dict[str, torch.Tensor]


def packing_suite(bench: Bench):
    """A forward pass and a training step of a gMLP and an aMLP on packed rows, as multiples of those on other rows."""
    longest = 64 if bench.arguments.quick else 512
    table = [["documents", "model", "rows", "packed, ms", "forward, ratio", "training, ratio"]]
    for model_name, attention_size in (("gMLP", 0), ("aMLP", 64)):
        torch.manual_seed(0)
        config = GMLPConfig(
            num_hidden_layers=bench.arguments.layers,
            max_position_embeddings=longest,
            vocab_size=VOCABULARY,
            type_vocab_size=0,
            attention_size=attention_size,
        )
        model = GMLPModel(config, add_pooling_layer=False)
        perturb(model)
        for what, (lengths, rows, other, others) in cases(longest).items():
            packed = packed_rows(lengths, rows)
            check_packing(model, packed, lengths)
            inputs = {"packed": packed, other: others}
            cells = [what, model_name, f"packed / {other}"]
            for kind, step in (("forward", forward), ("training", training)):
                model.train(kind == "training")
                times = bench.times({name: partial(step, model, one) for name, one in inputs.items()})
                ratio = statistics.median(a / b for a, b in zip(times["packed"], times[other]))
                cells += [f"{1e3 * statistics.median(times['packed']):.0f}"] if kind == "forward" else []
                cells.append(f"{ratio:.2f}")
                for name, seconds in times.items():
                    system = f"{model_name}, {name}"
                    bench.add("packing", system, f"{kind}, ms", 1e3 * statistics.median(seconds), documents=what)
            table.append(cells)
    print(f"\npacking: {bench.arguments.layers} blocks, CPU time packed divided by the other rows'\n")
    print(markdown_table(table), flush=True)


def cases(longest: int) -> dict[str, tuple[list[int], int, str, Inputs]]:
    """Documents -> their lengths, the number of packed rows, and the rows to compare with, in words and as inputs."""
    # Lengths like those of sentences.
    rng = random.Random(0)
    sentences = [max(1, min(longest, round(rng.lognormvariate(3.0, 0.8)))) for _ in range(64)]
    apart = [longest // 2, longest // 4, longest // 4] * 4
    plain = "plain rows of as many tokens"
    two, four = ({"input_ids": fixed_ids(count, longest, VOCABULARY)} for count in (2, 4))
    return {
        f"one of {longest} and {longest} of 1 token": ([longest] + [1] * longest, 1, plain, two),
        "64, log-normal, flattened into one row": (sentences, 1, "padded rows", padded_rows(sentences)),
        f"3 in each of 4 rows of {longest} tokens": (apart, 4, plain, four),
    }


def padded_rows(lengths: list[int]) -> Inputs:
    documents = fixed_ids(1, sum(lengths), VOCABULARY)[0].split(lengths)
    mask = [torch.ones(length, dtype=torch.long) for length in lengths]
    return {"input_ids": pad_sequence(documents, True), "attention_mask": pad_sequence(mask, True)}


def packed_rows(lengths: list[int], rows: int) -> Inputs:
    """As DataCollatorWithFlattening and `--separate_documents` make them: positions count from 0 in each document."""
    ids, positions = fixed_ids(1, sum(lengths), VOCABULARY), torch.cat([torch.arange(length) for length in lengths])
    return {"input_ids": ids.view(rows, -1), "position_ids": positions.view(rows, -1)}


@torch.no_grad()
def check_packing(model: GMLPModel, packed: Inputs, lengths: list[int]):
    """Compare the output of every document with its own in a row by itself."""
    model.eval()
    outputs = model(**packed).last_hidden_state.flatten(0, 1).split(lengths)
    documents = packed["input_ids"].flatten().split(lengths)
    for length in set(lengths):
        same = [i for i, one in enumerate(lengths) if one == length]
        expected = model(torch.stack([documents[i] for i in same])).last_hidden_state
        compare("packed outputs", torch.stack([outputs[i] for i in same]), expected, "those of the documents alone")


@torch.no_grad()
def forward(model: GMLPModel, inputs: Inputs):
    model(**inputs)


def training(model: GMLPModel, inputs: Inputs):
    model(**inputs).last_hidden_state.pow(3).mean().backward()
    model.zero_grad()
