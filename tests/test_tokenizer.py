"""The trained tokenizer compared with its SentencePiece model and with the text, and under stock tools."""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import unicodedata
from pydoc_data.topics import topics

import pytest
import sentencepiece
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    pipeline,
)

from hf_gmlp import tokenizer as tokenizer_module
from hf_gmlp.errors import InputError
from hf_gmlp.tokenizer import (
    FIRST_BYTE,
    byte_tokenizer,
    characters_per_token,
    convert_sentencepiece,
    open_ended,
    read_texts,
    train_sentencepiece,
    train_tokenizer,
)
from hf_gmlp.tools import cli

pytestmark = pytest.mark.slow

DOCUMENTS = [*topics.values(), "Ein Café, zwei Cafés: naïve Größe. " * 20, "日本語の文章です。日本の言語。" * 20]
KINDS = [("unigram", True), ("unigram", False), ("bpe", True), ("bpe", False)]
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
def trained():
    """One SentencePiece model and its tokenizer for every (model type, byte fallback)."""
    result = {}
    for model_type, byte_fallback in KINDS:
        model = train_sentencepiece(DOCUMENTS, vocab_size=2000, model_type=model_type, byte_fallback=byte_fallback)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        result[model_type, byte_fallback] = processor, convert_sentencepiece(model, model_type=model_type)
    return result


@pytest.fixture(scope="module")
def tokenizer(trained):
    return trained["unigram", True][1]


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


# Ids


def test_special_tokens_and_template(tokenizer):
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

    batch = tokenizer(["One", "One statement."], padding=True)
    short = tokenizer("One")["input_ids"]
    padding = len(batch["input_ids"][1]) - len(short)
    assert padding > 0
    assert batch["input_ids"][0] == short + [0] * padding
    assert batch["attention_mask"][0] == [1] * len(short) + [0] * padding
    assert tokenizer.model_max_length == 512
    assert len(tokenizer("word " * 600, truncation=True)["input_ids"]) == 512


@pytest.mark.parametrize("kind", KINDS)
def test_ids_match_the_sentencepiece_model(trained, kind):
    processor, tokenizer = trained[kind]
    lines = [line for text in topics.values() for line in text.splitlines(keepends=True)] + ODD_TEXTS
    different = []
    for line, expected in zip(lines, processor.encode(lines), strict=True):
        ids = encode(tokenizer, line)
        if ids != expected:
            # A tie: "**|*" and "*|**" are equally good, and either may be taken.
            assert sorted(ids) == sorted(expected)
            different.append(line)
    assert len(lines) > 10_000
    assert len(different) <= (0.002 * len(lines) if kind[0] == "unigram" else 0), different


def test_ids_of_long_documents(trained):
    # sentencepiece sums the scores of a whole document in single precision, so near-ties may differ.
    processor, tokenizer = trained["unigram", True]
    different = tokens = 0
    for text in topics.values():
        converted, original = encode(tokenizer, text), processor.encode(text)
        scores = [sum(processor.get_score(i) for i in ids) for ids in (converted, original)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-6)
        different += sum(a != b for a, b in zip(converted, original))
        tokens += len(converted)
    assert different < 0.01 * tokens


