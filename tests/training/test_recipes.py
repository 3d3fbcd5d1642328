import json

import pytest

from hf_gmlp.errors import InputError
from hf_gmlp.training.recipes import command_line, merge, parse_overrides, read_recipe

from ..samples import write


def test_recipes_are_flags_and_later_ones_override_earlier_ones(tmp_path):
    first = write(tmp_path / "1.yaml", "do_train: true\ntrain_file: [a.txt, b.txt]\nlr: 1e-4\ncache_dir: x\nseed: 1\n")
    second = write(tmp_path / "2.yml", "seed: 2\nrun_name: -x\nlr_scheduler_kwargs: {num_cycles: 1}\ncache_dir: null\n")
    third = write(tmp_path / "3.yaml", "save_strategy: 'no'\ndo_eval: false\n")
    assert command_line([first, second, third, "--seed", "3", "x.yaml"]) == [
        *("--do_train=True", "--train_file", "a.txt", "b.txt", "--lr=0.0001", "--run_name=-x"),
        *('--lr_scheduler_kwargs={"num_cycles": 1}', "--save_strategy=no", "--do_eval=False", "--seed", "3", "x.yaml"),
    ]
    assert command_line(["--seed", "3"]) == ["--seed", "3"] and command_line([]) == []


def test_overrides_are_merged_key_by_key(tmp_path):
    base = write(tmp_path / "base.yaml", "config_overrides:\n  a: 1e-6\n  b: false\n  c: [1, 2]\n")
    row = write(tmp_path / "row.yaml", "include: base.yaml\nconfig_overrides: {b: null, d: x, e: null}\n")
    none = write(tmp_path / "none.yaml", "include: base.yaml\nconfig_overrides: null\n")

    def overrides(*argv):
        flags = command_line(list(argv))
        return json.loads(flags[0].removeprefix("--config_overrides=")) if flags else None

    assert overrides(base) == {"a": 1e-6, "b": False, "c": [1, 2]}
    # null removes an existing value, and is a value itself if there was none.
    assert overrides(row) == {"a": 1e-6, "c": [1, 2], "d": "x", "e": None}
    assert overrides(row, base)["b"] is False and overrides(none) is None
    assert overrides(row, "--config_overrides", "a=2,d=null") == {"a": 2, "c": [1, 2], "e": None}
    assert overrides(none, row, "--config-overrides=f=1", "--config_overrides", '{"f": {"g": 2}}')["f"] == {"g": 2}


def test_recipes_include_each_other(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "base.yaml", "max_steps: 7\ncache_dir: here\nlearning_rate: 1.0e-4\n")
    write(tmp_path / "small.yaml", "\ufeffmax_steps: 3\ncache_dir: null\n")
    row = tmp_path / "sub" / "row.yaml"
    write(row, "include: [../base.yaml, ../small.yaml]\nlearning_rate: 5e-4\n")
    assert read_recipe(row) == {"max_steps": 3, "cache_dir": None, "learning_rate": 5e-4}
    write(row, "include: null\nlearning_rate: 5e-4\n")
    assert read_recipe(row) == {"learning_rate": 5e-4}


@pytest.mark.parametrize(
    ("earlier", "later", "kept"),
    [
        # Flags that describe a dataset are dropped with it. Files can also be streamed.
        ({"dataset_name": "c4", "dataset_config_name": "en", "streaming": True}, {"train_file": "a"}, ["streaming"]),
        ({"dataset_name": "imagenet", "dataset_config_name": "en", "seed": 1}, {"train_dir": "photos"}, ["seed"]),
        ({"train_file": "a", "validation_file": "b"}, {"dataset_name": "c4"}, []),
        # A source of the same kind replaces only its own flag.
        ({"train_file": "a", "validation_file": "b"}, {"train_file": "c"}, ["validation_file"]),
    ],
)
def test_later_data_replace_earlier_ones(tmp_path, earlier, later, kept):
    assert merge(earlier, later) == {name: earlier[name] for name in kept} | later
    typed = [f"--{name.replace('_', '-')}={value}" for name, value in later.items()]
    flags = command_line([write(tmp_path / "earlier.yaml", json.dumps(earlier)), *typed])
    assert flags == [f"--{name}={earlier[name]}" for name in kept] + typed


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", {}),
        ("a=1, b=true,c=relu,", {"a": 1, "b": True, "c": "relu"}),
        ("image_size=[224,192],name='a,b',d=\"x,]y\"", {"image_size": [224, 192], "name": "a,b", "d": "x,]y"}),
        ("a=1e-6,b=1E5,c=-2.5,d=.5,e=1.", {"a": 1e-6, "b": 1e5, "c": -2.5, "d": 0.5, "e": 1.0}),
        ("a={x: 1, y: [2]},b=c=d,e=~,f=false", {"a": {"x": 1, "y": [2]}, "b": "c=d", "e": None, "f": False}),
        ('{"a": 1e-6, "b": [1], "c": "\\u00e9", "d": null}', {"a": 1e-6, "b": [1], "c": "é", "d": None}),
    ],
)
def test_overrides_of_a_command_line_are_parsed(text, overrides):
    assert parse_overrides(text) == overrides


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "x.yaml .*names must have values"),
        ("a: 1\nb:\n\tc: 2\n", "x.yaml .*line 3"),
        ("a: !!python/object/apply:os.system ['true']", "x.yaml .*constructor"),
        ("a: 1\nb: 2\na: 3", "x.yaml .*repeated among a, b, a"),
        ("config_overrides: 'a=[1,2'", r"--config_overrides a=\[1,2"),
        ("config_overrides: '{a: 1, a: 2}'", "repeated"),
        ("include: x.yaml", "x.yaml .*includes other recipes"),
        ("include: [5]", "x.yaml .*includes other recipes"),
    ],
)
def test_recipes_that_cannot_be_read_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        command_line([write(tmp_path / "x.yaml", text)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_recipes_in_other_encodings_are_refused(tmp_path, encoding):
    (tmp_path / "x.yaml").write_bytes("run_name: café".encode(encoding))
    with pytest.raises(InputError, match="x.yaml cannot be read: it is not UTF-8"):
        read_recipe(tmp_path / "x.yaml")
