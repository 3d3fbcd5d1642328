"""The recipes: every one parses, is made small by a smoke recipe, and has the paper's hyperparameters."""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import PIL.Image
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from transformers import get_scheduler

from hf_gmlp import GMLPVisionConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm import run as run_clm
from hf_gmlp.tasks.clm.arguments import CLMArguments
from hf_gmlp.tasks.glue.arguments import GlueArguments, SentenceModelArguments
from hf_gmlp.tasks.glue.sentences import load_sentences
from hf_gmlp.tasks.image_classification.arguments import ImageArguments, ImageModelArguments
from hf_gmlp.tasks.image_classification.images import load_images
from hf_gmlp.tasks.mlm import run as run_mlm
from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.tasks.qa.arguments import QAArguments
from hf_gmlp.tasks.qa.questions import load_questions
from hf_gmlp.tasks.text import load_texts
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.build import load_config
from hf_gmlp.training.files import Access
from hf_gmlp.training.recipes import command_line, read_recipe

ROOT = Path(__file__).parent.parent
RECIPES, PAPER = ROOT / "recipes", ROOT / "paper" / "recipes"
ALL = sorted(path for path in RECIPES.glob("*.yaml") if "smoke" not in path.stem) + sorted(PAPER.rglob("*.yaml"))


def path_id(path):
    return str(path.relative_to(RECIPES if path.is_relative_to(RECIPES) else PAPER))


def script_of(path):
    """What a recipe is for, by its name: the dataclasses of a script, and the smoke recipe that may follow it."""
    name = path.stem if path.parent == RECIPES else path.parent.name
    if "squad" in name:
        return (ModelArguments, QAArguments), "smoke-finetune"
    if name in ("table2", "imagenet", "small-images", "finetune-images", "finetune-288"):
        return (ImageModelArguments, ImageArguments), "smoke-images"
    if "finetun" in path.stem:
        return (SentenceModelArguments, GlueArguments), "smoke-finetune"
    return (ModelArguments, CLMArguments if name.startswith("clm") else MLMArguments), "smoke"


def command(path, *later, folder):
    """The flags of a recipe with later ones behind it, and a model where it leaves that to a flag."""
    # Those of figure7/ stand behind a recipe.
    first = [str(PAPER / "figure8" / "amlp-18l.yaml")] if path.parent.name == "figure7" else []
    argv = [*first, str(path), *map(str, later), "--use_cpu", "--bf16", "false", "--output_dir", str(folder)]
    if "--config_name" in command_line(argv):
        return argv
    return [*argv, "--config_name", "gmlp-ti16-224" if ImageArguments in script_of(path)[0] else "gmlp-18l"]


def parse(path, *later, folder):
    return parse_arguments((*script_of(path)[0], RunArguments), "", command(path, *later, folder=folder))


@pytest.mark.parametrize("path", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_its_config_files(path):
    config = load_config_from_file(str(path))
    kinds = {"one_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED", "tpu": "XLA"}
    assert config.distributed_type == kinds[path.stem] and config.mixed_precision == "bf16"
    assert config.num_processes == (1 if path.stem == "one_gpu" else 8)


@pytest.mark.parametrize("path", sorted(PAPER.glob("table[346]/*.yaml")), ids=path_id)
def test_text_recipes_have_the_hyperparameters_of_table_8(path, tmp_path):
    model, data, training = parse(path, folder=tmp_path)
    load_config(model)
    ablation = path.parent.name in ("table3", "table4")
    assert training.do_train and training.do_eval and training.max_grad_norm == 0
    assert (data.dataset_name, data.streaming) == ("allenai/c4", True)
    assert data.dataset_config_name == ("realnewslike" if ablation else "en")
    assert data.max_seq_length == (128 if ablation else 512)
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == (2048 if ablation else 256)
    assert training.learning_rate == (7e-4 if ablation else 1e-4)
    assert training.max_steps == (125_000 if ablation else 1_000_000)
    assert (training.warmup_steps, training.lr_scheduler_type, training.weight_decay) == (10_000, "linear", 0.01)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.999, 1e-6)


