"""Three experiments on questions that the replication left open. Their protocols are in docs/log/text.md.

Each is one command that resumes where it stopped and writes result.json into its folder.
"""

import json
import random
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import linregress
from transformers import AutoConfig

from hf_gmlp.data.files import read_files
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.language_modeling import text_rows
from hf_gmlp.training.run_folder import write_text

from . import protocol
from .baselines import sentence_accuracy, similarity_accuracy
from .corpus import prepare_text
from .counts import paper_parameters
from .extrapolation import SYSTEMS
from .protocol import CEILING_ACCURACY, MODELS, SIZES, interval, join_overrides
from .replicate import make_tokenizer, pretraining_flags
from .runs import read_json
from .trainings import ROOT, System, call, map_jobs, train

# ---------------------------------------------------------------------------------------------------------------------
# Scaling: gMLPs and BERTs of four depths

SLOPE_MARGIN, SCALING_STEPS = 0.03, 3000
DEPTHS = {"gmlp": (0.5, 1, 2, 4), "bert-relpos": (0.5, 1, 2, 4)}
# These take two thirds of the time that single precision takes without compilation.
FASTER = {"use_cpu": True, "bf16": True, "torch_compile": True}
# The models in the claims about attention get more seeds.
MORE_SEEDS = (1, 2, 3, 4, 5, 6, 7)


def scaling(train_file: list[str], validation_file: list[str], output_dir: Path, jobs: int):
    """Compare how loss falls with size, on the text that a replication makes from the same files."""
    size = SIZES["small"]
    text = prepare_text(train_file, validation_file, output_dir / "data")
    tokenizer = make_tokenizer(size, text["train"], output_dir)
    flags = pretraining_flags(size, tokenizer, text["train"], text["development"]) | FASTER

    def study(name: str, depth: float, start: protocol.Setting) -> tuple[protocol.Setting, float, list[float]]:
        model, folder = MODELS[name], output_dir / f"depth-{depth:g}"
        layers = round(depth * (3 * size.layers if model.kind == "gmlp" else size.layers))
        sizes = join_overrides(model.overrides(size) | {"num_hidden_layers": max(1, layers)})
        system = System(model.preset, sizes, flags, "paper/recipes/replicate/pretraining.yaml", muon=0)
        # The multiplier is searched at depth 1 alone.
        chosen = system.choose(folder, SCALING_STEPS, start, multipliers=depth == 1)
        seeds = MORE_SEEDS if depth == 1 else protocol.SEEDS
        runs = [system.pretrain(folder / "reported", chosen, seed, SCALING_STEPS)[0] for seed in seeds]
        # The development text was used to choose the settings, so it cannot be used to compare the models.
        losses = [evaluate(run, text["evaluation"]) for run in runs]
        return chosen, float(paper_parameters(AutoConfig.from_pretrained(runs[0]))), losses

    first = [(name, 1.0, (1e-3, 25.0)) for name in ("gmlp", "bert-relpos", "bert-noattn")]
    results = {(name, 1.0): result for (name, *_), result in zip(first, map_jobs(study, first, jobs))}
    # The deepest models take longest, so they are first.
    others = [(name, depth) for depth in (4.0, 2.0, 0.5) for name in DEPTHS]
    plan = [(name, depth, results[name, 1][0]) for name, depth in others]
    results |= dict(zip(others, map_jobs(study, plan, jobs)))
    slopes = {name: slopes_of([results[name, depth][1:] for depth in depths]) for name, depths in DEPTHS.items()}
    low, high = interval(protocol.subtract(slopes["gmlp"], slopes["bert-relpos"]))
    rows = {f"{name}, depth {depth:g}": result for (name, depth), result in results.items()}
    # Two questions of the replication, with more seeds.
    losses = {name: results[name, 1][2] for name in ("gmlp", "bert-relpos", "bert-noattn")}
    gains = protocol.subtract(losses["bert-noattn"], losses["bert-relpos"])
    findings = [protocol.judge(protocol.ATTENTION, gains), protocol.judge_near(losses, "", SCALING_STEPS)]
    result = {"losses": rows, "slopes": slopes, "difference": (low, high)}
    result |= {finding.name: (finding.lead, finding.half_width, finding.verdict) for finding in findings}
    finish(output_dir, result | {"verdict": verdict(-high, -low, -SLOPE_MARGIN)})


