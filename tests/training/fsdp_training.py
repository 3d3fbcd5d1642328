"""Train a small masked language model for some steps, sharded by FSDP2 if there are several processes.

Run by test_distributed.py: python fsdp_training.py CHECKPOINT OUTPUT. accelerate shards only on accelerators, so
this uses the sharding of transformers, which follows the plan in the config and also works on a CPU.
"""

import os
import sys

import torch
from datasets import Dataset
from transformers import AutoModelForMaskedLM
from transformers.distributed import DistributedConfig

from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.trainer import GMLPTrainer


def main(checkpoint: str, output: str):
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    args = RunArguments(output_dir=output, use_cpu=True, max_steps=6, learning_rate=1e-2, global_batch_size=8,
                        per_device_train_batch_size=4, save_strategy="no", logging_steps=1)  # fmt: skip
    sharding = {"distributed_config": DistributedConfig(fsdp_size=processes)} if processes > 1 else {}
    model = AutoModelForMaskedLM.from_pretrained(checkpoint, **sharding)
    if processes > 1:
        assert all(type(parameter).__name__ == "DTensor" for parameter in model.parameters())
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 30, (64, 8), generator=generator)
    # The number of labels per sample varies a lot, so that a mean of means would be wrong.
    labels = torch.where(torch.rand(64, 8, generator=generator) < torch.linspace(0.1, 0.9, 64)[:, None], ids, -100)
    rows = [{"input_ids": row, "labels": targets} for row, targets in zip(ids.tolist(), labels.tolist())]
    trainer = GMLPTrainer(
        model=model, args=args, train_dataset=Dataset.from_list(rows), card={"dataset": "random numbers"}
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main(*sys.argv[1:])
