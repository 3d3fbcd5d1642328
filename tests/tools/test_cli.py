import argparse
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from transformers import AutoConfig

from hf_gmlp import list_presets
from hf_gmlp_cli import main, make_parser


def help_screens(parser, before=()):
    """Yield the arguments of all help screens except those that a script prints."""
    yield from [(*before, "--help")] if parser.add_help else []
    for action in parser._actions:
        for name, command in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():
            yield from help_screens(command, (*before, name))


@pytest.mark.parametrize("words", [*help_screens(make_parser()), ("--version",)], ids=" ".join)
def test_every_help_screen_is_printed(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert not stop.value.code and capsys.readouterr().out.startswith(("usage: hf-gmlp", "hf-gmlp "))


def test_presets_are_listed_and_shown(capsys):
    main(["presets"])
    listing = capsys.readouterr().out
    assert all(f"\n{name} " in listing for name in list_presets()) and "144 x 1024 x 4096" in listing
    main(["presets", "gmlp-linear"])
    details = capsys.readouterr().out
    assert '"spatial_gating": "linear"' in details


def test_scripts_run_by_name(tmp_path, monkeypatch, capsys):
    """Scripts run in any folder with the project's recipes, and the model card shows the command."""
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
    assert "No such file or directory: 'paper/recipes/table6/amlp-bass.yaml'" in capsys.readouterr().err


def test_recipes_are_listed(capsys):
    main(["recipes"])
    listing, _, folder = capsys.readouterr().out.rpartition("\nfolder: ")
    lines = listing.strip().splitlines()
    assert "    Table 6: aMLP-base; perplexity 3.95 in the paper." in lines
    names = [line for line in lines if not line.startswith(" ")]
    assert len(names) > 60 and all(Path(folder.strip(), name).is_file() for name in names)


def test_help_and_recipes_import_no_models():
    """These commands do not import torch and transformers, which takes seconds."""
    code = "import sys, hf_gmlp_cli; hf_gmlp_cli.main(['recipes']); hf_gmlp_cli.make_parser(); "
    code += "assert not {'hf_gmlp', 'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("flags", [["--model_name_or_path", "m", "--train_file", "a.csv"], ["model"]])
def test_the_form_of_classify_is_named(flags, capsys):
    with pytest.raises(SystemExit):
        main(["classify", *flags])
    assert "hf-gmlp classify MODEL FILE_OR_FOLDER --output FOLDER" in capsys.readouterr().err


def test_values_of_classify_are_checked(capsys):
    for flags in (["--fine_tune", "yes"], ["--class_weights", "equal"], ["--pair_column_names", "a"]):
        with pytest.raises(SystemExit):
            main(["classify", "model", "data.csv", "--output", "out", *flags])
        assert flags[0] in capsys.readouterr().err
