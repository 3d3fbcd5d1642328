"""Models pushed to a Hub in every way, and opened by name where this package is not installed.

The Hub (server.py) runs in this process. Its clients run in other processes, which find it by HF_ENDPOINT. Each of them
takes seconds to start, so one does the work of many tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from transformers import pipeline

from hf_gmlp.training.run_folder import read_settings

from ..numerics import assert_close
from ..samples import squad
from ..tasks.glue.test_run import opinions, write
from ..tasks.image_classification.test_run import write_photos
from .server import File, Hub, Repository

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CODE = {"configuration_gmlp.py", "modeling_gmlp.py"}
MODEL = CODE | {"README.md", "config.json", "model.safetensors"}
BROKEN = b"---\nlicense: [mit\n---\n\nMy own words.\n"
PERSON = b"---\nlicense: cc-by-4.0\n---\n\nMy own words.\n"
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def hub():
    with Hub() as hub:
        # Existing cards, one of them from before the Hub checked metadata.
        for name, card in {"me/broken": BROKEN, "me/tuned": PERSON}.items():
            hub.repositories[name] = one = Repository(name, private=False)
            one.commit("refs/heads/main", {"README.md": File(card, large=False)}, one.find("main"), "A card")
        yield hub


def talk(script: str, folder: Path, *arguments: object, **environment: str) -> dict:
    """Runs a script of this folder in another process, and returns what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "results.json"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, HERE / script, *map(str, arguments), target],
        cwd=folder,
        env=kept | {"OMP_NUM_THREADS": "1"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(target.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pushed(hub, tmp_path_factory):
    """The results of pushing.py: {job: result}"""
    folder = tmp_path_factory.mktemp("pushing")
    package = {"PYTHONPATH": str(HERE.parents[1])}
    return talk("pushing.py", folder, folder, **hub.environment(folder / "home"), **package)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where fresh processes keep what they fetch."""
    return tmp_path_factory.mktemp("home")


def open_by_name(hub, folder: Path, home: Path, functions: str, **job) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job | {"functions": functions.split()}))
    return talk("opening.py", folder, folder / "job.json", **hub.environment(home))


@pytest.fixture(scope="module")
def opened(hub, pushed, home, tmp_path_factory):
    """The results of opening.py: {function: result}"""
    functions = """main_branch pinned branch pull_request private images trained merged adapter cards pushed_again"""
    repositories = ["me/text", "me/saved", "me/pictures", "me/trained", "me/adapter", "me/merged"]
    pinned = pushed["text"].get("pinned")
    folder = tmp_path_factory.mktemp("opening")
    return open_by_name(hub, folder, home, functions, pinned=pinned, repositories=repositories)


def of(results: dict, name: str):
    """Returns the result of a job that succeeded."""
    result = results[name]
    assert not (isinstance(result, dict) and "error" in result), result["error"]
    return result


def same(found: list, expected: list):
    assert_close(torch.tensor(found), torch.tensor(expected), depth=2)


def card_of(hub, name: str, revision: str = "main") -> ModelCard:
    return ModelCard(hub.repositories[name].files(revision)["README.md"].decode())


def test_model_and_tokenizer_are_pushed_completely(hub, pushed):
    result = of(pushed, "text")
    assert hub.repositories["me/text"].files(result["pinned"]).keys() == MODEL | TOKENIZER
    card = ModelCard(result["card"])
    assert "cats" in card.data.tags and "# me/text" in card.text
    titles = [
        "Upload GMLPForMaskedLM",
        "Upload tokenizer",
        "Upload README.md with huggingface_hub",
        "Second",
    ]
    assert hub.repositories["me/text"].titles()[1:] == titles


def test_a_second_push_keeps_what_a_person_wrote(hub, pushed):
    of(pushed, "text")
    card = card_of(hub, "me/text")
    assert (card.data.license, card.data.thumbnail) == ("cc-by-4.0", "cat.png")
    assert "cats" in card.data.tags


def test_branches_and_pull_requests(hub, pushed):
    assert of(pushed, "elsewhere")["revision"] == "refs/pr/1"
    repository = hub.repositories["me/branches"]
    assert set(repository.refs) == {"refs/heads/main", "refs/heads/side/way", "refs/pr/1"}
    assert repository.files() == {} and repository.files("side/way").keys() == MODEL
    # The pull request has one more commit, which completed its card.
    assert repository.titles("refs/pr/1")[1:] == ["Upload GMLPForMaskedLM", "Once more"]
    assert "mended" in card_of(hub, "me/branches", "refs/pr/1").data.tags


def test_saving_with_a_push(hub, pushed):
    repository, result = hub.repositories["me/saved"], of(pushed, "saved")
    assert repository.private
    shards = {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)} | {"model.safetensors.index.json"}
    expected = (MODEL | TOKENIZER | shards | {"generation_config.json"}) - {"model.safetensors"}
    assert repository.files().keys() == expected
    # The tokenizer's push has read and rewritten the card.
    assert str(card_of(hub, "me/saved")).strip() == result["card"].strip()


def test_a_trainer_of_the_library(hub, pushed):
    of(pushed, "trainer")
    repository = hub.repositories["me/trained"]
    first, *_, last = repository.titles()[1:]
    # The library leaves a push out while the one before goes on, which may be that of the tokenizer.
    assert first.startswith("Training in progress, step") and last == "End of training"
    assert repository.files().keys() == MODEL | TOKENIZER | {"training_args.bin"}
    card = card_of(hub, "me/trained")
    assert (card.data.language, card.data.license) == (["en"], "mit") and "cats" in card.data.tags
    # The library's own card.
    assert "generated_from_trainer" in card.data.tags and "## Architecture" not in card.text


@pytest.mark.parametrize(
    "function, job, key",
    [
        ("main_branch", "text", "second"),
        ("pinned", "text", "first"),
        ("branch", "elsewhere", "branch"),
        ("pull_request", "elsewhere", "proposed"),
        ("private", "saved", "logits"),
        ("trained", "trainer", "logits"),
        ("adapter", "adapters", "logits"),
        ("merged", "adapters", "logits"),
        ("pushed_again", "text", "first"),
    ],
)
def test_outputs_are_those_of_the_model_that_was_pushed(pushed, opened, function, job, key):
    same(of(opened, function), of(pushed, job)[key])


def test_an_image_model_and_its_processor(hub, pushed, opened):
    """The card replaces the form that comes with a processor."""
    assert "More Information Needed" not in card_of(hub, "me/pictures").text
    result = of(opened, "images")
    same(result["logits"], of(pushed, "images")["logits"])
    assert result["size"] == [1, 3, 16, 16]


def test_cards_are_valid(opened):
    assert of(opened, "cards") == 6


def test_offline_after_one_download(hub, pushed, opened, home, tmp_path):
    """The Hub is not running then."""
    functions = "pinned branch images"
    (tmp_path / "job.json").write_text(json.dumps({"functions": functions.split(), "pinned": pushed["text"]["pinned"]}))
    nobody = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    results = talk("opening.py", tmp_path, tmp_path / "job.json", **(hub.environment(home, token=None) | nobody))
    for function in functions.split():
        assert of(results, function) == of(opened, function)


@pytest.fixture(scope="module")
def ran(hub, tmp_path_factory):
    """The scripts with --push_to_hub: {name: error or None}, and the folder that they wrote to."""
    folder = tmp_path_factory.mktemp("running")
    (folder / "text.txt").write_text("\n\n".join(text for _, text in sorted(topics.items())[:12]), encoding="utf-8")
    write(folder / "train.jsonl", opinions(48, 0))
    write(folder / "validation.jsonl", opinions(16, 1))
    (folder / "qa.json").write_text(json.dumps(squad(40)))
    write_photos(folder / "photos", 4, 0)

    common = "--do_train --do_eval --max_steps 2 --save_steps 1 --per_device_train_batch_size 4 --push_to_hub"
    tiny = "--config_name gmlp-18l --config_overrides num_hidden_layers=2,hidden_size=32,intermediate_size=64,"
    tiny += "attention_size=16,max_position_embeddings=64 --vocab_size 400"
    text = "--train_file text.txt --max_train_samples 40 --max_eval_samples 10"
    opinion = "--train_file train.jsonl --validation_file validation.jsonl"
    image = "--train_dir photos --validation_dir photos --image_size 32 --config_overrides patch_size=8,"
    image += "num_hidden_layers=2,hidden_size=32,intermediate_size=64"
    runs = {
        "mlm": f"run_mlm.py {tiny} {text} --hub_strategy every_save --hub_always_push --license mit --language en",
        "clm": f"run_clm.py {tiny} {text} --hub_strategy checkpoint --hub_always_push --save_total_limit 2",
        "glue": f"run_glue.py {tiny} {opinion} --hub_token hf_mine --hub_strategy all_checkpoints --hub_always_push",
        "qa": f"run_qa.py {tiny} --train_file qa.json --validation_file qa.json --hub_private_repo true",
        "images": f"run_image_classification.py --config_name gmlp-ti16-224 {image} --hub_strategy every_save",
        "tuned": f"run_glue.py --model_name_or_path me/mlm {opinion}",
        "refused": f"run_glue.py {tiny} {opinion} --license please",
        "broken": f"run_glue.py {tiny} {opinion}",
    }
    jobs = {
        name: [*flags.split(), *common.split(), "--hub_model_id", f"me/{name}", "--output_dir", f"out-{name}"]
        for name, flags in runs.items()
    }
    (folder / "runs.json").write_text(json.dumps(jobs))
    environment = hub.environment(folder / "home") | {"PYTHONPATH": str(HERE.parents[1])}
    return talk("running.py", folder, folder / "runs.json", **environment), folder


@pytest.fixture(scope="module")
def opened_from_scripts(hub, ran, tmp_path_factory):
    functions = "fill_mask text_generation text_classification image_classification question_answering checkpoint cards"
    repositories = [f"me/{name}" for name in SCRIPTS]
    folder = tmp_path_factory.mktemp("opening-scripts")
    return open_by_name(hub, folder, folder / "home", functions, repositories=repositories)


SCRIPTS = ("mlm", "clm", "glue", "qa", "images", "tuned")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_pushes_what_it_leaves(hub, ran, name):
    results, folder = ran
    assert results[name] is None, results[name]
    repository = hub.repositories[f"me/{name}"]
    local = {
        path.name: path.read_bytes()
        for path in (folder / f"out-{name}").iterdir()
        if path.is_file() and not path.name.startswith("_")
    }
    files = {path: data for path, data in repository.files().items() if "/" not in path}
    assert files == local
    assert repository.private == (name == "qa")
    # A command line had the token.
    assert not [path for path, data in repository.files().items() if b"hf_mine" in data]
    card = card_of(hub, f"me/{name}")
    if name != "tuned":
        assert f"# me/{name}" in card.text and "## Results on held-out data" in card.text
        assert f"--hub_model_id me/{name}" in card.text and str(folder) not in str(card)
    if name == "mlm":
        assert (card.data.license, card.data.language) == ("mit", "en")


def test_a_script_starts_from_a_model_on_the_hub_and_keeps_its_card(hub, ran):
    assert ran[0]["tuned"] is None, ran[0]["tuned"]
    card = card_of(hub, "me/tuned")
    assert card.text.strip() == "My own words." and card.data.license == "cc-by-4.0"
    assert (card.data.base_model, card.data.pipeline_tag) == ("me/mlm", "text-classification")


def test_a_card_that_cannot_be_read_stops_a_push_and_not_a_run(hub, ran):
    assert "could not be pushed" in ran[0]["broken"]
    assert hub.repositories["me/broken"].files()["README.md"] == BROKEN
    assert (ran[1] / "out-broken" / "all_results.json").is_file()


@pytest.mark.parametrize("name, checkpoint", [("clm", "last-checkpoint"), ("glue", "checkpoint-1")])
def test_training_can_continue_from_a_pushed_checkpoint(hub, ran, tmp_path, name, checkpoint):
    files = hub.repositories[f"me/{name}"].files()
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert read_settings(tmp_path / checkpoint) is not None


def test_an_invalid_license_is_refused_before_training(ran):
    results, folder = ran
    assert "--license please" in results["refused"]
    assert not list((folder / "out-refused").glob("model*"))


def test_pipelines_by_name(ran, opened_from_scripts):
    """The answers are those of the models in the scripts' folders."""
    folder, opened = ran[1], opened_from_scripts

    def here(task, name, question, **options):
        path = str(folder / f"out-{name}")
        return pipeline(task, model=path, **options)(question)

    answers = here("fill-mask", "mlm", "The [MASK] statement is used for functions.")
    assert of(opened, "fill_mask") == pytest.approx([answer["score"] for answer in answers], rel=1e-4)
    answer = here("text-generation", "clm", "The statement", max_new_tokens=5, do_sample=False)
    assert of(opened, "text_generation") == answer[0]["generated_text"]
    texts = here("text-classification", "glue", "the film is lovely", top_k=None)[0]
    images = here("image-classification", "images", Image.new("RGB", (40, 30), (200, 50, 40)))
    for answers, expected in (
        (of(opened, "text_classification")[0], texts),
        (of(opened, "image_classification"), images),
    ):
        found = {answer["label"]: answer["score"] for answer in answers}
        assert found == pytest.approx({answer["label"]: answer["score"] for answer in expected}, rel=1e-4)
    starts, _ = of(opened, "question_answering")
    assert torch.tensor(starts).isfinite().all()
    assert of(opened, "checkpoint") == "GMLPForCausalLM" and of(opened, "cards") == len(SCRIPTS)
