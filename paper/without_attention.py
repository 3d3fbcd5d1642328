"""Does attention help a small BERT, is gMLP near it, and is aMLP ahead? The protocol is in docs/log/text.md.

Every training is a call of `python -m paper run mlm`. Each finished one adds a row to a file of results, which is
enough to continue on another machine: its trainings are not repeated. The same command resumes.
"""

import json
from pathlib import Path

from benchmarks.machine import circumstances
from hf_gmlp.training.run_folder import write_json

from . import protocol
from .baselines import token_losses
from .corpus import prepare_text
from .protocol import SEEDS, Setting
from .runs import read_json
from .trainings import ROOT, System, search, train

BERT = "num_hidden_layers=4,num_attention_heads=4,intermediate_size=512"
# The encoders have 0.79 to 0.80 million parameters, without attention 0.66. The embeddings of 8,000 tokens add 1.03.
SIZES = {
    "bert-relpos": ("bert-base-relpos", BERT),
    "bert-noattn": ("bert-base-relpos-noattn", BERT),
    "gmlp": ("gmlp-base", "num_hidden_layers=8,intermediate_size=512"),
    "amlp": ("amlp-base", "num_hidden_layers=6,intermediate_size=480"),
}
COMMON = "hidden_size=128,max_position_embeddings=256,sparse_prediction=true"
# aMLP's claim is judged last, so that an early end leaves complete results of the others.
GROUPS = (("bert-relpos", "bert-noattn", "gmlp"), ("amlp",))
TOKENIZER = ROOT / "checkpoints" / "amlp-mini"
# 16 rows in each step: 10.0 million tokens, and a fifth of them in a search.
LENGTH, STEPS, SEARCH_STEPS, SEARCH_SEED = 256, 2440, 488, 11
START: Setting = (2e-3, 25.0)


def compare(train_file: list[str], validation_file: list[str], output_dir: Path, results: Path):
    """Run the remaining trainings, and print the verdicts; the arguments are the flags of the command."""
    text = prepare_text(train_file, validation_file, output_dir / "data")
    flags: dict[str, object] = {"tokenizer_name": TOKENIZER, "max_seq_length": LENGTH, "save_steps": 100}
    # Single precision, since not every processor computes in bfloat16.
    flags |= {"train_file": text["train"], "validation_file": text["development"], "bf16": False}
    systems = {name: System(preset, f"{COMMON},{sizes}", flags) for name, (preset, sizes) in SIZES.items()}
    found = read_json(results) or {"baselines": token_losses(TOKENIZER, text["train"], text["evaluation"], LENGTH)}
    rows: dict[str, dict] = found.setdefault("runs", {})

    def loss(stage: str, name: str, setting: Setting, seed: int, steps: int) -> float:
        """Return the loss on the development text in a search, else on the evaluation text."""
        key = f"{stage} {name} {setting[0]:g} x{setting[1]:g} seed {seed}"
        if key not in rows:
            folder, development = systems[name].pretrain(output_dir / stage, setting, seed, steps)
            row = {"development": development}
            if stage == "reported":
                evaluation = {"model_name_or_path": folder, "validation_file": text["evaluation"], "do_eval": True}
                evaluation |= {"max_seq_length": LENGTH, "per_device_eval_batch_size": 16}
                row["evaluation"] = train(folder / "evaluation", "mlm", "", evaluation)["eval_loss"]
            rows[key] = row | circumstances("transformers")
            results.parent.mkdir(parents=True, exist_ok=True)
            write_json(results, found)
        return rows[key]["evaluation" if stage == "reported" else "development"]

    def choose(name: str) -> Setting:
        return search(START, lambda setting: loss("search", name, setting, SEARCH_SEED, SEARCH_STEPS))

    losses: dict[str, list[float]] = {}
    for group in GROUPS:
        settings = {name: choose(name) for name in group}
        for seed in SEEDS:
            for name, setting in settings.items():
                losses.setdefault(name, []).append(loss("reported", name, setting, seed, STEPS))
        print(json.dumps(verdicts(losses, found["baselines"]["bigram_context"]), indent=1), flush=True)


def verdicts(losses: dict[str, list[float]], counts: float) -> dict[str, tuple[float, float, str]]:
    """Return the mean lead, half of its interval and the verdict of each claim, by the rules of the replication.

    Args:
        losses: The loss of each seed in nats, by names of `SIZES`.
        counts: The loss of the bigram-context baseline.
    """
    findings = protocol.pretraining_findings({STEPS: losses}, counts)
    return {finding.name: (finding.lead or 0.0, finding.half_width, finding.verdict) for finding in findings}
