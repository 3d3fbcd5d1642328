"""Replacement of the export tests, which the source archive lacks; tests/tools/test_export.py tests the exports."""


class ExportTesterMixin:
    """A base of `ModelTesterMixin`."""
