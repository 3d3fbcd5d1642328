"""
`hf-gmlp serve`: a trained model as a page in the browser and, if it can generate text, as an API for OpenAI's clients.

The API is the server of `transformers serve`. By itself that opens only classes of the library; here it is given a
model that is already open.
"""

import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, Response
from jinja2 import TemplateError
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    pipeline,
)
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import GenerateManager, GenerationState

from ..errors import InputError
from ..loading import open_config, open_model, open_tokenizer, reason
from ..models.modeling_gmlp import GMLPPreTrainedModel
from ..tasks.image_classification.images import decode
from ..tokenizer import open_ended
from .analysis.filters import plot_filters

# The largest upload: a picture from any camera, or a long book.
MEGABYTES = 20
# A model of plain text continues the last message. Each new message starts a line.
PLAIN_CHAT = """\
{%- if tools %}{{ raise_exception('This model has no chat template, so it cannot use tools.') }}{% endif -%}
{%- for message in messages -%}
{%- if not loop.first and message.role != 'assistant' %}{{ '\\n' }}{% endif -%}
{{- message.content -}}
{%- endfor -%}"""


def serve(checkpoint: str, host: str = "127.0.0.1", port: int = 8000):
    """
    Serves a masked or causal language model or an image classifier until Ctrl-C, and prints its address. Port 0 is any
    free port.

    Raises:
        InputError: If the model cannot be opened or served, or the port cannot be used.
    """
    try:
        # Before the model is opened, which may take long.
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise InputError(f"Cannot listen on {host}, port {port} ({error}): choose another --port.") from error
    with listener:
        app = make_app(checkpoint)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        lines = [f"{checkpoint} is at {address}: open it in a browser. Press Ctrl-C to stop."]
        if app.state.about["kind"] == "causal":
            lines.append(f"OpenAI's clients: base_url {address}/v1, model {checkpoint}, any api_key.")
            lines.append(f"In a terminal: transformers chat {checkpoint} {address}")
        print(*lines, sep="\n", flush=True)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def make_app(checkpoint: str) -> FastAPI:
    """Returns the application that serves a model, or raises an InputError if it cannot be opened or served."""
    config = open_config(checkpoint)
    name = (config.architectures or ["model without a head"])[0]
    kinds = {"ForMaskedLM": masked, "ForCausalLM": causal, "LMHeadModel": causal, "ForImageClassification": image}
    kind = next((kinds[ending] for ending in kinds if name.endswith(ending)), None)
    if kind is None:
        raise InputError(
            f"{checkpoint} is a {name}. Only masked and causal language models and image classifiers can be served."
        )
    return kind(checkpoint)


def masked(checkpoint: str) -> FastAPI:
    """Serves a masked language model, which fills in the masks of a text."""
    model, tokenizer = _on_device(AutoModelForMaskedLM, checkpoint), open_tokenizer(checkpoint)
    if tokenizer.mask_token is None:
        raise InputError(f"The tokenizer in {checkpoint} has no mask token, so there is nothing to fill in.")
    filler = pipeline("fill-mask", model=model, tokenizer=tokenizer)
    n = model.config.max_position_embeddings

    def answer(body: bytes) -> list[list[dict]]:
        try:
            text = json.loads(body)["text"]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            raise HTTPException(400, 'Send JSON: {"text": "..."}.')
        ids = tokenizer(text, verbose=False)["input_ids"]
        if tokenizer.mask_token_id not in ids:
            raise HTTPException(400, f"The text has no {tokenizer.mask_token}: insert one where a word is missing.")
        if len(ids) > n:
            raise HTTPException(400, f"The text has {len(ids)} tokens, but the model takes at most {n}: shorten it.")
        found = filler(text, top_k=min(5, model.config.vocab_size))
        return [_rows(mask, "token_str") for mask in (found if isinstance(found[0], list) else [found])]

    return _add_page(FastAPI(), checkpoint, model, answer, kind="masked", n=n, mask=tokenizer.mask_token)


