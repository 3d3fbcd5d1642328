"""Small datasets for several tests, and functions that run a script on them."""

import json
import random
from pathlib import Path

import numpy as np
import pandas
import PIL.Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_gmlp import GMLPConfig
from hf_gmlp.data.labels import ONE_CLASS, Labels, set_labels

# Config fields of an image model with all features that are not in the paper.
CONVOLUTIONAL = {"pooling": "mean", "toeplitz": True, "spatial_heads": 4, "stem": "conv"}

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{i}" for i in range(200)]

NAMES = "Anna Boris Clara David Emma Felix Greta Henry Irene Jakob Karla Louis Marta Nils Olga Peter".split()
CITIES = "Rome Oslo Paris Cairo Lima Delhi Quito Vienna Tokyo Berlin Dakar Accra Sofia Minsk Riga Kyoto".split()
MONTHS = "January March April June July October".split()
QUESTIONS = {"name": "Who traveled?", "city": "Where did the train go?", "month": "In which month was it?"}

GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "dull", "awful", "poor")
NOUNS = (
    "film story cast plot song book camera ending music painter garden window summer animal letter kitchen village "
    "doctor mountain river sister market soldier minister teacher bridge engine flower dinner castle"
).split()

COLORS = {"blue": (40, 60, 200), "green": (50, 180, 60), "red": (200, 50, 40)}


def squad(count, *, seed=0, unanswerable=False):
    """Return a dataset in SQuAD's format that a tiny model learns in seconds, since the answer to each of three
    questions is one kind of word. With `unanswerable`, one of the three questions of each paragraph has no answer.
    """
    rng = random.Random(seed)
    paragraphs = []
    for number in range(count):
        words = {"name": rng.choice(NAMES), "city": rng.choice(CITIES), "month": rng.choice(MONTHS)}
        clauses = {
            "name": f"The traveler was {words['name']}.",
            "city": f"The train went to {words['city']}.",
            "month": f"It was a fine day in {words['month']}.",
        }
        missing = rng.choice(list(clauses)) if unanswerable else None
        context = " ".join(clauses[kind] for kind in rng.sample(list(clauses), 3) if kind != missing)
        questions = []
        for kind, question in QUESTIONS.items():
            answers = [{"text": words[kind], "answer_start": context.find(words[kind])}] if kind != missing else []
            row = {"id": f"{seed}-{number}-{kind}", "question": question, "answers": answers}
            questions.append(row | ({"is_impossible": kind == missing} if unanswerable else {}))
        paragraphs.append({"context": context, "qas": questions})
    data = [{"title": "Journeys", "paragraphs": paragraphs[:2]}, {"title": "More", "paragraphs": paragraphs[2:]}]
    return {"version": "v2.0" if unanswerable else "1.1", "data": data}


def opinions(count, seed):
    """Sentences whose adjective determines their label."""
    pick = random.Random(seed).choice
    sentences = [f"the {pick(NOUNS)} is {pick((BAD, GOOD)[i % 2])} and the {pick(NOUNS)} is long" for i in range(count)]
    return [{"sentence": sentence, "label": i % 2} for i, sentence in enumerate(sentences)]


def run_script(main, *flags):
    """Call the `main` of a script in this process, where all imports are done, and return its results."""
    flags = [str(flag) for flag in flags]
    main([*flags, "--use_cpu", "--disable_tqdm", "true", "--report_to", "none"])
    results = Path(flags[flags.index("--output_dir") + 1], "all_results.json")
    return json.loads(results.read_text()) if results.is_file() else None


def run_in(folder, main, *flags):
    """Call run_script with the files, the output folder and the cache in a folder."""
    flags = [str(folder / flag) if (folder / str(flag)).exists() else str(flag) for flag in flags]
    position = flags.index("--output_dir") + 1
    flags[position] = str(folder / flags[position])
    return run_script(main, *flags, "--cache_dir", folder / "cache")


def flat(content):
    """Return the questions of a nested SQuAD file as rows."""
    return [
        {
            "id": question["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")},
        }
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def write_rows(path, rows):
    """Write dictionaries as JSON lines, parquet or CSV, depending on the extension, and return the path."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path)
    else:
        pandas.DataFrame(rows).to_csv(path, index=False)
    return path


def documents(sizes):
    words = iter(WORDS)
    return [" ".join(next(words) for _ in range(size)) for size in sizes]


def word_tokenizer(words, *, ends=True, mask="[MASK]", punctuation=False, **options):
    """Return a tokenizer with one token per word. Words are separated by spaces, and with `punctuation` also by
    punctuation marks. With `ends`, the format is [CLS] a [SEP] b [SEP], like that of BERT's tokenizer.
    """
    special = [*SPECIAL[:4], mask]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(special + words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = (pre_tokenizers.BertPreTokenizer if punctuation else pre_tokenizers.WhitespaceSplit)()
    if ends:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names | options)


def config_of(labels, problem_type=ONE_CLASS):
    config = GMLPConfig()
    set_labels(config, Labels(labels and list(labels), problem_type), "", train=True, new_classifier=False)
    return config


def picture(seed=0, size=(40, 36), mode="RGB"):
    noise = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return PIL.Image.fromarray(noise).resize(size, PIL.Image.BICUBIC).convert(mode)


def write_photos(folder, count, seed):
    """Write images of noise around the color of each class, with the proportions of photographs."""
    random = np.random.default_rng(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.array(color) + random.normal(0, 50, (30 + i % 3, 40, 3))
            image = PIL.Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(folder / name / f"{i:03}.png")
    return folder