# Lossless encoding


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_byte_fallback_keeps_every_text(trained, model_type):
    tokenizer = trained[model_type, True][1]
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


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_without_byte_fallback_unknown_runs_become_one_unk(trained, model_type):
    tokenizer = trained[model_type, False][1]
    assert not any(token.startswith("<0x") for token in tokenizer.get_vocab())
    ids = encode(tokenizer, "the ☃☄ word\n\t☃")
    assert ids.count(1) == 2
    assert tokenizer.decode(ids) == "the [UNK] word\n\t[UNK]"
    for text in topics.values():
        if text.isascii():
            assert tokenizer.decode(encode(tokenizer, text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_tokens_in_a_text(trained, kind):
    tokenizer = trained[kind][1]
    text = "a [CLS] b[MASK] <0x0A>[PAD]"
    switched_off = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert not set(switched_off) & set(range(5))
    assert tokenizer.decode(switched_off) == text
    # Otherwise they are the tokens, and only [MASK] takes the white space on its left.
    ids = [encode(tokenizer, part) for part in ("a ", " b", " c")]
    assert encode(tokenizer, "a [CLS] b [MASK] c") == [*ids[0], 2, *ids[1], 4, *ids[2]]


def test_names_of_tokens_where_their_characters_are_unknown():
    # Without spaces sentencepiece stops collecting characters early: "<" and "[" are not in this vocabulary.
    words = [word for text in topics.values() for word in text.split() if word.isalpha()]
    tokenizer = train_tokenizer(words, vocab_size=700)
    assert "<" not in tokenizer.get_vocab() and "[" not in tokenizer.get_vocab()
    text = "a<0x0A> [MASK]<0xFF>"
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert 4 not in ids


def test_case_is_kept_and_spaces_belong_to_the_next_word(tokenizer):
    assert tokenizer.tokenize("The the THE\nThe") != tokenizer.tokenize("the the the\nthe")
    assert tokenizer.tokenize("the the  the") == ["the", " the", " ", " the"]
    assert tokenizer.clean_up_tokenization_spaces is False


# Offsets, words, masks


def test_offsets_are_the_words_without_their_spaces(tokenizer):
    text = " An example,  of\tthe statements\nin 日本 — naïve, Café! "
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    seen = 0
    for token, (start, end) in zip(encoded.tokens(), encoded["offset_mapping"], strict=True):
        if not token.startswith("<0x"):
            assert text[start:end] == token.strip()
            seen += 1
    assert seen > 15
    # A byte token points to the unknown characters that its bytes spell.
    encoded = tokenizer("the ☃!", return_offsets_mapping=True)
    spans = [span for token, span in zip(encoded.tokens(), encoded["offset_mapping"]) if token.startswith("<0x")]
    assert spans == [(4, 5)] * 3


def test_offsets_in_question_answering_windows(tokenizer):
    question, context = "Which statement?", " An assignment statement binds names to values." * 8
    windows = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=40,
        stride=10,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert len(windows["input_ids"]) >= 3
    for i, offsets in enumerate(windows["offset_mapping"]):
        assert len(windows["input_ids"][i]) <= 40
        for token, span, part in zip(windows.tokens(i), offsets, windows.sequence_ids(i), strict=True):
            source = {0: question, 1: context, None: ""}[part]
            if part is not None:
                assert source[span[0] : span[1]] == token.strip()


def test_word_ids_are_words(tokenizer):
    text = "Structured unpacking reconsidered,\nthe nonlocal statement"
    encoded = tokenizer(text, return_offsets_mapping=True)
    words: dict[int, list[int]] = {}
    for word, (start, end) in zip(encoded.word_ids(), encoded["offset_mapping"], strict=True):
        if word is not None and end > start:
            words.setdefault(word, []).extend((start, end))
    assert [text[min(span) : max(span)] for span in words.values()] == text.split()

    # Words given as a list keep their own numbers; each needs its space, as in running text.
    split = tokenizer([" EU", " rejects", " German", "."], is_split_into_words=True)
    assert [i for i in dict.fromkeys(split.word_ids()) if i is not None] == [0, 1, 2, 3]
    assert split["input_ids"] == tokenizer(" EU rejects German.")["input_ids"]


def test_whole_word_masking_of_transformers(tokenizer):
    text = "Structured unpacking reconsidered: the nonlocal statement causes identifiers to rebind."
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    words = encoded.word_ids()
    assert len(words) > len(set(words)) + 5
    collator = DataCollatorForLanguageModeling(
        tokenizer, whole_word_mask=True, mlm_probability=0.4, mask_replace_prob=1, random_replace_prob=0, seed=0
    )
    partial = 0
    for _ in range(20):
        masked = (collator([dict(encoded)])["labels"][0] != -100).tolist()
        by_word = {word: {m for m, w in zip(masked, words) if w == word} for word in set(words)}
        assert all(len(values) == 1 for values in by_word.values())
        partial += any(masked) and not all(masked[1:-1])
    assert partial > 10


def test_mask_in_the_fill_mask_pipeline(tokenizer):
    the, sep, fox = tokenizer("The [MASK] fox")["input_ids"][1:-1].index(4), 3, encode(tokenizer, " fox")
    assert the == 1
    ids = tokenizer("The [MASK] fox")["input_ids"]
    assert ids == [2, *encode(tokenizer, "The"), 4, *fox, sep]
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    fill = pipeline("fill-mask", model=BertForMaskedLM(config), tokenizer=tokenizer, device="cpu")
    (answer,) = fill("The [MASK] fox,  again.", targets=[" the"])
    assert answer["token_str"] == " the"
    assert answer["sequence"] == "The the fox,  again."


# Loading


LOAD = """
import sys
sys.modules["hf_gmlp"] = sys.modules["sentencepiece"] = None
from transformers import AutoTokenizer
for folder in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    print(type(tokenizer).__name__, tokenizer.model_max_length, tokenizer(sys.argv[1], "pair"), sep="|")
"""


def test_a_stock_auto_tokenizer_loads_the_folder(tokenizer, tmp_path):
    model_configs = {
        "alone": None,
        "unknown_type": {"model_type": "gmlp", "vocab_size": 2000},
        "with_code": {
            "model_type": "gmlp",
            "auto_map": {"AutoConfig": "configuration_gmlp.GMLPConfig", "AutoModel": "modeling_gmlp.GMLPModel"},
        },
    }
    folders = []
    for name, model_config in model_configs.items():
        folders.append(tmp_path / name)
        tokenizer.save_pretrained(folders[-1])
        if model_config is not None:
            (folders[-1] / "config.json").write_text(json.dumps(model_config))
    text = "The [MASK] fox   and 日本 ☃\n"
    process = subprocess.run(
        [sys.executable, "-c", LOAD, text, *map(str, folders)],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    expected = f"{type(tokenizer).__name__}|512|{tokenizer(text, 'pair')}"
    assert process.stdout.count(expected) == len(folders), process.stdout

    # And here, where the package has registered the model type.
    for folder in folders[:2]:
        loaded = AutoTokenizer.from_pretrained(folder)
        assert isinstance(loaded, PreTrainedTokenizerFast)
        assert loaded(text, "pair") == tokenizer(text, "pair")
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded.decode(encode(loaded, text)) == tokenizer.decode(encode(tokenizer, text))


# Training


def test_training_is_deterministic_and_takes_a_generator(capfd):
    first = train_sentencepiece(DOCUMENTS, vocab_size=800)
    assert train_sentencepiece((text for text in DOCUMENTS), vocab_size=800) == first
    sample = train_sentencepiece(DOCUMENTS, vocab_size=800, input_sentence_size=500)
    assert train_sentencepiece(DOCUMENTS, vocab_size=800, input_sentence_size=500) == sample
    assert sample != first
    # sentencepiece's log stays off the terminal.
    assert capfd.readouterr() == ("", "")


def test_long_lines_and_lines_with_reserved_characters_are_used():
    long_line = "filler words " * 2000 + "zyzzyva " * 300
    assert len(long_line.encode()) > 4 * 4192
    tokenizer = train_tokenizer([long_line, "quetzal ▅ " * 300, "日本" * 6000], vocab_size=390, model_type="bpe")
    vocab = tokenizer.get_vocab()
    assert {" zyzzyva", "quetzal", "日本"} <= set(vocab)
    assert not any(set(token) & set("▁▅") for token in vocab)


def test_cutting_loses_nothing():
    rng = random.Random(0)
    line = "".join(rng.choices("ab日", k=30_000)) + " " + "".join(rng.choices("abc   ", k=30_000)) + "end"
    sentences = list(tokenizer_module._training_sentences([line, "", "\n \n", "two\r\nlines"], False))
    assert "".join(sentences[:-2]) == line
    assert sentences[-2:] == ["two", "lines"]
    assert all(len(sentence.encode()) <= 4000 for sentence in sentences)
    # The cut is before a nearby space.
    assert all(sentence.startswith(" ") for sentence in sentences[40:-2])


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_error_of_a_too_large_vocabulary_names_the_size_that_works(model_type):
    texts = ["one two three four five six seven"] * 3
    with pytest.raises(InputError, match=r"vocab_size is 32000, too large for this text") as error:
        train_tokenizer(texts, model_type=model_type)
    size = int(str(error.value).split("at most ")[-1].split(",")[0])
    assert len(train_tokenizer(texts, model_type=model_type, vocab_size=size)) == size
    with pytest.raises(InputError, match=f"use at most {size}, or more text"):
        train_tokenizer(texts, model_type=model_type, vocab_size=size + 1)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "There is no text to train a tokenizer on"),
        (["", " \n\t "], {}, "There is no text to train a tokenizer on"),
        (["a b"], {"vocab_size": 260}, "vocab_size must be at least 359 .for .* 256 bytes, .* got 260"),
        (
            ["a b"],
            {"vocab_size": 50, "byte_fallback": False},
            "vocab_size must be at least 103 .for special tokens, line ends, printable .* got 50",
        ),
        (["".join(map(chr, range(0x4E00, 0x5000)))], {"vocab_size": 400}, "its characters need 870 tokens"),
        (["a b"], {"model_type": "wordpiece"}, "model_type must be unigram or bpe, got 'wordpiece'"),
        (["a b"], {"character_coverage": 0.5}, "character_coverage must be from 0.98 to 1, got 0.5"),
        (["a b"], {"input_sentence_size": 10}, "input_sentence_size must be 0 .* or above 100, got 10"),
    ],
)
def test_options_that_do_not_fit(texts, options, message):
    with pytest.raises(InputError, match=message) as error:
        train_tokenizer(texts, **options)
    assert "\n" not in str(error.value)


