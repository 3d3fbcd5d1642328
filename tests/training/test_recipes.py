import json

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.training.recipes import command_line, merge, parse_overrides, read_recipe


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_recipes_are_flags_and_later_ones_win(tmp_path):
    one = write(
        tmp_path / "one.yaml", "do_train: true\ntrain_file: [a.txt, b.txt]\nlr: 1.0e-4\ncache-dir: null\nseed: 1\n"
    )
    two = write(tmp_path / "two.yml", "seed: 2\nrun_name: -x\nlr_scheduler_kwargs: {num_cycles: 1}\n")
    assert command_line([one, two, "--seed", "3", "x.yaml"]) == [
        *("--do_train", "True", "--train_file", "a.txt", "b.txt", "--lr", "0.0001", "--seed", "2", "--run_name=-x"),
        *("--lr_scheduler_kwargs", '{"num_cycles": 1}', "--seed", "3", "x.yaml"),
    ]
    assert command_line(["--seed", "3"]) == ["--seed", "3"] and command_line([]) == []
    assert command_line([write(tmp_path / "a.json", '{"seed": 4}')]) == ["--seed", "4"]


def test_overrides_are_merged_key_by_key(tmp_path):
    base = write(tmp_path / "base.yaml", "config_overrides:\n  a: 1e-6\n  b: no\n  c: [1, 2]\n")
    row = write(tmp_path / "row.yaml", "include: base.yaml\nconfig_overrides: {b: null, d: x, e: null}\n")
    none = write(tmp_path / "none.yaml", "include: base.yaml\nconfig_overrides: null\n")

    def overrides(*argv):
        flags = command_line([str(word) for word in argv])
        assert flags[:1] == ["--config_overrides"] or not flags
        return json.loads(flags[1]) if flags else None

    assert overrides(base) == {"a": 1e-6, "b": False, "c": [1, 2]}
    # null takes away what was there, and is a value where nothing was.
    assert overrides(row) == {"a": 1e-6, "c": [1, 2], "d": "x", "e": None}
    assert overrides(row, base)["b"] is False and overrides(none) is None
    assert overrides(row, "--config_overrides", "a=2,d=null") == {"a": 2, "c": [1, 2], "e": None}
    assert overrides(none, row, "--config-overrides=f=1", "--config_overrides", '{"f": {"g": 2}}')["f"] == {"g": 2}
    assert command_line([none, "--config_overrides", "a=1"]) == ["--config_overrides", "a=1"]
    assert command_line(["--config_overrides"]) == ["--config_overrides"]
    # Older recipes have them as text.
    assert overrides(base, write(tmp_path / "text.yaml", "config_overrides: a=2")) == {"a": 2, "b": False, "c": [1, 2]}
    assert merge({"x": {"y": 1}}, {"x": 3}) == {"x": 3}


def test_recipes_include_each_other(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "base.yaml", "max_steps: 7\ncache_dir: here\nlearning_rate: 1.0e-4\n")
    write(tmp_path / "small.yaml", "\ufeffmax_steps: 3\ncache_dir: null\n")
    row = tmp_path / "sub" / "row.yaml"
    write(row, "include: [../base.yaml, ../small.yaml]\nlearning_rate: 5e-4\n")
    assert read_recipe(row) == {"max_steps": 3, "cache_dir": None, "learning_rate": 5e-4}


