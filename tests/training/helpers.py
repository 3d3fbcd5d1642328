"""A tiny model and its trainer, for several tests."""

import torch
from datasets import Dataset

from hf_gmlp import GMLPConfig, GMLPForSequenceClassification
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.trainer import GMLPTrainer

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}


def gmlp_config(**fields):
    return GMLPConfig(**SIZES, max_position_embeddings=8, **fields)


def make_trainer(folder, model=None, rows=None, metric_names=None, **arguments):
    torch.manual_seed(0)
    rows = rows or [{"input_ids": [2, 5 + i % 2, 7, 3], "labels": i % 2} for i in range(32)]
    arguments = {"max_steps": 6, "learning_rate": 1e-2} | arguments
    args = RunArguments(output_dir=str(folder), use_cpu=True, **arguments)
    return GMLPTrainer(
        model=model or GMLPForSequenceClassification(gmlp_config()),
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
        metric_names=metric_names,
        card={"dataset": "two words", "license": "mit"},
    )