def test_max_length_is_checked_before_training(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "train_sentencepiece", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(InputError, match="max_length must be at least 4, .* got 2"):
        train_tokenizer(["a b"], max_length=2)


def test_texts_of_a_wrong_type():
    with pytest.raises(TypeError, match="single string"):
        train_tokenizer("a b c")
    with pytest.raises(TypeError, match="Text 1 is of type int"):
        train_tokenizer(["a b", 3])


def test_an_error_in_the_texts_is_raised_unchanged():
    class OwnError(Exception):
        pass

    def texts():
        yield "some text"
        raise OwnError("the disk is gone")

    with pytest.raises(OwnError, match=r"^the disk is gone$"):
        train_tokenizer(texts(), vocab_size=400)


def test_a_foreign_sentencepiece_model_is_refused(tmp_path):
    prefix = str(tmp_path / "foreign")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["some text"] * 5), model_prefix=prefix, vocab_size=11, minloglevel=2
    )
    with pytest.raises(InputError, match="only models of train_sentencepiece"):
        convert_sentencepiece((tmp_path / "foreign.model").read_bytes())


# Reading


def test_read_texts_of_every_type(tmp_path):
    rows = [{"text": "one, two", "id": 1}, {"text": "línea\nwith 日本", "id": 2}, {"text": "NA", "id": 3}]
    texts = [row["text"] for row in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.json").write_text(json.dumps([*rows, {"text": None, "id": 4}, {"text": "", "id": 5}]))
    (tmp_path / "a.csv").write_text('text,id\n"one, two",1\n"línea\nwith 日本",2\nNA,3\n,4\n', encoding="utf-8")
    # As GLUE publishes them: a quotation mark is a plain character.
    (tmp_path / "a.TSV").write_text('text\tid\none, two\t1\n"línea 日本\t2\nNA\t3\n', encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"  one\n\ntwo \r\nthree"))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pytest.importorskip("pandas").DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    assert list(read_texts([tmp_path / "a.TSV"])) == ["one, two", '"línea 日本', "NA"]
    for name in ("a.jsonl", "a.json", "a.csv", "a.parquet", "a.jsonl.gz"):
        assert list(read_texts([tmp_path / name])) == texts, name
    assert list(read_texts(tmp_path / "a.txt.gz")) == ["  one", "two ", "three"]
    several = read_texts([tmp_path / "a.txt.gz", str(tmp_path / "a.csv")])
    assert list(several) == ["  one", "two ", "three", *texts]


