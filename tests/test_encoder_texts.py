"""The script that builds the texts of the sentence encoder."""

import gzip
import json
import sys

import pandas

from examples import encoder_texts

from .samples import write_rows


def test_texts_of_all_sources_are_filtered_and_shuffled(tmp_path, monkeypatch, capsys):
    paragraph = "It was a long evening by the sea. Nobody spoke, and the old lamp burned. " * 4
    secret = "one two three four five six seven eight nine"
    chapter = f"Too short.\n{paragraph}\nThey knew of {secret.upper()} and more."
    write_rows(tmp_path / "books.jsonl", [{"text": chapter}, {"text": "A second chapter has another sentence."}])
    (tmp_path / "peps.txt").write_text("This proposal adds a new module.\n")
    for name in ("wiki", "queries", "sgd/train", "coffee"):
        (tmp_path / name).mkdir(parents=True)
    line = (
        "Due to rain , it was canceled , says Bob 's aunt .\tIt was canceled ( again ) . <::::> Bob 's aunt says so ."
    )
    for part in ("tune", "validation", "test", "train", "dev"):
        (tmp_path / "wiki" / f"{part}.tsv").write_text(line + "\n")
        (tmp_path / "queries" / f"{part}.tsv").write_text(f'what is {part} "here" ?\t0.4\n')
    turns = [{"speaker": "USER", "utterance": "I need a table for two."}, {"speaker": "SYSTEM", "utterance": "Sure."}]
    (tmp_path / "sgd/train/dialogues_001.json").write_text(json.dumps([{"turns": turns}]))
    (tmp_path / "sgd/train/schema.json").write_text(json.dumps([{"service_name": "Restaurants_1"}]))
    utterances = [{"index": 0, "speaker": "user", "text": "One large coffee to go please"}]
    (tmp_path / "coffee/data_00.json").write_text(json.dumps([{"utterances": utterances}]))
    pandas.DataFrame({"text": [f"It is {secret}, they say."], "label": [1]}).to_csv(tmp_path / "test.csv", index=False)
    output, folder = tmp_path / "texts.jsonl.gz", tmp_path
    words = ["", output, "--books", folder / "books.jsonl", "--peps", folder / "peps.txt", "--sgd", folder / "sgd"]
    words += ["--wiki_split", folder / "wiki", "--questions", folder / "queries", "--taskmaster", folder / "coffee"]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--leave_out", str(folder / "test.csv")])
    monkeypatch.setitem(encoder_texts.COUNTS, "questions", 2)
    encoder_texts.main()
    with gzip.open(output, "rt") as file:
        rows = [json.loads(line) for line in file]
    texts = {source: {row["text"] for row in rows if row["source"] == source} for source in encoder_texts.COUNTS}
    sentences = {"It was a long evening by the sea.", "Nobody spoke, and the old lamp burned."}
    # The sentence with eight words of the left-out text is missing, and a repeated sentence occurs once.
    assert texts["books"] == sentences | {"A second chapter has another sentence."}
    assert texts["books_passages"] == {paragraph.strip()} and texts["peps"] == {"This proposal adds a new module."}
    assert texts["wiki_split"] == {
        "Due to rain, it was canceled, says Bob's aunt.", "It was canceled (again).", "Bob's aunt says so.",
    }  # fmt: skip
    assert len(texts["questions"]) == 2 < 3 and texts["sgd"] == {"I need a table for two."}
    assert texts["taskmaster"] == {"One large coffee to go please"} and len(rows) == sum(map(len, texts.values()))
    assert "questions: 2 of 3" in capsys.readouterr().out
