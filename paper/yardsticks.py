"""Dull yardsticks that every result stands beside: frequencies, neighbors, bags of words, a convolutional network.

python paper/yardsticks.py tokens TOKENIZER TRAIN VALIDATION [--max_length 128]
python paper/yardsticks.py bytes TRAIN VALIDATION [--max_order 6]
python paper/yardsticks.py sentences TRAIN VALIDATION
python paper/yardsticks.py images TRAIN VALIDATION [--epochs 20] [--seeds 1 2 3]
"""

from pathlib import Path

import numpy as np


def unigram_loss(tokenizer: Path, train_file: Path, validation_file: Path, length: int) -> float:
    """
    Loss in nats per masked token of an evaluation by run_mlm.py, if each token is predicted by its frequency in the
    training text (plus one, so that none is impossible).
    """
    train, labels, _ = masked_tokens(tokenizer, train_file, validation_file, length)
    frequency = np.bincount(np.concatenate(train), minlength=int(max(labels)) + 1) + 1.0
    return float(-np.log(frequency[labels] / frequency.sum()).mean())


def masked_tokens(tokenizer: Path, train_file: Path, validation_file: Path, length: int) -> tuple:
    """
    The training sequences; the tokens that the evaluation masks; and, of each, the tokens to its left and right, as
    the model sees them.
    """
    from transformers import AutoTokenizer

    from hf_gmlp.data.masking import MaskedOnce, MaskingCollator
    from hf_gmlp.data.text import load_texts, tokenize

    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    texts = load_texts(train_files=[str(train_file)], validation_files=[str(validation_file)])
    train, validation = tokenize(texts, tokenizer, length)
    # The masks of the evaluation by seed 0; those of another seed are as good.
    masked = MaskedOnce(validation, MaskingCollator(tokenizer, seed=0))
    labels, neighbors = [], []
    for row in masked:
        for place in np.flatnonzero(row["labels"] != -100):
            labels.append(row["labels"][place])
            neighbors.append((row["input_ids"][place - 1], row["input_ids"][place + 1]))
    return [np.asarray(ids) for ids in train["input_ids"]], np.array(labels), np.array(neighbors)
