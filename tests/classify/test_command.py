"""`hf-gmlp classify` from its arguments to its files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pandas
import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoConfig, pipeline

from hf_gmlp import Classifier, cards
from hf_gmlp.classify.evaluation import NO_ESTIMATE
from hf_gmlp.training.trainer import GMLPTrainer
from hf_gmlp_cli import main

from ..samples import write_photos, write_rows
from .conftest import opinions

TEXTS, LABELS = opinions(40)
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS)]
MODEL_FILES = {
    *("README.md", "config.json", "model.safetensors", "configuration_gmlp.py", "modeling_gmlp.py"),
    *("tokenizer.json", "tokenizer_config.json"),
}
REPORT_FILES = {"settings.json", "all_results.json", "eval_predictions.csv", "report.txt", "confusion_matrix.png"}
TUNED = ("--fine_tune", "true", "--max_steps", "20", "--learning_rate", "1e-3", "--dtype", "float32")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, encoder):
    """run(*flags) runs the command in a temporary folder, and returns what it prints, or its error."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv", ROWS)

    def call(*flags, model=encoder, output="out"):
        argv = ["classify", model, *map(str, flags), "--output", output]
        monkeypatch.setattr(sys, "argv", ["hf-gmlp", *argv])
        try:
            main(argv)
        except SystemExit:
            return capsys.readouterr().err.strip().rpartition("Error: ")[2]
        return capsys.readouterr().out

    return call


def results_of(folder="out"):
    return json.loads(Path(folder, "all_results.json").read_text())


def table_of(folder="out"):
    return pandas.read_csv(Path(folder, "eval_predictions.csv"), keep_default_na=False)


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_file_of_texts(run, name, tmp_path, encoder):
    write_rows(tmp_path / name, ROWS)
    text = run(name, "--dtype", "float32")
    assert {path.name for path in Path("out").iterdir()} == MODEL_FILES | REPORT_FILES
    # The numbers are those of the estimator.
    evaluation = (classifier := Classifier(encoder, dtype="float32").fit(TEXTS, LABELS)).evaluation_
    accuracy = (evaluation.logits.argmax(1) == evaluation.labels).mean()
    assert results_of()["eval_accuracy"] == pytest.approx(accuracy) and f"accuracy {accuracy:.3f} (95 %" in text
    assert "baseline (tf-idf" in text and results_of()["baseline_accuracy"] > 0.8
    table = table_of()
    assert table["row"].tolist() == [*range(1, 41)]
    assert table["text"].tolist() == TEXTS and table["label"].tolist() == LABELS
    assert (table["label"] == table["prediction"]).mean() == pytest.approx(accuracy)
    probabilities = classifier.predict_proba(TEXTS[:3])
    for row, answers in zip(probabilities, pipeline("text-classification", "out", device="cpu", top_k=None)(TEXTS[:3])):
        scores = {answer["label"]: answer["score"] for answer in answers}
        assert [scores["bad"], scores["good"]] == pytest.approx(row.tolist(), abs=1e-4)
    card = Path("out/README.md").read_text()
    assert f"hf-gmlp classify {Path(encoder).name} {name} --dtype float32 --output out" in card
    assert str(Path(encoder).parent) not in card and f"accuracy {accuracy:.3f} (95 %" in card
    # The only weights that changed are those of the classifier.
    old, new = load_file(Path(encoder, "model.safetensors")), load_file("out/model.safetensors")
    assert all((new[f"model.{key}"] == value).all() for key, value in old.items())


def test_a_folder_of_pictures(run, vision, tmp_path):
    write_photos(tmp_path / "photos", 5, 0)
    assert "baseline (logistic regression on color histograms) has 1.000" in run("photos", model=vision)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "photos").rglob("*.png"))
    table = table_of()
    assert table["file"].tolist() == files and table["label"].tolist() == [Path(file).parent.name for file in files]
    assert "preprocessor_config.json" in os.listdir("out")
    run("photos", "--fine_tune", "true", "--max_steps", 2, model=vision, output="tuned")
    assert 0 < results_of("tuned")["eval_samples"] < 15
    assert "inside of photos" in run("photos", model=vision, output="photos/out")
    assert "Flags of columns" in run("photos", "--text_column_names", "text", model=vision, output="new")


def test_bad_folders_of_pictures_are_named(run, vision, tmp_path):
    photos = write_photos(tmp_path / "photos", 2, 0)
    # The model must be one of pictures.
    assert "classifies a file of texts, which photos is not" in run("photos")
    assert "pass the folder of the pictures" in run("rows.csv", model=vision)
    assert "There is no folder nosuch" in run("nosuch", model=vision)
    assert "There is no folder nosuch" in run("photos", "--validation_data", "nosuch", model=vision)
    assert not Path("out").exists()
    write_photos(tmp_path / "other", 1, 0)
    (tmp_path / "other" / "red").rename(tmp_path / "other" / "Red")
    message = run("photos", "--validation_data", "other", model=vision)
    assert message.startswith("other/Red/000.png has the label 'Red', which is not one of 3 classes (blue, green, red)")
    (photos / "red" / "link.png").symlink_to(tmp_path / "nosuch.png")
    assert run("photos", model=vision).startswith("photos/red/link.png cannot be read (No such file or directory)")


