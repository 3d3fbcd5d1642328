"""The training scripts, a module each: `hf-gmlp run mlm`, `python -m hf_gmlp.scripts.mlm`, a checkout's run_mlm.py."""

import sys

from .. import errors


def need_extra():
    errors.need(*errors.OPTIONAL["hf-gmlp[train]"])


if sys.argv[:1] == ["-m"]:
    # `python -m hf_gmlp.scripts.mlm` comes by here before it comes to the script and its `errors.run`.
    errors.run(need_extra)
else:
    need_extra()
