#!/usr/bin/env python
"""`hf-gmlp run qa`, for a checkout."""

from hf_gmlp import errors, tasks


def main():
    errors.run_command(lambda: tasks.run_task("qa"))


if __name__ == "__main__":
    main()
