"""The command line ``train drafter``."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any


def add_drafter(commands: Any) -> None:
    """Adds ``drafter`` to the sub-commands of ``train``."""
    parser = commands.add_parser("drafter", help="train an MSD drafter for a target")
    add = parser.add_argument
    add("--target", required=True, help="embedded name, folder or hub id of the target")
    sources = "mmsmart-charts, mmsmart-foreign, JSONL files, folders with JSONL files; several are mixed"
    add("--data", default=["mmsmart-charts"], nargs="+", metavar="SOURCE", help=sources)
    add("--start", metavar="DRAFTER", help="go on from this head, a folder or a hub id (a new head)")
    add("--out", type=Path, required=True, help="folder of answers, checkpoints, curve and the finished drafter")
    add("--questions", type=int, default=[8000], nargs="+", help="most training questions, of all or of each (8000)")
    add("--max-new-tokens", type=int, default=256, help="longest answer to train on (256)")
    add("--steps", type=int, default=4000, help="optimiser steps at most (4000)")
    add("--minutes", type=float, default=float("inf"), help="cap on the minutes of training (none)")
    add("--batch", type=int, default=16, help="sequences a step (16)")
    add("--learning-rate", type=float, default=1e-3, help="peak learning rate (1e-3)")
    add("--hidden-weight", type=float, default=1.0, help="weight of smooth-L1 on hidden states (1.0, MSD's)")
    add("--token-weight", type=float, default=0.1, help="weight of soft cross-entropy through the head (0.1, MSD's)")
    add("--unroll", type=int, default=3, help="steps fed with the head's own outputs (3)")
    add("--evaluate-every", type=int, default=250, help="steps between held-out acceptance lengths (250)")
    add("--patience", type=int, default=8, help="evaluations without a better one before stopping (8)")
    add("--visual-tokens", default="all", choices=("all", "none"), help="picture rows in the head (all)")
    add("--card-questions", type=int, default=60, help="held-out questions measured for the card (60; 0: none)")
    add("--precision", default="no", choices=("no", "bf16", "fp16"), help="mixed precision (no)")
    add("--device", default="auto", help="auto, cpu, cuda, ...")
    add("--dtype", default="auto", help="dtype of the target")
    add("--keep-gib", type=float, default=2.0, help="memory for the target's hidden states of examples (2)")
    add("--seed", type=int, default=0, help="seed of order and weights (0)")
    add("--threads", type=int, help="threads that torch may use")
    parser.set_defaults(run=run_drafter)


def run_drafter(arguments: argparse.Namespace) -> int:
    """Answers, trains, publishes; the exit status is 0."""
    import torch

    from mmsmart.api import load
    from mmsmart.training.drafter.answers import answer_all, read_answers, usable
    from mmsmart.training.drafter.card import measure, write_card
    from mmsmart.training.drafter.loop import DrafterSettings, DrafterTrainer
    from mmsmart.training.drafter.publish import first_head, plot_curve, publish
    from mmsmart.training.drafter.questions import load_mixture

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    questions, groups = load_mixture(arguments.data, arguments.questions, arguments.seed)
    state, device = _process(arguments.device)
    engine = load(arguments.target, drafter="ngram", policy="none", device=device, dtype=arguments.dtype)
    engine.target.model.requires_grad_(False)
    torch.manual_seed(arguments.seed)
    head, length = first_head(engine.target, arguments.start), arguments.max_new_tokens
    groups = {source: usable(engine, held_out) for source, held_out in groups.items()}
    held_out = [question for row in zip_longest(*groups.values()) for question in row if question is not None]
    share = (state.process_index, state.num_processes)
    answer_all(engine, questions, arguments.out, max_new_tokens=length, share=share)
    state.wait_for_everyone()
    answered = read_answers(engine.target, questions, arguments.out, max_new_tokens=length)
    fields = {field.name for field in dataclasses.fields(DrafterSettings)}
    settings = DrafterSettings(**{name: value for name, value in vars(arguments).items() if name in fields})
    kept = int(arguments.keep_gib * 2**30)
    trainer = DrafterTrainer(engine.target, head, settings, arguments.out, arguments.precision, kept)
    head, progress, folder = trainer.run(answered, held_out), trainer.progress, arguments.out / "drafter"
    if not state.is_main_process:
        return 0
    publish(head, engine.target, folder)
    plot_curve(progress.curve, folder / "curve.png")
    write_card(
        folder,
        engine.target,
        command="python -m mmsmart " + shlex.join(sys.argv[1:]),
        minutes=progress.elapsed_s / 60,
        curve=progress.curve,
        lines={name: measure(engine.target, head, some[: arguments.card_questions]) for name, some in groups.items()},
    )
    print(f"best held-out acceptance length {progress.best:.2f}: {folder}")
    return 0


def _process(asked: str) -> tuple[Any, str]:
    """What the launcher says of this process, and its device: a GPU of its own where the choice is open."""
    import torch
    from accelerate import PartialState

    on_cpu = asked.startswith("cpu") or not torch.cuda.is_available()
    # Who has answered its share of the questions waits for the others, perhaps for hours.
    state = PartialState(cpu=on_cpu, timeout=timedelta(days=1))
    return state, str(state.device) if asked == "auto" and state.num_processes > 1 else asked
