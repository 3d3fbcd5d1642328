"""Questions with their answers in a context: SQuAD by name or from files, and the windows of tokens that a model reads.

`datasets` is imported where data are loaded: `hf_gmlp.qa` needs the windows without it.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from ..errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

# What `decode` needs of a window besides the logits, and the model does not.
DECODING_COLUMNS = ("question_index", "cls_index", "context_start", "offsets")


def load_questions(
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    files: Mapping[str, Sequence[str] | None] | None = None,
    splits: Sequence[str] = ("train", "validation"),
    version_2_with_negative: bool = False,
    max_samples: Mapping[str, int | None] | None = None,
    cache_dir: str | None = None,
) -> dict[str, "Dataset"]:
    """
    Questions, checked, one a row: "id", "question", "context" and "answers" {"text": [...], "answer_start": [...]},
    both lists empty if there is no answer. A "test" split in which no question has an answer has no such column.

    Args:
        files: Split -> JSON files, in the nested form that SQuAD is published in, in the flat one (rows under "data"),
            or as JSON lines.
        splits: Which of "train", "validation" and "test" are needed.
        version_2_with_negative: Whether questions without an answer are allowed.
        max_samples: Split -> at most so many questions are kept.

    Raises:
        InputError: If no data or two kinds of it are named, a split or a file is missing, a file is no such JSON, a
            field is missing, two questions have one id, an answer is not where it is said to be, or a question has no
            answer though that is not allowed.
    """
    from datasets import Dataset, Features, Value, load_dataset

    files = {split: list(paths) for split, paths in (files or {}).items() if paths}
    if (dataset_name is None) == (not files):
        raise InputError("Name the data: either --dataset_name, or --train_file, --validation_file, --test_file.")
    if not splits:
        raise InputError("Say what to do: --do_train, --do_eval, --do_predict, or several of them.")
    loaded: Mapping = files
    if dataset_name is not None:
        try:
            loaded = load_dataset(dataset_name, dataset_config_name, cache_dir=cache_dir)
        except Exception as error:
            raise InputError(f"The data set {dataset_name} could not be opened: {error}") from error
    questions = {}
    for split in splits:
        if split not in loaded:
            have = f"The data set {dataset_name} has the splits {', '.join(loaded)} and no {split!r}"
            raise InputError(f"{have}." if dataset_name is not None else f"There are no {split} data: --{split}_file.")
        limit = (max_samples or {}).get(split)
        if dataset_name is not None:
            rows = loaded[split] if limit is None else loaded[split].select(range(min(limit, len(loaded[split]))))
            checked = _checked(dataset_name, rows, split, version_2_with_negative)
        else:
            checked = []
            for path in map(Path, files[split]):
                checked += _checked(str(path), _read_rows(path), split, version_2_with_negative)
            checked = checked[:limit]
        _check_ids([row["id"] for row in checked], dataset_name or ", ".join(files[split]))
        features = {name: Value("string") for name in ("id", "question", "context")}
        if split != "test" or any(row["answers"]["text"] for row in checked):
            features["answers"] = {"text": [Value("string")], "answer_start": [Value("int32")]}
        columns = {name: [row[name] for row in checked] for name in features}
        questions[split] = Dataset.from_dict(columns, features=Features(features))
    return questions


def make_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    doc_stride: int,
    answers: Sequence[tuple[int, int] | None] | None = None,
) -> dict[str, list]:
    """
    [CLS] question [SEP] context [SEP] for each pair; a longer context is spread over several windows, `doc_stride`
    tokens of which overlap. A question is cut if it is longer than what each window would have of new context.

    Args:
        answers: Where the answer stands in the context, as the pair of its first character and the one after its
            last; None if there is none.

    Returns:
        Columns, one entry a window: what the tokenizer gives ("input_ids" etc.); "question_index", which of the
        questions it is; "cls_index", the place of [CLS]; "context_start", the place of the first token of context;
        "offsets", the characters [start, end) of each of those tokens, empty for white space. With `answers` also
        "start_positions" and "end_positions": the first and last token of the answer, or [CLS] if it is not wholly
        in the window.

    Raises:
        InputError: If the tokenizer cannot do this, or `doc_stride` is more than half of `max_seq_length`.
    """
    check_tokenizer(tokenizer)
    check_lengths(max_seq_length, doc_stride)
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
    longest_question = (room - doc_stride) // 2
    encoded = tokenizer(
        shorten_questions(questions, tokenizer, longest_question),
        list(contexts),
        truncation="only_second",
        max_length=max_seq_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        # "[SEP]" in an article is three signs of text, not the end of it.
        split_special_tokens=True,
    )
    sources, all_offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    windows: dict[str, list] = {name: list(encoded[name]) for name in encoded}
    windows |= {"question_index": list(sources), "cls_index": [], "context_start": [], "offsets": []}
    if answers is not None:
        windows |= {"start_positions": [], "end_positions": []}
    for index, (source, offsets) in enumerate(zip(sources, all_offsets)):
        context_tokens = [place for place, part in enumerate(encoded.sequence_ids(index)) if part == 1]
        first = context_tokens[0] if context_tokens else 0
        offsets = [list(offsets[place]) for place in context_tokens]
        cls_index = windows["input_ids"][index].index(tokenizer.cls_token_id)
        windows["cls_index"].append(cls_index)
        windows["context_start"].append(first)
        windows["offsets"].append(offsets)
        if answers is not None:
            span = _answer_tokens(offsets, answers[source])
            start, end = (cls_index, cls_index) if span is None else (first + span[0], first + span[1])
            windows["start_positions"].append(start)
            windows["end_positions"].append(end)
    return windows


def window_dataset(
    questions: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    doc_stride: int,
    training: bool = False,
    num_proc: int | None = None,
) -> "Dataset":
    """
    The windows of what `load_questions` gave, labeled with the first answer of each question if there is one.

    Args:
        training: Leave out the columns that only decoding needs.
    """

    from datasets import Features, Value

    # Small integers: a training set of windows is kept in memory, once in every process.
    features: dict = {name: [Value("int32" if name == "input_ids" else "int8")] for name in tokenizer.model_input_names}
    if not training:
        features |= {name: Value("int32") for name in ("question_index", "cls_index", "context_start")}
        features["offsets"] = [[Value("int32")]]
    if "answers" in questions.column_names:
        features |= {"start_positions": Value("int32"), "end_positions": Value("int32")}

    def map_batch(batch: dict, indices: list[int]) -> dict:
        answers = [_first_answer(answer) for answer in batch["answers"]] if "answers" in batch else None
        windows = make_windows(
            batch["question"],
            batch["context"],
            tokenizer,
            max_seq_length=max_seq_length,
            doc_stride=doc_stride,
            answers=answers,
        )
        windows["question_index"] = [indices[index] for index in windows["question_index"]]
        return {name: windows[name] for name in features}

    return questions.map(
        map_batch,
        batched=True,
        with_indices=True,
        remove_columns=questions.column_names,
        features=Features(features),
        num_proc=num_proc,
        desc="Cutting windows",
    )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase):
    """
    Raises:
        InputError: If the tokenizer does not say which characters its tokens stand for, has no [CLS], or pads on the
            left.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"The tokenizer {type(tokenizer).__name__} is a slow one, which does not say which characters a token "
            f"stands for: take a fast one (tokenizer.json)."
        )
    if tokenizer.cls_token_id is None:
        raise InputError("The tokenizer has no [CLS], the place of the answer to questions that have none.")
    if tokenizer.padding_side != "right":
        raise InputError("The tokenizer pads on the left: take one that pads on the right, or set padding_side.")


