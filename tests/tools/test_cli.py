import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from transformers import AutoConfig

import hf_gmlp
from hf_gmlp import list_presets
from hf_gmlp.tools.cli import main, make_parser


def help_screens(parser, before=()):
    """Yield the arguments of the help of every command and sub-command."""
    yield (*before, "--help")
    for action in parser._actions:
        for name, command in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():
            yield from help_screens(command, (*before, name))


SCREENS = [*help_screens(make_parser()), ("--version",), ("presets",), ("presets", "amlp-base"), ("recipes",)]


def as_command(script: str, folder: Path) -> str:
    """Return what a script prints in a fresh process that takes itself for the command `hf-gmlp`."""
    script = f"import sys\nsys.argv = ['/usr/bin/hf-gmlp']\n{script}"
    environment = os.environ | {"PYTHONPATH": str(Path(hf_gmlp.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def screens(tmp_path_factory):
    """{arguments: (text, modules imported so far)}: all help screens and lists, printed by one process."""
    script = f"""
import contextlib, io, json, runpy

# What pip installs.
start = "from hf_gmlp.tools.cli import main\\nraise SystemExit(main())\\n"
with open("hf-gmlp", "w") as file:
    file.write(start)
screens = []
for words in {SCREENS}:
    sys.argv[1:], text = words, io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            runpy.run_path("hf-gmlp", run_name="__main__")
        except SystemExit as stop:
            assert not stop.code, words
    screens.append((words, text.getvalue(), list(sys.modules)))
print(json.dumps(screens))
"""
    printed = json.loads(as_command(script, tmp_path_factory.mktemp("screens")))
    return {tuple(words): (text, modules) for words, text, modules in printed}


@pytest.mark.parametrize("words", SCREENS, ids=" ".join)
def test_help_and_lists_import_neither_torch_nor_transformers(screens, words):
    text, modules = screens[words]
    assert text.startswith("usage: hf-gmlp") if "--help" in words else text.strip()
    assert not {"torch", "transformers", "huggingface_hub", "datasets", "numpy"} & set(modules)


@pytest.mark.slow
def test_the_command_counts_a_preset(tmp_path):
    """It registers the models before any work."""
    script = """
from hf_gmlp.tools.cli import main
assert "transformers" not in sys.modules
main(["presets", "gmlp-linear", "--count"])
"""
    assert "92.17 M" in as_command(script, tmp_path)


def test_presets_are_listed_and_shown(capsys):
    main(["presets"])
    listing = capsys.readouterr().out
    assert all(f"\n{name} " in listing for name in list_presets()) and "1091.3 B" in listing
    main(["presets", "gmlp-linear", "--count"])
    shown = capsys.readouterr().out
    assert "92.17 M" in shown and "d_ffn = 2048" in shown and '"spatial_gating": "linear"' in shown
    assert " full " not in shown
    main(["presets", "bert-base"])
    assert " full " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["presets", "gmlp-huge"], "gmlp-huge"),
        (["plot", "filters", "/nowhere/at/all"], "/nowhere/at/all"),
        (["plot", "attention", "model", "--sentences", "a", "b", "c"], "got 3"),
    ],
)
def test_bad_input_is_one_sentence(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and "Traceback" not in error


def test_scripts_run_by_name(tmp_path, monkeypatch, capsys):
    """From any folder, with the project's recipes; the card of the model shows the command."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(text for _, text in sorted(topics.items())[:20]))
    monkeypatch.setattr(sys, "argv", sys.argv)
    flags = ["--train_file", "text.txt", "--output_dir", "out", "--use_cpu", "--report_to", "none", "--max_steps", "1"]
    main(["run", "mlm", "paper/recipes/table6/amlp-base.yaml", "recipes/smoke.yaml", *flags])
    card = Path("out", "README.md").read_text()
    assert "\nhf-gmlp run mlm paper/recipes/table6/amlp-base.yaml recipes/smoke.yaml --train_file" in card
    assert AutoConfig.from_pretrained("out").attention_size == 64
    with pytest.raises(SystemExit):
        main(["run", "mlm", "paper/recipes/table6/amlp-bass.yaml", *flags])
    assert "There is no file paper/recipes/table6/amlp-bass.yaml" in capsys.readouterr().err


def test_recipes_are_listed(capsys):
    main(["recipes"])
    listing, _, folder = capsys.readouterr().out.rpartition("\nfolder: ")
    assert "Table 6: aMLP-base" in listing
    assert all(Path(folder.strip(), line.split()[0]).is_file() for line in listing.strip().splitlines())
