#!/usr/bin/env python
"""`hf-gmlp run clm`, for a checkout."""

from hf_gmlp import errors
from hf_gmlp.tasks import run


def main():
    errors.run(lambda: run("clm"))


if __name__ == "__main__":
    main()