def test_read_texts_refuses_at_once(tmp_path):
    good, empty, unknown = tmp_path / "good.txt", tmp_path / "empty.txt", tmp_path / "data.bin"
    good.write_text("fine")
    empty.write_text("")
    unknown.write_text("text")
    for path, message in [
        (empty, "empty.txt is empty"),
        (unknown, "data.bin is of an unknown kind; give files that end in txt, "),
        (tmp_path / "none.txt", "no file .*none.txt"),
        (tmp_path, "is a folder"),
    ]:
        with pytest.raises(InputError, match=message):
            read_texts([good, path])
    for options in ({}, {"dataset_name": "corpus", "paths": [good]}):
        with pytest.raises(InputError, match="Give either files or --dataset_name"):
            read_texts(**options)


def test_read_texts_names_the_bad_file(tmp_path):
    files = {
        "other.jsonl": b'{"body": "x", "id": 1}\n',
        "list.jsonl": b'{"text": ["a"]}\n',
        "broken.json": b'{"text": "a"}\n{"text": \n',
        "latin.txt": b"caf\xe9\n",
    }
    messages = {
        "other.jsonl": "There is no column 'text' in .*other.jsonl but body, id: name one with --text_column",
        "list.jsonl": "The column of .*list.jsonl has a list in it: .*--text_column",
        "broken.json": "broken.json cannot be read as ",
        "latin.txt": "latin.txt cannot be read as txt: it is not UTF-8",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=messages[name]):
            list(read_texts([tmp_path / name]))
    assert list(read_texts(tmp_path / "other.jsonl", text_column="body")) == ["x"]
    (tmp_path / "number.csv").write_text("text,id\n007,2\n")
    assert list(read_texts(tmp_path / "number.csv")) == ["007"]


