"""Replacement of the table of attributes that every config accepts, with values other than the defaults."""

config_common_kwargs = {
    "architectures": ["SomeModel"],
    "chunk_size_feed_forward": 3,
    "dtype": "float16",
    "id2label": {0: "no", 1: "yes"},
    "is_encoder_decoder": True,
    "label2id": {"no": 0, "yes": 1},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "single_label_classification",
    "return_dict": False,
}
