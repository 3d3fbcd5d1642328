"""Predictions for files and folders, compared with pipelines and QuestionAnswerer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from transformers import ViTImageProcessor, pipeline

from hf_gmlp import (
    GMLPForImageClassification,
    GMLPForMaskedLM,
    GMLPForQuestionAnswering,
    GMLPForSequenceClassification,
    GMLPModel,
)
from hf_gmlp.errors import InputError
from hf_gmlp.loading import extend_context
from hf_gmlp.tools import predict as module
from hf_gmlp.tools.predict import Scorer, predict
from hf_gmlp.tools.question_answering import QuestionAnswerer

from ..samples import COLORS, flat, squad, write_photos

NAMES = ["bad", "fine", "good"]
TEXTS = ["w1 w2", "w3", "w4 w5 w6 w7", "w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, text_config, perturbed_model, word_tokenizer):
    folder = tmp_path_factory.mktemp("classifier")
    config = text_config(vocab_size=len(word_tokenizer), id2label=dict(enumerate(NAMES)))
    perturbed_model(GMLPForSequenceClassification, config).save_pretrained(folder)
    word_tokenizer.save_pretrained(folder)
    return str(folder)


def test_texts_are_classified(tmp_path, checkpoint, capsys):
    """tests/data/test_files.py reads every kind of file."""
    classify = pipeline("text-classification", checkpoint, top_k=None)
    expected = [classify([text], truncation=True, max_length=12)[0] for text in TEXTS]
    # A row without a label does not count.
    labels = [expected[0][0]["label"], expected[1][1]["label"], expected[2][0]["label"], ""]
    rows = pandas.DataFrame({"id": ["007", "8", "9", "10"], "said": TEXTS, "class": labels})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    predict(checkpoint, str(tmp_path / "rows.csv"), str(tmp_path / "out.csv"), batch_size=3)
    table = pandas.read_csv(tmp_path / "out.csv", dtype={"id": str})
    assert list(table.columns[:3]) == list(rows.columns) and len(table.columns) == 3 + 6
    assert table["id"].tolist() == ["007", "8", "9", "10"]
    score, printed = (
        "Accuracy 0.667 (95 % interval 0.208 to 0.939; 2 of 3 rows), by the column 'class'",
        capsys.readouterr(),
    )
    assert score in printed.out and "the most frequent class, would have" in printed.out
    for rank, suffix in enumerate(("", "_2", "_3")):
        assert table[f"prediction{suffix}"].tolist() == [ranked[rank]["label"] for ranked in expected]
        scores = [ranked[rank]["score"] for ranked in expected]
        np.testing.assert_allclose(table[f"probability{suffix}"], scores, atol=1e-4)


@pytest.mark.parametrize(("name", "header"), [("rows.txt", ""), ("rows.csv", "text\n")])
def test_blank_lines_keep_their_place(tmp_path, checkpoint, name, header):
    (tmp_path / name).write_text(f"{header}w1 w2\n\nw3\n")
    predict(checkpoint, str(tmp_path / name), str(tmp_path / "out.csv"), top_k=1)
    table = pandas.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert table["text"].tolist() == ["w1 w2", "", "w3"]
    assert [bool(name) for name in table["prediction"]] == [True, False, True]


def test_a_regression_has_no_probabilities(tmp_path, text_config, perturbed_model, word_tokenizer):
    config = text_config(vocab_size=len(word_tokenizer), num_labels=1, problem_type="regression")
    model = perturbed_model(GMLPForSequenceClassification, config).eval()
    model.save_pretrained(tmp_path)
    word_tokenizer.save_pretrained(tmp_path)
    pandas.DataFrame({"text": TEXTS[:3]}).to_csv(tmp_path / "rows.csv", index=False)
    predict(str(tmp_path), str(tmp_path / "rows.csv"), str(tmp_path / "out.csv"))
    table = pandas.read_csv(tmp_path / "out.csv")
    assert list(table) == ["text", "prediction"]
    expected = [model(**word_tokenizer(text, return_tensors="pt")).logits.item() for text in TEXTS[:3]]
    np.testing.assert_allclose(table["prediction"], expected, rtol=1e-4)


def test_rows_without_text_have_no_prediction(tmp_path, checkpoint, capsys):
    (tmp_path / "rows.csv").write_text("text,text_pair,label\nw1 w2,w3,0\n ,w3,1\nw4,w5,\n")
    predict(checkpoint, str(tmp_path / "rows.csv"), str(tmp_path / "out.csv"), ["text", "text_pair"], top_k=1)
    classify = pipeline("text-classification", checkpoint)
    expected = [classify({"text": a, "text_pair": b})["label"] for a, b in (("w1 w2", "w3"), ("w4", "w5"))]
    table = pandas.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert table["prediction"].tolist() == [expected[0], "", expected[1]]
    printed = capsys.readouterr().out
    assert "1 of 3 rows have no text" in printed
    assert f"{int(expected[0] == 'bad')} of 1 rows" in printed


@pytest.fixture
def long_texts(tmp_path):
    """A file of two texts of 22 and 6 tokens, where the checkpoint's n is 12."""
    (tmp_path / "long.csv").write_text("text\n" + " ".join(f"w{i}" for i in range(20)) + "\nw1 w2 w3 w4\n")
    return str(tmp_path / "long.csv")


