"""The Python language reference, a text that every Python includes."""

import re
from pydoc_data.topics import topics


def python_reference() -> list[str]:
    """Return the topics of the Python reference, with one line per paragraph."""
    documents = []
    for _, text in sorted(topics.items()):
        paragraphs = (re.sub(r"\s+", " ", paragraph).strip() for paragraph in re.split(r"\n\s*\n", text))
        documents.append("\n".join(paragraph for paragraph in paragraphs if re.search(r"[a-z]{2}", paragraph)))
    return documents
