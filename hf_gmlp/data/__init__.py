"""Corpora, tokenizer training, packing, question-answering windows and image transforms."""
