"""Trains the paper's tokenizer (Appendix A.2: "32K cased SentencePieces") on any text; docs/tokenizer.md says more.

The result is made of stock parts of `tokenizers`, so a plain `AutoTokenizer.from_pretrained(folder)` loads it. A space
belongs to the word after it: "The fox" gives "The" and " fox". It is a real space, not SentencePiece's "▁":
`tokenizers` leaves white space out of the offsets, by which transformers finds whole words to mask, and a "▁" in the
text survives.
"""

import argparse
import io
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from .errors import InputError, need
from .training.files import GROUP_SIZE, file_kind, load_data, read_files, reading

# The position in this list is the id; GMLPConfig's defaults name the same ids.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Separate tokens, so that no word spans two lines and they are known without byte fallback.
LINE_TOKENS = ["\n", "\t", "\r"]
# Always in the vocabulary: a tokenizer trained on prose still reads code and markup.
PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))
MODEL_TYPES = ("unigram", "bpe")
# The byte tokenizer has two special tokens, followed by the 256 bytes.
BYTE_SPECIAL_TOKENS = ["[PAD]", "[SEP]"]
FIRST_BYTE = len(BYTE_SPECIAL_TOKENS)

# Which values of an option are allowed, and the same in words.
RULES = {
    "model_type": (lambda value: value in MODEL_TYPES, " or ".join(MODEL_TYPES)),
    "max_length": (lambda value: value >= 4, "at least 4, since a pair has three special tokens"),
    "character_coverage": (lambda value: 0.98 <= value <= 1, "from 0.98 to 1"),
    "input_sentence_size": (lambda value: value == 0 or value > 100, "0 (all lines) or above 100"),
}

# No token crosses a word. A word starts at every space, and each line token is a word.
WORD_PATTERN = r"[\n\t\r]| ?[^ \n\t\r]+| "
# The text "<0x0A>" must not become the byte token of that name, nor "[CLS]" where special tokens are switched off: cut
# at the x and after the bracket. No learned token crosses a cut: SentencePiece separates letters from digits and signs.
TOKEN_NAME_PATTERN = r"(?<=<0)x(?=[0-9A-F]{2}>)|(?<=\[)(?:PAD|UNK|CLS|SEP|MASK)(?=\])"
# Where a text is cut for training. The vocabulary has no control characters, lone surrogates, U+2581 or U+2585; these
# two are sentencepiece's own (it would drop a whole sentence for one U+2585).
_LINE_END = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u2581\u2585\ud800-\udfff]+")
# sentencepiece skips sentences of more than 4,192 bytes; a character takes at most four.
_LONGEST_SENTENCE = 1000
_SENTENCE = re.compile(rf".{{1,{_LONGEST_SENTENCE}}}(?= |$)|.{{1,{_LONGEST_SENTENCE}}}")
# The sums in training depend on the number of threads: fixed, so that every machine gets the same result.
_NUM_THREADS = 16


