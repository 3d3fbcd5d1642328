"""`hf-gmlp serve`: a gradio page to try a trained model in the browser."""

import os
import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import PreTrainedModel, pipeline
from yaml import YAMLError

from ..errors import InputError
from ..loading import open_config, open_image_processor, open_runnable, open_tokenizer, task_of
from ..processor import decode_image
from ..tokenizer import open_ended, text_length
from . import EMBEDDINGS
from .question_answering import QuestionAnswerer

# gradio reads these variables when it is imported.
os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_FLAGGING_MODE": "never"}
import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

LOOPBACK = ["127.0.0.1", "localhost"]
SENTENCE = "The committee accepted the proposal after a long debate."


def serve(checkpoint: str, host: str = "127.0.0.1", port: int = 8000, dtype: str = "auto") -> None:
    """Serve a page for a trained model until Ctrl-C. Port 0 picks a free port from 7860 on."""
    print(f"Loading {checkpoint} ...", flush=True)
    page = make_page(checkpoint, dtype)
    theme = gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    options: dict[str, Any] = {"share": False, "quiet": True, "run_history": False, "show_error": True, "theme": theme}
    options |= {"server_name": host, "server_port": port or None, "max_file_size": "100mb", "footer_links": ["api"]}
    if host in LOOPBACK:
        # Without this check, a website whose domain resolves to this address could read the page (DNS rebinding).
        options["app_kwargs"] = {"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK)]}
    try:
        page.launch(prevent_thread_lock=True, **options)
    except (OSError, OverflowError) as error:
        raise InputError(f"Cannot listen on {host}, port {port}: choose another --port.") from error
    print(f"{checkpoint} is at {page.local_url}: open it in a browser. Press Ctrl-C to stop.", flush=True)
    page.block_thread()


def make_page(checkpoint: str, dtype: str = "auto") -> gr.Blocks:
    """Return the page of a model, or raise an InputError if it cannot be loaded or its head has no page."""
    config = open_config(checkpoint)
    pages = {"MaskedLM": fill_masks, "SequenceClassification": classify_text, "QuestionAnswering": answer_questions}
    pages |= {"ImageClassification": classify_images, "CausalLM": continue_text}
    task = task_of(config)
    if not task:
        raise InputError(f"{checkpoint} {EMBEDDINGS}")
    if task not in pages:
        raise InputError(f"{checkpoint} is a model for {task}, which has no page: use one for {', '.join(pages)}.")
    model = open_runnable(checkpoint, task, dtype)
    classes = ", ".join(config.id2label.values()) if "Classification" in task and config.num_labels > 1 else ""
    with gr.Blocks(title=Path(checkpoint).name, analytics_enabled=False) as page:
        lines = [f"# {Path(checkpoint).name}", read_card(checkpoint)[0], classes and f"Classes: {classes}"]
        gr.Markdown("\n\n".join(filter(None, lines)))
        pages[task](model.eval(), checkpoint)
    return page.queue(default_concurrency_limit=1, max_size=32)


def read_card(checkpoint: str) -> tuple[str, list[list[str]] | None]:
    """Return the first sentence of the model card's text, and the texts or pictures of its `widget`, as the Hub shows
    them; "" and None if there are none, or the card cannot be read, since a page does not need it.
    """
    try:
        card = ModelCard.load(Path(checkpoint, "README.md"))
    except (OSError, ValueError, YAMLError):
        return "", None
    sentence = re.search(r"^# .*\n\s*([^#\s][^.]*(\.\S[^.]*)*\.)", card.text, re.MULTILINE)
    widget = card.data.get("widget")
    rows = [row for row in widget if isinstance(row, dict)] if isinstance(widget, list) else []
    texts = [row["text"] for row in rows if isinstance(row.get("text"), str)]
    pictures = [Path(checkpoint, row["src"]) for row in rows if isinstance(row.get("src"), str)]
    examples = [[text] for text in texts or [str(path) for path in pictures if path.is_file()]]
    return " ".join(sentence[1].split()) if sentence else "", examples or None


def need_input(value: str | None) -> None:
    """Raise an error, which the page shows, if an input is empty."""
    if not (value or "").strip():
        raise gr.Error("There is no input yet.", print_exception=False)


# Each of the following functions adds the interface for one head to the page.


def fill_masks(model: PreTrainedModel, checkpoint: str) -> None:
    pipe = pipeline("fill-mask", model=model, tokenizer=open_tokenizer(checkpoint), top_k=5)
    mask = str(pipe.tokenizer.mask_token)

    def fill(text: str) -> list[list]:
        answers = pipe(text)
        masks = answers if isinstance(answers[0], list) else [answers]
        return [[i, row["token_str"], round(row["score"], 4)] for i, rows in enumerate(masks, 1) for row in rows]

    outputs = gr.Dataframe(label="Tokens", headers=["mask", "token", "probability"])
    examples = [SENTENCE.replace(word, mask) for word in ("accepted", "long")]
    gr.Interface(fill, gr.Textbox(label=f"Text with {mask}"), outputs, examples=examples)


def classify_text(model: PreTrainedModel, checkpoint: str) -> None:
    tokenizer = open_tokenizer(checkpoint)
    options: dict[str, Any] = {"truncation": True, "max_length": text_length(model.config, tokenizer)}
    pipe = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None, **options)

    def classify(text: str, pair: str) -> dict[str, float] | float:
        need_input(text)
        rows = pipe({"text": text, "text_pair": pair or None})
        # The output of a regression is a number.
        return rows[0]["score"] if len(rows) == 1 else {row["label"]: row["score"] for row in rows}

    inputs = [gr.Textbox(label="Text"), gr.Textbox(label="Second text, if the model classifies pairs")]
    gr.Interface(classify, inputs, gr.Label(label="Classes"), examples=read_card(checkpoint)[1])


