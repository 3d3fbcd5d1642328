#!/usr/bin/env python
"""`hf-gmlp run glue`, for a checkout."""

from hf_gmlp import errors


def main():
    from hf_gmlp.scripts.glue import main

    main()


if __name__ == "__main__":
    errors.run(main)
