import json
import random

import pytest

WORDS = [f"{a}{b}{c}{d}" for a in "bdfg" for b in "aeiou" for c in "lmnr" for d in "stk"]


def write_documents(path, count, words, seed=0):
    generator = random.Random(seed)
    documents = [" ".join([f"Document {number}", *generator.choices(WORDS, k=words)]) for number in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


def finished_run(folder, config, head, results, settings=None, steps=None):
    """Write what a finished run of a script leaves, except for the weights, and return its folder."""
    folder.mkdir(parents=True)
    config.architectures = [head]
    (folder / "config.json").write_text(config.to_json_string())
    (folder / "all_results.json").write_text(json.dumps(results))
    if settings is not None:
        (folder / "settings.json").write_text(json.dumps(settings))
    if steps is not None:
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps, "log_history": []}))
    return folder


@pytest.fixture
def write_run(tmp_path, text_config):
    """write_run(name, head, results, settings=None, steps=None, **fields) writes a run of a tiny text model."""

    def write(name, head, results, settings=None, steps=None, **fields):
        return finished_run(tmp_path / "runs" / name, text_config(**fields), head, results, settings, steps)

    return write
