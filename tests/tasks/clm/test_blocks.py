import numpy as np
import torch

from hf_gmlp.tasks.clm.blocks import CausalCollator


def test_batches_are_padded_on_the_right_and_labels_are_tokens(word_tokenizer):
    collator = CausalCollator(word_tokenizer)
    batch = collator([{"input_ids": np.array([1, 5, 0, 7])}, {"input_ids": [8, 9], "epoch": 3}])
    assert batch["input_ids"].tolist() == [[1, 5, 0, 7], [8, 9, 0, 0]]
    # A [PAD] written in the text would be a label; padding is not.
    assert batch["labels"].tolist() == [[-100, 5, 0, 7], [-100, 9, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert "attention_mask" not in collator([{"input_ids": torch.tensor([1, 2])}])
