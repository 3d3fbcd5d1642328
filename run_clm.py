#!/usr/bin/env python
"""`hf-gmlp run clm`, for a checkout."""

from hf_gmlp import errors, tasks


def main():
    errors.run(lambda: tasks.run("clm"))


if __name__ == "__main__":
    main()
