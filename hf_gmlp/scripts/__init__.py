"""The training scripts: `hf-gmlp run mlm`, `python -m hf_gmlp.scripts.mlm`, or run_mlm.py in a checkout."""

import sys

from .. import errors


def need_extra():
    errors.need(*errors.OPTIONAL["hf-gmlp[train]"])


# `python -m hf_gmlp.scripts.mlm` imports this package outside of the script's own `errors.run`.
errors.run(need_extra) if sys.argv[:1] == ["-m"] else need_extra()
