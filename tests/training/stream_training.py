"""Train a small masked language model on a stream for some steps, and record the words that each process gets.

Run by test_distributed.py: python stream_training.py STEPS WORKERS OUTPUT FILES...
"""

import os
import sys
from pathlib import Path

from hf_gmlp import GMLPConfig, GMLPForMaskedLM
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.tasks.mlm.masking import MaskingCollator
from hf_gmlp.tasks.text import load_texts, tokenize
from hf_gmlp.training.arguments import RunArguments
from hf_gmlp.training.files import Access
from hf_gmlp.training.trainer import GMLPTrainer
from tests.samples import WORDS, word_tokenizer


class Recorder(MaskingCollator):
    """Collator that records the words of a batch and its process before masking."""

    def __init__(self, tokenizer, folder, rank):
        super().__init__(tokenizer)
        self.folder, self.rank = folder, rank

    def __call__(self, rows):
        words = [str(word) for row in rows for word in row["input_ids"].tolist() if word > 4]
        with open(self.folder / f"seen-{self.rank}-{os.getpid()}.txt", "a") as file:
            file.write(" ".join(words) + " ")
        return super().__call__(rows)


def main(steps: str, workers: str, output: str, *files: str):
    tokenizer, folder = word_tokenizer(WORDS), Path(output)
    arguments = MLMArguments(train_file=list(files), validation_file=list(files), streaming=True)
    texts = load_texts(arguments, validate=False, access=Access(cache_dir=str(folder / "cache")))
    stream, _ = tokenize(texts, tokenizer, 5, arguments)
    args = RunArguments(output, use_cpu=True, max_steps=int(steps), per_device_train_batch_size=4, save_strategy="no",
                        dataloader_num_workers=int(workers), remove_unused_columns=False)  # fmt: skip
    config = GMLPConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, intermediate_size=16,
                        max_position_embeddings=5)  # fmt: skip
    collator = Recorder(tokenizer, folder, args.process_index)
    GMLPTrainer(GMLPForMaskedLM(config), args, collator, stream, card={"dataset": "words"}).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