def test_a_finished_folder_is_never_overwritten(run, encoder):
    run("rows.csv")
    before = {path: path.read_bytes() for path in Path("out").iterdir()}
    assert run("rows.csv").startswith("out holds a finished run")
    assert before == {path: path.read_bytes() for path in Path("out").iterdir()}
    # A folder of something else, such as an interrupted run of a script.
    assert "holds config.json" in run("rows.csv", output=encoder)
    Path("run/checkpoint-5").mkdir(parents=True)
    Path("run/settings.json").write_text("{}")
    assert "holds checkpoint-5" in run("rows.csv", output="run")


@pytest.fixture
def interrupt(monkeypatch):
    """interrupt(step) ends the next training by Ctrl-C in this step; interrupt(0) ends none."""
    training_step = GMLPTrainer.training_step

    def stop_at(step):
        def train(self, *args, **kwargs):
            if self.state.global_step == step - 1:
                raise KeyboardInterrupt
            return training_step(self, *args, **kwargs)

        monkeypatch.setattr(GMLPTrainer, "training_step", train if step else training_step)

    return stop_at


@pytest.mark.slow
def test_an_interrupted_fine_tuning_continues(run, interrupt, tmp_path, caplog):
    caplog.set_level("INFO")
    run("rows.csv", *TUNED, output="complete")
    interrupt(15)
    assert run("rows.csv", *TUNED).startswith("Interrupted")
    assert not Path("out/model.safetensors").exists() and not Path("out/all_results.json").exists()
    interrupt(0)
    # Other rows, other classes and other settings are refused before any step.
    for rows in (ROWS[::-1], [{"text": TEXTS[0], "label": "third"}, *ROWS[1:]]):
        write_rows(tmp_path / "rows.csv", rows)
        assert "holds a run" in run("rows.csv", *TUNED)
    write_rows(tmp_path / "rows.csv", ROWS)
    assert "seed" in (error := run("rows.csv", *TUNED, "--seed", "1")) or "random_state" in error
    caplog.clear()
    run("rows.csv", *TUNED)
    assert "Resuming from" in caplog.text and not Path("out/_training").exists()
    assert {path.name for path in Path("out").iterdir()} >= MODEL_FILES | REPORT_FILES - {"confusion_matrix.png"}
    first, second = (load_file(Path(folder, "model.safetensors")) for folder in ("complete", "out"))
    for key, value in first.items():
        np.testing.assert_allclose(second[key], value, atol=1e-4, rtol=1e-3)
    assert results_of() == pytest.approx(results_of("complete"), abs=1e-3)


def test_columns_are_joined_unless_a_pair_is_asked_for(run, tmp_path):
    rows = [{"subject": a, "body": b, "question1": "x", "label": c} for a, b, c in zip(TEXTS, TEXTS[::-1], LABELS)]
    write_rows(tmp_path / "two.csv", rows)
    assert "Name the text with --text_column_names" in run("two.csv", output="none")
    columns = ("subject", "body")
    run("two.csv", "--text_column_names", *columns, output="joined")
    run("two.csv", "--pair_column_names", *columns, output="pair")
    joined, pair = (AutoConfig.from_pretrained(folder) for folder in ("joined", "pair"))
    assert joined.text_columns == pair.text_columns == ["subject", "body"]
    assert (joined.text_separator, pair.text_separator) == (" ", None) and joined.label_column == "label"
    assert table_of("joined")["text"].tolist() == [f"{a} {b}" for a, b in zip(TEXTS, TEXTS[::-1])]
    assert table_of("pair")[["text", "text_pair"]].values.tolist() == [[a, b] for a, b in zip(TEXTS, TEXTS[::-1])]
    assert "not allowed with" in run("two.csv", "--text_column_names", "body", "--pair_column_names", *columns)
    # Columns of a known pair are one.
    write_rows(tmp_path / "known.csv", [{"question1": r["subject"], "question2": r["body"]} | r for r in rows])
    run("known.csv", output="known")
    assert AutoConfig.from_pretrained("known").text_columns == ["question1", "question2"]
    assert AutoConfig.from_pretrained("known").text_separator is None


