"""Files that only large machines run: they are what accelerate takes, and what a smoke recipe makes small."""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import PIL.Image
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from transformers import get_scheduler

import run_clm
import run_mlm
from hf_gmlp import GMLPVisionConfig
from hf_gmlp.errors import InputError
from hf_gmlp.tasks.clm.arguments import CLMArguments
from hf_gmlp.tasks.glue.arguments import GlueArguments, SentenceModelArguments
from hf_gmlp.tasks.glue.sentences import load_sentences
from hf_gmlp.tasks.image_classification.arguments import ImageArguments, ImageModelArguments
from hf_gmlp.tasks.image_classification.images import load_images
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


@pytest.mark.parametrize("path", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_its_config_files(path):
    config = load_config_from_file(str(path))
    kinds = {"one_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED", "tpu": "XLA"}
    assert config.distributed_type == kinds[path.stem] and config.mixed_precision == "bf16"
    assert config.num_processes == (1 if path.stem == "one_gpu" else 8)


def script_of(path):
    """What a recipe is for, by its name: the dataclasses of a script, and the smoke recipe that may stand behind it."""
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
    argv = [*first, str(path), *map(str, later), "--use_cpu", "--output_dir", str(folder)]
    if "--config_name" in command_line(argv):
        return argv
    return [*argv, "--config_name", "gmlp-ti16-224" if ImageArguments in script_of(path)[0] else "gmlp-18l"]


def small(path, smoke, folder):
    return command(path, RECIPES / f"{smoke}.yaml", folder=folder)


def path_id(path):
    return str(path.relative_to(RECIPES if path.is_relative_to(RECIPES) else PAPER))


ALL = sorted(path for path in RECIPES.glob("*.yaml") if "smoke" not in path.stem) + sorted(PAPER.rglob("*.yaml"))


def test_every_row_of_the_tables_has_its_recipe():
    # All but the convolutional networks of Table 2; Table 4 has one with norms in front besides.
    assert [len(list(PAPER.glob(f"table{number}/*"))) for number in (2, 3, 4, 6, 10)] == [12, 8, 9, 7, 4]


def test_amlps_of_figure_8_are_the_gmlps_of_table_4_with_attention(tmp_path):
    paths = sorted(PAPER.glob("figure8/*"))
    assert len(paths) == 4
    for path in paths:
        name = path.stem.replace("amlp", "gmlp")
        types = (ModelArguments, MLMArguments, RunArguments)
        flags = ["--bf16", "false", "--output_dir", str(tmp_path)]
        amlp, gmlp = (parse_arguments(types, "", [str(one), *flags]) for one in (path, PAPER / f"table4/{name}.yaml"))
        configs = [load_config(model).to_dict() for model, *_ in (amlp, gmlp)]
        assert {key for key in configs[0] if configs[0][key] != configs[1][key]} == {"attention_size"}
        assert configs[0]["attention_size"] == 64 and amlp[1] == gmlp[1]
        # Figure 7 varies the data, too.
        *_, longer = parse_arguments(types, "", [str(path), str(PAPER / "figure7/data-4x.yaml"), *flags])
        assert longer.max_steps == 4 * amlp[2].max_steps and longer.learning_rate == amlp[2].learning_rate


def test_noam_s_schedule_of_labml_is_this_one(tmp_path):
    types, flags = (
        (ModelArguments, CLMArguments, RunArguments),
        ["--train_file", "x.txt", "--output_dir", str(tmp_path)],
    )
    *_, training = parse_arguments(types, "", [str(RECIPES / "clm-labml.yaml"), *flags])
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    schedule = get_scheduler(training.lr_scheduler_type, optimizer, training.warmup_steps, num_training_steps=16_000)
    for step in range(1, 10_001):
        optimizer.step()
        schedule.step()
        if step in (100, 1999, 2000, 5000, 10_000):
            # Vaswani et al., section 5.3.
            noam = 512**-0.5 * min(step**-0.5, step * 2000**-1.5)
            assert schedule.get_last_lr()[0] == pytest.approx(noam, rel=1e-3)


@pytest.mark.parametrize("path", ALL, ids=path_id)
def test_a_smoke_recipe_makes_any_recipe_small(path, tmp_path):
    types, smoke = script_of(path)
    model, data, training = parse_arguments((*types, RunArguments), "", small(path, smoke, tmp_path))
    assert data.dataset_name is None or smoke == "smoke-images"
    assert not training.bf16 and training.train_batch_size * training.gradient_accumulation_steps <= 16
    if smoke == "smoke-images":
        assert (training.max_steps, data.max_train_samples, data.size()) == (4, 64, (32, 32))
        return
    config, recipe = load_config(model), read_recipe(path)
    assert (config.num_hidden_layers, config.max_position_embeddings) == ((2, 32) if smoke == "smoke" else (2, 64))
    # What makes the recipe what it is remains.
    kept = {key: one for key, one in (recipe.get("config_overrides") or {}).items() if "size" not in key}
    for name in kept.keys() - {"num_hidden_layers", "max_position_embeddings"}:
        assert getattr(config, name) == kept[name]
    if smoke == "smoke":
        assert training.max_steps == 10 and data.sequence_length(config) == 32
    elif isinstance(data, QAArguments):
        assert data.window_lengths(config) == {"max_seq_length": 64, "doc_stride": 21} and data.max_train_samples == 320
    else:
        assert data.sequence_length(config) == 64 and data.seeds is None and data.max_train_samples == 320


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Somebody's own data for every script, under the name of its dataclass of flags."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "MLMArguments.txt").write_text("\n\n".join(f"My text {number}." for number in range(40)))
    (folder / "CLMArguments.txt").write_text((folder / "MLMArguments.txt").read_text())
    row = {"sentence": "Mine.", "premise": "Mine.", "hypothesis": "Yours.", "label": 0}
    (folder / "GlueArguments.jsonl").write_text("".join(json.dumps(row | {"label": x}) + "\n" for x in (0, 1)))
    row = {"id": "1", "question": "Whose?", "context": "Mine.", "answers": {"text": ["Mine"], "answer_start": [0]}}
    (folder / "QAArguments.jsonl").write_text(json.dumps(row))
    for name in ("cat", "dog"):
        (folder / "ImageArguments" / name).mkdir(parents=True)
        PIL.Image.new("RGB", (8, 8)).save(folder / "ImageArguments" / name / "mine.png")
    return folder


def load_train_data(data, cache):
    """The training data that a script would read."""
    options = {"train": True, "validate": False, "access": Access(str(cache))}
    match data:
        case QAArguments():
            return load_questions(data, ["train"])["train"]
        case GlueArguments():
            return load_sentences(data, **options).splits["train"]
        case ImageArguments():
            return load_images(data, **options).splits["train"]
    return load_texts(data, **options)["train"]


@pytest.mark.parametrize("later", ["flags", "recipe"])
@pytest.mark.parametrize("path", ALL, ids=path_id)
def test_own_files_replace_the_data_of_any_recipe(path, later, mine, tmp_path):
    types, _ = script_of(path)
    (given,) = mine.glob(f"{types[1].__name__}*")
    flag = "train_dir" if given.is_dir() else "train_file"
    if later == "flags":
        argv = [*command(path, folder=tmp_path / "out"), f"--{flag}", str(given)]
    else:
        (tmp_path / "mine.yaml").write_text(json.dumps({flag: str(given)}))
        argv = command(path, tmp_path / "mine.yaml", folder=tmp_path / "out")
    model, data, _ = parse_arguments((*types, RunArguments), "", [*argv, "--bf16", "false"])
    assert data.dataset_name is None and not getattr(data, "streaming", False)
    facts = data.card_facts(model)
    assert facts["dataset"].startswith(given.name) and facts["dataset_id"] is None
    rows = load_train_data(data, mine / "cache")
    # Of 40 texts, 2 are held out.
    assert len(rows) == {"MLMArguments": 38, "CLMArguments": 38, "QAArguments": 1}.get(types[1].__name__, 2)
    assert str(given) in rows[0]["image"]["path"] if "image" in rows[0] else "M" in str(rows[0])


def test_files_beside_a_data_set_are_refused(tmp_path):
    flags = [str(PAPER / "table6/amlp-base.yaml"), "--output_dir", str(tmp_path), "--use_cpu", "--bf16", "false"]
    with pytest.raises(InputError, match="^--dataset_name and --train_file both name the data: leave one of them out"):
        parse_arguments(
            (ModelArguments, MLMArguments, RunArguments), "", [*flags, "--dataset_name", "x", "--train-file", "y.txt"]
        )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(text for _, text in sorted(topics.items())[:20]), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_run_on_own_files_after_a_recipe_of_the_paper_says_so(corpus, tmp_path, monkeypatch, caplog):
    sizes = "num_hidden_layers=1,hidden_size=16,intermediate_size=32,attention_size=8,max_position_embeddings=16"
    flags = f"""
        --train_file {corpus} --config_overrides {sizes} --max_seq_length 16 --vocab_size 400 --max_steps 2
        --global_batch_size 4 --warmup_steps 1 --max_eval_samples 4 --eval_strategy no --save_strategy no --bf16 false
        --use_cpu --disable_tqdm true --report_to none --cache_dir {tmp_path}/cache --output_dir {tmp_path}/out
    """.split()
    monkeypatch.setattr(sys, "argv", ["run_mlm.py", str(PAPER / "table6/amlp-base.yaml"), *flags])
    with caplog.at_level("INFO"):
        run_mlm.main()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Data: corpus.txt" in caplog.text and "**Data:** corpus.txt: " in card
    assert "allenai" not in card and "allenai" not in (tmp_path / "out" / "settings.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in ALL if script_of(path)[1] == "smoke"], ids=path_id)
def test_recipes_of_language_models_run_small(path, corpus, tmp_path, monkeypatch):
    flags = ["--train_file", str(corpus), "--disable_tqdm", "true", "--report_to", "none", "--cache_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["run", *small(path, "smoke", tmp_path / "out"), *flags])
    (run_clm if script_of(path)[0][1] is CLMArguments else run_mlm).main()
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    # Fewer than there are tokens.
    assert results["eval_perplexity"] < 590


@pytest.mark.parametrize(
    ("row", "survival", "config"),
    [
        ("gmlp-ti16-224", 1.0, GMLPVisionConfig(hidden_size=128, intermediate_size=768)),
        ("gmlp-s16-224", 0.95, GMLPVisionConfig(hidden_size=256, intermediate_size=1536)),
        ("gmlp-b16-224", 0.8, GMLPVisionConfig(hidden_size=512, intermediate_size=3072)),
        ("mixer-b16-224", 0.95, None),
    ],
)
def test_image_recipes_say_what_table_7_says(row, survival, config):
    recipe = read_recipe(PAPER / f"table2/{row}.yaml")
    table = {
        "auto_augment": "imagenet", "num_train_epochs": 300, "global_batch_size": 4096, "warmup_steps": 10000,
        "cutmix_alpha": 1.0, "mixup_alpha": 0.8, "switch_prob": 0.5, "label_smoothing_factor": 0.1,
        "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "optim": "adamw_torch", "adam_epsilon": 1e-6,
        "adam_beta1": 0.9, "adam_beta2": 0.999, "weight_decay": 0.05, "max_grad_norm": 1.0,
    }  # fmt: skip
    assert {key: recipe[key] for key in table} == table
    if config is None:
        assert recipe["config_name"] == "timm/mixer_b16_224" and recipe["config_overrides"] == {"drop_path_rate": 0.05}
        return
    assert recipe["config_name"] == row and "config_overrides" not in recipe
    preset = GMLPVisionConfig.from_preset(row)
    assert (preset.hidden_size, preset.intermediate_size) == (config.hidden_size, config.intermediate_size)
    assert preset.drop_path_rate == pytest.approx(1 - survival) and preset.image_size == 224
    for rate in ("hidden_dropout_prob", "activation_dropout", "attention_probs_dropout_prob", "classifier_dropout"):
        assert getattr(preset, rate) == 0
