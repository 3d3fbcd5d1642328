"""Run the common tests of transformers on the project's models; see docs/log/checks.md."""