def test_a_toeplitz_model_classifies_texts_longer_than_its_n(tmp_path, checkpoint, long_texts, capsys):
    rows, probabilities = pandas.read_csv(long_texts)["text"].tolist(), {}
    for length in (8, None, 30):
        predict(checkpoint, long_texts, str(tmp_path / "out.csv"), max_seq_length=length)
        probabilities[length] = pandas.read_csv(tmp_path / "out.csv")["probability"].tolist()
        message = f"1 of 2 rows have {length or 12} tokens or more, of which the first {length or 12} are used"
        assert (message in capsys.readouterr().out) == (length != 30)
    classify = pipeline("text-classification", checkpoint)
    extend_context(classify.model, classify.tokenizer, 64)
    expected = [answer["score"] for answer in classify(rows)]
    np.testing.assert_allclose(probabilities[30], expected, atol=1e-4)
    long, short = zip(*probabilities.values())
    assert len(set(long)) == 3 and len(set(short)) == 1


def test_the_n_of_other_models_is_fixed(tmp_path, text_config, perturbed_model, word_tokenizer, long_texts):
    config = text_config(vocab_size=len(word_tokenizer), num_labels=3, toeplitz=False)
    perturbed_model(GMLPForSequenceClassification, config).save_pretrained(tmp_path)
    word_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="--max_seq_length 13 is above the model's n = 12"):
        predict(str(tmp_path), long_texts, str(tmp_path / "out.csv"), max_seq_length=13)


