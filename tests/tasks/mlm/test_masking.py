import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.mlm.masking import MaskedOnce, MaskingCollator, find_labels

from ...samples import word_tokenizer as make_word_tokenizer


@pytest.fixture
def sequences():
    random = np.random.default_rng(0)
    rows = [[2, *random.integers(5, 205, length).tolist(), 3] for length in (30, 60, 100) for _ in range(20)]
    return Dataset.from_dict({"input_ids": rows})


def test_evaluation_masks_are_fixed(sequences, word_tokenizer):
    first = MaskedOnce(sequences, MaskingCollator(word_tokenizer, seed=3))
    collator = MaskingCollator(word_tokenizer, seed=3)
    collator.set_epoch(7)
    torch.rand(7), np.random.rand(7)  # other random numbers must not matter
    # Order and batch do not matter either.
    again = MaskedOnce(sequences.select(range(59, -1, -1)), collator)
    other = MaskedOnce(sequences, MaskingCollator(word_tokenizer, seed=4))
    assert len(first) == len(again) == 60
    for i in range(60):
        for key in ("input_ids", "labels"):
            assert (first[i][key] == again[59 - i][key]).all()
    assert any((first[i]["labels"] != other[i]["labels"]).any() for i in range(60))


def test_masks_match_earlier_versions(sequences, word_tokenizer):
    masked = MaskedOnce(sequences, MaskingCollator(word_tokenizer, seed=3))[40]
    # The dtype of the tokens does not matter.
    row = {"input_ids": np.array(sequences[40]["input_ids"], dtype=np.int32)}
    assert (MaskedOnce([row], MaskingCollator(word_tokenizer, seed=3))[0]["labels"] == masked["labels"]).all()
    expected = [2, 8, 9, 10, 16, 27, 35, 39, 48, 53, 62, 77, 83, 86, 88, 92, 100]
    assert np.flatnonzero(masked["labels"] != -100).tolist() == expected


def test_compiled_models_get_all_labels_at_a_fixed_number_of_positions(sequences, word_tokenizer):
    collator = MaskingCollator(word_tokenizer, fixed_count=True, max_length=128)
    for start in (0, 20, 40):
        batch = collator(sequences.select(range(start, start + 20)).to_list())
        # The mean is 0.15 * 128 = 19.2, and the tolerance five times its square root.
        assert batch["input_ids"].shape == (20, 128) and batch["masked_positions"].shape == (20, 42)
        gathered = batch["labels"].gather(1, batch["masked_positions"])
        assert ((gathered != -100).sum(1) == (batch["labels"] != -100).sum(1)).all()
        assert all(len(set(row)) == 42 for row in batch["masked_positions"].tolist())


def test_no_label_is_lost_where_there_are_too_many():
    labels = torch.full((2, 100), -100)
    labels[0, 10:44] = 7
    assert find_labels(labels, 0.15).shape == (2, 35)
    labels[0, 60:62] = 7
    assert find_labels(labels, 0.15).sort()[0].tolist() == [list(range(100))] * 2


def test_unknown_words_are_masked_and_special_tokens_are_not(word_tokenizer):
    row = {"input_ids": [2, *[1, 3, 0, 4, 9] * 100, 3]}
    labels = MaskingCollator(word_tokenizer).mask(row, None)["labels"]
    assert set(labels.tolist()) == {-100, 1, 9}


def test_text_that_cannot_be_masked_is_refused(word_tokenizer):
    with pytest.raises(InputError, match=r"\[MASK\]"):
        MaskingCollator(make_word_tokenizer([], mask_token=None))
    for rows in ([], [{"input_ids": [2, 7, 3]}, {"input_ids": [2, 3]}]):
        with pytest.raises(InputError, match="--mlm_probability"):
            MaskedOnce(rows, MaskingCollator(word_tokenizer, mlm_probability=1e-9))


def test_fractions_match_bert(sequences, word_tokenizer):
    collator = MaskingCollator(word_tokenizer)
    masked = [collator.mask(row, epoch) for epoch in range(5) for row in sequences]
    labels, inputs = (np.concatenate([row[name] for row in masked]) for name in ("labels", "input_ids"))
    originals = np.array([token for _ in range(5) for row in sequences for token in row["input_ids"]])
    chosen, text = labels != -100, ~np.isin(originals, [2, 3])
    assert (labels[chosen] == originals[chosen]).all() and (inputs[~chosen] == originals[~chosen]).all()
    assert not chosen[~text].any()
    # 19,000 tokens: three standard deviations are 0.008 of all, and 0.023 of the 2,850 chosen ones.
    assert chosen[text].mean() == pytest.approx(0.15, abs=0.01)
    assert (inputs[chosen] == 4).mean() == pytest.approx(0.8, abs=0.03)
    assert (inputs[chosen] == originals[chosen]).mean() == pytest.approx(0.1, abs=0.03)


def test_masks_change_every_epoch_and_are_the_same_in_any_batch_and_process(sequences, word_tokenizer):
    collator, epochs = MaskingCollator(word_tokenizer), []
    workers = {"num_workers": 1, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(sequences, batch_size=10, collate_fn=collator, **workers)
    for epoch in range(2):
        collator.set_epoch(epoch)
        first, *_ = [batch["labels"] for batch in loader]
        one_by_one = [collator([sequences[i]])["labels"][0] for i in range(10)]
        assert torch.equal(first, torch.stack(one_by_one))
        epochs.append(first)
    assert not torch.equal(*epochs)
