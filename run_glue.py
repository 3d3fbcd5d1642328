#!/usr/bin/env python
"""`hf-gmlp run glue`, for a checkout."""

from hf_gmlp import errors, tasks


def main():
    errors.run(lambda: tasks.run("glue"))


if __name__ == "__main__":
    main()
