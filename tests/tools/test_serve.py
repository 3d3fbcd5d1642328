"""A served model over HTTP, with OpenAI's client, and in a browser."""

import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import openai
import pytest
import requests
import torch
import uvicorn
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from transformers import BertConfig, BertForMaskedLM, ViTImageProcessor

from hf_gmlp import GMLPForCausalLM, GMLPForImageClassification, GMLPForMaskedLM, GMLPForSequenceClassification
from hf_gmlp.tokenizer import byte_tokenizer
from hf_gmlp.tools.cli import main
from hf_gmlp.tools.serve import make_app

from .. import samples

pytestmark = pytest.mark.slow

WORDS = "the a cat dog sat ran on under mat house and then slept".split()


def word_tokenizer():
    return samples.word_tokenizer(WORDS, punctuation=True, mask="<blank>")


@contextmanager
def served(folder):
    """Serves the model in a folder, and yields the address."""
    server = uvicorn.Server(uvicorn.Config(make_app(str(folder)), log_level="error"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def folders(tmp_path_factory, far_model, text_config, vision_config):
    """The folders of tiny models, by task."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("masked", "image", "causal", "words")}
    far_model(GMLPForMaskedLM, text_config(vocab_size=len(word_tokenizer()))).save_pretrained(folders["masked"])
    word_tokenizer().save_pretrained(folders["masked"])
    labels = dict(enumerate(("cat", "dog", "mouse")))
    far_model(GMLPForImageClassification, vision_config(id2label=labels)).save_pretrained(folders["image"])
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folders["image"])
    causal = text_config(vocab_size=258, max_position_embeddings=48, eos_token_id=None)
    model = far_model(GMLPForCausalLM, causal)
    # Only ASCII: half a character cannot be streamed, and a browser changes control characters.
    model.generation_config.suppress_tokens = [*range(34), *range(129, 258)]
    model.save_pretrained(folders["causal"])
    byte_tokenizer(48).save_pretrained(folders["causal"])
    far_model(GMLPForCausalLM, text_config(vocab_size=len(word_tokenizer()), eos_token_id=None)).save_pretrained(
        folders["words"]
    )
    word_tokenizer().save_pretrained(folders["words"])
    return folders


def address_of(name):
    @pytest.fixture(scope="module")
    def address(folders):
        with served(folders[name]) as address:
            yield address

    return address


masked, image, causal = address_of("masked"), address_of("image"), address_of("causal")


@pytest.fixture(scope="module")
def client(causal):
    return openai.OpenAI(base_url=f"{causal}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def name(folders):
    return str(folders["causal"])


@pytest.fixture
def picture():
    """A PNG of noise."""
    pixels = torch.randint(0, 256, (20, 30, 3), dtype=torch.uint8).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


# The page's own requests


def test_masks_are_filled_as_without_the_server(masked, folders):
    text = "the <blank> sat on the <blank>"
    reply = requests.post(f"{masked}/predict", json={"text": text})
    assert reply.status_code == 200
    model, tokenizer = GMLPForMaskedLM.from_pretrained(folders["masked"]), word_tokenizer()
    inputs = tokenizer(text, return_tensors="pt")
    probabilities = model(**inputs).logits[0][inputs.input_ids[0] == tokenizer.mask_token_id].softmax(-1)
    for answers, expected in zip(reply.json()["answers"], probabilities, strict=True):
        best = expected.topk(5)
        assert [row["answer"] for row in answers] == [tokenizer.decode(i) for i in best.indices]
        torch.testing.assert_close(torch.tensor([row["probability"] for row in answers]), best.values)
    one = requests.post(f"{masked}/predict", json={"text": "the <blank>"}).json()["answers"]
    assert len(one) == 1 and len(one[0]) == 5


def test_a_picture_is_classified_as_without_the_server(image, folders, picture):
    reply = requests.post(f"{image}/predict", data=picture)
    inputs = ViTImageProcessor.from_pretrained(folders["image"])(Image.open(io.BytesIO(picture)), return_tensors="pt")
    expected = GMLPForImageClassification.from_pretrained(folders["image"])(**inputs).logits[0].softmax(-1)
    (answers,) = reply.json()["answers"]
    assert [row["answer"] for row in answers] == [("cat", "dog", "mouse")[i] for i in expected.argsort(descending=True)]
    torch.testing.assert_close(
        torch.tensor([row["probability"] for row in answers]), expected.sort(descending=True).values
    )


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (json.dumps({"text": "the cat"}), "The text has no <blank>: insert one where a word is missing."),
        (json.dumps({"text": "<blank> " * 30}), "The text has 32 tokens, but the model takes at most 12: shorten it."),
        ("no JSON", 'Send JSON: {"text": "..."}.'),
        ("[]", 'Send JSON: {"text": "..."}.'),
        (json.dumps({"text": 3}), 'Send JSON: {"text": "..."}.'),
    ],
)
def test_a_text_that_cannot_be_filled_is_refused(masked, body, sentence):
    reply = requests.post(f"{masked}/predict", data=body)
    assert (reply.status_code, reply.json()["detail"]) == (400, sentence)


def test_a_file_that_is_not_a_picture_is_refused(image, picture):
    for body, fault in ((b"words", "not an image"), (picture[:200], ""), (b"", "not an image")):
        reply = requests.post(f"{image}/predict", data=body)
        assert reply.status_code == 400 and f"This cannot be read as a picture: {fault}" in reply.json()["detail"]


def test_a_large_upload_is_refused(image):
    reply = requests.post(f"{image}/predict", data=bytes(20 * 2**20 + 1))
    assert reply.status_code == 413
    assert reply.json()["detail"] == "The upload is larger than 20 MB: send something smaller."


def test_filters_are_a_picture(masked, image, causal):
    for address in (masked, image, causal):
        reply = requests.get(f"{address}/filters.png")
        assert Image.open(io.BytesIO(reply.content)).width > 500 and requests.get(f"{address}/about").json()["filters"]


def test_a_model_without_filters_is_served(tmp_path, far_model):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    far_model(BertForMaskedLM, BertConfig(vocab_size=40, **sizes)).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with served(tmp_path) as address:
        assert requests.get(f"{address}/about").json()["filters"] is False
        reply = requests.get(f"{address}/filters.png")
        assert (reply.status_code, reply.json()["detail"]) == (404, "A BertForMaskedLM has no spatial filters.")
        assert requests.post(f"{address}/predict", json={"text": "<blank>"}).status_code == 200


# OpenAI's


def greedy(folder, prompt: str, count: int) -> str:
    """Returns what the model generates after a prompt without the server."""
    tokenizer = byte_tokenizer()
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    text = GMLPForCausalLM.from_pretrained(folder).generate(ids, max_new_tokens=count, do_sample=False)
    return tokenizer.decode(text[0, ids.shape[1] :])


def test_the_model_is_listed(client, name, causal):
    assert [model.id for model in client.models.list()] == [name]
    # What `transformers chat` asks first.
    assert requests.get(f"{causal}/health").json() == {"status": "ok"}
    assert '"status": "ready"' in requests.post(f"{causal}/load_model", json={"model": name}).text
    assert "There is no model 'another' here" in requests.post(f"{causal}/load_model", json={"model": "another"}).text


def test_a_text_is_continued_as_without_the_server(client, name, folders):
    asked = {"model": name, "prompt": "It is", "max_tokens": 8, "temperature": 0}
    reply = client.completions.create(**asked)
    assert reply.choices[0].text == greedy(folders["causal"], "It is", 8)
    assert reply.choices[0].finish_reason == "length" and reply.usage.prompt_tokens == 5
    *parts, last = client.completions.create(**asked, stream=True)
    assert len(parts) > 1 and "".join(part.choices[0].text for part in parts) == reply.choices[0].text
    assert last.choices[0].finish_reason == "length" and last.usage.completion_tokens == 8


def test_a_chat_without_a_template_continues_the_last_message(client, name, folders):
    first = {"role": "user", "content": "It is"}
    asked = {"model": name, "max_tokens": 8, "temperature": 0}
    reply = client.chat.completions.create(messages=[first], **asked).choices[0].message
    assert (reply.role, reply.content) == ("assistant", greedy(folders["causal"], "It is", 8))
    answered = [first, {"role": "assistant", "content": " so."}, {"role": "user", "content": "Or"}]
    parts = client.chat.completions.create(messages=answered, stream=True, **asked)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == greedy(folders["causal"], "It is so.\nOr", 8)


def test_temperature_changes_the_text(client, name):
    def write(**options):
        return client.completions.create(model=name, prompt="It is", max_tokens=20, **options).choices[0].text

    assert write(temperature=0) == write(temperature=0) != write(seed=1, temperature=3)
    assert write(seed=1, temperature=3) == write(seed=1, temperature=3) != write(seed=2, temperature=3)


def test_a_text_ends_at_n_tokens_and_says_so(client, name):
    for asked in ({}, {"max_tokens": 500}):
        reply = client.completions.create(model=name, prompt="It is", **asked)
        assert reply.usage.total_tokens == 48 and reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_unsupported_requests_are_refused(client, name, stream):
    long = "The prompt has 48 tokens, but prompt and completion together may have at most 48: shorten it."
    for options, sentence in (
        ({"prompt": "x" * 48}, long),
        ({"prompt": ""}, "The prompt is empty: send a text to continue."),
        ({"max_tokens": 0}, "max_tokens must be at least 1."),
        ({"temperature": -1}, "temperature must be at least 0."),
        ({"temperature": "hot"}, "could not convert string to float: 'hot'"),
        ({"top_p": 2}, "top_p must be between 0 and 1."),
        ({"frequency_penalty": -1}, "frequency_penalty must be above -1."),
        ({"n": 2, "echo": True}, "This server does not support n and echo: leave it out."),
        ({"model": "another"}, f"Server is pinned to '{name}'; requested 'another'."),
    ):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.completions.create(**{"model": name, "prompt": "It", "stream": stream} | options)
        assert refusal.value.body == sentence or refusal.value.response.json() == {"detail": sentence}
    said = {"role": "user", "content": "x" * 48}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for messages, options, sentence in (
        ([said], {}, long),
        ([said], {"tools": [tool]}, "This model has no chat template, so it cannot use tools."),
        ([{"content": "It"}], {}, "The request lacks 'role'."),
    ):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.chat.completions.create(model=name, messages=messages, stream=stream, **options)
        assert refusal.value.response.json() == {"detail": sentence}


def test_a_prompt_does_not_end_with_sep(folders):
    """The tokenizer puts [SEP] after a text, and a model would then start another text."""
    with served(folders["words"]) as address:
        asked = {"prompt": "the cat", "max_tokens": 3, "temperature": 0}
        reply = requests.post(f"{address}/v1/completions", json=asked).json()
    assert reply["usage"]["prompt_tokens"] == 2
    tokenizer = word_tokenizer()
    ids = tokenizer("the cat", add_special_tokens=False, return_tensors="pt").input_ids
    model = GMLPForCausalLM.from_pretrained(folders["words"])
    text = model.generate(ids, max_new_tokens=3, do_sample=False)[0, 2:]
    assert reply["choices"][0]["text"] == tokenizer.decode(text, skip_special_tokens=True)


# The command


def test_the_command_serves_until_it_is_interrupted(folders):
    command = [sys.executable, "-m", "hf_gmlp.tools.cli", "serve", str(folders["causal"]), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(4)]
    address = lines[1].partition(" is at ")[2].partition(": open")[0]
    assert "no chat template" in lines[0] and f"base_url {address}/v1" in lines[2] and "transformers chat" in lines[3]
    assert requests.get(address).text.startswith("<!doctype html>")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "") and process.returncode == 0


def test_errors_of_the_command(tmp_path, folders, capsys, far_model, text_config):
    far_model(GMLPForSequenceClassification, text_config()).save_pretrained(tmp_path / "classifier")
    shutil.copytree(folders["masked"], tmp_path / "no-mask")
    byte_tokenizer(12).save_pretrained(tmp_path / "no-mask")
    shutil.copytree(folders["image"], tmp_path / "no-processor")
    (tmp_path / "no-processor" / "preprocessor_config.json").unlink()
    for model, sentence in (
        ("nowhere", "There is no model to open in nowhere: it is not a folder here"),
        (tmp_path, "the folder has no config.json"),
        (tmp_path / "classifier", "is a GMLPForSequenceClassification. Only masked and causal language models"),
        (tmp_path / "no-mask", "has no mask token"),
        (tmp_path / "no-processor", "the folder has no preprocessor_config.json"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["serve", str(model), "--port", "0"])
        assert stop.value.code == 2 and sentence in capsys.readouterr().err
    with closing(socket.create_server(("127.0.0.1", 0))) as taken, pytest.raises(SystemExit) as stop:
        main(["serve", str(folders["causal"]), "--port", str(taken.getsockname()[1])])
    assert stop.value.code == 2 and "choose another --port" in capsys.readouterr().err


# The page


@pytest.fixture(params=[(1200, 900), (375, 800)], ids=["desktop", "phone"], scope="module")
def browser(request, tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
        *("disable-dev-shm-usage", "disable-background-networking", "disable-component-update"),
    ):
        options.add_argument(f"--{flag}")
    width, height = request.param
    options.add_argument(f"--window-size={width},{height}")
    if width < 500:
        metrics = {"width": width, "height": height, "pixelRatio": 2, "touch": True}
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as browser:
        yield browser


class Page:
    """The page of a server in a browser. `check` finds errors in its console and anything wider than the screen."""

    def __init__(self, browser, address: str):
        self.browser = browser
        browser.get(address)
        self.wait(lambda: self("form").is_displayed())
        self.wait(lambda: browser.execute_script("return document.getElementById('picture').naturalWidth > 500"))

    def __call__(self, id: str):
        return self.browser.find_element(By.ID, id)

    def wait(self, condition):
        WebDriverWait(self.browser, 60).until(lambda _: condition())

    def rows(self) -> list[str]:
        """The answers, as soon as there are some."""
        self.wait(lambda: self("answers").text)
        return [row.text for row in self.browser.find_elements(By.CSS_SELECTOR, "#answers tr")]

    def check(self):
        assert self.browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
        # The console has a line for a refused request.
        assert [line for line in self.browser.get_log("browser") if "status of 4" not in line["message"]] == []


def test_masks_are_filled_on_the_page(browser, masked, folders):
    page = Page(browser, masked)
    assert browser.title == folders["masked"].name and "<blank>" in page("about").text
    page("input").send_keys("the cat sat on")
    page("go").click()
    page.wait(lambda: page("error").text == "The text has no <blank>: insert one where a word is missing.")
    page("mask").click()
    assert page("input").get_property("value") == "the cat sat on<blank>"
    page("go").click()
    expected = requests.post(f"{masked}/predict", json={"text": "the cat sat on<blank>"}).json()["answers"][0]
    assert page.rows() == [f"{row['answer']} {100 * row['probability']:.1f}%".replace(" ", "\n", 1) for row in expected]
    assert page("error").text == ""
    page.check()


DROP = """
const [bytes, type] = arguments, carried = new DataTransfer();
carried.items.add(new File([new Uint8Array(bytes)], "dropped", {type}));
document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: carried, bubbles: true}));
"""


def test_a_picture_is_classified_on_the_page(browser, image, picture, tmp_path):
    page = Page(browser, image)
    assert "3 classes" in page("about").text
    browser.execute_script(DROP, list(picture), "image/png")
    expected = requests.post(f"{image}/predict", data=picture).json()["answers"][0]
    shown = [f"{row['answer']} {100 * row['probability']:.1f}%".replace(" ", "\n", 1) for row in expected]
    assert page.rows() == shown
    assert browser.execute_script("return document.getElementById('preview').naturalWidth") == 30
    browser.execute_script(DROP, list(b"words"), "text/plain")
    page.wait(lambda: page("error").text == "This cannot be read as a picture: not an image.")
    (tmp_path / "chosen.png").write_bytes(picture)
    page("file").send_keys(str(tmp_path / "chosen.png"))
    assert page.rows() == shown and page("error").text == ""
    (tmp_path / "large.png").write_bytes(bytes(21 * 2**20))
    page("file").send_keys(str(tmp_path / "large.png"))
    page.wait(lambda: page("error").text == "The file is larger than 20 MB. Choose a smaller one.")
    page.check()


def test_a_text_is_continued_on_the_page(browser, causal, folders):
    page = Page(browser, causal)
    page("input").send_keys("It is")
    for id, value in (("tokens", "8"), ("temperature", "0")):
        page(id).clear()
        page(id).send_keys(value)
    page("go").click()
    expected = "It is" + greedy(folders["causal"], "It is", 8)
    page.wait(lambda: browser.execute_script("return document.getElementById('text')?.textContent") == expected)
    page("input").send_keys("x" * 50)
    page("go").click()
    page.wait(lambda: "The prompt has 55 tokens" in page("error").text)
    page.check()
