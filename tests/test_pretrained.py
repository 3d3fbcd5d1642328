"""The data and the soft labels of the script that re-creates the text models of checkpoints/."""

import json
import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from common.baselines import tfidf_classifier
from examples import pretrained
from hf_gmlp import GMLPConfig, GMLPForSequenceClassification

from .samples import write_rows

WORDS = "film story cast plot song actor scene music camera ending script humor".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with reviews, labeled sentences, a tokenizer, and two classifiers with random weights."""
    folder, pick = tmp_path_factory.mktemp("pretrained"), random.Random(0)
    reviews = [" ".join(pick.choices(WORDS, k=8)).capitalize() + '. Dr. It was "fine"! (Really.' for _ in range(80)]
    write_rows(folder / "reviews.jsonl", [{"text": review} for review in reviews])
    labeled = [{"sentence": f"a {('bad', 'good')[i % 2]} {pick.choice(WORDS)} ,", "label": i % 2} for i in range(40)]
    write_rows(folder / "train.jsonl", labeled)
    pretrained.make_tokenizer([str(folder / "reviews.jsonl")], folder / "tokenizer", vocab_size=370)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    sizes = {"vocab_size": 370, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = GMLPConfig(**sizes, max_position_embeddings=64, id2label=dict(enumerate(pretrained.LABELS)))
        model = GMLPForSequenceClassification(config)
        torch.nn.init.normal_(model.classifier.weight)
        model.save_pretrained(folder / f"seed-{seed}")
        tokenizer.save_pretrained(folder / f"seed-{seed}")
        (folder / f"seed-{seed}" / "README.md").write_text("A card.")
    return folder


@pytest.mark.parametrize(
    ("treebank", "natural"),
    [
        ("it 's a charming , funny film that ca n't fail .", " it's a charming, funny film that can't fail."),
        ("`` Barbershop '' -LRB- 2002 -RRB- works", '"barbershop" (2002) works'),
        ("the lrb rrb film", " the () film"),
        ("(It) isn't 'new'", "(it) isn't 'new'"),
    ],
)
def test_tokenizer_normalizes_treebank_text(folder, treebank, natural):
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    ids = tokenizer(treebank)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == natural
    assert ids == tokenizer(natural)["input_ids"]
    # No space is inserted next to a mask.
    masked = tokenizer("[MASK]'s end.")["input_ids"]
    assert tokenizer.decode(masked[2:-1]) == "'s end."


def test_soft_labels_are_the_mean_of_the_teachers(folder, monkeypatch):
    texts = ["a good film", "It's bad.", "scene"]
    sentences = write_rows(folder / "few.jsonl", [{"text": text} for text in texts])
    teachers = [folder / "seed-1", folder / "seed-2"]
    pretrained.write_soft_labels(sentences, folder / "train.jsonl", teachers, folder / "soft.jsonl")
    rows = [json.loads(line) for line in open(folder / "soft.jsonl")]
    assert [row["sentence"] for row in rows[:3]] == texts and len(rows) == 43
    assert rows[3]["label"] == {"negative": 1.0, "positive": 0.0} and rows[4]["label"]["positive"] == 1.0
    # The tf-idf classifier is trained on normalized sentences.
    labeled = [json.loads(line) for line in open(folder / "train.jsonl")]
    baseline = tfidf_classifier().fit([row["sentence"][:-2] for row in labeled], [row["label"] for row in labeled])
    votes = [baseline.predict_proba([text.lower() for text in texts])]
    for teacher in teachers:
        # Compute the expected values one sentence at a time.
        tokenizer = AutoTokenizer.from_pretrained(teacher)
        model = AutoModelForSequenceClassification.from_pretrained(teacher)
        with torch.no_grad():
            logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
        votes.append(torch.stack(logits).softmax(-1).numpy())
    assert votes[0][0, 1] > 0.52 and votes[0][1, 1] < 0.48 and np.ptp(votes[1:], axis=0).min() > 0.05
    # The script computes in bfloat16.
    np.testing.assert_allclose([list(row["label"].values()) for row in rows[:3]], np.mean(votes, axis=0), atol=0.03)


def test_reviews_of_a_test_split_are_left_out(tmp_path, monkeypatch):
    reviews = ["A film.<br /><br />It ends!", "Another film."]
    write_rows(tmp_path / "reviews.jsonl", [{"text": review} for review in reviews])
    (tmp_path / "imdb_test.txt").write_text(pretrained.fingerprint("a film it ends") + "\n")
    monkeypatch.setattr(pretrained, "__file__", str(tmp_path / "pretrained.py"))
    path = pretrained.leave_out_test_reviews(str(tmp_path / "reviews.jsonl"), tmp_path / "left.jsonl")
    assert [json.loads(row)["text"] for row in path.read_text().splitlines()] == reviews[1:]
