import json

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.training.recipes import command_line, merge, parse_overrides, read_recipe

from ..samples import write


def test_recipes_are_flags_and_later_ones_override_earlier_ones(tmp_path):
    first = write(
        tmp_path / "1.yaml", "do_train: true\ntrain_file: [a.txt, b.txt]\nlr: 1e-4\ncache-dir: null\nseed: 1\n"
    )
    second = write(tmp_path / "2.yml", "seed: 2\nrun_name: -x\nlr_scheduler_kwargs: {num_cycles: 1}\n")
    third = write(tmp_path / "3.yaml", "save_strategy: 'no'\nreport_to: []\ndo_eval: false\n")
    assert command_line([first, second, third, "--seed", "3", "x.yaml"]) == [
        *("--do_train", "True", "--train_file", "a.txt", "b.txt", "--lr", "0.0001", "--seed", "2", "--run_name=-x"),
        *("--lr_scheduler_kwargs", '{"num_cycles": 1}', "--save_strategy", "no", "--do_eval", "False"),
        *("--seed", "3", "x.yaml"),
    ]
    assert command_line(["--seed", "3"]) == ["--seed", "3"] and command_line([]) == []


def test_overrides_are_merged_key_by_key(tmp_path):
    base = write(tmp_path / "base.yaml", "config_overrides:\n  a: 1e-6\n  b: false\n  c: [1, 2]\n")
    row = write(tmp_path / "row.yaml", "include: base.yaml\nconfig_overrides: {b: null, d: x, e: null}\n")
    none = write(tmp_path / "none.yaml", "include: base.yaml\nconfig_overrides: null\n")
    text = write(tmp_path / "text.yaml", "config_overrides: a=2")

    def overrides(*argv):
        flags = command_line([str(word) for word in argv])
        assert flags[:1] == ["--config_overrides"] or not flags
        return json.loads(flags[1]) if flags else None

    assert overrides(base) == {"a": 1e-6, "b": False, "c": [1, 2]}
    # null removes an existing value, and is a value itself if there was none.
    assert overrides(row) == {"a": 1e-6, "c": [1, 2], "d": "x", "e": None}
    assert overrides(row, base)["b"] is False and overrides(none) is None
    assert overrides(base, text) == {"a": 2, "b": False, "c": [1, 2]}
    assert overrides(row, "--config_overrides", "a=2,d=null") == {"a": 2, "c": [1, 2], "e": None}
    assert overrides(none, row, "--config-overrides=f=1", "--config_overrides", '{"f": {"g": 2}}')["f"] == {"g": 2}


def test_recipes_include_each_other(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "base.yaml", "max_steps: 7\ncache_dir: here\nlearning_rate: 1.0e-4\n")
    write(tmp_path / "small.yaml", "\ufeffmax_steps: 3\ncache_dir: null\n")
    row = tmp_path / "sub" / "row.yaml"
    write(row, "include: [../base.yaml, ../small.yaml]\nlearning_rate: 5e-4\n")
    assert read_recipe(row) == {"max_steps": 3, "cache_dir": None, "learning_rate": 5e-4}
    # A later recipe can also remove a value.
    assert "--learning_rate" not in command_line([str(row), write(tmp_path / "none.yaml", "learning_rate: null\n")])


@pytest.mark.parametrize(
    ("earlier", "later", "kept"),
    [
        # Flags that describe a dataset are dropped with it.
        ({"dataset_name": "c4", "dataset_config_name": "en"}, {"train_file": "a"}, {}),
        # Files can also be streamed.
        ({"dataset_name": "c4", "streaming": True}, {"train_file": "a"}, {"streaming": True}),
        ({"dataset_name": "c4", "dataset_config_name": "en", "seed": 1}, {"test_file": "a"}, {"seed": 1}),
        ({"dataset_name": "imagenet"}, {"train_dir": "photos"}, {}),
        ({"train_file": "a", "validation_file": "b"}, {"dataset_name": "c4"}, {}),
        # A task also describes the columns of files.
        ({"task_name": "sst2"}, {"train_file": "a"}, {"task_name": "sst2"}),
        # A source of the same kind replaces only its own flag.
        ({"train_file": "a", "validation_file": "b"}, {"train_file": "c"}, {"validation_file": "b"}),
        ({"dataset_name": "c4", "streaming": True}, {"dataset_name": "pile"}, {"streaming": True}),
    ],
)
def test_later_data_replace_earlier_ones(tmp_path, earlier, later, kept):
    assert merge(earlier, later) == kept | later
    typed = [f"--{name.replace('_', '-')}={value}" for name, value in later.items()]
    flags = command_line([write(tmp_path / "earlier.yaml", json.dumps(earlier)), *typed])
    assert flags[-len(typed) :] == typed
    assert {word.removeprefix("--") for word in flags[: -len(typed) : 2]} - later.keys() == kept.keys()


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", {}),
        ("a=1, b=true,c=relu,", {"a": 1, "b": True, "c": "relu"}),
        ("image_size=[224,192],name='a,b',d=\"x,]y\"", {"image_size": [224, 192], "name": "a,b", "d": "x,]y"}),
        ("a=1e-6,b=1E5,c=-2.5,d=.5,e=1.", {"a": 1e-6, "b": 1e5, "c": -2.5, "d": 0.5, "e": 1.0}),
        ("a={x: 1, y: [2]},b=c=d,e=~,f=false", {"a": {"x": 1, "y": [2]}, "b": "c=d", "e": None, "f": False}),
        ('{"a": 1e-6, "b": [1], "c": "\\ud83d\\ude00", "d": null}', {"a": 1e-6, "b": [1], "c": "😀", "d": None}),
    ],
)
def test_overrides_of_a_command_line_are_parsed(text, overrides):
    assert parse_overrides(text) == overrides


@pytest.mark.parametrize("text", ["a", "a=", "a=[1,2", "a=!!python/name:os.system x", '{"a": 1'])
def test_overrides_that_cannot_be_read_are_refused(text):
    with pytest.raises(InputError, match="--config_overrides") as caught:
        parse_overrides(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "x.yaml .*names must have values"),
        ("a: 1\nb:\n\tc: 2\n", "x.yaml .*line 3"),
        ("a: !!python/object/apply:os.system ['true']", "x.yaml .*constructor"),
        ("a: 1\nb: 2\na: 3", "x.yaml .*repeated among a, b, a"),
        ("config_overrides: a", "--config_overrides a cannot be read"),
        ("include: none.yaml", "no file .*none.yaml"),
        ("include: x.yaml", "x.yaml includes itself"),
    ],
)
def test_recipes_that_cannot_be_read_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        command_line([write(tmp_path / "x.yaml", text)])
    assert "\n" not in str(caught.value)
