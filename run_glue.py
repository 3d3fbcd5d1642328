#!/usr/bin/env python
"""`hf-gmlp run glue`, for a checkout."""

from hf_gmlp import errors, tasks

if __name__ == "__main__":
    errors.run_command(lambda: tasks.run_task("glue"))