def test_rows_without_a_label_are_left_out_if_asked(run, tmp_path):
    write_rows(tmp_path / "some.csv", [row | ({"label": ""} if i % 4 == 0 else {}) for i, row in enumerate(ROWS)])
    error = run("some.csv", output="none")
    assert error.startswith("10 of 40 rows") and "row 1" in error and "--drop_unlabeled" in error
    run("some.csv", "--drop_unlabeled")
    assert table_of()["row"].tolist() == [number for number in range(1, 41) if number % 4 != 1]
    assert table_of()["text"].tolist() == [text for i, text in enumerate(TEXTS) if i % 4]
    write_rows(tmp_path / "none.csv", [row | {"label": ""} for row in ROWS])
    assert run("none.csv", "--drop_unlabeled", output="none").startswith("40 of 40 rows")


def test_validation_data_are_scored_instead(run, tmp_path):
    texts, labels = opinions(30, seed=5)
    write_rows(tmp_path / "new.jsonl", [{"text": a, "label": b} for a, b in zip(texts, labels)])
    assert "On the validation data: accuracy" in run("rows.csv", "--validation_data", "new.jsonl")
    assert table_of()["text"].tolist() == texts and results_of()["eval_samples"] == 30
    assert "exclude each other" in run(
        "rows.csv", "--validation_data", "new.jsonl", "--cross_validation", 5, output="b"
    )


def test_few_rows_have_no_score(run, tmp_path):
    write_rows(tmp_path / "few.csv", [{"text": text, "label": f"class {i}"} for i, text in enumerate(TEXTS[:20])])
    assert run("few.csv").strip() == NO_ESTIMATE
    assert results_of() == {} and "accuracy" not in Path("out/README.md").read_text()
    assert {path.name for path in Path("out").iterdir()} == MODEL_FILES | {"settings.json", "all_results.json"}
    # All of them train the model.
    assert pipeline("text-classification", "out", device="cpu")(TEXTS[3])[0]["label"] == "class 3"
    assert run("rows.csv", "--cross_validation", 0, output="none").strip() == NO_ESTIMATE


def test_an_encoding_is_used(run, tmp_path):
    text = "text,label\n" + "".join(f"{row['text']},{row['label']} schön\n" for row in ROWS)
    (tmp_path / "excel.csv").write_bytes(text.encode("cp1252"))
    assert "UTF-8" in run("excel.csv", output="none")
    run("excel.csv", "--encoding", "cp1252")
    assert {*table_of()["label"]} == {"bad schön", "good schön"}


@pytest.mark.parametrize("is_known", [False, True])
def test_a_push_publishes_the_model_alone(run, monkeypatch, tmp_path, encoder, is_known):
    pushed = {}

    def upload(repo_id, folder_path):
        pushed.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()}, repository=repo_id)

    def load(*args, **kwargs):
        if not is_known:
            raise huggingface_hub.errors.EntryNotFoundError("no card")
        return ModelCard("---\nlicense: mit\n---\nWritten by hand.")

    monkeypatch.setattr(
        huggingface_hub,
        "create_repo",
        lambda name, exist_ok: huggingface_hub.RepoUrl(f"https://huggingface.co/me/{name}"),
    )
    monkeypatch.setattr(huggingface_hub, "upload_folder", upload)
    monkeypatch.setattr(cards.ModelCard, "load", load)
    private = tmp_path / "private" / "tickets.csv"
    private.parent.mkdir()
    shutil.move(tmp_path / "rows.csv", private)
    run(private, "--push_to_hub", "--hub_model_id", "sorter")
    assert pushed.pop("repository") == "me/sorter" and {*pushed} == MODEL_FILES
    content = b"".join(pushed.values()).decode("latin-1")
    assert str(private.parent) not in content and TEXTS[0] not in content
    card = pushed["README.md"].decode()
    assert ("Written by hand." in card) is is_known and ('"me/sorter"' in card) is not is_known
    assert "without --push_to_hub" in run(private, "--hub_model_id", "sorter", output="none")


def test_a_failed_push_names_the_command(run, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "create_repo", fail)
    error = run("rows.csv", "--push_to_hub")
    assert error.startswith("The model is in out, but not pushed (no network): use hf upload")
    assert "eval_predictions" not in error and "settings.json" not in error and results_of()["eval_samples"] == 40


@pytest.mark.slow
def test_a_terminal_without_the_characters_of_class_names(tmp_path, encoder):
    rows = [{"text": text, "label": {"good": "хорошо", "bad": "😡"}[label]} for text, label in zip(TEXTS, LABELS)]
    write_rows(tmp_path / "rows.jsonl", rows)
    command = [sys.executable, "-m", "hf_gmlp_cli", "classify", encoder, str(tmp_path / "rows.jsonl")]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])}
    command += ["--output", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rb"\u0445" in done.stdout and "хорошо" in (tmp_path / "out" / "report.txt").read_text(encoding="utf-8")
    assert {*table_of(tmp_path / "out")["label"]} == {"хорошо", "😡"}
