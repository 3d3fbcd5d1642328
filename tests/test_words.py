from .words import findings


def test_phrases_and_names_are_found():
    text = "A data\nset, drawn at random.\n\nfor path, shown in pairs:\n    one, row = pair\n"
    assert [line.partition(":")[0] for line in findings(text)] == ["1", "2", "4", "5"]
    assert findings("Datasets are sampled.\npath, is_token = pair\nOne of them is shown in bold.\n") == []
