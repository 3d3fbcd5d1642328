"""The common tests of transformers, run against our models; docs/conformance.md tells what and how."""
