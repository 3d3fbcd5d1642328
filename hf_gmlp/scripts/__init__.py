"""The training scripts: `hf-gmlp run mlm`, `python -m hf_gmlp.scripts.mlm`, or run_mlm.py in a checkout."""

import sys

from .. import errors


def need_extra():
    errors.need(*errors.OPTIONAL["hf-gmlp[train]"])


# `python -m hf_gmlp.scripts.mlm` imports this package outside of the script's own `errors.run`.
if sys.argv[:1] == ["-m"]:
    errors.run(need_extra)
else:
    need_extra()
