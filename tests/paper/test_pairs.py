import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from hf_gmlp import GMLPForSequenceClassification
from hf_gmlp.errors import InputError
from paper import pairs
from paper.__main__ import main

from ..samples import WORDS


def test_attention_to_copies():
    # [CLS] 5 6 [SEP] 7 5 8 [SEP], and a pair without a shared word.
    ids = torch.tensor([[1, 5, 6, 2, 7, 5, 8, 2], [1, 5, 6, 2, 7, 9, 8, 2]])
    segments = torch.tensor([[0] * 4 + [1] * 4] * 2)
    weights = torch.arange(2 * 64).view(2, 8, 8)
    copies, others = pairs.attention_to_copies(weights, ids, segments, ids > 2)
    assert copies.tolist() == [8 + 5, 5 * 8 + 1]
    assert others.tolist() == [8 + 4, 8 + 6, 5 * 8 + 2]


@pytest.fixture
def folder(tmp_path, word_tokenizer, text_config, perturbed_model):
    """A replication's folder with two untrained models and eight pairs."""
    word_tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = [{"sentence1": WORDS[i % 6], "sentence2": " ".join(WORDS[: 1 + i // 3]), "label": i % 2} for i in range(8)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pairs-evaluation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, size in (("gmlp", 0), ("amlp", 8)):
        config = text_config(vocab_size=len(word_tokenizer), attention_size=size, num_labels=2)
        run = tmp_path / "task" / name / "0.001-x1-4-seed-2"
        perturbed_model(GMLPForSequenceClassification, config).save_pretrained(run)
        (run / "all_results.json").write_text("{}")
    return tmp_path, word_tokenizer, rows


def test_tables(folder, capsys):
    path, tokenizer, rows = folder
    main(["pairs", str(path)])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    model = AutoModelForSequenceClassification.from_pretrained(path / "task/gmlp/0.001-x1-4-seed-2").eval()
    right = 0
    for row in rows:
        inputs = tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt", return_token_type_ids=True)
        right += int(model(**inputs).logits.argmax()) == row["label"]
    (gmlp,) = (line for line in lines if line[:1] == ["Multiplicative, Split gMLP, seed 2"])
    assert float(gmlp[-1]) == 100 * right / 8
    blocks = [line for line in lines if line[:1] == ["aMLP, seed 2"] and len(line) == 4]
    assert [line[1] for line in blocks] == ["1", "2"] and all(0 < float(line[2]) < 1 for line in blocks)


def test_a_folder_without_models(tmp_path):
    with pytest.raises(InputError, match="paper replicate"):
        pairs.print_pairs(tmp_path)
