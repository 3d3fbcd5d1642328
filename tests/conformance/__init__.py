"""Run the common tests of transformers on the project's models; see docs/conformance.md."""
