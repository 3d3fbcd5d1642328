"""The paper's tokenizer (Appendix A.2: "32K cased SentencePieces"), trained on any text, and helpers for any tokenizer.

A trained tokenizer is made of stock parts of `tokenizers`, so a plain `AutoTokenizer.from_pretrained(folder)` loads it.
A space belongs to the word after it: "The fox" gives "The" and " fox". It is a real space, not SentencePiece's "▁":
`tokenizers` leaves white space out of the offsets, by which transformers finds whole words to mask, and a "▁" in the
text survives.
"""

import io
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .errors import InputError, first_line

# The position in this list is the id; GMLPConfig's defaults name the same ids.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# No token crosses a word. A word starts at every space, and each line end or tab is a word.
WORD_PATTERN = r"[\n\t\r]| ?[^ \n\t\r]+| "
# The text "<0x0A>" must not become the byte token of that name, nor "[CLS]" where special tokens are switched off: cut
# at the x and after the bracket. No learned token crosses a cut: SentencePiece separates letters from digits and signs.
TOKEN_NAME_PATTERN = r"(?<=<0)x(?=[0-9A-F]{2}>)|(?<=\[)(?:PAD|UNK|CLS|SEP|MASK)(?=\])"
# Where a text is cut for training. The vocabulary has no control characters, lone surrogates, U+2581 or U+2585; these
# two are sentencepiece's own (it would drop a whole sentence for one U+2585).
_LINE_END = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u2581\u2585\ud800-\udfff]+")
# sentencepiece skips sentences of more than 4,192 bytes; a character takes at most four.
_SENTENCE = re.compile(r".{1,1000}(?= |$)|.{1,1000}")


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int = 32000,
    character_coverage: float = 0.9995,
    input_sentence_size: int = 10_000_000,
    max_length: int = 512,
    lowercase: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer with [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4 and BERT's template and segment ids.

    The same texts in the same order give the same tokenizer.

    Args:
        texts: Strings of any length, read once, and cut so that no part is left out.
        vocab_size: Number of tokens, including the special tokens and 256 bytes, which spell unknown characters.
        character_coverage: Fraction of the characters that get their own token, 0.98 to 1; printable ASCII always does.
        input_sentence_size: Number of lines to train on, above 100, or 0 for all. A longer corpus is read to its end
            and sampled (sentencepiece fixes the seed). Ten million lines of web text take some gigabytes of memory.
        max_length: The `model_max_length` of the tokenizer.
        lowercase: Whether the tokenizer lowercases its text, as that of bert-base-uncased.

    Raises:
        InputError: If an option is out of range, there is no text, or `vocab_size` does not fit the corpus (the message
            says which size would).
    """
    options: dict[str, Any] = {"character_coverage": character_coverage, "input_sentence_size": input_sentence_size}
    model = train_sentencepiece(texts, lowercase, vocab_size=vocab_size, **options)
    return convert_sentencepiece(model, max_length, lowercase)


def train_sentencepiece(texts: Iterable[str], lowercase: bool = False, **options: Any) -> bytes:
    """Train the unigram model of SentencePiece behind `train_tokenizer`, and return it serialized."""
    # A trained tokenizer loads without sentencepiece.
    import sentencepiece as spm

    model = io.BytesIO()
    pad, unk, cls, sep, mask = SPECIAL_TOKENS
    tokens: dict[str, Any] = {"pad_id": 0, "pad_piece": pad, "unk_id": 1, "unk_piece": unk, "control_symbols": [mask]}
    tokens |= {"bos_id": 2, "bos_piece": cls, "eos_id": 3, "eos_piece": sep}
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=_sentences(texts, lowercase),
            model_writer=model,
            model_type="unigram",
            byte_fallback=True,
            # A tokenizer trained on prose still reads code and markup.
            required_chars="".join(map(chr, range(0x21, 0x7F))),
            **tokens,
            # No word spans two lines, and line ends are known without bytes.
            user_defined_symbols=["\n", "\t", "\r"],
            # These three make encoding lossless: the text stays as it is, and no space is added or dropped.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            shuffle_input_sentence=True,
            # The sums depend on the number of threads: fixed, so that every machine gets the same result.
            num_threads=16,
            # Errors only, not hundreds of lines of progress.
            minloglevel=2,
            **options,
        )
    except (RuntimeError, ValueError) as error:
        # The first line names an exception of the texts, or a condition in sentencepiece's source and what to change.
        reason = first_line(error).rpartition("] ")[2] or first_line(error)
        reason = "there is no text." if "sentences_.empty()" in reason else reason
        raise InputError(f"The tokenizer cannot be trained: {reason}") from error
    return model.getvalue()


def _sentences(texts: Iterable[str], lowercase: bool) -> Iterator[str]:
    """Yield the lines of the texts, cut as sentencepiece needs them, and lowercased as the tokenizer will do it."""
    for line in itertools.chain.from_iterable(map(_LINE_END.split, texts)):
        if line and not line.isspace():
            yield from _SENTENCE.findall(normalizers.Lowercase().normalize_str(line) if lowercase else line)


def convert_sentencepiece(model: bytes, max_length: int = 512, lowercase: bool = False) -> PreTrainedTokenizerFast:
    """Make a fast tokenizer that gives the same ids as a model of `train_sentencepiece`."""
    import sentencepiece as spm

    processor = spm.SentencePieceProcessor(model_proto=model)
    scores = [(processor.id_to_piece(i).replace("▁", " "), processor.get_score(i)) for i in range(len(processor))]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=1, byte_fallback=True))
    pad, unk, cls, sep, mask = SPECIAL_TOKENS
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    words = pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated")
    names = pre_tokenizers.Split(Regex(TOKEN_NAME_PATTERN), behavior="merged_with_next")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, names])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    # It leaves white space out of the offsets, and changes no token.
    trim = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    single, pair = f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(cls, 2), (sep, 3)])
    tokenizer.post_processor = processors.Sequence([trim, template])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{"pad_token": pad, "unk_token": unk, "cls_token": cls, "sep_token": sep},
        # As in GMLPConfig, a language model starts at [CLS] and stops at [SEP].
        **{"bos_token": cls, "eos_token": sep},
        # The space belongs to the word, so a mask that replaces a word must take the space before it.
        mask_token=AddedToken(mask, lstrip=True, normalized=False, special=True),
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path):
    """Save a tokenizer, and replace each file atomically: no process that opens it reads a part of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="_saving-", dir=folder) as temporary:
        tokenizer.save_pretrained(temporary)
        for path in Path(temporary).iterdir():
            os.replace(path, folder / path.name)


def open_ended(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer such as BERT's that does not end a text, and so a prompt, with a special token.

    A tokenizer that ends no text is returned unchanged.
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


def padding_for(config: PreTrainedConfig, pad_to_max_length: bool = False) -> str:
    """Return how a batch is padded. A model that sees its padding needs as much of it in every batch."""
    return "max_length" if pad_to_max_length or not getattr(config, "mask_padding", True) else "longest"


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that separates documents for a causal language model; an InputError if there is none."""
    token = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if token is None:
        raise InputError("The tokenizer has no end-of-text token: set its eos_token, and save it again.")
    return token
