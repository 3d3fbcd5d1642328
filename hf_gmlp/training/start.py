"""The start of each training script: checks of its flags, the output folder, logging and seeds."""

import logging

from transformers import set_seed

from ..errors import InputError
from . import run_folder, xla
from .arguments import BaseModelArguments, DataArguments, LabeledTextArguments, RunArguments

logger = logging.getLogger(__name__)


def start_run(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments) -> str | None:
    """Check the flags, prepare the output folder, and return the checkpoint to resume from, if there is one.

    Raises:
        InputError: If there is nothing to do, flags contradict each other, or `run_folder.resume_point` refuses the
            output folder.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO if args.should_log else logging.WARNING)
    # Older and newer versions of huggingface_hub would log every request.
    for name in ("httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    check_flags(model_args, data_args, args)
    settings = run_folder.run_settings(model_args, data_args, args)
    checkpoint = run_folder.resume_point(args, settings)
    # The settings are compared before the shapes are fixed, so that a run can resume on another device.
    xla.fix_shapes(data_args, args)
    if args.global_batch_size is not None and args.do_train:
        devices, steps = args.world_size * max(1, args.n_gpu), args.gradient_accumulation_steps
        numbers = (args.global_batch_size, devices, args.per_device_train_batch_size, steps)
        logger.info("A batch of %d: %d device(s) x %d x %d step(s) of gradient accumulation", *numbers)
    set_seed(args.seed)
    return checkpoint


def check_flags(model_args: BaseModelArguments, data_args: DataArguments, args: RunArguments):
    """Raise InputError if there is nothing to do, or if flags contradict each other."""
    if not (args.do_train or args.do_eval or args.do_predict):
        raise InputError("Nothing to do: pass --do_train, --do_eval or, in scripts that predict, --do_predict.")
    if args.do_predict and not isinstance(data_args, LabeledTextArguments):
        raise InputError("This script does not predict: leave --do_predict out, and use the model in a pipeline.")
    if model_args.config_name is not None and not args.do_train:
        raise InputError("A new model (--config_name) is untrained: pass --do_train, or --model_name_or_path.")
