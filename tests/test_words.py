import subprocess
import sys

from . import words


def test_phrases_and_names_are_found(tmp_path):
    path = tmp_path / "page.md"
    for text, numbers in (
        ("A data\nset, drawn at random.\n\nfor path, shown in pairs:\n    one, row = pair\n", [1, 2, 4, 5]),
        ("Datasets are sampled.\npath, is_token = pair\nOne of them is shown in bold.\n", []),
    ):
        path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, words.__file__, path], capture_output=True, text=True)
        assert [int(line.removeprefix(f"{path}:").split(":")[0]) for line in done.stderr.splitlines()] == numbers
        assert done.returncode == bool(numbers)
