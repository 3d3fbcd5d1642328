"""The trained tokenizer compared with its SentencePiece model and with the text, and under stock tools."""

import json
import random
import subprocess
import sys
import unicodedata
from pydoc_data.topics import topics

import pytest
import sentencepiece
from transformers import AutoTokenizer, BertConfig

from hf_gmlp import GMLPConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tokenizer import (
    convert_sentencepiece,
    open_ended,
    padding_for,
    train_sentencepiece,
    train_tokenizer,
)

pytestmark = pytest.mark.slow

DOCUMENTS = [*topics.values(), "Ein Café, zwei Cafés: naïve Größe. " * 20, "日本語の文章です。日本の言語。" * 20]
ODD_TEXTS = [
    unicodedata.normalize("NFC", "café naïve Größe Ångström"),
    unicodedata.normalize("NFD", "café naïve Größe Ångström"),
    "ﬁ ½ ① Ⅷ ｆｕｌｌｗｉｄｔｈ　space",
    "日本語の文章 한국어 中国 ไทย हिन्दी العربية עברית",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈👍🏽!",
    "runs   of    spaces",
    "  two before and three after   ",
    " ",
    "   ",
    "",
    "\n",
    "tab\tand\r\nlines\n\n\n  indented\n",
    "\u00a0no-break\u2009thin\u200bzero\u2028line\u0085next\x0b\x0c",
    "\x00\x01\x7f\ufeff\ufffd\uffff",
    "Hello , world ! do n't they 've 's . ?",
    "<0x0A> <0x41><0xFF> <0xZZ> <s> </s>",
    "don't stop-it... 3.14 (a+b)*c == {x: [1, 2]} #!/bin/sh ~^`|\\",
]


@pytest.fixture(scope="module")
def model():
    return train_sentencepiece(DOCUMENTS, vocab_size=2000)


@pytest.fixture(scope="module")
def tokenizer(model):
    return convert_sentencepiece(model)


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def test_special_tokens_and_template_are_those_of_bert(tokenizer):
    assert len(tokenizer) == tokenizer.vocab_size == 2000
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ids = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert (*ids, tokenizer.mask_token_id) == (0, 1, 2, 3, 4)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (2, 3)

    a, b = encode(tokenizer, "One statement."), encode(tokenizer, "Another.")
    single, pair = tokenizer("One statement."), tokenizer("One statement.", "Another.")
    assert list(single) == ["input_ids", "token_type_ids", "attention_mask"]
    assert single["input_ids"] == [2, *a, 3]
    assert single["token_type_ids"] == [0] * (len(a) + 2)
    assert pair["input_ids"] == [2, *a, 3, *b, 3]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)

    assert tokenizer(["", "One"], padding=True)["input_ids"][0][:3] == [2, 3, 0]
    assert len(tokenizer("word " * 600, truncation=True)["input_ids"]) == 512


