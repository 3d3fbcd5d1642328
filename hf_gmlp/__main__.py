"""`python -m hf_gmlp` is the command `hf-gmlp`."""

from hf_gmlp_cli import main

if __name__ == "__main__":
    main()