@pytest.mark.parametrize(
    ("earlier", "later", "kept"),
    [
        # What describes a data set goes with it.
        ({"dataset_name": "c4", "dataset_config_name": "en", "streaming": True}, {"train_file": "a"}, {}),
        ({"dataset_name": "c4", "test_split_name": "dev", "seed": 1}, {"test_file": "a"}, {"seed": 1}),
        ({"dataset_name": "c4", "streaming": True}, {"train_file": "a", "streaming": True}, {}),
        ({"dataset_name": "imagenet", "train_file": None}, {"train_dir": "photos"}, {}),
        ({"train_file": "a", "validation_file": "b"}, {"dataset_name": "c4"}, {}),
        ({"train_dir": "photos", "validation_dir": "more"}, {"train_file": "a"}, {}),
        # A task says what the columns of files mean, and a stream may be one of files.
        ({"task_name": "sst2"}, {"train_file": "a"}, {"task_name": "sst2"}),
        ({"streaming": True}, {"train_file": "a"}, {"streaming": True}),
        # Of the same kind, each value replaces its own.
        ({"train_file": "a", "validation_file": "b"}, {"train_file": "c"}, {"validation_file": "b"}),
        ({"dataset_name": "c4", "streaming": True}, {"dataset_name": "pile"}, {"streaming": True}),
        # null names nothing.
        ({"dataset_name": "c4"}, {"train_file": None}, {"dataset_name": "c4"}),
    ],
)
def test_later_data_replace_earlier_ones(tmp_path, earlier, later, kept):
    assert merge(earlier, later) == kept | later
    (tmp_path / "earlier.json").write_text(json.dumps(earlier))
    if None not in later.values():
        typed = [f"--{name.replace('_', '-')}={value}" for name, value in later.items()]
        flags = command_line([str(tmp_path / "earlier.json"), *typed])
        assert flags[-len(typed) :] == typed
        assert {word.removeprefix("--") for word in flags[: -len(typed) : 2]} - later.keys() == kept.keys()


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", {}),
        ("a=1, b=true,c=relu,", {"a": 1, "b": True, "c": "relu"}),
        ("image_size=[224,192],name='a,b',other=\"x,]y\"", {"image_size": [224, 192], "name": "a,b", "other": "x,]y"}),
        ("a=1e-6,b=1E5,c=-2.5,d=.5,e=1.", {"a": 1e-6, "b": 1e5, "c": -2.5, "d": 0.5, "e": 1.0}),
        ("a=~,b=no,c=0x10,d=-.5", {"a": None, "b": False, "c": 16, "d": -0.5}),
        ("name=it's,b=don't,c=\"d,e='f\"", {"name": "it's", "b": "don't", "c": "d,e='f"}),
        ("a={x: 1, y: [2]},b=c=d", {"a": {"x": 1, "y": [2]}, "b": "c=d"}),
        ('{"a": 1e-6, "b": [1], "c": "\\ud83d\\ude00", "d": null}', {"a": 1e-6, "b": [1], "c": "😀", "d": None}),
    ],
)
def test_overrides_of_a_command_line(text, overrides):
    assert parse_overrides(text) == overrides


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "the key 'a' must .* have a value"),
        ("=1", "the key '=1' must .* have a value"),
        ("a=", "the key 'a' must .* have a value"),
        ("a=,b=1", "the key 'a' must .* have a value"),
        ("a=1,a=2", "the key 'a' must .* unique"),
        ("a=[1,2", "expected ',' or ']'"),
        ("a='x,b=2", "unexpected end"),
        ("a=1]", "expected ',' or '}', but got ']'"),
        ("a=1}, {b=2", "but found ','"),
        ("a=.inf", "Out of range"),
        ("a=2026-01-01", "date is not JSON"),
        ("a={0: x}", "the key 0 must be text"),
        ("a=!!python/name:os.system x", "could not determine a constructor for the tag"),
        ("a=&x [*x]", "Circular"),
        ('{"a": 1, "a": 2}', "the key 'a' must .* unique"),
        ('{"a": NaN}', "Out of range"),
        ('{"a": 1', "expected ',' or '}'"),
        ("a=" + "[" * 3000 + "]" * 3000, "recursion"),
    ],
)
def test_overrides_that_cannot_be_read(text, words):
    with pytest.raises(
        InputError, match=f"^--config_overrides .* cannot be read as key=value pairs.*{words}"
    ) as caught:
        parse_overrides(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "x.yaml is empty"),
        ("# nothing\n", "x.yaml .*must map flags to values"),
        ("- a\n- b\n", "x.yaml .*must map flags to values"),
        ("a: 'x", "x.yaml .*unexpected end of stream, in line 1"),
        ("a: 1\nb:\n\tc: 2\n", "x.yaml .*character '.t' .*, in line 3"),
        ("a: 1\n---\nb: 2\n", "x.yaml .*another document"),
        ("a: 1".encode("utf-16"), "x.yaml .*it is not UTF-8"),
        ("a: \0", "x.yaml .*unacceptable character #x0000"),
        ("a: !!python/object/apply:os.system ['true']", "x.yaml .*could not determine a constructor for the tag"),
        (LAUGHS, "x.yaml .*b must be a finite value, a list of them"),
        ("1: 2", "x.yaml .*the key 1 must be text"),
        ("a: 1\na: 2", "x.yaml .*the key 'a' must .* unique.*, in line 2"),
        ("a_b: 1\na-b: 2", "x.yaml .*a flag is named twice, with - and with _"),
        ("a: [[1]]", "x.yaml .*a must be a finite value, a list of them, or a mapping"),
        ("a: {b: {c: 1}}", "x.yaml .*a must be"),
        ("a: []", "x.yaml .*a must be"),
        ("a: [1, null]", "x.yaml .*a must be"),
        ("a: .nan", "x.yaml .*a must be"),
        ("a: {b: .inf}", "x.yaml .*a must be"),
        ("a: " + "[" * 3000, "x.yaml .*recursion"),
        ("a: " + "9" * 5000, "x.yaml .*4300 digits"),
        ("config_overrides: a", "--config_overrides a cannot be read"),
        ("include: [1]", r"no file .*/1\."),
        ("include: none.yaml", "no file .*none.yaml"),
        ("include: x.yaml", "x.yaml includes .*x.yaml, which includes it too"),
        ("include: [other.yaml]", "other.yaml includes .*x.yaml, which includes it too"),
    ],
)
def test_recipes_that_cannot_be_read(tmp_path, text, words):
    write(tmp_path / "other.yaml", "include: x.yaml\n")
    with pytest.raises(InputError, match=words) as caught:
        command_line([write(tmp_path / "x.yaml", text)])
    assert "\n" not in str(caught.value)


def test_missing_recipes(tmp_path):
    with pytest.raises(InputError, match=r"no file .*none\.yaml"):
        command_line([str(tmp_path / "none.yaml")])
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match=r"folder\.yaml is a folder"):
        command_line([str(tmp_path / "folder.yaml")])
