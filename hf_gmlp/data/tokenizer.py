"""Train the cased SentencePiece tokenizer of the paper (Appendix A.2: "32K cased SentencePieces") on any text.

`sentencepiece` does the training; the result is rebuilt from stock parts of `tokenizers`, so that a plain
`AutoTokenizer.from_pretrained(folder)` loads it, without sentencepiece and without this package.

What is kept. With byte fallback (the default) decoding gives back exactly the text that was encoded, for every valid
Unicode text: nothing is normalized, no space is added or dropped, and a character that the vocabulary lacks becomes its
UTF-8 bytes. The only strings that are not text are the five special tokens: written out in a text they are read as the
tokens (`split_special_tokens=True` switches that off), and [MASK] takes the white space on its left with it. With
`byte_fallback=False` each run of unknown characters becomes one [UNK] and cannot be restored.

Spaces belong to the word that follows: the tokens of "The fox" are "The" and " fox". The marker is a real space, not
SentencePiece's "▁", for two reasons: `tokenizers` leaves white space out of the offsets, so that an offset pair is
exactly the word (whole-word masking in transformers finds words by the gaps between offsets); and "▁" itself survives,
which SentencePiece turns into a space. There the ids differ from those of the SentencePiece model; anywhere else they
are the same, but for exact ties.
"""

import argparse
import io
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..errors import InputError
from .files import file_kind, read_files

# The position in this list is the id; GMLPConfig's defaults name the same ids.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Tokens of their own, so that no word spans two lines, and known also without byte fallback.
LINE_TOKENS = ["\n", "\t", "\r"]
# In the vocabulary even where the corpus lacks it: a tokenizer trained on prose still reads code and markup.
PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))
MODEL_TYPES = ("unigram", "bpe")
# Of the byte tokenizer: two tokens, and behind them the bytes in their order.
BYTE_SPECIAL_TOKENS = ["[PAD]", "[SEP]"]
FIRST_BYTE = len(BYTE_SPECIAL_TOKENS)

