"""Data for the training scripts, and flags to train a tiny model with each, in complete batches of 8."""

from pydoc_data.topics import topics

from .samples import opinions, squad, write, write_photos, write_rows

SIZES = "num_hidden_layers=2,hidden_size=32,intermediate_size=64,hidden_dropout_prob=0.0"
COMMON = ["--do_train", "--do_eval", "--max_steps", "6", "--learning_rate", "1e-3", "--warmup_steps", "2"]
COMMON += ["--global_batch_size", "8", "--per_device_eval_batch_size", "8", "--logging_steps", "2"]
COMMON += ["--disable_tqdm", "true", "--report_to", "none"]
TASKS = {
    "mlm": ["--train_file", "text.txt", "--max_eval_samples", "8", "--vocab_size", "390"],
    "clm": ["--train_file", "text.txt", "--max_eval_samples", "8", "--vocab_size", "390"],
    "glue": ["--train_file", "opinions_train.jsonl", "--validation_file", "opinions_validation.jsonl"],
    "qa": ["--train_file", "squad_train.json", "--validation_file", "squad_validation.json", "--doc_stride", "8"],
    "image_classification": ["--train_dir", "photos/train", "--validation_dir", "photos/validation"],
}
TASKS["glue"] += ["--text_column_names", "sentence", "--vocab_size", "380"]
# As in BERT, the softmax covers all positions of a batch, so the loss depends on the padding.
TASKS["qa"] += ["--vocab_size", "390", "--pad_to_max_length", "true"]
TASKS["image_classification"] += ["--image_size", "32"]


def write_data(folder):
    """Write the files of all tasks."""
    write(folder / "text.txt", "\n\n".join(text for _, text in sorted(topics.items())[:12]))
    for split, count, seed in (("train", 96, 0), ("validation", 48, 1)):
        write_rows(folder / f"opinions_{split}.jsonl", opinions(count, seed))
        # There are three questions per paragraph, and three image classes.
        write(folder / f"squad_{split}.json", squad(count // 3, seed=seed))
        write_photos(folder / "photos" / split, count // 3, seed)


def flags_of(task, folder, *more):
    """Return the flags of a script, with the files of a folder; `more` override them."""
    flags = [str(folder / flag) if (folder / flag).exists() else flag for flag in TASKS[task]]
    model = ["--config_name", "gmlp-base", "--config_overrides", f"{SIZES},max_position_embeddings=128"]
    if task == "image_classification":
        model = ["--config_name", "gmlp-ti16-224", "--config_overrides", f"{SIZES},patch_size=8"]
    return [*COMMON, *model, *flags, *map(str, more)]
