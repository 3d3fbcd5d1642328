"""Report everyday words for which the field has a term, as `make lint` does: `python tests/words.py FILE ...`."""

import re
import sys
from pathlib import Path

# Patterns of phrases, in which a space is any white space -> what to write.
TERMS = {
    r"yardsticks?|comparators?": "baseline; baseline model",
    r"data sets?": "dataset",
    r"far from (the )?initial( ones)?": "perturbed",
    r"counting (both )?neighbors": "bigram-context",
    r"shares? of": "fraction of",
    r"drawn": "sampled; plotted",
    r"in the box|of another ending": "bundled; with an unsupported file extension",
    r"stands? in for|steps? aside": "replaces; falls back",
    r"gets? right": "classifies correctly",
    r"places? of (a|the) tokens?|tokens read at once": "position; sequence length",
    r"damaged|whole (files?|checkpoints?)|whole or not there": "corrupted; complete; written atomically",
    r"(has|have) (read|learned of)": "was trained on",
    r"there is no \w+ to (load|open|read) in": "Cannot load ... from",
    r"training cannot begin|say what to do": "Cannot start training; Nothing to do: pass",
    r"wants? (\w+ing|to be \w+ed)": "must be",
    r"wait for each other": "are handled one at a time",
    r"what (a|an) \w+ becomes|# much text": "Output format; Large corpora",
}
# Names of variables that say nothing about the value.
NOUN = r"(\w+, )*(one|found|shown|taken|told|given|said)(, \w+)*"
NAMES = rf"(?m)^ *(for {NOUN} in|{NOUN} =) "


def findings(text: str) -> list[str]:
    """Return the findings in the text of a file, each with its line."""
    patterns = {rf"(?i)(?<![\w-])({words})(?!\w)".replace(" ", r"\s+"): term for words, term in TERMS.items()}
    patterns[NAMES] = "a noun, such as `row` or `path`"
    matches = [(match, term) for pattern, term in patterns.items() for match in re.finditer(pattern, text)]
    return [f"{text.count(chr(10), 0, match.start()) + 1}: {match[0].strip()!r}: {term}" for match, term in matches]


if __name__ == "__main__":
    lines = [f"{path}:{line}" for path in sys.argv[1:] for line in findings(Path(path).read_text(encoding="utf-8"))]
    sys.exit("\n".join(lines) or None)
