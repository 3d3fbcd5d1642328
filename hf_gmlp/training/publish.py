"""The model card of a training run."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

from ..cards import TrainingRecord, is_generated, model_card, write_card
from .arguments import program
from .run_folder import hyperparameters

if TYPE_CHECKING:
    from .trainer import GMLPTrainer

# Flags whose values are secret.
TOKENS = ("--token", "--hub_token", "--hub-token")


def write_training_card(trainer: "GMLPTrainer", tags: list[str] | None = None):
    """Write the card of a trained model to its folder, or a person's from the repository to push to."""
    args, state, folder = trainer.args, trainer.state, Path(trainer.args.output_dir)
    done = {"max_steps": state.global_step, "num_train_epochs": round(state.epoch or 0.0, 2)}
    values = hyperparameters(args) | done | trainer.hyperparameters
    facts: dict[str, Any] = dict(trainer.card)
    license = facts.pop("license", None)
    record = TrainingRecord(
        **facts,
        hyperparameters={name: value for name, value in values.items() if value or type(value) in (int, float)},
        metrics=trainer.results,
        command=shown_command(sys.argv),
    )
    repository = trainer.hub_model_id
    model = trainer.accelerator.unwrap_model(trainer.model)
    name = repository or folder.resolve().name
    card = model_card(model, name, training=record, tags=tags, license=license)
    try:
        if repository is not None:
            published = ModelCard.load(repository, token=args.hub_token, ignore_metadata_errors=True)
            card = card if is_generated(published.text) else published
    except (EntryNotFoundError, RepositoryNotFoundError):
        # The first push.
        pass
    write_card(card, folder)


def shown_command(argv: list[str]) -> str:
    """Return a command as typed, without tokens, and with only the last name of absolute paths."""
    shown, words = [program(argv[0])], iter(argv[1:])
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if flag not in TOKENS:
            shown.append(shlex.quote(f"{flag}{equals}{Path(value).name}" if Path(value).is_absolute() else word))
        elif not equals:
            next(words, None)
    return " ".join(shown)