def slopes_of(results: list[tuple[float, list[float]]]) -> list[float]:
    """Return the slope of log perplexity against log parameters for each seed that all sizes have in common."""
    sizes = np.log([parameters for parameters, _ in results])
    return [float(linregress(sizes, losses).slope) for losses in zip(*(losses for _, losses in results))]


def evaluate(folder: Path, text: Path) -> float:
    """Return the loss of a pretrained model on a text."""
    flags = {"model_name_or_path": folder, "validation_file": text, "do_eval": True, "max_seq_length": 32}
    return train(folder / "evaluation", "mlm", "", flags | {"per_device_eval_batch_size": 64})["eval_loss"]


# ---------------------------------------------------------------------------------------------------------------------
# Section 4.3 on real pairs: do two passages belong to one text?

# The models have the size and the vocabulary of checkpoints/amlp-mini.
PAIR_SYSTEMS = {
    "gMLP": ("gmlp-base", "num_hidden_layers=10,hidden_size=256,intermediate_size=1024,sparse_prediction=true"),
    "aMLP": ("amlp-base", "num_hidden_layers=8,hidden_size=256,intermediate_size=1024,sparse_prediction=true"),
    "BERT": (
        "bert-base-relpos",
        "num_hidden_layers=5,hidden_size=256,num_attention_heads=4,intermediate_size=1024",
    ),
}
# Learning rate and multiplier of the pretrainings, found by a search with short ones.
PAIR_SETTINGS = {"gMLP": (2e-3, 25.0), "aMLP": (2e-3, 25.0), "BERT": (1e-3, 125.0)}
# Learning rates of the fine-tunings that are tried. Those of Muon are five times as high, as in the pretrainings.
TUNING_RATES = (2.5e-4, 5e-4, 1e-3)
# Steps of a pretraining, of a fine-tuning, and of one that only searches its learning rate.
PAIR_STEPS, TUNING_STEPS, TUNING_SEARCH_STEPS = 1800, 2500, 800
# Sentences on each side. Four are the easiest, so fewer are tried only if BERT is too good with more.
DIFFICULTIES = (4, 2, 1)
DIFFICULT_ENOUGH, LARGEST_TFIDF = (0.70, 0.90), 0.60
PAIR_SEEDS = (1, 2, 3, 4, 5)
PAIR_COUNTS = {"train": 160_000, "development": 2000, "evaluation": 5000}


