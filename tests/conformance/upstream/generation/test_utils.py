"""Stands in for the tests of `generate`, which our bidirectional models do not have."""


class GenerationTesterMixin:
    """Empty: the common tests only ask whether a test class inherits from it."""