# A word is what SentencePiece cannot cross: it starts at every space, and the line tokens stand alone.
WORD_PATTERN = r"[\n\t\r]| ?[^ \n\t\r]+| "
# The text "<0x0A>" must not be read as the byte token of that name, nor "[CLS]" where special tokens are switched off:
# cut at the x and after the bracket. No learned token lies across: SentencePiece parts letters from digits and signs.
TOKEN_NAME_PATTERN = r"(?<=<0)x(?=[0-9A-F]{2}>)|(?<=\[)(?:PAD|UNK|CLS|SEP|MASK)(?=\])"
# Where a text is cut for training. Control characters and lone surrogates stay out of the vocabulary; so do U+2581 and
# U+2585, which sentencepiece uses itself (it would drop a whole sentence for one U+2585).
_LINE_END = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u2581\u2585\ud800-\udfff]+")
# sentencepiece leaves out sentences above 4,192 bytes. A character takes four bytes at most.
_LONGEST_SENTENCE = 1000
_SENTENCE = re.compile(rf".{{1,{_LONGEST_SENTENCE}}}(?= |$)|.{{1,{_LONGEST_SENTENCE}}}")
# The training algorithm's sums depend on the number of threads: fixed, so that every machine gets the same result.
_NUM_THREADS = 16


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int = 32000,
    model_type: str = "unigram",
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    max_length: int = 512,
    input_sentence_size: int = 10_000_000,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer and return it ready for use: `save_pretrained` writes it, `AutoTokenizer` loads it.

    Special tokens are [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4, the template is BERT's with its segment ids. The same
    texts in the same order give the same tokenizer. See the module's text for what encoding keeps.

    Args:
        texts: Texts of any length, read once: a list, a generator, a streamed column. A text is cut at line ends and
            control characters and then at a space before every 1,000 characters, so that no part of it is left out.
        vocab_size: Number of tokens, special and byte tokens included.
        model_type: "unigram" or "bpe".
        byte_fallback: Whether a character outside the vocabulary becomes bytes (256 of the tokens) or [UNK].
        character_coverage: Share of the corpus' characters that get a token of their own, from 0.98 to 1.
            Printable ASCII always does.
        max_length: The tokenizer's `model_max_length`: where `truncation=True` cuts, special tokens included.
        input_sentence_size: Lines to train on, above 100; 0 for all. Of a longer corpus a random sample of that many is
            kept (sentencepiece fixes the seed), and the corpus is still read to its end. Ten million lines of web text
            take some gigabytes of memory.

    Raises:
        InputError: If an option is out of range, there is no text, or `vocab_size` does not fit the corpus (the
            message then names the size that would).
        TypeError: If `texts` is a single string or yields something else than strings.
        ImportError: If sentencepiece is not installed.
    """
    _check_max_length(max_length)
    model = train_sentencepiece(
        texts,
        vocab_size=vocab_size,
        model_type=model_type,
        byte_fallback=byte_fallback,
        character_coverage=character_coverage,
        input_sentence_size=input_sentence_size,
    )
    return convert_sentencepiece(model, model_type=model_type, max_length=max_length)


def train_sentencepiece(
    texts: Iterable[str],
    *,
    vocab_size: int = 32000,
    model_type: str = "unigram",
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    input_sentence_size: int = 10_000_000,
) -> bytes:
    """Train the SentencePiece model under `train_tokenizer`, with the same arguments and errors.

    Returns:
        The serialized model: what `sentencepiece.SentencePieceProcessor(model_proto=...)` opens.
    """
    spm = _import_sentencepiece()
    _check_model_type(model_type)
    if not 0.98 <= character_coverage <= 1:
        raise InputError(f"character_coverage is {character_coverage}: sentencepiece takes 0.98 to 1.")
    if input_sentence_size != 0 and input_sentence_size <= 100:
        raise InputError(f"input_sentence_size is {input_sentence_size}: use 0 (all lines) or more than 100.")
    smallest = len(SPECIAL_TOKENS) + len(LINE_TOKENS) + 256 * byte_fallback + len(PRINTABLE_ASCII) + 1
    if vocab_size < smallest:
        bytes_kept = "256 bytes, " if byte_fallback else ""
        raise InputError(
            f"vocab_size is {vocab_size}, too small: {len(SPECIAL_TOKENS)} special tokens, {len(LINE_TOKENS)} line "
            f"tokens, {bytes_kept}printable ASCII and the space already take {smallest}."
        )

    sentences = _training_sentences(texts)
    first = next(sentences, None)
    if first is None:
        raise InputError("There is no text to train a tokenizer on: every text was empty, or there were none.")
    # sentencepiece turns an exception of its input into a RuntimeError without the original: keep that here.
    failure: list[BaseException] = []
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=_keep_failure(itertools.chain([first], sentences), failure),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            required_chars=PRINTABLE_ASCII,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=SPECIAL_TOKENS[0],
            unk_piece=SPECIAL_TOKENS[1],
            bos_piece=SPECIAL_TOKENS[2],
            eos_piece=SPECIAL_TOKENS[3],
            control_symbols=SPECIAL_TOKENS[4:],
            user_defined_symbols=LINE_TOKENS,
            # The three that make encoding lossless: text is taken as it is, and a space is never added or dropped.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            input_sentence_size=input_sentence_size,
            shuffle_input_sentence=True,
            max_sentence_length=4 * _LONGEST_SENTENCE,
            num_threads=_NUM_THREADS,
            # Errors only: the trainer writes hundreds of progress lines to the terminal.
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        if failure:
            raise failure[0] from None
        raise InputError(_explain(str(error), vocab_size)) from error
    return model.getvalue()


def convert_sentencepiece(
    model: bytes, *, model_type: str = "unigram", max_length: int = 512
) -> PreTrainedTokenizerFast:
    """Turn a model of `train_sentencepiece` into a fast tokenizer that gives the same ids.

    Args:
        model: The serialized model.
        model_type: The type it was trained as, "unigram" or "bpe".
        max_length: The tokenizer's `model_max_length`.

    Raises:
        InputError: If the model was trained with other special tokens, or an option is out of range.
        ImportError: If sentencepiece is not installed.
    """
    spm = _import_sentencepiece()
    _check_model_type(model_type)
    _check_max_length(max_length)
    processor = spm.SentencePieceProcessor(model_proto=model)
    ids = range(processor.get_piece_size())
    pieces = [processor.id_to_piece(i).replace("▁", " ") for i in ids]
    if pieces[: len(SPECIAL_TOKENS)] != SPECIAL_TOKENS:
        raise InputError(
            f"The SentencePiece model starts with {pieces[: len(SPECIAL_TOKENS)]}, not with {SPECIAL_TOKENS}: only "
            "models of train_sentencepiece can be converted."
        )
    byte_fallback = any(processor.is_byte(i) for i in ids)

    if model_type == "unigram":
        vocab = [(pieces[i], processor.get_score(i)) for i in ids]
        tokenizer = Tokenizer(models.Unigram(vocab, unk_id=1, byte_fallback=byte_fallback))
    else:
        is_name = [processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i) for i in ids]
        merges = _merges([pieces[i] for i in ids if not is_name[i]])
        tokenizer = Tokenizer(
            models.BPE(
                {piece: i for i, piece in enumerate(pieces)},
                merges,
                unk_token=SPECIAL_TOKENS[1],
                fuse_unk=True,
                byte_fallback=byte_fallback,
            )
        )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.Split(Regex(TOKEN_NAME_PATTERN), behavior="merged_with_next"),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    pad, unk, cls, sep, mask = SPECIAL_TOKENS
    tokenizer.post_processor = processors.Sequence(
        [
            # Only its second job is wanted: to leave white space out of the offsets. It changes no token.
            processors.ByteLevel(trim_offsets=True, add_prefix_space=False),
            processors.TemplateProcessing(
                single=f"{cls} $A {sep}",
                pair=f"{cls} $A {sep} $B:1 {sep}:1",
                special_tokens=[(cls, 2), (sep, 3)],
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
        # " fox" carries its own space, so a mask that stands for a word has to take the space before it.
        mask_token=AddedToken(mask, lstrip=True, normalized=False, special=True),
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        padding_side="right",
        truncation_side="right",
        clean_up_tokenization_spaces=False,
    )


def byte_tokenizer(max_length: int = 512) -> PreTrainedTokenizerFast:
    """
    A tokenizer with a token for every byte of UTF-8, id `FIRST_BYTE` + byte, and no training: for language models that
    are measured in bits per byte. Decoding gives back exactly the text that was encoded. [PAD] is 0, and [SEP], which
    stands between documents, 1; written out in a text they are letters like any other.

    Args:
        max_length: The tokenizer's `model_max_length`.
    """
    # The characters by which `tokenizers` writes bytes: the byte's own where it can be printed, else one further up.
    printed = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocabulary = BYTE_SPECIAL_TOKENS + [letters[byte] for byte in range(256)]
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
    """
    The tokenizer as a causal language model needs it: where it puts a special token behind a text, as BERT's [SEP], a
    copy that does not, for a prompt would be over with it. Others are returned as they are.
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
        # No segments: some causal models add an embedding for them.
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def read_texts(paths: Iterable[str | Path], *, text_column: str = "text") -> Iterator[str]:
    """Read the texts of local files one after another, without loading a file whole.

    Args:
        paths: .txt (one text a line), .json, .jsonl, .csv, .tsv or .parquet files,
            each also compressed as .gz, .bz2, .xz or .zst.
        text_column: The column that holds the text, in all but plain text files. Empty rows are passed over.

    Yields:
        One text a row, or a line of a plain text file without its line end.

    Raises:
        InputError: At once if a file is missing, empty, a folder or of an unknown type; while reading if it cannot be
            read as that type or lacks the column.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    paths = [Path(path) for path in paths]
    if not paths:
        raise InputError("No file was given to read texts from.")
    kinds = [file_kind([path]) for path in paths]
    return itertools.chain.from_iterable(map(_read_file, paths, kinds, itertools.repeat(text_column)))


def read_dataset_texts(
    name: str,
    config_name: str | None = None,
    *,
    split: str = "train",
    streaming: bool = True,
    text_column: str = "text",
) -> Iterator[str]:
    """Read the texts of a data set on the Hugging Face hub, or of a local folder that `load_dataset` opens.

    Args:
        name: Name of the data set, as in "allenai/c4".
        config_name: Its configuration, as in "en" or "realnewslike".
        split: The split to read.
        streaming: Whether to read over the network as texts are asked for, or to download the data set first.
        text_column: The column that holds the text. Empty rows are passed over.

    Raises:
        InputError: If the data set cannot be opened; while reading if the column is missing or holds no text.
    """
    from datasets import load_dataset

    try:
        rows = load_dataset(name, config_name, split=split, streaming=streaming)
    except Exception as error:
        raise InputError(f"The data set {name} could not be opened: {error}") from error
    return _column_texts(rows, text_column, f"The data set {name}")


def characters_per_token(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> float:
    """Mean number of characters that a token stands for, special tokens of the template not counted.

    Raises:
        InputError: If there is no text.
    """
    texts = list(texts)
    if not any(texts):
        raise InputError("There is no text to count characters per token on.")
    # Not verbose: a text longer than the model takes is no mistake here.
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return sum(map(len, texts)) / sum(map(len, ids))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hf-gmlp train-tokenizer` to a parser."""
    source = parser.add_argument_group("text to train on (files, or a data set)")
    source.add_argument(
        "files",
        nargs="*",
        metavar="FILES",
        help="txt, json, jsonl, csv, tsv or parquet, also as gz, bz2, xz, zst",
    )
    source.add_argument("--dataset_name", metavar="NAME", help="a data set on the hub, as allenai/c4")
    source.add_argument("--dataset_config_name", metavar="NAME", help="its configuration, as en")
    source.add_argument("--split", default="train", help="its split (default: train)")
    source.add_argument(
        "--streaming", action="store_true", help="read the data set over the network, without downloading it first"
    )
    source.add_argument("--text_column", default="text", metavar="NAME", help="column of the text (default: text)")
    source.add_argument("--max_samples", type=int, metavar="N", help="stop after N texts (default: read all)")

    options = parser.add_argument_group("tokenizer")
    options.add_argument("--vocab_size", type=int, default=32000, metavar="N", help="tokens (default: 32000)")
    options.add_argument("--model_type", choices=MODEL_TYPES, default="unigram", help="default: unigram")
    options.add_argument(
        "--no_byte_fallback", action="store_true", help="make unknown characters [UNK] instead of bytes"
    )
    options.add_argument(
        "--character_coverage",
        type=float,
        default=0.9995,
        metavar="P",
        help="share of characters with a token of their own (default: 0.9995)",
    )
    options.add_argument(
        "--max_length", type=int, default=512, metavar="N", help="tokens where truncation cuts (default: 512)"
    )
    options.add_argument(
        "--input_sentence_size",
        type=int,
        default=10_000_000,
        metavar="N",
        help="train on a random sample of N lines if there are more; 0: on all (default: 10000000)",
    )
    parser.add_argument("--output_dir", required=True, metavar="FOLDER", help="where to save the tokenizer")


def main(args: argparse.Namespace) -> None:
    """Run `hf-gmlp train-tokenizer`: read, train, save, report.

    Args:
        args: The options of `add_arguments`.

    Raises:
        InputError: If an option or the text does not fit, or the output folder already holds a tokenizer.
    """
    output_dir = Path(args.output_dir)
    if bool(args.files) == bool(args.dataset_name):
        raise InputError("Give either FILES or --dataset_name: the text to train on comes from one of them.")
    if args.max_samples is not None and args.max_samples < 1:
        raise InputError(f"--max_samples is {args.max_samples}: it has to be 1 or more.")
    if output_dir.is_file():
        raise InputError(f"--output_dir {output_dir} is a file: name a folder.")
    if any((output_dir / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise InputError(f"{output_dir} already holds a tokenizer: choose another --output_dir, or delete it first.")

    if args.dataset_name:
        texts = read_dataset_texts(
            args.dataset_name,
            args.dataset_config_name,
            split=args.split,
            streaming=args.streaming,
            text_column=args.text_column,
        )
    else:
        texts = read_texts(args.files, text_column=args.text_column)
    counted = _CountedTexts(itertools.islice(texts, args.max_samples))
    tokenizer = train_tokenizer(
        counted,
        vocab_size=args.vocab_size,
        model_type=args.model_type,
        byte_fallback=not args.no_byte_fallback,
        character_coverage=args.character_coverage,
        max_length=args.max_length,
        input_sentence_size=args.input_sentence_size,
    )
    tokenizer.save_pretrained(output_dir)

    fallback = "unknown characters become [UNK]" if args.no_byte_fallback else "byte fallback"
    print(f"vocabulary:           {len(tokenizer):,} tokens ({args.model_type}, {fallback})")
    print(f"documents read:       {counted.number:,} (rows, or lines of plain text)")
    print(
        f"characters per token: {characters_per_token(tokenizer, counted.sample):.2f} "
        f"on the first {len(counted.sample):,} documents"
    )
    print(f"saved in:             {output_dir}")
    print(f'load it with:         AutoTokenizer.from_pretrained("{output_dir}")')


class _CountedTexts:
    """Passes texts on, counts them on the way, and keeps the first ones as a sample."""

    def __init__(self, texts: Iterable[str], sample_size: int = 1000):
        self.texts = texts
        self.sample_size = sample_size
        self.sample: list[str] = []
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.number += 1
            if len(self.sample) < self.sample_size:
                self.sample.append(text)
            if self.number % 100_000 == 0:
                print(f"{self.number:,} documents read", file=sys.stderr)
            yield text


def _check_model_type(model_type: str) -> None:
    if model_type not in MODEL_TYPES:
        raise InputError(f"model_type is {model_type!r}: use one of {', '.join(MODEL_TYPES)}.")


def _check_max_length(max_length: int) -> None:
    if max_length < 4:
        raise InputError(f"max_length is {max_length}: a pair of texts takes three special tokens, so use 4 or more.")


def _training_sentences(texts: Iterable[str]) -> Iterator[str]:
    """Cut texts into what sentencepiece takes: single lines of at most `_LONGEST_SENTENCE` characters."""
    if isinstance(texts, str):
        raise TypeError("texts is a single string: give a list or another iterable of strings.")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"Text {number} is of type {type(text).__name__}: every text has to be a string.")
        for line in _LINE_END.split(text):
            if line and not line.isspace():
                yield from _SENTENCE.findall(line)


def _keep_failure(sentences: Iterable[str], failure: list[BaseException]) -> Iterator[str]:
    try:
        yield from sentences
    except (Exception, KeyboardInterrupt) as error:
        failure.append(error)
        raise


def _explain(message: str, vocab_size: int) -> str:
    """Put sentencepiece's message on an ill-fitting vocabulary size in plain words; leave any other as it is."""
    if match := re.search(r"Vocabulary size too high \(\d+\).*<= (\d+)", message):
        return (
            f"vocab_size is {vocab_size}, too large for this text: the largest size that works on it is {match[1]}; "
            "use that or less, or more text."
        )
    if match := re.search(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"vocab_size is {vocab_size}, too small for this text: its characters alone need {match[1]}; use more, or "
            "lower character_coverage."
        )
    return f"sentencepiece could not train on this text: {message}"


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """All pairs of pieces that join into a piece, in the order in which SentencePiece would join them.

    SentencePiece's BPE joins the neighbors that make the best-ranked piece, however they are split; `tokenizers` wants
    the pairs themselves, ranked.
    """
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def _read_file(path: Path, kind: str, text_column: str) -> Iterator[str]:
    # Files one after another: each is opened when the one before is through.
    rows = read_files([path], streaming=True)
    yield from _column_texts(rows, "text" if kind == "txt" else text_column, str(path))


def _column_texts(rows: Iterable[dict], text_column: str, where: str) -> Iterator[str]:
    for row in rows:
        if text_column not in row:
            raise InputError(f"{where} has no column {text_column!r}; name one of its columns: {', '.join(row)}.")
        text = row[text_column]
        if text is None:
            continue
        if not isinstance(text, str):
            raise InputError(f"Column {text_column!r} of {where} holds {type(text).__name__} values, not text.")
        if text and not text.isspace():
            yield text


def _import_sentencepiece():
    # Only training needs it: a trained tokenizer has to load where it is not installed.
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError("Training a tokenizer needs sentencepiece: pip install 'hf-gmlp[train]'.") from error
    return sentencepiece