def test_amlps_of_figure_8_are_the_gmlps_of_table_4_with_attention(tmp_path):
    for path in sorted(PAPER.glob("figure8/*")):
        twin = PAPER / "table4" / path.name.replace("amlp", "gmlp")
        amlp, gmlp = (parse(recipe, folder=tmp_path) for recipe in (path, twin))
        configs = [load_config(model).to_dict() for model, *_ in (amlp, gmlp)]
        assert {key for key in configs[0] if configs[0][key] != configs[1][key]} == {"attention_size"}
        assert configs[0]["attention_size"] == 64 and amlp[1] == gmlp[1]
        # Figure 7 varies the data, too.
        *_, longer = parse(path, PAPER / "figure7/data-4x.yaml", folder=tmp_path)
        assert longer.max_steps == 4 * amlp[2].max_steps and longer.learning_rate == amlp[2].learning_rate


@pytest.mark.parametrize(
    ("row", "survival", "sizes"),
    [
        ("gmlp-ti16-224", 1.0, (128, 768)),
        ("gmlp-s16-224", 0.95, (256, 1536)),
        ("gmlp-b16-224", 0.8, (512, 3072)),
        ("mixer-b16-224", 0.95, None),
    ],
)
def test_image_recipes_have_the_hyperparameters_of_table_7(row, survival, sizes):
    recipe = read_recipe(PAPER / f"table2/{row}.yaml")
    table = {
        "auto_augment": "imagenet", "num_train_epochs": 300, "global_batch_size": 4096, "warmup_steps": 10000,
        "cutmix_alpha": 1.0, "mixup_alpha": 0.8, "switch_prob": 0.5, "label_smoothing_factor": 0.1,
        "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "optim": "adamw_torch", "adam_epsilon": 1e-6,
        "adam_beta1": 0.9, "adam_beta2": 0.999, "weight_decay": 0.05, "max_grad_norm": 1.0,
    }  # fmt: skip
    assert {key: recipe[key] for key in table} == table
    if sizes is None:
        assert recipe["config_name"] == "timm/mixer_b16_224" and recipe["config_overrides"] == {"drop_path_rate": 0.05}
        return
    assert recipe["config_name"] == row and "config_overrides" not in recipe
    preset = GMLPVisionConfig.from_preset(row)
    assert (preset.hidden_size, preset.intermediate_size) == sizes and preset.image_size == 224
    assert preset.drop_path_rate == pytest.approx(1 - survival)
    for rate in ("hidden_dropout_prob", "activation_dropout", "attention_probs_dropout_prob", "classifier_dropout"):
        assert getattr(preset, rate) == 0


def test_noam_s_schedule_of_labml_is_this_one(tmp_path):
    *_, training = parse(RECIPES / "clm-labml.yaml", folder=tmp_path)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    schedule = get_scheduler(training.lr_scheduler_type, optimizer, training.warmup_steps, num_training_steps=16_000)
    for step in range(1, 5001):
        optimizer.step()
        schedule.step()
        if step in (100, 1999, 2000, 5000):
            # Vaswani et al., section 5.3.
            noam = 512**-0.5 * min(step**-0.5, step * 2000**-1.5)
            assert schedule.get_last_lr()[0] == pytest.approx(noam, rel=1e-3)


@pytest.mark.parametrize("path", ALL, ids=path_id)
def test_a_smoke_recipe_makes_any_recipe_small(path, tmp_path):
    smoke = script_of(path)[1]
    model, data, training = parse(path, RECIPES / f"{smoke}.yaml", folder=tmp_path)
    assert data.dataset_name is None or smoke == "smoke-images"
    assert training.train_batch_size * training.gradient_accumulation_steps <= 16
    if smoke == "smoke-images":
        assert (training.max_steps, data.max_train_samples, data.size()) == (4, 64, (32, 32))
        return
    config, length = load_config(model), 32 if smoke == "smoke" else 64
    assert (config.num_hidden_layers, config.max_position_embeddings) == (2, length)
    # What makes the recipe what it is remains.
    overrides = read_recipe(path).get("config_overrides") or {}
    kept = {name for name in overrides if "size" not in name} - {"num_hidden_layers", "max_position_embeddings"}
    assert {name: getattr(config, name) for name in kept} == {name: overrides[name] for name in kept}
    if smoke == "smoke":
        assert training.max_steps == 10 and data.sequence_length(config) == length
    else:
        assert (data.max_train_samples == 320 and isinstance(data, QAArguments)) or data.seeds is None


