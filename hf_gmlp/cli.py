"""The command `hf-gmlp`: what is not training."""

import argparse
from pathlib import Path

from . import errors
from ._version import __version__
from .errors import InputError


def main(argv: list[str] | None = None):
    """Runs `hf-gmlp` with the given words, or with those of the command line."""
    parser = argparse.ArgumentParser(
        prog="hf-gmlp",
        description="gMLP and aMLP for Hugging Face Transformers: what is not training.",
        epilog="To train, use the run_*.py scripts.",
    )
    parser.add_argument("--version", action="version", version=f"hf-gmlp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser("presets", help="list the architectures of the paper, or show one")
    command.add_argument("name", nargs="?", help="a preset to show in full")
    command.add_argument("--count", action="store_true", help="count parameters and FLOPs beside the paper's numbers")
    command.add_argument(
        "--export",
        metavar="DIR",
        help="write config and model code into a new folder, for scripts that know nothing of hf_gmlp "
        "(--config_name DIR --trust_remote_code)",
    )
    command.set_defaults(run=presets)

    command = commands.add_parser("train-tokenizer", help="train a SentencePiece tokenizer on files or on a data set")
    # Importing the training stack takes seconds: only where it is needed.
    from .data import tokenizer

    tokenizer.add_arguments(command)
    command.set_defaults(run=tokenizer.main)

    command = commands.add_parser("plot", help="draw what a model has learned")
    plots = command.add_subparsers(title="plots", metavar="PLOT", required=True)
    plot = plots.add_parser("filters", help="spatial filters of every block (paper, Figure 4)")
    plot.add_argument("checkpoint", help="folder or name of a trained model")
    plot.add_argument("--output", default="filters.png", help="the picture to write (default: %(default)s)")
    plot.set_defaults(run=plot_filters)

    arguments = parser.parse_args(argv)
    errors.run(lambda: arguments.run(arguments))


def presets(arguments: argparse.Namespace):
    """Lists the presets, shows one, or exports one."""
    from .configuration_gmlp import GMLPConfig, GMLPVisionConfig
    from .presets import PRESETS, preset_path

    def config_of(name: str, **fields) -> GMLPConfig | GMLPVisionConfig:
        vision = GMLPVisionConfig.model_type in (preset_path(name) / "config.json").read_text(encoding="utf-8")
        return GMLPVisionConfig.from_preset(name, **fields) if vision else GMLPConfig.from_preset(name)

    if arguments.name is not None and arguments.name not in PRESETS:
        raise InputError(f"There is no preset {arguments.name!r}. Choose one of: {', '.join(PRESETS)}.")
    if arguments.export is not None:
        if arguments.name is None:
            raise InputError("Say which preset to export: hf-gmlp presets NAME --export DIR.")
        if Path(arguments.export).exists():
            raise InputError(f"{arguments.export} exists already; choose a new folder.")
        config_of(arguments.name).save_pretrained(arguments.export)
        print(f"{arguments.name} is in {arguments.export}: use it as --config_name with --trust_remote_code.")
        return

    header = f"{'name':<20}{'paper':<15}{'L':>4}{'d_model':>8}{'d_ffn':>6}{'n':>5}{'attn':>5}{'params':>9}{'FLOPs':>10}"
    counted = f"{'counted':>10}{'counted':>11}" if arguments.count else ""
    print(header + counted)
    for preset in PRESETS.values() if arguments.name is None else [PRESETS[arguments.name]]:
        config = config_of(preset.name, num_labels=1000)
        flops = f"{preset.flops:.1f} B" if preset.flops else "-"
        line = (
            f"{preset.name:<20}{preset.paper:<15}{config.num_hidden_layers:>4}{config.hidden_size:>8}"
            f"{config.intermediate_size:>6}{config.max_position_embeddings:>5}{config.attention_size or '-':>5}"
            f"{preset.parameters:>7g} M{flops:>10}"
        )
        if arguments.count:
            from .analysis.counts import paper_flops, paper_parameters

            line += f"{paper_parameters(config) / 1e6:>8.2f} M{paper_flops(config) / 1e9:>9.1f} B"
        print(line)
    if arguments.name is not None:
        preset = PRESETS[arguments.name]
        print(f"\n{preset.note}\n" if preset.note else "")
        print((preset_path(arguments.name) / "config.json").read_text(encoding="utf-8").strip())
        print(f"\nfolder: {preset_path(arguments.name)}")
    else:
        print("\nparams and FLOPs (of one forward pass) as the paper prints them; --count counts ours beside them.")


def plot_filters(arguments: argparse.Namespace):
    """Draws the spatial filters of a checkpoint."""
    from .analysis.filters import load_spatial_model, plot_filters

    plot_filters(load_spatial_model(arguments.checkpoint), arguments.output)
    print(f"The spatial filters of {arguments.checkpoint} are in {arguments.output}.")


if __name__ == "__main__":
    main()
