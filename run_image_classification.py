#!/usr/bin/env python
"""`hf-gmlp run image_classification`, for a checkout."""

from hf_gmlp import errors, tasks

if __name__ == "__main__":
    errors.run_command(lambda: tasks.run_task("image_classification"))
