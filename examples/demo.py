"""Train a small gMLP on real English and inspect what it learned, in 3 minutes on two AVX2 cores (AMD EPYC).

    python -m examples.demo [--output_dir build/demo]

The text is the Python language reference, which every Python includes. The script trains a tokenizer and a
Toeplitz gMLP by masked language modeling (recipes/demo.yaml), compares it with counts of tokens and of their neighbors,
and fills masks in held-out sentences.
"""

import argparse
import json
import math
import os
import re
import runpy
import sys
from pathlib import Path

from common.baselines import token_losses
from common.python_reference import python_reference

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("build/demo"))
    output = parser.parse_args().output_dir
    model_folder, train_file, validation_file = output / "model", output / "train.txt", output / "validation.txt"
    output.mkdir(parents=True, exist_ok=True)
    documents = python_reference()
    validation = documents[3::8]
    train = [document for document in documents if document not in validation]
    train_file.write_text("\n\n".join(train), encoding="utf-8")
    validation_file.write_text("\n\n".join(validation), encoding="utf-8")
    print(f"Text: {len(train)} topics of the Python reference to train on, {len(validation)} held out.", flush=True)

    if (model_folder / "all_results.json").is_file():
        print(f"The model in {model_folder} is already trained; remove that folder to train it again.")
    else:
        # The model card quotes this path, which the script also finds from another folder.
        command = [str(ROOT / "run_mlm.py"), "recipes/demo.yaml"]
        command += ["--train_file", str(train_file), "--validation_file", str(validation_file)]
        command += ["--output_dir", str(model_folder)]
        print("$", " ".join(["python", os.path.relpath(command[0]), *command[1:]]), flush=True)
        # Train in this process, which has imported the libraries already.
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")

    from datasets import disable_progress_bars
    from transformers import AutoModelForMaskedLM, AutoTokenizer, logging, pipeline

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    model = AutoModelForMaskedLM.from_pretrained(model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)

    results = json.loads((model_folder / "all_results.json").read_text(encoding="utf-8"))
    settings = json.loads((model_folder / "settings.json").read_text(encoding="utf-8"))
    length, probability = model.config.max_position_embeddings, settings["mlm_probability"]
    losses = token_losses(model_folder, train_file, validation_file, length, probability)
    print("\nPerplexity of the masked tokens in held-out text (lower is better)")
    print(f"  unigram                      {math.exp(losses['unigram']):8.1f}")
    print(f"  bigram-context count model   {math.exp(losses['bigram_context']):8.1f}")
    print(f"  this gMLP                    {results['eval_perplexity']:8.1f}")

    print("\nMasks filled in held-out sentences")
    fill_mask = pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=5)
    for sentence, word in masked_sentences(validation):
        tokens = ", ".join(repr(answer["token_str"].strip()) for answer in fill_mask(sentence))
        print(f"  {sentence}\n    was: {word}   gMLP: {tokens}")

    print(f"\nThe model, its tokenizer and its card: {model_folder}")
    print("Draw the spatial filters of its blocks, as in Figure 4 of the paper:")
    print(f"  python -m paper plot filters {model_folder} --output {output / 'filters.png'}")


def masked_sentences(documents: list[str]) -> list[tuple[str, str]]:
    """Return three sentences of different topics, with a short word masked near the middle, and the masked words."""
    sentences = []
    for document in documents:
        for sentence in re.findall(r"(?:^|(?<=\. ))[A-Z][a-z]+ [a-z][a-z, ]{50,110}\.(?= |$)", document, re.MULTILINE):
            words = sentence.split(" ")
            positions = [i for i, word in enumerate(words[:-1]) if i >= 3 and re.fullmatch("[a-z]{2,9}", word)]
            if len(positions) > 2:
                position = positions[len(positions) // 2]
                sentences.append((" ".join([*words[:position], "[MASK]", *words[position + 1 :]]), words[position]))
                break
    return sentences[:3]


if __name__ == "__main__":
    main()