@pytest.mark.parametrize("streaming", [True, False])
def test_read_texts_of_a_data_set(tmp_path, streaming, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"body": "one"}\n{"body": null}\n{"body": "two"}\n')
    (folder / "validation.jsonl").write_text('{"body": "three"}\n')
    options = {"dataset_name": str(folder), "streaming": streaming}
    assert list(read_texts(text_column="body", **options)) == ["one", "two"]
    assert list(read_texts(text_column="body", split="validation", **options)) == ["three"]
    with pytest.raises(InputError, match="no column 'text' in .*corpus but body: name one with --text_column"):
        list(read_texts(**options))
    with pytest.raises(InputError, match="corpus has no split 'nosplit': give --split, one of train, validation"):
        read_texts(split="nosplit", **options)


# Command


def parse(*arguments):
    parser = argparse.ArgumentParser()
    cli.tokenizer_arguments(parser)
    return parser.parse_args([str(argument) for argument in arguments])


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_lowercase(model_type, tmp_path):
    texts = [*DOCUMENTS, "İSTANBUL and ΣΟΦΟΣ"]
    train_tokenizer(texts, vocab_size=1000, model_type=model_type, lowercase=True).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    learned = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    # Single capitals, since all of printable ASCII is always there; and names of bytes, such as <0x0A>.
    assert all(piece == piece.lower() or len(piece) == 1 or piece.startswith("<0x") for piece in learned)
    text = "The File [MASK] <0x0A> İSTANBUL"
    assert tokenizer(text)["input_ids"] == tokenizer("the file [MASK] <0x0a> i̇stanbul")["input_ids"]
    assert tokenizer.mask_token_id in tokenizer(text)["input_ids"]
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert text[offsets[0][0] : offsets[-1][1]] == text
    assert tokenizer.decode(tokenizer("A Name", add_special_tokens=False)["input_ids"]) == "a name"


