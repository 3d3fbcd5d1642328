"""The benchmark of sentence encoders: its readers, baselines and scores."""

import math

import numpy as np
import pandas
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertModel

from benchmarks import sentences
from tests.samples import WORDS, word_tokenizer

TEXTS = [" ".join(WORDS[(3 * i + j) % len(WORDS)] for j in range(2 + i % 5)) for i in range(12)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder with a tiny BERT and its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    sizes = {"vocab_size": 5 + len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    BertModel(BertConfig(**sizes, num_attention_heads=2, initializer_range=0.2)).eval().save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_an_onnx_file_is_read_as_the_model_that_it_was_exported_from(bert):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    encoder = sentences.Encoder(str(bert))

    class States(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = encoder.model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids, attention_mask).last_hidden_state

    ids = torch.full((2, 7), 6)
    torch.onnx.export(
        States().eval(), (ids, torch.ones_like(ids)), bert / "model.onnx", dynamo=False, opset_version=17,
        input_names=["input_ids", "attention_mask"], output_names=["states"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask")},
    )  # fmt: skip
    peer = sentences.open_encoder(str(bert / "model.onnx"))
    np.testing.assert_allclose(peer(TEXTS), encoder(TEXTS), atol=1e-5)
    # The pooler is not exported.
    pooler = sum(weight.numel() for weight in encoder.model.pooler.parameters())
    assert encoder.parameters - pooler - 50_000 < peer.parameters <= encoder.parameters


def test_a_table_of_token_vectors_is_averaged(bert, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bert)
    table = np.random.default_rng(0).normal(size=(len(tokenizer), 8)).astype(np.float16)
    save_file({"embedding.weight": table}, tmp_path / "model.safetensors")
    tokenizer.save_pretrained(tmp_path)
    encoder = sentences.open_encoder(str(tmp_path / "model.safetensors"))
    ids = tokenizer(TEXTS[3], add_special_tokens=False)["input_ids"]
    mean = sum(table[token].astype(float) for token in ids)
    np.testing.assert_allclose(encoder(TEXTS)[3], mean / np.linalg.norm(mean), rtol=1e-5)
    assert encoder.parameters == 8 * len(tokenizer)


def test_bm25_is_the_sum_over_words_of_the_formula():
    texts = ["a dog and a dog", "the dog sees one cat there", "birds sing", "no animal at all in this text"]
    scores = sentences.bm25(texts, ["dog cat cat", "birds", "nothing known"])
    words = [[word for word in text.split() if len(word) > 1] for text in texts]

    def expected(query, document):
        score = 0.0
        for word in query.split():
            count, documents = document.count(word), sum(word in other for other in words)
            norm = 1.2 * (1 - 0.75 + 0.75 * len(document) / np.mean([len(other) for other in words]))
            score += math.log(1 + (len(words) - documents + 0.5) / (documents + 0.5)) * count * 2.2 / (count + norm)
        return score

    for query, row in zip(("dog cat cat", "birds", "nothing known"), scores):
        np.testing.assert_allclose(row, [expected(query, document) for document in words], rtol=1e-9)


def test_to_select_only_rows_that_were_not_sampled_are_scored(monkeypatch):
    # Every text is known to the classifier by its number: it is right on the rows it was trained on, and on no other.
    rows = pandas.DataFrame({"text": [str(i) for i in range(20)], "label": ["ab"[i % 2] for i in range(20)]})

    class Memory:
        def fit(self, known, labels):
            self.known = dict(zip(known[:, 0], labels))
            return self

        def score(self, unknown, labels):
            return np.mean([self.known.get(number) == label for number, label in zip(unknown[:, 0], labels)])

    monkeypatch.setitem(sentences.CLASSIFIERS, "memory", lambda c: Memory())

    def encode(texts):
        return np.array([[float(text)] for text in texts])

    assert sentences.few_row_scores(encode, rows, None, [4], classifier="memory") == [0.0]
    # With the same rows to test on, the eight sampled ones are known.
    assert sentences.few_row_scores(encode, rows, rows, [4], classifier="memory") == [8 / 20]


def test_the_nearest_text_gives_label_and_paragraph(tmp_path):
    train = pandas.DataFrame({"text": ["red apple", "blue sky"], "label": ["fruit", "weather"]})
    test = pandas.DataFrame({"text": ["an apple", "the sky", "an apple"], "label": ["fruit", "weather", "weather"]})
    assert sentences.nearest_score("words", train, test) == pytest.approx(2 / 3)
    rows = [{"question": "which apple", "context": "red apple"}, {"question": "what is red", "context": "blue sky"}]
    (tmp_path / "flat.json").write_text(pandas.Series({"data": rows}).to_json())
    for name in ("words", "bm25"):
        assert sentences.search_score(name, [tmp_path / "flat.json"]) == 0.5


def test_the_command_prints_a_row_for_each_model_and_classifier(call, tmp_path, capsys):
    folder = tmp_path / "colors"
    folder.mkdir()
    texts = ["red apple", "red cherry", "blue sky", "blue sea", "red wine", "blue ice"]
    for part in ("train", "test"):
        pandas.DataFrame({"text": texts, "label": [text[0] for text in texts]}).to_csv(
            folder / f"{part}.csv", index=False
        )
    flags = ["--sets", folder, "--rows", 2, "--classifiers", "logistic:100", "svm:1", "--speed"]
    call(sentences, "words", "bm25", *flags)
    printed = capsys.readouterr().out
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("|")]
    assert table[0] == ["model", "parameters", "texts per CPU second", "STS-B", "colors, 2"]
    rows = {row[0]: row[1:] for row in table[2:]}
    # The first words decide, and BM25 classifies nothing.
    assert rows["words, logistic:100"][3] == rows["words, svm:1"][3] == "1.0000" and rows["words, svm:1"][1].isdigit()
    assert rows["bm25, svm:1"] == ["", "", "", ""]
    with pytest.raises(SystemExit):
        call(sentences, "words", "--nearest")
    assert "--nearest needs" in capsys.readouterr().err
