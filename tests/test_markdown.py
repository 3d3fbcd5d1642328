from markdown_it import MarkdownIt

from hf_gmlp.markdown import escape, markdown_table


def test_any_text_stays_in_its_cell():
    texts = ["a | b", "*a* `b` <i>c</i>", "two\nlines", "[x](y)", "back\\slash"]
    table = markdown_table([["name", "value"], *[[escape(text), None] for text in texts]])
    tokens = MarkdownIt().enable("table").parse(table)
    cells = [token for token in tokens if token.type == "inline"]
    assert [cell.children[0].type if cell.children else None for cell in cells[2::2]] == ["text"] * len(texts)
    read = ["".join(child.content for child in cell.children) for cell in cells[2::2]]
    assert read == [" ".join(text.split()) for text in texts]
    assert all(cell.content == "" for cell in cells[3::2])