def real_pairs(train_file: list[str], output_dir: Path, jobs: int):
    """Pretrain three models on texts, and fine-tune them to classify whether two passages are from the same text.

    Args:
        train_file: Texts with a column "text". One in twenty is for development, and one in twenty for evaluation.
    """
    data: Any = text_rows(read_files(train_file, text_columns=["text"]), "text", "the training data")
    texts = list(data["text"])
    parts = {"development": texts[::20], "evaluation": texts[1::20]}
    parts["train"] = [text for number, text in enumerate(texts) if number % 20 > 1]
    corpus = output_dir / "train.jsonl"
    if not corpus.is_file():
        write_rows(corpus, [{"text": text} for text in parts["train"]])
    common: dict[str, Any] = {"tokenizer_name": ROOT / "checkpoints" / "amlp-mini"}
    # Made for a GPU: on two cores, all trainings take about a day.
    common |= {} if torch.accelerator.is_available() else {"use_cpu": True}

    def pretrain(name: str) -> Path:
        preset, sizes = PAIR_SYSTEMS[name]
        recipe = "paper/recipes/experiments/pairs_pretraining.yaml"
        system = System(preset, f"max_position_embeddings=256,{sizes}", common | {"train_file": corpus}, recipe)
        return system.pretrain(output_dir, PAIR_SETTINGS[name], 1, PAIR_STEPS)[0]

    def fine_tune(part: str, name: str, sentences: int, rate: float, seed: int) -> float:
        pairs = output_dir / "pairs" / f"{sentences}-sentences"
        tuned = common | {
            "model_name_or_path": pretrained[name],
            "train_file": pairs / "train.jsonl",
            "validation_file": pairs / ("evaluation.jsonl" if part == "reported" else "development.jsonl"),
            "learning_rate": rate,
            "muon_learning_rate": 5 * rate,
            "max_steps": TUNING_SEARCH_STEPS if part == "search" else TUNING_STEPS,
            "seed": seed,
        }
        folder = output_dir / part / name / f"{sentences}-{rate:g}-seed-{seed}"
        return train(folder, "glue", "paper/recipes/experiments/pairs.yaml", tuned)["eval_accuracy"]

    pretrained = dict(zip(PAIR_SYSTEMS, map_jobs(pretrain, [(name,) for name in PAIR_SYSTEMS], jobs)))
    result: dict[str, Any] = {"pilot": {}}
    for sentences in DIFFICULTIES:
        folder = output_dir / "pairs" / f"{sentences}-sentences"
        write_passages(parts, folder, sentences)
        tried = [(name, rate) for name in PAIR_SYSTEMS for rate in TUNING_RATES]
        runs = [("search", name, sentences, rate, 11) for name, rate in tried]
        found = dict(zip(tried, map_jobs(fine_tune, runs, jobs)))
        best = {name: max(TUNING_RATES, key=lambda rate: found[name, rate]) for name in PAIR_SYSTEMS}
        trained = [(name, seed) for name in PAIR_SYSTEMS for seed in PAIR_SEEDS]
        # The pilot runs beside the reported trainings, to which it adds no information.
        runs = [("pilot", "BERT", sentences, best["BERT"], 11)]
        runs += [("reported", name, sentences, best[name], seed) for name, seed in trained]
        bert, *accuracies = map_jobs(fine_tune, runs, jobs)
        accuracy = dict(zip(trained, accuracies))
        baselines = pair_baselines(folder)
        result["pilot"][sentences] = baselines | {"BERT": bert}
        print(f"{sentences} sentences: {result['pilot'][sentences]}", flush=True)
        if bert <= DIFFICULT_ENOUGH[1]:
            break
    reported = {name: [accuracy[name, seed] for seed in PAIR_SEEDS] for name in PAIR_SYSTEMS}
    low, high = interval(protocol.subtract(reported["aMLP"], reported["gMLP"]))
    result |= {"rates": best, "accuracies": reported, "aMLP - gMLP": (low, high)}
    if not (baselines["tf-idf"] < LARGEST_TFIDF and DIFFICULT_ENOUGH[0] <= bert <= DIFFICULT_ENOUGH[1]):
        finish(output_dir, result | {"verdict": "no verdict (gate): no difficulty meets the conditions"})
        return
    ceiling = min(statistics.fmean(reported[name]) for name in ("aMLP", "gMLP")) > CEILING_ACCURACY
    finish(output_dir, result | {"verdict": protocol.CEILING if ceiling else verdict(low, high, 0.0)})


def write_passages(parts: Mapping[str, list[str]], folder: Path, sentences: int):
    """Write pairs of passages: two non-adjacent ones of the same text (label 1), or two of different texts (0).

    Every passage is equally likely in both classes, so that only a comparison can separate the classes.

    Args:
        parts: Texts for "train", "development" and "evaluation".
    """
    for number, (part, count) in enumerate(PAIR_COUNTS.items()):
        if (folder / f"{part}.jsonl").is_file():
            continue
        generator = random.Random(number)
        pairs: list[list[str]] = []
        for text in generator.sample(parts[part], len(parts[part])) * 20:
            if len(pairs) == count:
                break
            split = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
            if len(split) > 2 * sentences:
                start = generator.randrange(len(split) - 2 * sentences)
                other_start = generator.randrange(start + sentences + 1, len(split) - sentences + 1)
                pairs.append([" ".join(split[at : at + sentences]) for at in (start, other_start)])
        # Negatives: in half of the pairs, shift the second passages by one pair.
        half, second = len(pairs) // 2, [pair[1] for pair in pairs]
        second[:half] = second[1:half] + second[:1]
        rows = [
            {"sentence1": first, "sentence2": other, "label": int(index >= half)}
            for index, ((first, _), other) in enumerate(zip(pairs, second))
        ]
        generator.shuffle(rows)
        write_rows(folder / f"{part}.jsonl", rows)


