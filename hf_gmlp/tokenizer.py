"""The paper's tokenizer (Appendix A.2: "32K cased SentencePieces"), trained on any text, and helpers for any tokenizer.

A trained tokenizer consists of stock parts of `tokenizers`, so `AutoTokenizer.from_pretrained(folder)` loads it.
A space belongs to the word after it: "The fox" gives "The" and " fox". It is a real space, not SentencePiece's "▁", so
that `tokenizers` leaves it out of the offsets of answers and entities, and that a "▁" in a text is preserved.
"""

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .errors import InputError, first_line

# The position in this list is the id, as in the defaults of GMLPConfig.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# No token spans two words. Every space starts a word, and each line end or tab is a word.
WORD_PATTERN = r"[\n\t\r]| ?[^ \n\t\r]+| "
# The text "<0x0A>" must not become the byte token of that name, nor "[CLS]" a special token if those are switched off,
# so they are split at the x and after the bracket. No learned token spans such a split, since SentencePiece separates
# letters from digits and signs.
TOKEN_NAME_PATTERN = r"(?<=<0)x(?=[0-9A-F]{2}>)|(?<=\[)(?:PAD|UNK|CLS|SEP|MASK)(?=\])"
# Texts are split here for training, so that the vocabulary has no control characters, lone surrogates, U+2581 or
# U+2585. sentencepiece uses the last two itself, and would drop a whole sentence with a U+2585.
_LINE_END = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u2581\u2585\ud800-\udfff]+")
# sentencepiece skips sentences of more than 4,192 bytes. A character has at most four.
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
        texts: Strings of any length, which are read once. All of their text is used.
        vocab_size: Maximum number of tokens, including the special tokens and 256 bytes, which encode unknown
            characters. Few texts give fewer tokens.
        character_coverage: Fraction of the characters with their own token, 0.98 to 1. Printable ASCII always has them.
        input_sentence_size: Maximum number of lines to train on, above 100, or 0 for all. A longer corpus is read to
            its end and sampled (sentencepiece fixes the seed). Ten million lines of web text need some gigabytes.
        max_length: The `model_max_length` of the tokenizer.
        lowercase: Whether the tokenizer lowercases its text, as that of bert-base-uncased.

    Raises:
        InputError: If an option is out of range, there is no text, or `vocab_size` is below the number of characters.
    """
    options: dict[str, Any] = {"character_coverage": character_coverage, "input_sentence_size": input_sentence_size}
    model = train_sentencepiece(texts, lowercase, vocab_size=vocab_size, **options)
    return convert_sentencepiece(model, max_length, lowercase)


def train_sentencepiece(texts: Iterable[str], lowercase: bool = False, **options: Any) -> bytes:
    """Train SentencePiece's unigram model for `train_tokenizer`, and return it serialized."""
    # Only training needs sentencepiece.
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
            # A tokenizer that is trained on prose can also encode code and markup.
            required_chars="".join(map(chr, range(0x21, 0x7F))),
            **tokens,
            # Line ends have their own tokens, since no word spans two lines.
            user_defined_symbols=["\n", "\t", "\r"],
            # These three options make the encoding lossless: no character is replaced, added or dropped.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            hard_vocab_limit=False,
            shuffle_input_sentence=True,
            # Rounding depends on the number of threads, which is fixed so that all machines give the same result.
            num_threads=16,
            # Show errors only, not hundreds of lines of progress.
            minloglevel=2,
            **options,
        )
    except (RuntimeError, ValueError) as error:
        # The first line is that of an exception from the texts, or ends in what sentencepiece advises to change.
        reason = first_line(error).rpartition("] ")[2] or first_line(error)
        reason = "there is no text." if "sentences_.empty()" in reason else reason
        raise InputError(f"The tokenizer cannot be trained: {reason}") from error
    return model.getvalue()


def _sentences(texts: Iterable[str], lowercase: bool) -> Iterator[str]:
    """Yield the lines of the texts, split as sentencepiece needs them, and lowercased as by the tokenizer."""
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
    # This leaves white space out of the offsets, and changes no token.
    trim = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    single, pair = f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(cls, 2), (sep, 3)])
    tokenizer.post_processor = processors.Sequence([trim, template])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{"pad_token": pad, "unk_token": unk, "cls_token": cls, "sep_token": sep},
        # As in GMLPConfig, a language model starts with [CLS] and stops at [SEP].
        **{"bos_token": cls, "eos_token": sep},
        # A space belongs to the word after it, so a [MASK] in place of a word also replaces the space before it.
        mask_token=AddedToken(mask, lstrip=True, normalized=False, special=True),
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def open_ended(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer such as BERT's that adds no special token to a text, so that it suits prompts.

    A tokenizer that adds no special token at the end is returned unchanged.
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
        # Segments are left out, since some causal models would add an embedding for them.
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def padding_for(config: PreTrainedConfig, pad_to_max_length: bool = False) -> str:
    """Return how to pad a batch: to a fixed length if the model's output depends on the padding."""
    return "max_length" if pad_to_max_length or not getattr(config, "mask_padding", True) else "longest"


def text_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of tokens to which texts are truncated for a trained model."""
    return min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or 512)


def language_note(
    texts: Iterable[Sequence[str]], ids: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """Return a line if the tokenizer was made for another language than texts or pairs of texts with these token `ids`:
    many of its tokens are unknown, or there are over 1.7 tokens a word.
    """
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    words = sum(len(part.split()) for parts in texts for part in parts)
    tokens = sum(token not in special for row in ids for token in row)
    unknown = sum(token == tokenizer.unk_token_id for row in ids for token in row)
    if unknown <= 0.1 * tokens and tokens <= 1.7 * words:
        return []
    evidence = f"{tokens / max(words, 1):.1f} tokens a word"
    if unknown > 0.1 * tokens:
        evidence = f"{unknown} of {tokens} tokens are unknown"
    return [f"The tokenizer was made for another language or kind of text ({evidence}): expect low scores."]


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that separates documents for a causal language model; an InputError if there is none."""
    token = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if token is None:
        raise InputError("The tokenizer has no end-of-text token: set its eos_token, and save it again.")
    return token
