"""`hf-gmlp presets`: print the architectures of the paper."""

import json

from transformers import AutoConfig

from ..presets import PRESETS, Preset, preset_path
from .analysis.counts import paper_flops, paper_parameters


def show_presets(name: str | None, count: bool):
    """Print a table of all presets, or one preset with its config.

    Args:
        name: The preset to show.
        count: Whether to add the counted parameters and FLOPs.
    """
    folder = preset_path(name) if name else None
    header = f"{'name':<25}{'paper':<15}{'L':>4}{'d_model':>8}{'d_ffn':>6}{'n':>5}{'attn':>5}{'params':>9}{'FLOPs':>10}"
    print(header + (f"{'counted':>10}{'counted':>11}" if count else ""))
    for preset in [PRESETS[name]] if name else PRESETS.values():
        row = columns(preset)
        if count:
            config = AutoConfig.from_pretrained(preset_path(preset.name), num_labels=1000)
            row += f"{paper_parameters(config) / 1e6:>8.2f} M{paper_flops(config) / 1e9:>9.1f} B"
        print(row)
    if folder is None:
        print("\nparams and FLOPs (one forward pass) are those printed in the paper; --count adds those counted here.")
    else:
        note = f"\n{preset.note}\n" if preset.note else ""
        print(f"{note}\n{(folder / 'config.json').read_text(encoding='utf-8').strip()}\n\nfolder: {folder}")


def columns(preset: Preset) -> str:
    """Return the row of a preset: its sizes, and its parameters and FLOPs as the paper prints them."""
    fields = json.loads((preset_path(preset.name) / "config.json").read_text(encoding="utf-8"))
    tokens = fields.get("max_position_embeddings")
    if tokens is None:
        # Image models have a [CLS] token unless they pool differently.
        tokens = (fields["image_size"] // fields["patch_size"]) ** 2 + (fields.get("pooling", "cls") == "cls")
    attention = "full" if fields["model_type"] in ("bert", "vit") else fields.get("attention_size") or "-"
    sizes = f"{fields['num_hidden_layers']:>4}{fields['hidden_size']:>8}{fields['intermediate_size']:>6}{tokens:>5}"
    flops = f"{preset.flops:.1f} B" if preset.flops else "-"
    return f"{preset.name:<25}{preset.paper:<15}{sizes}{attention:>5}{preset.parameters:>7g} M{flops:>10}"
