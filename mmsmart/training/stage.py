"""One training stage: the loop that all stages share, resumable from its checkpoint after any kill."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from mmsmart.files import replacing
from mmsmart.training.optim import apply_gradients, build_optimizers, rate_factor

SECONDS_BETWEEN_SAVES = 60.0


@dataclass(frozen=True)
class StageSettings:
    """How long and how a stage trains.

    Attributes:
        steps: Optimiser steps.
        batch: Rows or pictures a step.
        learning_rate: Peak rate of Muon.
        minutes: Cap on the stage's own time; the schedule follows whichever of steps and time is further on.
        evaluate_every: Steps between held-out scores.
        compiled: Whether to use ``torch.compile``.
    """

    steps: int
    batch: int
    learning_rate: float
    minutes: float = float("inf")
    evaluate_every: int = 100
    compiled: bool = False


class Stage(Protocol):
    """What the loop needs to know of a stage."""

    name: str
    module: nn.Module

    def loss(self, step: int) -> Tensor:
        """Loss of the step's own batch, a function of the seed and the step only."""

    def evaluate(self) -> dict[str, float]:
        """Held-out scores, each in 0..1."""


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps checkpoints and logs."""

    path: Path

    def checkpoint(self, stage: str) -> Path:
        """File of a stage's checkpoint."""
        return self.path / "checkpoints" / f"{stage}.pt"

    def load(self, stage: str) -> dict[str, Any] | None:
        """A stage's checkpoint, or None where it has not begun."""
        path = self.checkpoint(stage)
        if not path.exists():
            return None
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return checkpoint

    def save(self, stage: str, checkpoint: dict[str, Any]) -> None:
        """Writes a checkpoint so that a kill leaves either the old one or the new one."""
        with replacing(self.checkpoint(stage)) as draft:
            torch.save(checkpoint, draft)

    def log(self, stage: str, record: dict[str, Any]) -> None:
        """Appends one line to the stage's log."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / f"{stage}.log.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


def run_stage(stage: Stage, settings: StageSettings, folder: RunFolder) -> None:
    """Trains a stage to its end, from its checkpoint where there is one; does nothing where it has ended."""
    optimizers = build_optimizers(stage.module, settings.learning_rate)
    step, elapsed_s, done = _resume(stage, optimizers, folder)
    if done:
        return
    began = saved = time.monotonic()
    bar = tqdm(total=settings.steps, initial=step, desc=stage.name, mininterval=5.0, dynamic_ncols=True)
    recent: list[float] = []
    while not done:
        loss = stage.loss(step)
        torch.autograd.backward(loss)
        now_s = elapsed_s + time.monotonic() - began
        progress = max(step / settings.steps, now_s / 60 / settings.minutes)
        apply_gradients(stage.module, optimizers, rate_factor(progress))
        recent.append(loss.item())
        step += 1
        bar.update()
        done = step >= settings.steps or now_s / 60 >= settings.minutes
        if done or step % settings.evaluate_every == 0:
            _report(stage, folder, bar, step, now_s, recent)
            recent.clear()
        if done or time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
            _save(stage, optimizers, folder, step, elapsed_s + time.monotonic() - began, done)
            saved = time.monotonic()
    bar.close()


def _resume(stage: Stage, optimizers: list[torch.optim.Optimizer], folder: RunFolder) -> tuple[int, float, bool]:
    checkpoint = folder.load(stage.name)
    if checkpoint is None:
        return 0, 0.0, False
    stage.module.load_state_dict(checkpoint["module"])
    for optimizer, state in zip(optimizers, checkpoint["optimizers"], strict=False):
        optimizer.load_state_dict(state)
    return checkpoint["step"], checkpoint["elapsed_s"], checkpoint["done"]


def _save(
    stage: Stage, optimizers: list[torch.optim.Optimizer], folder: RunFolder, step: int, elapsed_s: float, done: bool
) -> None:
    states = [] if done else [optimizer.state_dict() for optimizer in optimizers]
    checkpoint = {
        "module": stage.module.state_dict(),
        "optimizers": states,
        "step": step,
        "elapsed_s": elapsed_s,
        "done": done,
    }
    folder.save(stage.name, checkpoint)


def _report(stage: Stage, folder: RunFolder, bar: "tqdm[Any]", step: int, now_s: float, recent: list[float]) -> None:
    training = stage.module.training
    stage.module.eval()
    with torch.no_grad():
        scores = {name: round(score, 4) for name, score in stage.evaluate().items()}
    stage.module.train(training)
    loss = round(sum(recent) / max(1, len(recent)), 4)
    bar.set_postfix(loss=loss, heldout=scores.get("all", 0.0))
    folder.log(stage.name, {"step": step, "seconds": round(now_s, 1), "loss": loss, **scores})