def test_images_in_a_folder_are_classified(tmp_path, vision_config, perturbed_model, capsys, caplog):
    config = vision_config(id2label=dict(enumerate(COLORS)))
    perturbed_model(GMLPForImageClassification, config).save_pretrained(tmp_path / "model")
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "model")
    write_photos(tmp_path / "photos", 2, seed=0)
    (tmp_path / "photos" / "phone.heic").touch()
    write_photos(tmp_path / "photos" / "@eaDir", 1, seed=0)
    predict(str(tmp_path / "model"), str(tmp_path / "photos"), str(tmp_path / "out.csv"))
    table = pandas.read_csv(tmp_path / "out.csv")
    assert table["file"].tolist() == [f"{color}/{number}.png" for color in COLORS for number in ("000", "001")]
    classify = pipeline("image-classification", str(tmp_path / "model"))
    expected = [classify(str(tmp_path / "photos" / name))[0]["label"] for name in table["file"]]
    assert table["prediction"].tolist() == expected
    right = sum(label == name for label, name in zip(expected, table["folder"]))
    printed = capsys.readouterr().out
    assert f"{right} of 6 rows), by the column 'folder'" in printed and "1 .heic (not a supported image)" in caplog.text
    assert "trained on some of these rows" in printed and "scored together" not in printed
    for name in ("test", "train"):
        shutil.copytree(tmp_path / "photos", tmp_path / "splits" / name)
    predict(str(tmp_path / "model"), str(tmp_path / "splits"), str(tmp_path / "out.csv"))
    printed = capsys.readouterr().out
    assert f"{2 * right} of 12 rows)" in printed and "The folders test, train are scored together" in printed
    predict(str(tmp_path / "model"), str(tmp_path / "photos" / "blue"), str(tmp_path / "out.csv"))
    assert "No score: the pictures are not in class folders" in capsys.readouterr().out
    for name, message in (("nosuch", "no folder"), ("photos/blue/000.png", "pass the folder of the pictures")):
        with pytest.raises(InputError, match=message):
            predict(str(tmp_path / "model"), str(tmp_path / name), str(tmp_path / "out.csv"))
    (tmp_path / "photos" / "blue" / "001.png").write_text("no picture")
    predict(str(tmp_path / "model"), str(tmp_path / "photos"), str(tmp_path / "out.csv"))
    printed = capsys.readouterr().out
    assert "1 of 6 rows cannot be read" in printed and "blue/001.png cannot be read as a picture" in printed
    again = pandas.read_csv(tmp_path / "out.csv", keep_default_na=False)["prediction"].tolist()
    assert again == ["" if name == "blue/001.png" else label for name, label in zip(table["file"], expected)]


def test_questions_are_answered(tmp_path, text_config, perturbed_model, squad_tokenizer):
    config = text_config(vocab_size=len(squad_tokenizer), max_position_embeddings=48)
    model = perturbed_model(GMLPForQuestionAnswering, config)
    model.save_pretrained(tmp_path / "model")
    squad_tokenizer.save_pretrained(tmp_path / "model")
    rows = flat(squad(3))
    # All forms of such files: tests/data/test_questions.py.
    pandas.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    questions, contexts = ([row[name] for row in rows] for name in ("question", "context"))
    answers = QuestionAnswerer(model, squad_tokenizer)(questions, contexts, top_k=3)
    arguments = str(tmp_path / "model"), str(tmp_path / "rows.csv"), str(tmp_path / "out.csv")
    predict(*arguments, top_k=3, batch_size=4)
    table = pandas.read_csv(tmp_path / "out.csv")
    assert table["id"].tolist() == [row["id"] for row in rows]
    for rank, column in enumerate(("prediction", "prediction_2", "prediction_3")):
        assert table[column].tolist() == [ranked[rank]["answer"] for ranked in answers]
    (tmp_path / "rows.txt").write_text("w1")
    with pytest.raises(InputError, match="columns question and context: the columns are text"):
        predict(arguments[0], str(tmp_path / "rows.txt"), arguments[2])
    predict(*arguments, version_2_with_negative=True)
    expected = QuestionAnswerer(model, squad_tokenizer)(questions, contexts, top_k=2, handle_impossible_answer=True)
    probabilities = pandas.read_csv(tmp_path / "out.csv")["probability"]
    np.testing.assert_allclose(probabilities, [ranked[0]["score"] for ranked in expected], atol=1e-4)


def truths(config, rows, label_column=None):
    """The labels of rows that are compared with predictions, all of which are the first class."""
    scorer = Scorer(config, rows, label_column)
    scorer.compare(rows, [[(scorer.labels.names[0], 1.0)]] * len(rows))
    return [scorer.labels.names[truth] for truth in scorer.truths]