def train_tokenizer(
    texts: Iterable[str], *, model_type: str = "unigram", max_length: int = 512, lowercase: bool = False, **options
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer with [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4 and BERT's template and segment ids.

    The same texts in the same order give the same tokenizer. `max_length` becomes its `model_max_length`; for the
    other arguments and the errors raised see `train_sentencepiece`.
    """
    check_options(max_length=max_length)
    model = train_sentencepiece(texts, model_type=model_type, lowercase=lowercase, **options)
    return convert_sentencepiece(model, model_type=model_type, max_length=max_length, lowercase=lowercase)


def train_sentencepiece(
    texts: Iterable[str],
    *,
    vocab_size: int = 32000,
    model_type: str = "unigram",
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    input_sentence_size: int = 10_000_000,
    lowercase: bool = False,
) -> bytes:
    """Trains the SentencePiece model behind `train_tokenizer` and returns it serialized.

    Args:
        texts: Strings of any length (else a TypeError), read once, and cut so that no part is left out.
        vocab_size: Number of tokens, including special and byte tokens.
        model_type: "unigram" or "bpe".
        byte_fallback: Whether a character outside the vocabulary becomes bytes (256 of the tokens) or [UNK].
        character_coverage: Share of the characters that get their own token, 0.98 to 1; printable ASCII always does.
        input_sentence_size: Number of lines to train on, above 100, or 0 for all. A longer corpus is read to its end
            and sampled (sentencepiece fixes the seed). Ten million lines of web text take some gigabytes of memory.
        lowercase: Whether to lowercase the text, as in bert-base-uncased. Pass the same to `convert_sentencepiece`.

    Raises an InputError if an option is out of range, there is no text, `vocab_size` does not fit the corpus (the
    message names the size that would), or sentencepiece is not installed.
    """
    # Imported here: a trained tokenizer loads without sentencepiece.
    need("sentencepiece")
    import sentencepiece as spm

    numbers = {"character_coverage": character_coverage, "input_sentence_size": input_sentence_size}
    check_options(byte_fallback, vocab_size=vocab_size, model_type=model_type, **numbers)
    # sentencepiece hides an exception of its input behind a RuntimeError: keep the original.
    failures: list[BaseException] = []

    def sentences() -> Iterator[str]:
        try:
            yield from _training_sentences(texts, lowercase)
        except (Exception, KeyboardInterrupt) as error:
            failures.append(error)
            raise

    special = {}
    for number, name in enumerate(("pad", "unk", "bos", "eos")):
        special |= {f"{name}_id": number, f"{name}_piece": SPECIAL_TOKENS[number]}
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=sentences(),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            **numbers,
            required_chars=PRINTABLE_ASCII,
            **special,
            control_symbols=SPECIAL_TOKENS[-1:],
            user_defined_symbols=LINE_TOKENS,
            # These three make encoding lossless: the text stays as it is, and no space is added or dropped.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            shuffle_input_sentence=True,
            max_sentence_length=4 * _LONGEST_SENTENCE,
            num_threads=_NUM_THREADS,
            # Errors only, not hundreds of lines of progress.
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        if failures:
            raise failures[0] from None
        raise InputError(_explain(str(error), vocab_size)) from error
    return model.getvalue()


def convert_sentencepiece(
    model: bytes, *, model_type: str = "unigram", max_length: int = 512, lowercase: bool = False
) -> PreTrainedTokenizerFast:
    """Turns a serialized model of `train_sentencepiece` into a fast tokenizer that gives the same ids.

    With `lowercase`, the tokenizer lowercases its text first, as the training of the model did.

    Raises an InputError if the model has other special tokens, an option is out of range, or sentencepiece is missing.
    """
    need("sentencepiece")
    import sentencepiece as spm

    check_options(model_type=model_type, max_length=max_length)
    processor = spm.SentencePieceProcessor(model_proto=model)
    ids = range(processor.get_piece_size())
    pieces = [processor.id_to_piece(i).replace("▁", " ") for i in ids]
    if pieces[: len(SPECIAL_TOKENS)] != SPECIAL_TOKENS:
        raise InputError("The model has other special tokens: only models of train_sentencepiece can be converted.")
    pad, unk, cls, sep, mask = SPECIAL_TOKENS
    byte_fallback = any(map(processor.is_byte, ids))

    if model_type == "unigram":
        vocab = [(pieces[i], processor.get_score(i)) for i in ids]
        tokenizer = Tokenizer(models.Unigram(vocab, unk_id=1, byte_fallback=byte_fallback))
    else:
        is_name = [processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i) for i in ids]
        merges = _merges([pieces[i] for i in ids if not is_name[i]])
        vocab = {piece: i for i, piece in enumerate(pieces)}
        tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unk, fuse_unk=True, byte_fallback=byte_fallback))
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.Split(Regex(TOKEN_NAME_PATTERN), behavior="merged_with_next"),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.Sequence(
        [
            # It leaves white space out of the offsets, and changes no token.
            processors.ByteLevel(trim_offsets=True, add_prefix_space=False),
            processors.TemplateProcessing(
                single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=[(cls, 2), (sep, 3)]
            ),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unk,
        cls_token=cls,
        sep_token=sep,
        # As in GMLPConfig: a language model starts at [CLS] and stops at [SEP].
        bos_token=cls,
        eos_token=sep,
        # The space belongs to the word, so a mask that replaces a word must take the space before it.
        mask_token=AddedToken(mask, lstrip=True, normalized=False, special=True),
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        padding_side="right",
        truncation_side="right",
        clean_up_tokenization_spaces=False,
    )


def byte_tokenizer(max_length: int = 512) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a token for every byte of UTF-8, id `FIRST_BYTE` + byte, that needs no training.

    Decoding returns the encoded text exactly. [PAD] is 0 and [SEP], between documents, is 1; in a text, their names are
    plain letters.
    """
    # `tokenizers` writes bytes as these characters.
    vocabulary = BYTE_SPECIAL_TOKENS + [letter for _, letter in sorted(bytes_to_unicode().items())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, end_of_text = BYTE_SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=end_of_text,
        eos_token=end_of_text,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def open_ended(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Returns a copy of a tokenizer such as BERT's that does not end a text with a special token, and so a prompt; a
    tokenizer that does not do that is returned unchanged.
    """
    ids = tokenizer("a")["input_ids"]
    if not tokenizer.is_fast or not ids or ids[-1] not in tokenizer.all_special_ids:
        return tokenizer
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    end = tokenizer.sep_token if tokenizer.eos_token is None else tokenizer.eos_token
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **tokenizer.special_tokens_map | {"bos_token": end, "eos_token": end},
        model_max_length=tokenizer.model_max_length,
        # Without segments, for which some causal models add an embedding.
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the token that separates documents for a causal language model; an InputError if there is none."""
    token = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if token is None:
        raise InputError("The tokenizer has no end-of-text token: set its eos_token, and save it again.")
    return token


def read_texts(
    paths: str | Path | Iterable[str | Path] = (),
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    streaming: bool = True,
    text_column: str = "text",
) -> Iterator[str]:
    """Yields the texts of local files or of a data set that are not blank, one at a time.

    Args:
        paths: Files of the kinds of `hf_gmlp.training.files`, possibly mixed. Every line of a .txt file is a text.
        dataset_name, dataset_config_name, split: A data set on the Hub, or a folder that `load_dataset` opens.
        streaming: Read the data set over the network instead of downloading it first.
        text_column: The column that holds the text, except in .txt files.

    Raises an InputError at once if neither or both are named, a file is missing, empty or of an unknown kind, or the
    data set cannot be loaded; and during reading if something cannot be read, or there is no column of text.
    """
    # Imported here: making and using a tokenizer needs no `datasets`, which is in hf-gmlp[train].
    from .tasks.text import has_text, text_rows

    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if (dataset_name is None) == (not paths):
        raise InputError("Give either files or --dataset_name to train on.")
    sources = [(str(path), file_kind([path])) for path in paths] or [(dataset_name, "text")]
    if dataset_name is not None:
        loaded = load_data(dataset_name=dataset_name, dataset_config_name=dataset_config_name, streaming=streaming)
        if split not in loaded:
            raise InputError(f"{dataset_name} has no split {split!r}: give --split, one of {', '.join(loaded)}.")

    def read() -> Iterator[str]:
        for name, kind in sources:
            options = {"streaming": True, "lines": True, "text_columns": [text_column]}
            data = loaded[split] if dataset_name is not None else read_files([name], **options)
            with reading([name], kind):
                for row in text_rows(data, "text" if kind == "txt" else text_column, name):
                    if has_text(row["text"]):
                        yield row["text"]

    return read()


def characters_per_token(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> float:
    """Returns the mean number of characters per token, not counting special tokens."""
    texts = list(texts)
    if not any(texts):
        raise InputError("There is no text to count characters per token on.")
    # Not verbose: a text may be longer than the model takes.
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return sum(map(len, texts)) / sum(map(len, ids))


def main(args: argparse.Namespace) -> None:
    """Runs `hf-gmlp train-tokenizer`: read, train, save, report."""
    need("datasets", "sentencepiece")
    options = {name: getattr(args, name) for name in ("vocab_size", "byte_fallback", *RULES)}
    check_options(**options)
    options["lowercase"] = args.lowercase
    if args.max_samples is not None and args.max_samples < 1:
        raise InputError(f"--max_samples must be at least 1, got {args.max_samples}.")
    output_dir = Path(args.output_dir)
    folder = next(path for path in (output_dir.absolute(), *output_dir.absolute().parents) if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--output_dir {output_dir} cannot be written: {folder} is a file or not writable.")
    if any((output_dir / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise InputError(f"{output_dir} already holds a tokenizer: choose another --output_dir, or delete it first.")

    source = ("dataset_name", "dataset_config_name", "split", "streaming", "text_column")
    texts = read_texts(args.files, **{name: getattr(args, name) for name in source})
    number, sample = 0, []

    def counted() -> Iterator[str]:
        nonlocal number
        for number, text in enumerate(itertools.islice(texts, args.max_samples), start=1):
            if number <= 1000 and sum(map(len, sample)) < GROUP_SIZE:
                sample.append(text)
            if number % 100_000 == 0:
                print(f"{number:,} documents read", file=sys.stderr)
            yield text

    tokenizer = train_tokenizer(counted(), **options)
    tokenizer.save_pretrained(output_dir)
    fallback = "byte fallback" if args.byte_fallback else "unknown characters become [UNK]"
    case = ", lowercase" * args.lowercase
    print(f"vocabulary:           {len(tokenizer):,} tokens ({args.model_type}, {fallback}{case})")
    print(f"documents read:       {number:,} (rows, or lines of plain text)")
    print(f"characters per token: {characters_per_token(tokenizer, sample):.2f} on the first {len(sample):,} documents")
    print(f"saved in:             {output_dir}")
    print(f'load it with:         AutoTokenizer.from_pretrained("{output_dir}")')


def check_options(byte_fallback: bool = True, **options):
    """Raises an InputError if an option of `train_tokenizer` is out of its range."""
    smallest = len(SPECIAL_TOKENS) + len(LINE_TOKENS) + 256 * byte_fallback + len(PRINTABLE_ASCII) + 1
    always = f"special tokens, line ends, {'256 bytes, ' * byte_fallback}printable ASCII and the space"
    rules = RULES | {"vocab_size": (lambda value: value >= smallest, f"at least {smallest} (for {always})")}
    for name, value in options.items():
        allowed, words = rules[name]
        if not allowed(value):
            raise InputError(f"{name} must be {words}, got {value!r}.")


def _training_sentences(texts: Iterable[str], lowercase: bool) -> Iterator[str]:
    """Cuts texts into lines of at most `_LONGEST_SENTENCE` characters, as sentencepiece expects."""
    if isinstance(texts, str):
        raise TypeError("texts is a single string: give an iterable of strings.")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"Text {number} is of type {type(text).__name__}: every text must be a string.")
        for line in _LINE_END.split(text):
            if line and not line.isspace():
                if lowercase:
                    # What the tokenizer will do, which is not str.lower.
                    line = normalizers.Lowercase().normalize_str(line)
                yield from _SENTENCE.findall(line)


def _explain(message: str, vocab_size: int) -> str:
    """Explains sentencepiece's messages about too little text; returns any other as it is."""
    if "sentences_.empty()" in message:
        return "There is no text to train a tokenizer on: every text was empty, or there were none."
    if match := re.search(r"Vocabulary size too high \(\d+\).*<= (\d+)", message):
        return f"vocab_size is {vocab_size}, too large for this text: use at most {match[1]}, or more text."
    if match := re.search(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)", message):
        size = f"its characters need {match[1]} tokens"
        return f"vocab_size is {vocab_size}, too small for this text: {size}; raise it, or lower character_coverage."
    return f"sentencepiece could not train on this text: {message}"


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """All pairs of pieces that join into a piece, in SentencePiece's order, which `tokenizers` needs for BPE."""
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
