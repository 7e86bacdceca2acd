"""The command lines ``train target`` and ``train score``."""

import argparse
from pathlib import Path

from mmsmart.training.drafter.cli import add_drafter


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``train`` with its sub-commands to a command line."""
    parser = subparsers.add_parser("train", help="make and score the embedded targets")
    add_commands(parser.add_subparsers(dest="train_command", required=True, metavar="COMMAND"))


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the sub-commands of ``train``."""
    target = commands.add_parser("target", help="train a tiny target from scratch on synthetic pictures")
    target.add_argument("--family", default="llava", help="family of the target (default: llava)")
    target.add_argument("--out", type=Path, required=True, help="folder of checkpoints and logs")
    target.add_argument("--model", type=Path, help="folder of the finished model (default: OUT/model)")
    target.add_argument("--stage", help="run this stage only: vision, drill, main, regress, joint, save or card")
    target.add_argument("--preset", default="full", choices=("full", "smoke"), help="length of the stages")
    target.add_argument("--minutes", type=float, help="cap on the minutes of the stage given by --stage")
    target.add_argument("--steps", type=int, help="steps of the stage given by --stage")
    target.add_argument("--seed", type=int, default=0, help="seed of weights, pictures and questions (default: 0)")
    target.add_argument("--warm-start", type=Path, metavar="RUN", help="start from the language model of another run")
    target.add_argument("--threads", type=int, help="threads that torch may use (default: torch's own)")
    target.add_argument("--questions", type=int, default=300, help="held-out questions for the card (default: 300)")
    target.add_argument("--note", default="", help="a remark on this run for the card")
    target.set_defaults(run=run_target)
    add_drafter(commands)
    score = commands.add_parser("score", help="score a saved target on held-out questions")
    score.add_argument("--model", type=Path, required=True, help="folder of the saved model")
    score.add_argument("--questions", type=int, default=300, help="questions of the claimed kinds (default: 300)")
    score.add_argument("--seed", type=int, default=0, help="seed of the held-out questions (default: 0)")
    score.add_argument("--size", default="128x128", help="width x height of the pictures in pixels (default: 128x128)")
    score.add_argument("--threads", type=int, help="threads that torch may use (default: torch's own)")
    score.add_argument("--errors", action="store_true", help="also print every wrong answer")
    score.set_defaults(run=run_score)
    pictures = commands.add_parser("pictures", help="draw the sample pictures and ask a saved target about them")
    pictures.add_argument("--model", type=Path, required=True, help="folder of the saved model")
    pictures.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    pictures.set_defaults(run=run_pictures)


def run_target(arguments: argparse.Namespace) -> int:
    """Trains a target; the exit status is 0.

    Raises:
        InputError: If a length is given without the stage that it belongs to.
    """
    from mmsmart.errors import InputError
    from mmsmart.training.families import get_family
    from mmsmart.training.pipeline import Pipeline
    from mmsmart.training.presets import PRESETS
    from mmsmart.training.stage import RunFolder

    _set_threads(arguments.threads)
    family = get_family(arguments.family)
    preset = PRESETS[arguments.preset]
    if arguments.preset == "full":
        preset = preset.with_stages(family.full_stages)
    if arguments.minutes or arguments.steps:
        if arguments.stage not in preset.stages:
            raise InputError(f"--minutes and --steps need --stage, one of {', '.join(preset.stages)}")
        preset = preset.with_length(arguments.stage, arguments.minutes, arguments.steps)
    model_folder = arguments.model or arguments.out / "model"
    pipeline = Pipeline(
        family,
        preset,
        family.build_tokenizer(),
        RunFolder(arguments.out),
        model_folder,
        arguments.seed,
        arguments.questions,
        arguments.note,
        RunFolder(arguments.warm_start) if arguments.warm_start else None,
    )
    pipeline.run(arguments.stage)
    return 0


def run_score(arguments: argparse.Namespace) -> int:
    """Prints the held-out scores of a saved target; the exit status is 0."""
    from mmsmart.training.saving import load_target
    from mmsmart.training.score import score_target

    _set_threads(arguments.threads)
    size = _parse_size(arguments.size)
    scores = score_target(load_target(arguments.model), arguments.questions, arguments.seed, size)
    if arguments.errors:
        print("\n".join(scores.errors))
    print(scores.table())
    return 0


def run_pictures(arguments: argparse.Namespace) -> int:
    """Writes the sample pictures with the model's answers; the exit status is 0."""
    from mmsmart.training.saving import load_target
    from mmsmart.training.showcase import write_pictures

    write_pictures(load_target(arguments.model), arguments.out)
    return 0


def _parse_size(text: str) -> tuple[int, int]:
    from mmsmart.errors import InputError

    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise InputError(f"--size must be WIDTHxHEIGHT in pixels, as 144x112, got {text!r}")
    return int(width), int(height)


def _set_threads(threads: int | None) -> None:
    import torch

    if threads:
        torch.set_num_threads(threads)