def image(checkpoint: str) -> FastAPI:
    """Serves an image classifier."""
    model = _on_device(AutoModelForImageClassification, checkpoint)
    try:
        processor = AutoImageProcessor.from_pretrained(checkpoint)
    except Exception as error:
        why = reason(checkpoint, "preprocessor_config.json", error)
        raise InputError(f"There is no image processor to open in {checkpoint}: {why}.") from error
    classifier = pipeline("image-classification", model=model, image_processor=processor)

    def answer(body: bytes) -> list[list[dict]]:
        try:
            picture = decode({"bytes": body, "path": "This"})
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        return [_rows(classifier(picture, top_k=5), "label")]

    return _add_page(FastAPI(), checkpoint, model, answer, kind="image", classes=model.config.num_labels)


def causal(checkpoint: str) -> FastAPI:
    """Serves a causal language model with the server of transformers, and adds the page."""
    model, tokenizer = _on_device(AutoModelForCausalLM, checkpoint), open_ended(open_tokenizer(checkpoint))
    if model.generation_config.do_sample is None:
        # OpenAI's clients expect sampling. A temperature of 0 is greedy search.
        model.generation_config.do_sample = True
    if tokenizer.chat_template is None:
        begins = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        tokenizer.chat_template = ("{{ bos_token }}" if begins else "") + PLAIN_CHAT
        print(f"{checkpoint} has no chat template: in a chat, it continues the last message like any other text.")
    models, state, manager = OpenModel(checkpoint, model, tokenizer), GenerationState(), FittingGeneration()
    # One request after another: a gMLP has no paged cache for batches of requests.
    state.get_manager = lambda model_id, use_cb=False: manager
    app = build_server(
        models,
        ChatHandler(models, state),
        completion_handler=TextHandler(models, state),
        response_handler=ResponseHandler(models, state),
        transcription_handler=None,
        systemone_handler=None,
        generation_state=state,
    )
    # These are for other kinds of models.
    others = ("/v1/audio/transcriptions", "/v1/systemone")
    app.router.routes[:] = [route for route in app.routes if route.path not in others]

    def refuse(request: Request, error: Exception) -> JSONResponse:
        words = f"The request lacks {error}." if isinstance(error, KeyError) else str(error)
        return JSONResponse({"detail": words}, status_code=400)

    for kind in (ValueError, TypeError, KeyError, TemplateError):
        app.add_exception_handler(kind, refuse)
    return _add_page(app, checkpoint, model, None, kind="causal", n=model.config.max_position_embeddings)


class Complete:
    """Makes a handler of transformers refuse options that it would ignore with a line in the log."""

    def _validate_request(self, body: dict):
        super()._validate_request(body)
        ignored = [name for name in ("n", "best_of") if body.get(name, 1) not in (None, 1)]
        ignored += [name for name in ("echo", "logprobs", "top_logprobs", "presence_penalty") if body.get(name)]
        if ignored:
            raise HTTPException(400, f"This server does not support {' and '.join(ignored)}: leave it out.")


class ChatHandler(Complete, ChatCompletionHandler):
    """Serves chats."""


class TextHandler(Complete, CompletionHandler):
    """Serves completions of a prompt."""


