"""Arguments of masked language modeling."""

from dataclasses import dataclass

from ...training.arguments import flag
from ..text import TextArguments


@dataclass
class MLMArguments(TextArguments):
    """The text to train on, and its masking."""

    max_seq_length: int | None = flag("Tokens per sequence; by default, the model's n.", interval="[3, inf)")
    line_by_line: bool = flag("Make each line a sequence, truncated, instead of packing lines without padding.", False)
    mlm_probability: float = flag("Fraction of tokens to predict.", 0.15, interval="(0, 1)")
