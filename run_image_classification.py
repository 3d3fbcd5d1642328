#!/usr/bin/env python
"""`hf-gmlp run image_classification`, for a checkout."""

from hf_gmlp import errors


def main():
    from hf_gmlp.scripts.image_classification import main

    main()


if __name__ == "__main__":
    errors.run(main)
