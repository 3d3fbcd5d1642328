"""Rows and pieces of the example on long texts."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from examples import long_texts
from hf_gmlp import GMLPForMaskedLM, GMLPForSequenceClassification


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("count", [5, 16, 17, 64, 67])
def test_every_token_is_predicted_once_in_a_row_that_has_it(count, overlap):
    rows = list(long_texts.rows_of(count, 16, overlap))
    assert [index for _, part in rows for index in range(count)[part]] == list(range(count))
    for row, part in rows:
        assert row.stop - row.start == 16 and row.start <= part.start < part.stop <= row.stop
        # In overlapping rows, only the ends of the text are near the end of a row.
        assert not overlap or (part.start in (0, row.start + 4) and part.stop in (count, row.stop - 4))


@torch.no_grad()
def test_loss_in_overlapping_rows(perturbed_model, text_config):
    model = perturbed_model(GMLPForMaskedLM, text_config(max_position_embeddings=8, toeplitz=True))
    ids = torch.randint(5, model.config.vocab_size, (12,))
    masked = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0]).bool()
    inputs = ids.masked_fill(masked, 4)
    logits = torch.cat([model(inputs[None, :8]).logits[0, :6], model(inputs[None, 4:]).logits[0, 2:]])
    expected = cross_entropy(logits[masked], ids[masked])
    assert long_texts.masked_loss(model, ids, masked, 8, 4, overlap=True) == pytest.approx(expected.item(), rel=1e-4)


def test_accuracies_of_first_tokens_and_of_pieces(tmp_path, perturbed_model, text_config, word_tokenizer, capsys):
    config = text_config(max_position_embeddings=8, toeplitz=True)
    model = perturbed_model(GMLPForSequenceClassification, config)
    model.save_pretrained(tmp_path)
    word_tokenizer.save_pretrained(tmp_path)
    words = [word for word in word_tokenizer.get_vocab() if word.isalpha()]
    texts = [" ".join(words[start::3]) for start in range(3)]
    texts = [f"{text} {text}" for text in texts]
    # The labels are the model's own answers from pieces of 8 tokens.
    labels = []
    for text in texts:
        pieces = word_tokenizer(text, truncation=True, max_length=8, return_overflowing_tokens=True)["input_ids"]
        with torch.no_grad():
            labels.append(int(sum(model(torch.tensor([piece])).logits for piece in pieces).argmax()))
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["long_texts", str(tmp_path), str(tmp_path / "texts.jsonl"), "--lengths", "8", "32"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", arguments)
        long_texts.main()
    table = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[1].strip() for row in table[2:]] == ["first 8", "first 32", "all, in pieces of 8"]
    assert table[-1][2].strip() == "100.0 %"


def test_the_picture_has_a_line_for_each_kind_of_rows(tmp_path):
    points = {f"model, {way}": [(128, 30.0, 0.2), (256, 29.0, 0.2)] for way in long_texts.WAYS}
    long_texts.draw(points, str(tmp_path / "length.png"))
    assert (tmp_path / "length.png").stat().st_size > 5000
