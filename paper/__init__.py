"""The paper's tables, figures and experiments: `python -m paper --help`. hf_gmlp imports nothing from here."""
