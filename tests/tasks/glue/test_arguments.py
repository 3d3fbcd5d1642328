import pytest

from hf_gmlp.tasks.glue.arguments import GlueArguments


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task_name": "sst2", "do_regression": True}, "--do_regression .* sst2"),
        ({"train_split_name": "dev", "train_file": ["a.csv"]}, "--train_split_name"),
        ({"class_weights": "heavy"}, "--class_weights must be balanced"),
        ({"text_column_names": ["a", "b", "c"]}, "--text_column_names"),
        ({"task_name": "sst3"}, "sst3.* cola"),
    ],
)
def test_conflicting_flags_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        GlueArguments(**fields)
