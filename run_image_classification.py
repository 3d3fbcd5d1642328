#!/usr/bin/env python
"""`hf-gmlp run image_classification`, for a checkout."""

from hf_gmlp import errors
from hf_gmlp.tasks import run


def main():
    errors.run(lambda: run("image_classification"))


if __name__ == "__main__":
    main()
