"""Pages of served models, used through the gradio client."""

import functools
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, pipeline

import hf_gmlp
from hf_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForSequenceClassification
from hf_gmlp.processor import evaluation_processor
from hf_gmlp.tools.question_answering import QuestionAnswerer
from hf_gmlp_cli import main

from .. import samples
from ..numerics import assert_close

pytestmark = pytest.mark.slow

gradio_client = pytest.importorskip("gradio_client")
serve = pytest.importorskip("hf_gmlp.tools.serve")

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
WORDS = "the a cat dog sat ran on under mat house and then slept".split()
TEXT = "the cat sat on the mat"
HEADS = {
    "masked": (hf_gmlp.GMLPForMaskedLM, {}),
    "classes": (GMLPForSequenceClassification, {"id2label": {0: "no", 1: "maybe", 2: "yes"}}),
    "number": (GMLPForSequenceClassification, {"num_labels": 1, "problem_type": "regression"}),
    "answers": (hf_gmlp.GMLPForQuestionAnswering, {}),
    "causal": (GMLPForCausalLM, {"eos_token_id": None}),
    "choice": (hf_gmlp.GMLPForMultipleChoice, {}),
    "encoder": (hf_gmlp.GMLPModel, {}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, perturbed_model, text_config, vision_config):
    """The folders of tiny models, by kind."""
    tokenizer = samples.word_tokenizer(WORDS, mask="<blank>")
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in (*HEADS, "image")}
    for kind, (head, fields) in HEADS.items():
        config = text_config(vocab_size=len(tokenizer), max_position_embeddings=20, **fields)
        perturbed_model(head, config).save_pretrained(folders[kind])
        tokenizer.save_pretrained(folders[kind])
    labels = dict(enumerate(("cat", "dog", "mouse")))
    perturbed_model(GMLPForImageClassification, vision_config(id2label=labels)).save_pretrained(folders["image"])
    evaluation_processor((16, 16)).save_pretrained(folders["image"])
    return folders


@pytest.fixture
def opened(folders):
    """opened(kind) serves the page of a tiny model, and returns a client."""
    pages = []

    def open_page(kind):
        pages.append(serve.make_page(str(folders[kind])))
        pages[-1].launch(prevent_thread_lock=True, quiet=True, show_error=True)
        return gradio_client.Client(pages[-1].local_url, verbose=False, analytics_enabled=False)

    yield open_page
    for page in pages:
        page.close()


def confidences(label):
    return {row["label"]: row["confidence"] for row in label["confidences"]}


def test_masks_are_filled(opened, folders):
    client, text = opened("masked"), "the <blank> sat on the <blank>"
    rows = client.predict(text, api_name="/fill")["data"]
    expected = pipeline("fill-mask", model=str(folders["masked"]), top_k=5)(text)
    assert [row[:2] for row in rows] == [[i, row["token_str"]] for i, mask in enumerate(expected, 1) for row in mask]
    assert len(client.predict("the <blank>", api_name="/fill")["data"]) == 5
    long = "cat " * 20 + "<blank>"
    for text, message in (("no gap", "<blank>"), (" ", "<blank>"), (long, "maximum of 20")):
        with pytest.raises(gradio_client.exceptions.AppError, match=message):
            client.predict(text, api_name="/fill")


@pytest.mark.parametrize(("kind", "pair"), [("classes", ""), ("classes", "the dog ran"), ("number", "")])
def test_a_text_or_pair_gets_the_probabilities_or_number_of_the_model(opened, folders, kind, pair):
    output = opened(kind).predict(TEXT, pair, api_name="/classify")
    inputs = AutoTokenizer.from_pretrained(folders[kind])(TEXT, pair or None, return_tensors="pt")
    with torch.no_grad():
        logits = GMLPForSequenceClassification.from_pretrained(folders[kind])(**inputs).logits[0]
    if kind == "number":
        assert_close(torch.tensor(float(output["label"])), logits[0], depth=2)
    else:
        assert_close(confidences(output), dict(zip(("no", "maybe", "yes"), logits.softmax(-1))), depth=2)


def test_a_long_text_is_truncated_and_an_empty_one_is_refused(opened):
    client = opened("classes")
    assert confidences(client.predict("cat " * 600, "", api_name="/classify")).keys() == {"no", "maybe", "yes"}
    for text in ("", " "):
        with pytest.raises(gradio_client.exceptions.AppError, match="no input"):
            client.predict(text, "", api_name="/classify")


def test_answers_are_those_of_question_answerer(opened, folders):
    rows = opened("answers").predict("the cat", TEXT, api_name="/answer")["data"]
    expected = QuestionAnswerer(folders["answers"])("the cat", TEXT, top_k=5)
    assert [[row[0], *row[2:]] for row in rows] == [[row["answer"], row["start"], row["end"]] for row in expected]