def test_the_label_column_is_that_of_the_training_or_has_a_usual_name(text_config):
    config = text_config(id2label=dict(enumerate(NAMES)))
    rows = [
        {"stars": "0", "text": "bad", "label": "2", "gold": "fine", "note": "good"},
        {"stars": "1", "text": "w2", "label": "", "gold": "", "note": "good"},
    ]
    assert truths(config, rows) == ["good"]
    assert truths(config, rows, "stars") == ["bad", "fine"] and truths(config, rows, "gold") == ["fine"]
    with pytest.raises(InputError, match="'text' has no label"):
        truths(config, [{"text": "x"}], "text")
    # A column that happens to hold names of classes is not compared, and neither are other labels.
    assert truths(config, [{"note": "good"}]) == [] == truths(config, [{"label": "other"}, {"label": "good"}])
    assert truths(config, [{"label": "x", "class": "bad"}, {"target": [0.1, 0.5]}]) == ["bad"]
    # Numbers that are names are not numbers of classes.
    assert truths(text_config(id2label={0: "1", 1: "2", 2: "3"}), [{"label": "0"}, {"label": "1"}]) == []
    config.label_column = "gold"
    assert truths(config, [{"label": "good", "gold": "bad"}, {"label": "good", "gold": "other"}]) == ["bad"]


def test_regressions_and_models_of_several_classes_have_scores(text_config):
    rows = [{"label": label} for label in ("1.5", "3", "n/a", "4", "", "5")]
    scorer = Scorer(text_config(num_labels=1, problem_type="regression"), rows, "label")
    scorer.compare(rows, [[(number,)] for number in ("1", "2", "0", "2.5", "9", "4")])
    expected = np.corrcoef([1.5, 3, 4, 5], [1, 2, 2.5, 4])[0, 1]
    assert f" {expected:.3f} (95 % interval" in scorer.score() and dict(scorer.other_labels) == {"'n/a'": 1}
    assert "1 rows have labels that the model does not have: 'n/a'" in scorer.report()[2]
    scorer = Scorer(text_config(num_labels=1, problem_type="regression"), [{"label": 1}] * 5)
    scorer.compare([{"label": 1}] * 5, [[(number,)] for number in "12345"])
    assert "undefined, since all numbers or all predictions are equal (5 rows)" in scorer.score()
    rows = [{"label": ["bad", "good"]}, {"label": ["fine"]}]
    scorer = Scorer(text_config(id2label=dict(enumerate(NAMES)), problem_type="multi_label_classification"), rows)
    scorer.compare(rows, [[("bad", 0.9), ("good", 0.6), ("fine", 0.2)], [("bad", 0.7), ("fine", 0.6), ("good", 0.1)]])
    # Three of the three labels are predicted, and one more.
    assert scorer.score().startswith("F1 0.8571 of all classes; Accuracy 0.500")


def test_the_text_columns_are_those_of_the_training(tmp_path, checkpoint, capsys):
    config = json.loads(Path(checkpoint, "config.json").read_text()) | {"text_columns": ["body"]}
    shutil.copytree(checkpoint, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    for columns, message in (("text,body", "Texts: body"), ("sentence1", "Texts: sentence1")):
        (tmp_path / "x.csv").write_text(f"{columns}\nw1,w2\n" if "," in columns else f"{columns}\nw1\n")
        predict(str(tmp_path / "model"), str(tmp_path / "x.csv"), str(tmp_path / "out.csv"))
        assert message in capsys.readouterr().out
    (tmp_path / "x.csv").write_text("sentence1,sentence2\nw1,w2\n")
    with pytest.raises(InputError, match="classifies single texts, not pairs"):
        predict(str(tmp_path / "model"), str(tmp_path / "x.csv"), str(tmp_path / "out.csv"), ["sentence1", "sentence2"])
    with pytest.raises(InputError, match="Cannot take the text from body"):
        predict(str(tmp_path / "model"), str(tmp_path / "x.csv"), str(tmp_path / "out.csv"))


def test_probabilities_are_those_of_the_pipeline(tmp_path, text_config, perturbed_model, word_tokenizer):
    """For any number of classes, and with padding that the output depends on."""
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for options in ({"problem_type": "multi_label_classification"}, {"mask_padding": False, "is_causal": True}):
        config = text_config(vocab_size=len(word_tokenizer), id2label=dict(enumerate(NAMES)), **options)
        perturbed_model(GMLPForSequenceClassification, config).save_pretrained(tmp_path / "model")
        word_tokenizer.save_pretrained(tmp_path / "model")
        predict(str(tmp_path / "model"), str(tmp_path / "x.jsonl"), str(tmp_path / "out.jsonl"))
        padding = "longest" if config.mask_padding else "max_length"
        classify = pipeline("text-classification", str(tmp_path / "model"), top_k=None)
        for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()):
            (answers,) = classify([row["text"]], truncation=True, max_length=12, padding=padding)
            assert row["prediction_3"] == answers[2]["label"]
            np.testing.assert_allclose(row["probability_3"], answers[2]["score"], atol=1e-4)