ANSWERS = {"text": ["Mine"], "answer_start": [0]}
ROWS = {
    MLMArguments: {"text": "My text."},
    CLMArguments: {"text": "My text."},
    GlueArguments: {"premise": "Mine.", "hypothesis": "Yours.", "label": 1},
    QAArguments: {"id": "1", "question": "Whose?", "context": "Mine.", "answers": ANSWERS},
}


def write_own_data(kind, folder):
    """Write a user's own data for a script, and return the flag that names them."""
    if kind is ImageArguments:
        for name in ("cat", "dog"):
            (folder / "mine" / name).mkdir(parents=True)
            PIL.Image.new("RGB", (8, 8)).save(folder / "mine" / name / "mine.png")
        return ["--train_dir", str(folder / "mine")]
    rows = [ROWS[kind] | ({"label": i % 2} if kind is GlueArguments else {"id": str(i)}) for i in range(40)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--train_file", str(folder / "mine.jsonl")]


@pytest.mark.parametrize(
    "name",
    ["paper/recipes/table6/amlp-base", "recipes/clm-enwik8", "recipes/finetune-mnli", "recipes/finetune-squad-v1",
     "recipes/imagenet"],
)  # fmt: skip
def test_own_data_replace_those_of_a_recipe(name, tmp_path):
    path = ROOT / f"{name}.yaml"
    own = write_own_data(script_of(path)[0][1], tmp_path)
    argv = [*command(path, folder=tmp_path / "out"), *own]
    model, data, _ = parse_arguments((*script_of(path)[0], RunArguments), "", argv)
    assert data.dataset_name is None and not getattr(data, "streaming", False)
    facts = data.card_facts(model)
    assert facts["dataset"].startswith("mine") and facts["dataset_id"] is None
    options = {"train": True, "validate": False, "access": Access(str(tmp_path / "cache"))}
    match data:
        case QAArguments():
            assert len(load_questions(data, ["train"])["train"]) == 40
        case GlueArguments():
            assert len(load_sentences(data, **options).splits["train"]) == 40
        case ImageArguments():
            assert len(load_images(data, **options).splits["train"]) == 2
        case _:
            # Two are held out.
            assert len(load_texts(data, **options)["train"]) == 38


def test_files_beside_a_data_set_are_refused(tmp_path):
    with pytest.raises(InputError, match="--dataset_name and --train_file"):
        parse(PAPER / "table6/amlp-base.yaml", "--dataset_name", "x", "--train-file", "y.txt", folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recipes/small", "recipes/clm-small", "paper/recipes/table3/mixer-mlm"])
def test_recipes_of_language_models_run_small(name, tmp_path, monkeypatch):
    corpus, path = tmp_path / "corpus.txt", ROOT / f"{name}.yaml"
    corpus.write_text("\n\n".join(text for _, text in sorted(topics.items())[:20]), encoding="utf-8")
    flags = ["--train_file", corpus, "--disable_tqdm", "true", "--report_to", "none", "--cache_dir", tmp_path]
    argv = command(path, RECIPES / "smoke.yaml", *flags, folder=tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["run", *argv])
    (run_clm if "clm" in name else run_mlm).main()
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    # Fewer than there are tokens.
    assert results["eval_perplexity"] < 590
    settings = (tmp_path / "out" / "settings.json").read_text()
    assert "corpus.txt" in settings and "allenai" not in settings
