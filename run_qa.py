#!/usr/bin/env python
"""`hf-gmlp run qa`, for a checkout."""

from hf_gmlp import errors, tasks

if __name__ == "__main__":
    errors.run_command(lambda: tasks.run_task("qa"))