def test_command(tmp_path, capsys):
    texts = [text for text in topics.values() if text.isascii()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    folder = tmp_path / "tokenizer"
    arguments = parse(
        tmp_path / "corpus.jsonl", "--text_column", "body", "--vocab_size", 500, "--model_type", "bpe",
        "--no_byte_fallback", "--max_length", 64, "--max_samples", 20, "--output_dir", folder,
    )  # fmt: skip
    tokenizer_module.main(arguments)
    output = capsys.readouterr().out
    loaded = AutoTokenizer.from_pretrained(folder)
    direct = train_tokenizer(texts[:20], vocab_size=500, model_type="bpe", byte_fallback=False)
    assert loaded.get_vocab() == direct.get_vocab()
    assert loaded.model_max_length == 64
    assert "500 tokens (bpe, unknown characters become [UNK])" in output
    assert "documents read:       20 " in output
    assert f"{characters_per_token(direct, texts[:20]):.2f} on the first 20 documents" in output
    assert f'AutoTokenizer.from_pretrained("{folder}")' in output


def test_command_reads_a_data_set(tmp_path, capsys):
    folder = tmp_path / "corpus"
    folder.mkdir()
    lines = [json.dumps({"text": text}) for text in topics.values()]
    (folder / "train.jsonl").write_text("\n".join(lines[:-5]))
    (folder / "test.jsonl").write_text("\n".join(lines[-5:]))
    tokenizer_module.main(
        parse("--dataset_name", folder, "--split", "test", "--streaming", "--vocab_size", 400, "--output_dir", tmp_path)
    )
    assert "documents read:       5 " in capsys.readouterr().out
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == 400


def test_command_refuses_before_reading_and_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "file_kind", lambda *args, **kwargs: pytest.fail("read"))
    (tmp_path / "tokenizer.json").write_text("precious")
    with pytest.raises(InputError, match="already holds a tokenizer"):
        tokenizer_module.main(parse("corpus.txt", "--output_dir", tmp_path))
    assert (tmp_path / "tokenizer.json").read_text() == "precious"
    for arguments, message in [
        ([], "Give either files or --dataset_name"),
        (["corpus.txt", "--dataset_name", "x"], "Give either files or --dataset_name"),
        (["corpus.txt", "--max_samples", "0"], "--max_samples must be at least 1, got 0"),
        (["corpus.txt", "--vocab_size", "9"], "vocab_size must be at least 359 .* got 9"),
        (["corpus.txt", "--max_length", "3"], "max_length must be at least 4"),
        (["corpus.txt", "--character_coverage", "nan"], "character_coverage must be from 0.98 to 1"),
    ]:
        with pytest.raises(InputError, match=message):
            tokenizer_module.main(parse(*arguments, "--output_dir", tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    for folder in (tmp_path / "tokenizer.json", tmp_path / "tokenizer.json" / "below"):
        with pytest.raises(InputError, match="cannot be written: .*tokenizer.json is a file"):
            tokenizer_module.main(parse("corpus.txt", "--output_dir", folder))


def test_characters_per_token(tokenizer):
    texts = ["the the", "word"]
    assert characters_per_token(tokenizer, texts) == 11 / sum(len(encode(tokenizer, text)) for text in texts)
    with pytest.raises(InputError, match="no text"):
        characters_per_token(tokenizer, [""])


def test_byte_tokenizer_gives_the_bytes_and_loads_like_any_other(tmp_path):
    byte_tokenizer(max_length=100).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    every_byte = "".join(map(chr, [*range(0x800), *range(0x800, 0x11000, 0x40)])).encode("utf-8", "ignore").decode()
    # Only bytes that are not in any UTF-8 text are missing.
    assert set(range(256)) - set(every_byte.encode()) <= {0xC0, 0xC1, *range(0xF1, 0x100)}
    for text in [*ODD_TEXTS, every_byte, "[SEP] [PAD]", " \r\n\n\t a , b . ", "<|endoftext|>"]:
        ids = tokenizer(text, verbose=False)["input_ids"]
        assert ids == [FIRST_BYTE + byte for byte in text.encode("utf-8")]
        assert tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (len(tokenizer), tokenizer.model_max_length) == (258, 100)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 1)
    assert list(tokenizer("a")) == ["input_ids", "attention_mask"]


def test_open_ended_tokenizer_adds_nothing_to_a_text(tmp_path):
    trained = train_tokenizer(DOCUMENTS[:20], vocab_size=600)
    open_ended(trained).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "The Größe of it [MASK]"
    ids = tokenizer(text)["input_ids"]
    assert ids == trained(text, add_special_tokens=False)["input_ids"] and tokenizer.decode(ids[:-1]) == text[:-7]
    assert trained(text)["input_ids"] == [2, *ids, 3], "the original must not change"
    assert tokenizer.get_vocab() == trained.get_vocab() and tokenizer.mask_token_id == 4
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == 3 and tokenizer.pad_token_id == 0
    assert "token_type_ids" not in tokenizer(text)
    # Tokenizers that do not end a text are unchanged.
    for other in (tokenizer, byte_tokenizer()):
        assert open_ended(other) is other
