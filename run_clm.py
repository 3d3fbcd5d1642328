#!/usr/bin/env python
"""`hf-gmlp run clm`, for a checkout: the script is hf_gmlp/scripts/clm.py."""

from hf_gmlp import errors


def main():
    # Within `errors.run`, which says what to install where something is missing.
    from hf_gmlp.scripts.clm import main

    main()


if __name__ == "__main__":
    errors.run(main)
