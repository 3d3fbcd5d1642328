"""Replacement of the tests of `generate`, which the source archive lacks; tests/models/test_causal.py tests it."""


class GenerationTesterMixin:
    """A base that the common tests require of classes that can generate text."""