def check_lengths(max_seq_length: int, doc_stride: int):
    """
    Raises:
        InputError: If a window has no room for a question and something new of its context.
    """
    if max_seq_length < 16:
        raise InputError(f"--max_seq_length counts question and context and must be at least 16, got {max_seq_length}.")
    if not 0 <= doc_stride <= max_seq_length // 2:
        raise InputError(
            f"--doc_stride {doc_stride} is the overlap of two windows: at least 0, and at most half of "
            f"--max_seq_length, {max_seq_length // 2}."
        )


def shorten_questions(questions: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int) -> list[str]:
    """The questions without white space at their ends, cut where they have more than `longest` tokens."""
    questions = [question.strip() for question in questions]
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    cut = []
    for index, ids in enumerate(tokenizer(questions, **options)["input_ids"]):
        if len(ids) > longest:
            cut.append(index)
        while len(ids) > longest:
            # Never more than the share of characters that fits, so it ends; cut inside a word, it may take two rounds.
            questions[index] = questions[index][: len(questions[index]) * longest // len(ids)]
            ids = tokenizer(questions[index], **options)["input_ids"]
    if cut:
        logger.warning(
            "%d question(s) were cut to %d tokens, to leave room for the context; the first now reads: %s",
            len(cut),
            longest,
            questions[cut[0]],
        )
    return questions


def _answer_tokens(offsets: list[list[int]], answer: tuple[int, int] | None) -> tuple[int, int] | None:
    """The first and last of some tokens of context that the answer touches; None if it is not wholly in them."""
    text = [(start, end) for start, end in offsets if start < end]
    if answer is None or not text or answer[0] < text[0][0] or answer[1] > text[-1][1]:
        return None
    touched = [
        place for place, (start, end) in enumerate(offsets) if start < end and start < answer[1] and end > answer[0]
    ]
    return (touched[0], touched[-1]) if touched else None


def _first_answer(answers: dict[str, list]) -> tuple[int, int] | None:
    """Where the first answer stands, without white space at its ends."""
    if not answers["text"]:
        return None
    text = answers["text"][0]
    start = answers["answer_start"][0] + len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def _read_rows(path: Path) -> Iterator[dict]:
    """The questions of a file in any of the three forms, with the fields as they are there."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8: give JSON or JSON lines.") from error
    if not text.strip():
        raise InputError(f"The file {path} is empty.")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as whole:
        try:
            content = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError:
            raise InputError(f"{path} is neither JSON nor JSON lines: {whole}.") from whole
    if isinstance(content, dict):
        # A single line of JSON lines is an object too.
        content = content["data"] if "data" in content else [content]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise InputError(f'{path} has no list of questions: neither rows nor articles, alone or under "data".')
    if not content:
        raise InputError(f"There is no question in {path}.")
    if not any("paragraphs" in row for row in content):
        yield from content
        return
    try:
        for article in content:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {**question, "context": paragraph["context"]}
    except (KeyError, TypeError) as error:
        raise InputError(
            f'{path} has articles, but not each has "paragraphs", each with a "context" and its "qas": {error}.'
        ) from error


def _checked(where: str, rows, split: str, version_2_with_negative: bool) -> list[dict]:
    """Rows with the four fields alone, checked."""
    checked, moved = [], []
    for number, row in enumerate(rows, start=1):
        for field in ("id", "question", "context"):
            if not isinstance(row.get(field), str if field != "id" else str | int):
                named = f"question {row['id']}" if field != "id" else f"question number {number}"
                raise InputError(
                    f"In {where}, {named} has no field {field!r} with text, but {', '.join(row) or 'none at all'}."
                )
        name = f"question {row['id']} in {where}"
        if not row["context"].strip():
            raise InputError(f"The context of {name} is empty.")
        texts, starts = _answers(row, name, split)
        if not texts and split != "test":
            _check_allowed(name, version_2_with_negative)
        for index, (text, start) in enumerate(zip(texts, starts)):
            starts[index] = _find_answer(row["context"], text, start, name)
            if starts[index] != start:
                moved.append(row["id"])
        checked.append(
            {
                "id": str(row["id"]),
                "question": row["question"],
                "context": row["context"],
                "answers": {"text": texts, "answer_start": starts},
            }
        )
    if not checked:
        raise InputError(f"There is no question in {where}.")
    if split == "test" and any(row["answers"]["text"] for row in checked):
        for row in checked:
            if not row["answers"]["text"]:
                _check_allowed(f"question {row['id']} in {where}", version_2_with_negative)
    if moved:
        logger.warning(
            "In %s, the answer_start of %d answer(s) was that of white space before the answer, and was moved to the "
            "answer; the first in question %s.",
            where,
            len(moved),
            moved[0],
        )
    return checked


def _check_allowed(name: str, version_2_with_negative: bool):
    if not version_2_with_negative:
        raise InputError(f"There is no answer to {name}: such questions need --version_2_with_negative.")


def _answers(row: dict, name: str, split: str) -> tuple[list[str], list[int]]:
    """Texts and places of a row's answers, given as a dictionary of lists or as a list of dictionaries."""
    answers = row.get("answers")
    impossible = row.get("is_impossible")
    if answers is None and not impossible and split != "test":
        raise InputError(f"The field 'answers' is missing in {name}.")
    try:
        if isinstance(answers, dict):
            texts, starts = list(answers["text"]), list(answers["answer_start"])
        else:
            texts = [answer["text"] for answer in answers or []]
            starts = [answer["answer_start"] for answer in answers or []]
    except (KeyError, TypeError) as error:
        raise InputError(f"The answers of {name} have no 'text' or no 'answer_start'.") from error
    if len(texts) != len(starts) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"The answers of {name} are not as many texts as places.")
    if impossible and texts:
        raise InputError(f"There are answers to {name}, though 'is_impossible' is true.")
    if impossible is False and not texts and split != "test":
        raise InputError(f"There is no answer to {name}, though 'is_impossible' is false.")
    return texts, starts


def _find_answer(context: str, text: str, start: int, name: str) -> int:
    """The place of an answer: where it is said to be, or behind the white space there."""
    if not text.strip():
        raise InputError(f"An answer to {name} is empty; a question without an answer has an empty list of answers.")
    if isinstance(start, int) and start >= 0:
        behind = start + len(context[start:]) - len(context[start:].lstrip())
        for place in (start, behind):
            if context.startswith(text, place):
                return place
    found = context[start : start + len(text)] if isinstance(start, int) and start >= 0 else ""
    raise InputError(
        f"An answer to {name}, {text!r}, is not at character {start} of its context, where {found!r} stands: put "
        f"'answer_start' right, or leave the question out."
    )


def _check_ids(ids: list[str], where: str):
    seen = set()
    for key in ids:
        if key in seen:
            raise InputError(
                f"Two questions in {where} have the id {key}: predictions are kept by id, make them unique."
            )
        seen.add(key)
