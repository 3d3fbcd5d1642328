"""Arguments of causal language modeling."""

from dataclasses import dataclass

from ...training.arguments import flag
from ..text import TextArguments


@dataclass
class CLMArguments(TextArguments):
    """The text to train a causal language model on."""

    block_size: int | None = flag("Tokens per block; by default, the model's n.", interval="[2, inf)")