class OpenModel(ModelManager):
    """A model manager with one model, which is already open and stays open."""

    def __init__(self, name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self.force_model, self.model, self.tokenizer, self.created = name, model, tokenizer, int(time.time())

    def process_model_name(self, model_id: str) -> str:
        return model_id

    def load_model_and_processor(self, model_id: str, progress_callback: Callable | None = None, **_):
        if model_id != self.force_model:
            raise ValueError(f"There is no model {model_id!r} here; the model of this server is {self.force_model!r}.")
        if progress_callback is not None:
            progress_callback({"status": "ready", "model": model_id, "cached": True})
        return self.model, self.tokenizer

    def get_gen_models(self, cache_dir: str | None = None) -> list[dict]:
        return [{"id": self.force_model, "object": "model", "created": self.created, "owned_by": ""}]


class FittingGeneration(GenerateManager):
    """Refuses requests that the model cannot fulfill before an answer begins."""

    def generate_streaming(self, model, processor, inputs, gen_config, **options):
        fit(gen_config, inputs["input_ids"].shape[-1], model.config.max_position_embeddings)
        return super().generate_streaming(model, processor, inputs, gen_config, **options)

    async def generate_non_streaming(self, model, processor, inputs, gen_config, **options):
        fit(gen_config, inputs["input_ids"].shape[-1], model.config.max_position_embeddings)
        return await super().generate_non_streaming(model, processor, inputs, gen_config, **options)


def fit(config: GenerationConfig, prompt: int, n: int):
    """
    Ends a generation at n tokens including the prompt, so that the answer reports "length" if it was cut. Raises an
    HTTPException if the prompt leaves no room, or a setting is out of range.
    """
    room, new = n - prompt, config.max_new_tokens
    long = f"The prompt has {prompt} tokens, but prompt and completion together may have at most {n}: shorten it."
    temperature, top_p, penalty = config.temperature, config.top_p, config.repetition_penalty
    for wrong, fault in (
        (prompt == 0, "The prompt is empty: send a text to continue."),
        (room <= 0, long),
        (new is not None and new <= 0, "max_tokens must be at least 1."),
        (temperature is not None and not temperature >= 0, "temperature must be at least 0."),
        (top_p is not None and not 0 <= top_p <= 1, "top_p must be between 0 and 1."),
        (penalty is not None and not penalty > 0, "frequency_penalty must be above -1."),
    ):
        if wrong:
            raise HTTPException(400, fault)
    if new is not None or config.max_length is None:
        config.max_new_tokens = min(new or room, room)


def _add_page(
    app: FastAPI, checkpoint: str, model: PreTrainedModel, answer: Callable[[bytes], list] | None, **about
) -> FastAPI:
    """Adds the page of a model, the picture of its filters and, if there is an `answer`, POST requests for it."""
    filters = _filters(model)
    app.state.about = {"model": checkpoint, "class": type(model).__name__, "megabytes": MEGABYTES, **about}
    app.state.about["filters"] = filters is not None
    busy = threading.Lock()

    def one_at_a_time(body: bytes) -> list:
        with busy:
            return answer(body)

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(Path(__file__).with_name("serve.html"))

    @app.get("/about")
    def about_model() -> dict:
        return app.state.about

    @app.get("/filters.png")
    def filters_picture() -> Response:
        if filters is None:
            raise HTTPException(404, f"A {type(model).__name__} has no spatial filters.")
        return Response(filters, media_type="image/png")

    if answer is not None:

        @app.post("/predict")
        async def predict(request: Request) -> dict:
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > MEGABYTES * 2**20:
                    raise HTTPException(413, f"The upload is larger than {MEGABYTES} MB: send something smaller.")
            return {"answers": await run_in_threadpool(one_at_a_time, bytes(body))}

    return app


def _filters(model: PreTrainedModel) -> bytes | None:
    """Draws the spatial filters before there are threads, among which matplotlib's figures cannot be shared."""
    if not isinstance(model, GMLPPreTrainedModel):
        return None
    with tempfile.TemporaryDirectory() as folder:
        plot_filters(model, Path(folder, "filters.png"))
        return Path(folder, "filters.png").read_bytes()


def _rows(found: list[dict], label: str) -> list[dict]:
    return [{"answer": row[label], "probability": row["score"]} for row in found]


def _on_device(auto_class: type, checkpoint: str) -> PreTrainedModel:
    model, _ = open_model(auto_class, checkpoint)
    return model.eval().to(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