def test_later_rows_may_have_other_fields(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2)
    rows = [{"text": "w1"}, {"text": "w2", "b": [1]}, {"text": "w3 " * 50_000}, {"text": "w4", "c": "x\ny"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for ending in (".csv", ".jsonl"):
        predict(checkpoint, str(tmp_path / "x.jsonl"), str(tmp_path / f"out{ending}"), top_k=1)
    table = pandas.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert list(table) == ["text", "b", "c", "prediction", "probability"]
    assert table["b"].tolist() == ["", "[1]", "", ""] and table["c"].tolist() == ["", "", "", "x\ny"]
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [{name: row[name] for name in row if name in "textbc"} for row in written] == rows


def test_other_labels_and_encodings_are_explained(tmp_path, checkpoint, capsys):
    (tmp_path / "x.csv").write_text("text;label\ncafé w1;Good\nw2;bad\n", encoding="cp1252")
    predict(checkpoint, str(tmp_path / "x.csv"), str(tmp_path / "out.csv"), encoding="cp1252")
    message = "No score: there are no labels of the model (bad, fine, good)"
    assert message in capsys.readouterr().out and "café w1" in (tmp_path / "out.csv").read_text(encoding="utf-8")
    predict(checkpoint, str(tmp_path / "x.csv"), str(tmp_path / "out.csv"), None, "label", encoding="cp1252")
    assert "1 rows have labels that the model does not have: 'Good'" in capsys.readouterr().out


def test_rows_are_written_in_their_order_and_in_chunks(tmp_path, checkpoint, monkeypatch, capsys):
    texts = [" ".join(f"w{(i + k) % 20}" for k in range(1 + i % 9)) for i in range(50)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": t, "when": "2026-01-02"}) + "\n" for t in texts))
    predict(checkpoint, str(tmp_path / "x.jsonl"), str(tmp_path / "whole.jsonl"), batch_size=4)
    monkeypatch.setattr(module, "CHUNK", 8)
    for ending in (".jsonl", ".csv"):
        predict(checkpoint, str(tmp_path / "x.jsonl"), str(tmp_path / f"parts{ending}"), batch_size=3)
    whole = pandas.read_json(tmp_path / "whole.jsonl", lines=True, convert_dates=False)
    assert whole["text"].tolist() == texts and set(whole["when"]) == {"2026-01-02"}
    for table in (
        pandas.read_json(tmp_path / "parts.jsonl", lines=True, convert_dates=False),
        pandas.read_csv(tmp_path / "parts.csv"),
    ):
        pandas.testing.assert_frame_equal(table, whole, atol=2e-4, check_dtype=False)


def test_an_interrupted_command_keeps_the_finished_rows(tmp_path, checkpoint, monkeypatch, capsys):
    (tmp_path / "x.csv").write_text("text\n" + "w1\n" * 20)
    monkeypatch.setattr(module, "CHUNK", 8)
    predict_rows, calls = module.predict_rows, []

    def interrupt(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return predict_rows(*args)

    monkeypatch.setattr(module, "predict_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        predict(checkpoint, str(tmp_path / "x.csv"), str(tmp_path / "out.csv"))
    assert not (tmp_path / "out.csv").exists() and len(pandas.read_csv(tmp_path / "out.csv.partial")) == 16


@pytest.mark.heavy
def test_the_onnx_program_gives_the_same_predictions(tmp_path, checkpoint, capsys):
    from hf_gmlp.tools.export import export

    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    arguments = (str(tmp_path / "rows.txt"), str(tmp_path / "out.csv"))
    predict(checkpoint, *arguments)
    expected = (tmp_path / "out.csv").read_text()
    export(checkpoint, tmp_path / "exported", to="onnx")
    predict(str(tmp_path / "exported"), *arguments)
    assert (tmp_path / "out.csv").read_text() == expected and "Running" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\nx,y\n", {"text_column_names": ["c"]}, "the columns are a, b.*--text_column_names"),
        ("text\nx\n", {"label_column_name": "gold"}, "'gold' has no label"),
        ("a,b,c\nx,y,z\n", {"text_column_names": ["a", "b", "c"]}, "one or two columns"),
        ("text\n", {}, "no rows"),
        ("text,label\n ,0\n", {}, "can be predicted: all rows have no text"),
        ("text,prediction_2\nx,y\n", {}, "column 'prediction_2'"),
        ("text\nx\n", {"top_k": 0}, "--top_k"),
        ("text\nx\n", {"max_seq_length": 2}, "--max_seq_length"),
        ("text\ncaf\xe9\n", {}, "not UTF-8: .*--encoding, such as cp1252"),
    ],
)
def test_bad_input_is_refused(tmp_path, checkpoint, content, options, message):
    (tmp_path / "x.csv").write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=message):
        predict(checkpoint, str(tmp_path / "x.csv"), str(tmp_path / "out.csv"), **options)
    assert not (tmp_path / "out.csv").exists()


def test_wrong_paths_and_models_are_refused(tmp_path, checkpoint, text_config, perturbed_model):
    for data, output, message in (("nowhere.csv", "out.csv", "nowhere.csv"), ("x.txt", "no/out.csv", "--output")):
        with pytest.raises(InputError, match=message):
            predict(checkpoint, str(tmp_path / data), str(tmp_path / output))
    with pytest.raises(InputError, match="runs/none: there is no such folder, the cache .* and the Hub is unreachable"):
        predict("runs/none", str(tmp_path / "x.txt"), str(tmp_path / "out.csv"))
    perturbed_model(GMLPForMaskedLM, text_config()).save_pretrained(tmp_path / "mlm")
    (tmp_path / "x.txt").write_text("w1")
    with pytest.raises(InputError, match="fine-tune it first"):
        predict(str(tmp_path / "mlm"), str(tmp_path / "x.txt"), str(tmp_path / "out.csv"))
    perturbed_model(GMLPModel, text_config()).save_pretrained(tmp_path / "encoder")
    with pytest.raises(InputError, match="gives embeddings.*pooler_output.*search.ipynb"):
        predict(str(tmp_path / "encoder"), str(tmp_path / "x.txt"), str(tmp_path / "out.csv"))
    shutil.copytree(checkpoint, tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="no padding token: copy its tokenizer_config.json"):
        predict(str(tmp_path / "copy"), str(tmp_path / "x.txt"), str(tmp_path / "out.csv"))
    write_photos(tmp_path / "photos", 1, seed=0)
    with pytest.raises(InputError, match="classifies a file of texts"):
        predict(checkpoint, str(tmp_path / "photos"), str(tmp_path / "out.csv"))
    for output in (tmp_path, tmp_path / "out.tsv", tmp_path / "out.xlsx"):
        with pytest.raises(InputError, match="--output"):
            predict(checkpoint, str(tmp_path / "x.txt"), str(output))
