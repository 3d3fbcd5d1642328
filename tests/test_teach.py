"""The script that re-creates the sentence encoder of checkpoints/."""

import gzip
import json
import random
import sys

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from common.encoders import Encoder
from examples import teach, teaching

from .samples import WORDS, word_tokenizer

COUNT, WIDTH = 300, 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with texts, pairs, labeled texts, and a teacher with random weights."""
    folder, pick = tmp_path_factory.mktemp("teach"), random.Random(0)
    texts = [" ".join(pick.choices(WORDS, k=pick.choice((3, 6, 9, 40)))) for _ in range(COUNT)]
    with gzip.open(folder / "texts.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text, "source": "test"}) + "\n" for text in texts)
    pairs = {"sentence1": texts[:40], "sentence2": texts[40:80], "score": range(40)}
    pandas.DataFrame(pairs).to_csv(folder / "pairs.csv", index=False)
    (folder / "labeled").mkdir()
    for part in ("train", "test"):
        rows = {"text": texts[:80], "category": ["ab"[i % 2] for i in range(80)]}
        pandas.DataFrame(rows).to_csv(folder / "labeled" / f"{part}.csv", index=False)
    torch.manual_seed(0)
    sizes = {"vocab_size": 5 + len(WORDS), "hidden_size": 288, "num_hidden_layers": 2, "intermediate_size": 64}
    BertModel(BertConfig(**sizes, num_attention_heads=2, initializer_range=0.2)).save_pretrained(folder / "teacher")
    word_tokenizer(WORDS).save_pretrained(folder / "teacher")
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """run(name, *flags) teaches a model, and returns it and the lines that were printed."""

    def call(name, *flags):
        words = ["teach", folder / "teacher", folder / "texts.jsonl.gz", "--output_dir", folder / "out", "--name", name]
        words += ["--stsb", folder / "pairs.csv", "--banking77", folder / "labeled", "--blocks", 2, *flags]
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        monkeypatch.setattr(teach, "CHUNK", 128)
        monkeypatch.setattr(teach, "PIECE", 20)
        # With more texts than token vectors, the map would fit these texts perfectly.
        monkeypatch.setattr(teach, "FIT", 60)
        teach.main()
        return AutoModel.from_pretrained(folder / "out" / name), capsys.readouterr().out

    return call


def test_the_static_start_is_a_mean_of_weighted_token_vectors(folder, run):
    run("few", "--tokens", 0, "--max_texts", 150)  # its last file of embeddings is not full
    model, _ = run("static", "--tokens", 0)
    assert sum(len(np.load(path)) for path in (folder / "out" / "teacher").glob("*.npy")) == COUNT
    tokenizer = AutoTokenizer.from_pretrained(folder / "teacher")
    texts = [json.loads(line)["text"] for line in gzip.open(folder / "texts.jsonl.gz", "rt")]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    counts = np.bincount(np.concatenate(ids), minlength=len(tokenizer))
    vectors = model.embeddings.word_embeddings.weight.detach().numpy() / teach.SCALE
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=2e-3)
    # Cosines of token vectors without the last channel are those of the teacher's centered embeddings.
    teacher = BertModel.from_pretrained(folder / "teacher").eval()
    with torch.no_grad():
        states = torch.cat(
            [teacher(torch.tensor([[2, i, 3]])).last_hidden_state.mean(1) for i in range(len(tokenizer))]
        )
    centered = torch.nn.functional.normalize(states, dim=-1).numpy()
    centered -= centered.mean(0)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (centered, vectors[:, :-1])]
    np.testing.assert_allclose(unit[1] @ unit[1].T, unit[0] @ unit[0].T, atol=0.1)
    # Lengths are those of the centered embeddings times a / (a + frequency).
    lengths = np.linalg.norm(centered, axis=1) * 1e-3 / (1e-3 + counts / counts.sum())
    np.testing.assert_allclose(np.linalg.norm(vectors[:, :-1], axis=1), lengths / lengths.max(), atol=0.05)
    # A text is the mean of its tokens: embeddings do not depend on their order.
    with torch.no_grad():
        first, second = (model(torch.tensor([row])).pooler_output for row in (ids[3], ids[3][::-1]))
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)
    # The targets of long texts are means over pieces.
    stored = np.load(folder / "out" / "teacher" / "000.npy").astype(np.float32)
    long = next(i for i, row in enumerate(ids) if len(row) == 42)
    with torch.no_grad():
        pieces = [torch.tensor([[2, *ids[long][1:-1][j : j + 20], 3]]) for j in (0, 20)]
        parts = [torch.nn.functional.normalize(teacher(x).last_hidden_state.mean(1), dim=-1) for x in pieces]
    expected = torch.nn.functional.normalize(sum(parts), dim=-1)[0].numpy()
    np.testing.assert_allclose(stored[long], expected, atol=0.01)


def test_teaching_approaches_the_teacher_and_resumes(folder, run, monkeypatch):
    tokens = ("--tokens", 60_000, "--batch_tokens", 600)
    taught, lines = run("taught", *tokens)
    start, end = (float(line.split("STS-B ")[1].split(",")[0]) for line in lines.splitlines() if "STS-B" in line)
    assert start != end
    targets = np.concatenate([np.load(path) for path in sorted((folder / "out" / "teacher").glob("*.npy"))])
    texts = [json.loads(line)["text"] for line in gzip.open(folder / "texts.jsonl.gz", "rt")]
    errors = {}
    for name in ("static", "taught"):
        model, _ = run("static", "--tokens", 0) if name == "static" else (taught, "")
        vectors = Encoder(model, AutoTokenizer.from_pretrained(folder / "teacher"))(texts)
        errors[name] = np.square(vectors @ vectors.T - targets.astype(np.float32) @ targets.T.astype(np.float32)).mean()
    assert errors["taught"] < 0.8 * errors["static"]
    # b stays at one, and weights are stored in half precision.
    assert all((projection.bias == 1).all() for projection in taught.spatial_projections())
    stored = load_file(folder / "out" / "taught" / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.float16} and taught.dtype == torch.float32

    class Stop(teaching.Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            super()._save_checkpoint(*args, **kwargs)
            if self.state.global_step > 0.4 * self.state.max_steps:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(teaching, "Trainer", Stop)
        run("cut", *tokens)
    again, _ = run("cut", *tokens)
    for name, weight in again.state_dict().items():
        torch.testing.assert_close(weight, taught.state_dict()[name], atol=2e-3, rtol=0, msg=name)


def test_batches_hold_every_text_once_in_each_pass():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 62, 500)
    batches = teach.make_batches(lengths, 2 * lengths.sum(), 256, seed=1)
    assert sorted(np.concatenate(batches)[:500]) == list(range(500))
    padded = [len(batch) * lengths[batch].max() for batch in batches]
    assert max(padded) <= 256 and 2 * lengths.sum() <= sum(padded) < 2 * lengths.sum() + 256
    # Padding is rare, since the texts of a batch are of similar length.
    assert sum(lengths[batch].sum() for batch in batches) > 0.9 * sum(padded)