def test_ids_match_the_sentencepiece_model(model, tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    lines = [line for text in topics.values() for line in text.splitlines(keepends=True)] + ODD_TEXTS
    different = []
    for line, expected in zip(lines, processor.encode(lines), strict=True):
        ids = encode(tokenizer, line)
        if ids != expected:
            # If two results are equally good, such as "**|*" and "*|**", either may be chosen.
            assert sorted(ids) == sorted(expected)
            different.append(line)
    assert len(lines) > 10_000
    assert len(different) <= 0.002 * len(lines), different


def test_decoding_returns_every_text(tokenizer):
    rng = random.Random(0)
    anything = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    common = [*" \n\t\r▁▅<>[]0xAé日", "<0x0A>", "e\u0301", "👩‍👩‍👧", "the", "word"]
    texts = [*ODD_TEXTS, *topics.values(), "▁", " ▁ ▁▁x▁", "▅"]
    texts += ["".join(rng.choices(anything, k=20)) for _ in range(200)]
    texts += ["".join(rng.choices(common, k=20)) for _ in range(500)]
    for text in texts:
        ids = encode(tokenizer, text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(tokenizer(text, verbose=False)["input_ids"], skip_special_tokens=True) == text


def test_names_of_special_tokens_can_be_encoded_as_text(tokenizer):
    text = "a [CLS] b[MASK] <0x0A>[PAD]"
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert not set(ids) & set(range(5))
    assert tokenizer.decode(ids) == text
    # By default, names are special tokens, and only [MASK] absorbs the white space on its left.
    ids = [encode(tokenizer, part) for part in ("a ", " b", " c")]
    assert encode(tokenizer, "a [CLS] b [MASK] c") == [*ids[0], 2, *ids[1], 4, *ids[2]]


def test_offsets_are_the_words_without_their_spaces(tokenizer):
    text = " An example,  of\tthe statements\nin 日本 — naïve, Café! "
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    seen = 0
    for token, (start, end) in zip(encoded.tokens(), encoded["offset_mapping"], strict=True):
        if not token.startswith("<0x"):
            assert text[start:end] == token.strip()
            seen += 1
    assert seen > 15
    # The offsets of a byte token cover the unknown characters that its bytes encode.
    encoded = tokenizer("the ☃!", return_offsets_mapping=True)
    spans = [span for token, span in zip(encoded.tokens(), encoded["offset_mapping"]) if token.startswith("<0x")]
    assert spans == [(4, 5)] * 3


LOAD = """
import sys
sys.modules["hf_gmlp"] = sys.modules["sentencepiece"] = None
from transformers import AutoTokenizer, BertConfig
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
print(type(tokenizer).__name__, tokenizer.model_max_length, tokenizer(sys.argv[1], "pair"), sep="|")
"""


def test_a_stock_auto_tokenizer_loads_the_folder(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    # transformers has no such model type.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gmlp", "vocab_size": 2000}))
    text = "The [MASK] fox   and 日本 ☃\n"
    command = [sys.executable, "-c", LOAD, text, tmp_path]
    output = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    assert output.strip() == f"{type(tokenizer).__name__}|512|{tokenizer(text, 'pair')}"


def test_training_is_deterministic_and_accepts_a_generator(capfd):
    first = train_sentencepiece(DOCUMENTS, vocab_size=800)
    assert train_sentencepiece((text for text in DOCUMENTS), vocab_size=800) == first
    # The log of sentencepiece does not reach the terminal.
    assert capfd.readouterr() == ("", "")


def test_long_lines_and_lines_with_reserved_characters_are_used():
    long_line = "filler words " * 2000 + "zyzzyva " * 300
    assert len(long_line.encode()) > 4 * 4192
    texts = [*DOCUMENTS[:20], long_line, "größe ▅ " * 300, "日本" * 6000]
    vocab = train_tokenizer(texts, vocab_size=600).get_vocab()
    assert {" zyzzyva", "ß"} <= set(vocab) and any("日本" in token for token in vocab)
    assert not any(set(token) & set("▁▅") for token in vocab)


def test_empty_texts_and_too_small_vocabularies_are_refused():
    with pytest.raises(InputError, match="no text"):
        train_tokenizer(["", " \n\t "])
    with pytest.raises(InputError, match="100 vs") as error:
        train_tokenizer(DOCUMENTS, vocab_size=100)
    assert "\n" not in str(error.value)


def test_few_texts_give_fewer_tokens():
    texts = ["one two three four five six seven"] * 3
    tokenizer = train_tokenizer(texts)
    assert 261 < len(tokenizer) < 500 and tokenizer.decode(tokenizer(texts[0])["input_ids"][1:-1]) == texts[0]


def test_a_lowercase_tokenizer_ignores_case(tmp_path):
    texts = [*DOCUMENTS, "İSTANBUL and ΣΟΦΟΣ"]
    train_tokenizer(texts, vocab_size=1000, lowercase=True).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    learned = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    # Exceptions are single capitals, since printable ASCII is always included, and names of bytes, such as <0x0A>.
    assert all(piece == piece.lower() or len(piece) == 1 or piece.startswith("<0x") for piece in learned)
    text = "The File [MASK] <0x0A> İSTANBUL"
    assert tokenizer(text)["input_ids"] == tokenizer("the file [MASK] <0x0a> i̇stanbul")["input_ids"]
    assert tokenizer.mask_token_id in tokenizer(text)["input_ids"]
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert text[offsets[0][0] : offsets[-1][1]] == text
    assert tokenizer.decode(tokenizer("A Name", add_special_tokens=False)["input_ids"]) == "a name"


def test_models_with_visible_padding_get_the_same_padding_in_every_batch():
    assert [padding_for(config) for config in (GMLPConfig(), BertConfig())] == ["longest"] * 2
    assert padding_for(GMLPConfig(mask_padding=False)) == padding_for(BertConfig(), True) == "max_length"


def test_open_ended_tokenizer_adds_nothing_to_a_text(tmp_path):
    trained = train_tokenizer(DOCUMENTS[:20], vocab_size=600)
    open_ended(trained).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "The Größe of it [MASK]"
    ids = tokenizer(text)["input_ids"]
    assert ids == trained(text, add_special_tokens=False)["input_ids"] and tokenizer.decode(ids[:-1]) == text[:-7]
    assert trained(text)["input_ids"] == [2, *ids, 3], "the original must not change"
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == 3 and tokenizer.pad_token_id == 0
    assert "token_type_ids" not in tokenizer(text)
    # A tokenizer that adds no end token is unchanged.
    assert open_ended(tokenizer) is tokenizer