def answer_questions(model: PreTrainedModel, checkpoint: str) -> None:
    answerer = QuestionAnswerer(model, open_tokenizer(checkpoint))

    def answer(question: str, context: str) -> list[list]:
        answers: Any = answerer(question, context, top_k=5)
        return [list(row.values()) for row in answers]

    inputs = [gr.Textbox(label="Question"), gr.Textbox(label="Text that contains the answer", lines=6)]
    outputs = gr.Dataframe(label="Answers", headers=["answer", "probability", "start", "end"])
    gr.Interface(answer, inputs, outputs, examples=[["What was accepted?", SENTENCE]])


def classify_images(model: PreTrainedModel, checkpoint: str) -> None:
    pipe = pipeline("image-classification", model=model, image_processor=open_image_processor(checkpoint), top_k=5)

    def classify(path: str | None) -> dict[str, float]:
        need_input(path)
        try:
            picture = decode_image({"bytes": None, "path": path})
        except InputError as error:
            raise gr.Error(str(error).replace(str(path), Path(str(path)).name), print_exception=False) from None
        return {row["label"]: row["score"] for row in pipe(picture)}

    image = gr.Image(label="Image", type="filepath", image_mode=None)
    # gradio would open the file, for which Pillow has a limit of pixels.
    vars(image)["preprocess"] = lambda payload: payload and payload.path
    gr.Interface(classify, image, gr.Label(label="Classes"), examples=read_card(checkpoint)[1])


def continue_text(model: PreTrainedModel, checkpoint: str) -> None:
    pipe = pipeline("text-generation", model=model, tokenizer=open_ended(open_tokenizer(checkpoint)))

    def write(text: str, new_tokens: int, temperature: float) -> str:
        options = {"max_new_tokens": new_tokens, "do_sample": temperature > 0, "temperature": temperature or 1.0}
        return pipe(text, **options)[0]["generated_text"]

    sliders = [gr.Slider(1, 500, value=50, step=1, label="New tokens"), gr.Slider(0, 2, value=0.8, label="Temperature")]
    inputs = [gr.Textbox(label="Beginning"), *sliders]
    gr.Interface(write, inputs, gr.Textbox(label="Text", lines=8), examples=[["The committee", 50, 0.8]])
