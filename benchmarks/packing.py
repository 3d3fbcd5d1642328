"""What packing saves on your own sentences: padded and packed training steps in turns, in one process. For example

    python benchmarks/packing.py sst2/train.jsonl --tokenizer_name my-model

prints the share of padding, the CPU time of a step either way for a gMLP and an aMLP, and the largest difference of a
gradient. Samples are drawn as in training, in batches of --batch_size.
"""

import argparse
import random
import statistics
import time

import torch
from datasets import load_dataset
from harness import about
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from hf_gmlp import GMLPConfig, errors
from hf_gmlp.data.packing import PackingCollator


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_file", help="JSON lines with a column of text")
    parser.add_argument("--text_column", default="sentence", help="default: %(default)s")
    parser.add_argument("--tokenizer_name", required=True, help="folder or name of a tokenizer")
    parser.add_argument("--batch_size", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=40, help="steps of each kind (default: %(default)s)")
    parser.add_argument("--config_overrides", default="num_hidden_layers=6,hidden_size=128,intermediate_size=768")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer_name)
    texts = load_dataset("json", data_files=arguments.train_file, split="train")[arguments.text_column]
    draw = random.Random(0)
    batches = [
        [
            dict(tokenizer(text, truncation=True, max_length=128)) | {"labels": 0}
            for text in draw.sample(list(texts), arguments.batch_size)
        ]
        for _ in range(arguments.steps)
    ]
    collators = {"padded": DataCollatorWithPadding(tokenizer), "packed": PackingCollator(tokenizer)}
    filled = sum(len(row["input_ids"]) for batch in batches for row in batch)
    padding = 1 - filled / sum(collators["padded"](batch)["input_ids"].numel() for batch in batches)
    print("; ".join(f"{name} {value}" for name, value in about().items()))
    print(f"one thread, seed 0, batches of {arguments.batch_size}: {padding:.1%} of a padded batch is padding")
    overrides = dict(field.split("=") for field in arguments.config_overrides.split(","))
    options = {name: int(value) for name, value in overrides.items()} | {"max_position_embeddings": 128}
    options |= {"vocab_size": len(tokenizer), "num_labels": 2, "pooling": "mean"}
    for name, attention_size in (("gMLP", 0), ("aMLP", 64)):
        torch.manual_seed(0)
        config = GMLPConfig.from_preset("gmlp-base", attention_size=attention_size, **options)
        model = AutoModelForSequenceClassification.from_config(config)
        times, gradients = {kind: [] for kind in collators}, {}
        for batch in batches:
            for kind, collate in collators.items():
                model.zero_grad()
                inputs = collate(batch)
                begin = time.process_time()
                model(**inputs).loss.backward()
                times[kind].append(time.process_time() - begin)
                gradients[kind] = [p.grad for p in model.parameters() if p.grad is not None]
        difference = max((a - b).abs().max().item() for a, b in zip(*gradients.values(), strict=True))
        padded, packed = (statistics.median(times[kind]) * 1000 for kind in ("padded", "packed"))
        print(
            f"{name}: padded {padded:.0f} ms, packed {packed:.0f} ms of CPU a step: {packed / padded:.2f}; "
            f"gradients differ by {difference:.1e}"
        )


if __name__ == "__main__":
    errors.run(main)
