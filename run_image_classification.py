#!/usr/bin/env python
"""`hf-gmlp run image_classification`, for a checkout."""

from hf_gmlp import errors, tasks


def main():
    errors.run_command(lambda: tasks.run_task("image_classification"))


if __name__ == "__main__":
    main()
