#!/usr/bin/env python
"""`hf-gmlp run clm`, for a checkout."""

from hf_gmlp import errors


def main():
    from hf_gmlp.scripts.clm import main

    main()


if __name__ == "__main__":
    errors.run(main)