def pair_baselines(folder: Path) -> dict[str, float]:
    """Return accuracies on the development pairs: of tf-idf of both passages together, and of their similarity."""
    path, files = folder / "baselines.json", (folder / "train.jsonl", folder / "development.jsonl")
    if not path.is_file():
        accuracies = {"tf-idf": sentence_accuracy(*files), "similarity": similarity_accuracy(*files)}
        write_text(path, json.dumps(accuracies))
    return read_json(path)


def write_rows(path: Path, rows: list[dict]):
    """Write a file of JSON lines, all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))


# ---------------------------------------------------------------------------------------------------------------------
# The gain from attention, and whether gMLP is near BERT where there is such a gain

# Vocabulary and length, from cheap to expensive.
LEVELS = ((2000, 64), (8000, 128))
GAIN, GAIN_SEEDS, GAIN_STEPS = 0.05, (1, 2, 3, 4, 5), 3000
NOATTN = "BERT without attention"


def attention_gain(train_file: list[str], output_dir: Path, jobs: int):
    """Look for a vocabulary and a length at which attention helps BERT, and compare gMLP with BERT there."""
    bert = SYSTEMS["BERT, relative positions"]
    systems = {"gMLP": SYSTEMS["gMLP"], "BERT": bert, NOATTN: ("bert-base-relpos-noattn", bert[1])}
    result: dict[str, Any] = {"pilot": {}}

    def study(name: str, vocabulary: int, length: int, count: int) -> list[float]:
        preset, sizes = systems[name]
        tokenizer = output_dir / f"tokenizer-{vocabulary}"
        flags = {"tokenizer_name": tokenizer, "train_file": train_file, "max_seq_length": length}
        system = System(preset, f"max_position_embeddings={length},{sizes}", flags)
        folder = output_dir / f"{vocabulary}-tokens-rows-of-{length}"
        return [loss for _, loss in system.study(folder, GAIN_SEEDS[:count], GAIN_STEPS, GAIN_STEPS // 5)]

    for vocabulary, length in LEVELS:
        if not (tokenizer := output_dir / f"tokenizer-{vocabulary}").is_dir():
            command = ["-m", "hf_gmlp_cli", "train-tokenizer", *train_file, "--vocab_size", str(vocabulary)]
            call([*command, "--lowercase", "--output_dir", str(tokenizer)], output_dir / "tokenizer.log")
        pair = map_jobs(study, [(name, vocabulary, length, 1) for name in ("BERT", NOATTN)], jobs)
        gain = result["pilot"][f"{vocabulary}, {length}"] = pair[1][0] - pair[0][0]
        print(f"{vocabulary} tokens, rows of {length}: attention gives BERT {gain:.3f} nats", flush=True)
        if gain >= GAIN:
            break
    else:
        finish(output_dir, result | {"verdict": protocol.NO_ATTENTION})
        return
    losses = map_jobs(study, [(name, vocabulary, length, len(GAIN_SEEDS)) for name in systems], jobs)
    named = dict(zip(("gmlp", "bert-relpos", "bert-noattn"), losses))
    finding = protocol.judge_near(named, "", GAIN_STEPS)
    lead = (finding.lead, finding.half_width, finding.margin)
    finish(output_dir, result | {"losses": named, "lead, half-width, margin": lead, "verdict": finding.verdict})


# ---------------------------------------------------------------------------------------------------------------------


def verdict(low: float, high: float, threshold: float) -> str:
    """Return whether a claim is held: that a value, known by its confidence interval, is above a threshold."""
    words = {protocol.YES: protocol.HELD, protocol.NO: protocol.CONTRADICTED, protocol.OPEN: protocol.POWER}
    return words[protocol.side(low, high, threshold)]


def finish(folder: Path, result: Mapping[str, object]):
    """Write and print the result of an experiment."""
    text = json.dumps(result, indent=1)
    (folder / "result.json").write_text(f"{text}\n", encoding="utf-8")
    print(text)


def experiment(name: str, output_dir: Path, train_file: list[str], validation_file: list[str], jobs: int):
    """Run an experiment; the arguments are the flags of `python -m paper experiment`."""
    if name == "scaling":
        scaling(train_file, validation_file, output_dir, jobs)
    elif validation_file:
        raise InputError("--validation_file is for the experiment 'scaling'. Leave it out.")
    else:
        (real_pairs if name == "pairs" else attention_gain)(train_file, output_dir, jobs)
