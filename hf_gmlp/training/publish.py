"""The model card of a training run, and its push to the Hub."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard, ModelCardData, create_repo, upload_folder

from ..cards import GENERATED, TrainingRecord, model_card, write_card
from ..errors import InputError, hub_reason
from .arguments import RunArguments, program
from .run_folder import hyperparameters

if TYPE_CHECKING:
    from .trainer import GMLPTrainer

# Flags whose values are secret.
TOKENS = ("--token", "--hub_token", "--hub-token")


def check_metadata(license: str | None, language: str | None):
    """Raise InputError if the Hub does not accept these metadata of a card, so that no training is lost to a typo."""
    try:
        if license or language:
            ModelCard(f"---\n{ModelCardData(license=license, language=language).to_yaml()}\n---\n").validate()
    except (ValueError, OSError) as error:
        flags = f"--license {license}, --language {language}"
        raise InputError(f"The Hub does not accept {flags}: {hub_reason(error)}.") from error


def write_training_card(trainer: "GMLPTrainer", tags: list[str] | None = None):
    """Write the card of a trained model to its folder; on a push, it completes the card in the repository."""
    args, state = trainer.args, trainer.state
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
    folder, repository = Path(args.output_dir), trainer.hub_model_id
    is_below = not folder.is_absolute() and ".." not in folder.parts
    name = repository or (str(folder) if is_below else folder.resolve().name)
    model = trainer.accelerator.unwrap_model(trainer.model)
    write_card(model_card(model, name, training=record, tags=tags, license=license), folder, repository, args.hub_token)


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


def push_finished(args: RunArguments):
    """Upload the output folder of a finished run to the Hub as it is, except that its card completes a person's."""
    folder = Path(args.output_dir)
    with pushing(folder):
        name, private = args.hub_model_id or folder.resolve().name, args.hub_private_repo
        repository = create_repo(name, token=args.hub_token, private=private, exist_ok=True).repo_id
        path = folder / "README.md"
        if path.is_file() and GENERATED in path.read_text(encoding="utf-8"):
            write_card(ModelCard.load(path, ignore_metadata_errors=True), folder, repository, args.hub_token)
        upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="End of training",
            token=args.hub_token,
            ignore_patterns=["_*", "checkpoint-*"],
            revision=args.hub_revision,
        )
    print(f"Pushed the finished run in {folder} to {repository}")


@contextmanager
def pushing(folder: str | Path) -> Iterator[None]:
    """Turn an error of the Hub, or of the network, into an InputError that says what is complete and what to do."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        # The Hub's objections to a card are a ValueError of several lines.
        reason = hub_reason(error) if isinstance(error, OSError) else " ".join(str(error).split())
        raise InputError(
            f"The model in {folder} is complete, but could not be pushed: {reason.rstrip('.')}. Repeat the command to "
            f"push it."
        ) from error
