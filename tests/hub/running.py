"""Runs the scripts one after another. test_publish.py runs this in a process with a Hub at HF_ENDPOINT.

Writes the last line of each script that failed to a file.
"""

import contextlib
import io
import json
import runpy
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
# As if called in the folder of the scripts.
sys.path.insert(0, str(ROOT))


def main(source: Path, target: Path):
    results = {}
    for name, (script, *flags) in json.loads(source.read_text()).items():
        sys.argv = [script, *flags, "--use_cpu", "--disable_tqdm", "true", "--report_to", "none"]
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                runpy.run_path(str(ROOT / script), run_name="__main__")
            results[name] = None
        except SystemExit:
            results[name] = errors.getvalue().splitlines()[-1]
        except Exception:
            results[name] = traceback.format_exc()
    target.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