def test_an_image_gets_the_probabilities_of_the_model(opened, folders, tmp_path):
    pixels = torch.randint(0, 256, (20, 30, 3), dtype=torch.uint8).numpy()
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    client = opened("image")
    scores = confidences(client.predict(gradio_client.handle_file(tmp_path / "noise.png"), api_name="/classify"))
    processor = evaluation_processor((16, 16))
    with torch.no_grad():
        model = GMLPForImageClassification.from_pretrained(folders["image"])
        expected = model(**processor(Image.fromarray(pixels), return_tensors="pt")).logits[0].softmax(-1)
    assert_close(scores, dict(zip(("cat", "dog", "mouse"), expected)), depth=2)
    with pytest.raises(gradio_client.exceptions.AppError, match="no input"):
        client.predict(None, api_name="/classify")


def test_photos_of_200_million_pixels_are_reduced_and_other_large_files_refused(opened, tmp_path):
    client, limit = opened("image"), Image.MAX_IMAGE_PIXELS
    Image.new("L", (16_000, 12_500), 90).save(tmp_path / "photo.jpg")
    output = client.predict(gradio_client.handle_file(tmp_path / "photo.jpg"), api_name="/classify")
    assert confidences(output).keys() == {"cat", "dog", "mouse"}
    for name in ("huge.jpg", "huge.png"):
        Image.new("1", (16_000, 16_000)).save(tmp_path / name)
        with pytest.raises(gradio_client.exceptions.AppError, match="^huge.* pixels"):
            client.predict(gradio_client.handle_file(tmp_path / name), api_name="/classify")
    assert Image.MAX_IMAGE_PIXELS == limit


def test_examples_come_from_the_card(folders):
    (first, second) = serve.read_card(str(CHECKPOINTS / "amlp-mini-sst2"))[1]
    assert "film" in first[0] and len(second) == 1
    images = CHECKPOINTS / "gmlp-mini-cifar10"
    assert serve.read_card(str(images))[1] == [[str(images / "ship.png")]]
    assert serve.read_card(str(folders["classes"]))[1] is None


@pytest.mark.parametrize(
    "front",
    [
        *("widget: [", "- a", "widget: null", "widget: 5", "widget:\n- null", "widget:\n- example_title: x"),
        *("widget:\n- messages: [{role: user}]", "widget:\n- source_sentence: a", "widget:\n- plain text"),
        *("widget:\n- src: nowhere.png", "widget:\n- text: [a]", "widget: {text: a}", "widget:\n- text: caf\xe9"),
    ],
)
def test_examples_that_cannot_be_read_are_left_out(tmp_path, front):
    card = f"---\n{front}\n---\n# Name\n\nA model.\n"
    (tmp_path / "README.md").write_bytes(card.encode("latin-1"))
    assert serve.read_card(str(tmp_path)) in [("", None), ("A model.", None)]


def test_a_text_is_continued_up_to_n_tokens(opened, folders):
    client = opened("causal")
    continued = client.predict("the cat", 50, 0, api_name="/write")
    tokenizer = AutoTokenizer.from_pretrained(folders["causal"])
    # The tokenizer appends [SEP], after which a model would start a new text.
    ids = tokenizer("the cat", add_special_tokens=False, return_tensors="pt").input_ids
    generated = GMLPForCausalLM.from_pretrained(folders["causal"]).generate(ids, max_new_tokens=18, do_sample=False)
    expected = "the cat" + tokenizer.decode(generated[0, 2:], skip_special_tokens=True)
    assert continued.replace(" ", "") == expected.replace(" ", "")
    with pytest.raises(gradio_client.exceptions.AppError, match="maximum of 20"):
        client.predict("cat " * 20, 5, 0, api_name="/write")


@pytest.mark.heavy
def test_the_command_serves_until_it_is_interrupted(folders):
    command = [sys.executable, "-m", "hf_gmlp_cli", "serve", str(folders["masked"]), "--port", "0"]
    # SIGINT must interrupt the process even if the tests run as a background job, which ignores it.
    restore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, text=True, preexec_fn=restore, stdout=subprocess.PIPE)
    assert "Loading" in process.stdout.readline()
    address = process.stdout.readline().partition(" is at ")[2].partition(": open")[0]
    assert address.startswith("http://127.0.0.1:")
    # The page loads nothing from other hosts.
    page, style = (urllib.request.urlopen(f"{address}{path}").read().decode() for path in ("", "theme.css"))
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page)
    assert "fonts.googleapis" not in style and '"analytics_enabled":false' in page
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "other.example"}))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode in (0, 130)


def test_the_command_names_an_unsupported_model_and_a_used_port(folders, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        kinds = {"choice": "MultipleChoice", "encoder": "docs/notebooks/search.ipynb", "masked": "--port"}
        for kind, message in kinds.items():
            with pytest.raises(SystemExit) as stop:
                main(["serve", str(folders[kind]), "--port", str(server.getsockname()[1])])
            assert stop.value.code == 2 and message in capsys.readouterr().err
