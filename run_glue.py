#!/usr/bin/env python
"""`hf-gmlp run glue`, for a checkout."""

from hf_gmlp import errors
from hf_gmlp.tasks import run

if __name__ == "__main__":
    errors.run(lambda: run("glue"))
