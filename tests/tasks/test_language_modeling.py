import itertools
import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import EvalPrediction

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm import CausalCollator
from hf_gmlp.tasks.language_modeling import (
    LanguageModelMetrics,
    count_bytes,
    pack,
    token_losses,
    tokenize,
)
from hf_gmlp.tasks.mlm import MaskingCollator, mask_once

from ..numerics import assert_close
from ..samples import documents


def lists(rows):
    assert all(row.dtype == np.int32 for row in rows)
    return [row.tolist() for row in rows]


def test_pack_joins_documents_and_drops_only_the_end(word_tokenizer):
    texts = documents([3, 1, 9, 4])
    packed = pack(texts, word_tokenizer, 7)
    expected = []
    for text in texts:
        expected += [*word_tokenizer.convert_tokens_to_ids(text.split()), 3]
    expected = expected[:-1]
    assert [len(ids) for ids in packed["input_ids"]] == [7] * 4
    assert all(ids[0] == 2 and ids[-1] == 3 for ids in packed["input_ids"])
    assert [token for ids in lists(packed["input_ids"]) for token in ids[1:-1]] == expected[: 4 * 5]

    kept = pack(texts, word_tokenizer, 8, keep_remainder=True)
    assert [token for ids in kept["input_ids"] for token in ids[1:-1]] == expected
    assert [len(ids) for ids in kept["input_ids"]] == [8, 8, 8, 4]


def test_blank_documents_are_ignored(word_tokenizer):
    assert lists(pack(["", "w1 w2", " \n ", "w3", None], word_tokenizer, 6)["input_ids"]) == [[2, 6, 7, 3, 8, 3]]
    assert pack(["", " "], word_tokenizer, 6) == {"input_ids": []}


def test_causal_blocks_predict_every_token_once(word_tokenizer):
    texts = ["", *documents([3, 1, 9, 4]), " \n"]
    stream = [id_ for text in texts[1:-1] for id_ in (3, *word_tokenizer.convert_tokens_to_ids(text.split()))]
    # There are 20 predictions.
    for block_size, kept_lengths in ((6, [6] * 4), (7, [7, 7, 7, 3]), (21, [21]), (50, [21])):
        kept = lists(pack(texts, word_tokenizer, block_size, causal=True, keep_remainder=True)["input_ids"])
        assert [len(ids) for ids in kept] == kept_lengths
        assert kept[0][0] == stream[0] and [id_ for ids in kept for id_ in ids[1:]] == stream[1:]
        assert all(before[-1] == after[0] for before, after in itertools.pairwise(kept))
        full = lists(pack(texts, word_tokenizer, block_size, causal=True)["input_ids"])
        assert full == [ids for ids in kept if len(ids) == block_size]
    assert pack(["", None], word_tokenizer, 6, causal=True) == {"input_ids": []}
    assert count_bytes(["", None, " \n", "Ä b", "c"]) == 5


@pytest.mark.parametrize("causal", [False, True])
def test_a_stream_gives_the_same_sequences(word_tokenizer, causal):
    documents_ = Dataset.from_dict({"text": documents([3, 1, 9, 4, 20])})
    options = {"causal": causal, "max_train_samples": None if causal else 4}
    train, validation = tokenize({"train": documents_, "validation": documents_}, word_tokenizer, 7, **options)
    stream, nothing = tokenize({"train": documents_.to_iterable_dataset()}, word_tokenizer, 7, **options)
    assert nothing is None and train.column_names == ["input_ids"]
    # Nothing is left out of a stream or of the evaluation.
    complete = [row["input_ids"].tolist() for row in validation][: options["max_train_samples"]]
    assert sorted(row["input_ids"].tolist() for row in stream) == sorted(complete)
    assert [row["input_ids"].tolist() for row in train] == complete[: len(train)]


@pytest.mark.parametrize("text", [None, " ", "w1 w2"])
def test_too_little_text_is_refused(word_tokenizer, text):
    for split in ("train", "validation"):
        data = {split: Dataset.from_dict({"text": [text]})}
        if split == "train" or text != "w1 w2":
            with pytest.raises(InputError, match=f"The {split} text fills no sequence of 8 tokens"):
                tokenize(data, word_tokenizer, 8)


def test_masked_documents_are_separated(word_tokenizer):
    """Document boundaries are found before masking, and masking is unchanged."""
    sep = word_tokenizer.sep_token_id
    rows = [{"input_ids": np.array(ids)} for ids in ([2, 9, 8, sep, 7, 9, sep], [2, 9, sep])]
    plain, apart = (MaskingCollator(word_tokenizer, 0.9, seed=1, separate_documents=flag) for flag in (False, True))
    assert "position_ids" not in plain(rows)
    batch = apart(rows)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 0, 0, 0, 0]]
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(batch[name], plain(rows)[name])
    once = apart([mask_once(Dataset.from_list(rows), apart)[0]])
    assert once["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2]]


def test_causal_labels_are_the_tokens_without_the_first_one_and_padding(word_tokenizer):
    # [PAD] with id 0 in a text is a label.
    batch = CausalCollator(word_tokenizer)([{"input_ids": np.array([1, 5, 0, 7])}, {"input_ids": [8, 9], "epoch": 3}])
    assert batch["input_ids"].tolist() == [[1, 5, 0, 7], [8, 9, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 5, 0, 7], [-100, 9, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]] and "position_ids" not in batch


def test_metrics_do_not_depend_on_the_batches():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, 11, generator=generator)
    labels = torch.randint(11, (6, 5), generator=generator)
    # The number of predicted tokens varies a lot between rows, so a mean of batch means would be wrong.
    labels[0, 1:], labels[1, 2:], labels[2] = -100, -100, -100
    predicted = labels != -100
    expected = torch.nn.functional.cross_entropy(logits[predicted], labels[predicted]).item()
    accuracy = (logits[predicted].argmax(-1) == labels[predicted]).float().mean().item()

    metrics = LanguageModelMetrics()
    for size in (1, 2, 6, 4):
        for start in range(0, 6, size):
            rows = slice(start, start + size)
            kept = token_losses(logits[rows], labels[rows])
            result = metrics(EvalPrediction(kept, labels[rows]), compute_result=start + size >= 6)
        assert_close(result["token_loss"], expected)
        assert_close(result["perplexity"], math.exp(expected))
        assert_close(result["accuracy"], accuracy)
        assert result["predicted_tokens"] == int(predicted.sum())
