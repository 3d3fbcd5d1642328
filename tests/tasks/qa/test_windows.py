import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import CanineTokenizer, PreTrainedTokenizerFast

from hf_gmlp.errors import InputError
from hf_gmlp.tasks.qa.windows import DECODING_COLUMNS, check_windows, make_windows, window_dataset

from ...samples import CITIES, flat, squad, word_tokenizer


@pytest.fixture(scope="module")
def bert_tokenizer():
    """BERT's parts: lower case, no accents, words and punctuation separated, continuations with ##."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["the", "train", "went", "to", "was", "traveler", "who", *letters, *".,?-'"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: index for index, token in enumerate(special + words + [f"##{letter}" for letter in letters])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **dict(zip(names, special)))


@pytest.fixture(params=["sentencepiece", "bert"])
def any_tokenizer(request, squad_tokenizer, bert_tokenizer):
    return {"sentencepiece": squad_tokenizer, "bert": bert_tokenizer}[request.param]


def test_windows_cover_the_context_and_overlap(any_tokenizer):
    context = " ".join(f"The train went to {city}-{number}." for number, city in enumerate(CITIES))
    questions = ["  Who traveled?\n", "Who?"]
    windows = make_windows(questions, [context] * 2, any_tokenizer, max_seq_length=48, doc_stride=12)
    complete = any_tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    for index, question in enumerate(questions):
        rows = [row for row, source in enumerate(windows["question_index"]) if source == index]
        assert len(rows) > 2
        asked = any_tokenizer(question.strip(), add_special_tokens=False)["input_ids"]
        seen = []
        for row in rows:
            ids, offsets, first = windows["input_ids"][row], windows["offsets"][row], len(asked) + 2
            assert len(offsets) == len(ids) <= 48
            assert ids[:first] == [2, *asked, 3] and ids[-1] == 3
            assert offsets[:first] == [[0, 0]] * first and offsets[-1] == [0, 0]
            assert windows["token_type_ids"][row] == [0] * first + [1] * (len(ids) - first)
            assert windows["attention_mask"][row] == [1] * len(ids)
            body = list(zip(ids[first:-1], map(tuple, offsets[first:-1])))
            # The windows overlap.
            assert not seen or seen[-12:] == body[:12]
            seen += body[12:] if seen else body
        assert seen == list(zip(complete["input_ids"], complete["offset_mapping"]))


def test_labels_are_the_answer_or_cls(any_tokenizer):
    rows = [(row["context"], row["answers"]["text"][0], row["answers"]["answer_start"][0]) for row in flat(squad(6))]
    rows += [
        ("  spaces  all over , the  text  ", "all over ,", 10),
        ("in Zürich’s 日本 café today", "日本 café", 12),
        ("so [SEP] and [MASK] are text", "[MASK]", 13),
        ("with (signs) around it", "signs", 6),
    ]
    contexts, spans = [row[0] for row in rows], [(start, start + len(text)) for _, text, start in rows]
    answers = [{"text": [text, "more"], "answer_start": [start, 0]} for _, text, start in rows]
    options = {"max_seq_length": 32, "doc_stride": 8, "answers": answers}
    windows = make_windows(["Q?"] * len(rows), contexts, any_tokenizer, **options)
    found = set()
    columns = (windows[name] for name in ("question_index", "offsets", "start_positions", "end_positions"))
    for index, offsets, start, end in zip(*columns):
        text = [(a, b) for a, b in offsets if a < b]
        if start == 0:
            # This window does not hold all of the answer.
            assert end == 0 and not (text[0][0] <= spans[index][0] and spans[index][1] <= text[-1][1])
            continue
        found.add(index)
        assert (offsets[start][0], offsets[end][1]) == spans[index]
    assert found == set(range(len(rows)))


def test_names_of_special_tokens_are_text(any_tokenizer):
    context = "so [SEP] and [MASK] and [CLS] are text"
    windows = make_windows(["Is [SEP]?"], [context], any_tokenizer, max_seq_length=128, doc_stride=8)
    assert [token for token in windows["input_ids"][0] if token in (2, 3, 4)] == [2, 3, 3]


def test_questions_without_answer_or_without_labels(squad_tokenizer):
    none = {"text": [], "answer_start": []}
    windows = make_windows(["Q?"], ["a b c"], squad_tokenizer, max_seq_length=16, doc_stride=4, answers=[none])
    assert windows["start_positions"] == windows["end_positions"] == [0]
    assert "start_positions" not in make_windows(["Q?"], ["a"], squad_tokenizer, max_seq_length=16, doc_stride=4)


def test_long_questions_are_cut_and_logged(any_tokenizer, caplog):
    questions = ["word " * 100, "日本語の質問" * 20, "Who?", " " * 200 + "Who?"]
    windows = make_windows(questions, ["The train."] * 4, any_tokenizer, max_seq_length=24, doc_stride=4)
    assert set(windows["question_index"]) == {0, 1, 2, 3} and max(map(len, windows["input_ids"])) <= 24
    lengths = {index: parts.index(1) for index, parts in zip(windows["question_index"], windows["token_type_ids"])}
    # Half of the 17 tokens that neither are special nor overlap, between [CLS] and [SEP].
    assert lengths[0] == 2 + 8 and lengths[2] == lengths[3] == len(any_tokenizer("Who?")["input_ids"])
    assert "A question was cut to 8 tokens" in caplog.text and "Who?" not in caplog.text


def test_window_dataset_keeps_what_decoding_needs(squad_tokenizer):
    rows = Dataset.from_list(flat(squad(4)))
    lengths = {"max_seq_length": 32, "doc_stride": 8}
    windows = window_dataset(rows, squad_tokenizer, **lengths)
    assert set(DECODING_COLUMNS) < set(windows.column_names)
    direct = make_windows(rows["question"], rows["context"], squad_tokenizer, **lengths)
    assert {name: windows[name][:] for name in direct} == direct
    training = window_dataset(rows, squad_tokenizer, **lengths, training=True)
    assert not set(DECODING_COLUMNS) & set(training.column_names)
    assert training["start_positions"][:] == windows["start_positions"][:] and max(training["start_positions"]) > 0


def test_lengths_and_tokenizers_that_cannot_find_answers_are_refused():
    tokenizer = word_tokenizer(["a"])
    check_windows(tokenizer, 32, 16)
    for stride in (17, -1):
        with pytest.raises(InputError, match=f"--doc_stride {stride}, .* 16"):
            check_windows(tokenizer, 32, stride)
    unpadded = word_tokenizer(["a"])
    unpadded.pad_token = None
    others = (word_tokenizer(["a"], ends=False), word_tokenizer(["a"], padding_side="left"), unpadded)
    for tokenizer in (CanineTokenizer(), *others):
        with pytest.raises(InputError, match="a fast one"):
            check_windows(tokenizer, 32, 16)
