"""The training loop of a head: losses, curriculum, checkpoints, early stopping on held-out acceptance length."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from mmsmart.config import SamplingParams
from mmsmart.drafters.head import EagleHead
from mmsmart.drafters.msd import MSDDrafter
from mmsmart.engine import Engine, Request
from mmsmart.errors import InputError
from mmsmart.files import replacing
from mmsmart.policies.chain import Chain
from mmsmart.stats import pooled
from mmsmart.targets.base import Target
from mmsmart.training.drafter.answers import Answered
from mmsmart.training.drafter.examples import Examples, ExampleStore
from mmsmart.training.drafter.publish import as_served
from mmsmart.training.drafter.questions import Question
from mmsmart.training.drafter.unroll import UnrolledHead

logger = logging.getLogger(__name__)

_BATCHES = 4
"""Parts of a step's sequences, by length, that are padded and read one after the other."""


@dataclass(frozen=True)
class DrafterSettings:
    """How a head is trained; the loss weights default to MSD's (arXiv 2505.14260).

    Attributes:
        steps: Optimiser steps at most.
        minutes: Wall-clock cap.
        batch: Sequences a step and process.
        learning_rate: Peak of AdamW, after a linear warm-up, then a cosine to zero.
        hidden_weight, token_weight: Of smooth-L1 on hidden states and of soft cross-entropy through the frozen head.
        unroll: Steps in which the head is fed its own outputs, 1 being plain teacher forcing.
        unroll_decay: Weight of each further step relative to the one before.
        text_share: Share of the steps that see text-only questions alone, when there are any (stage one).
        visual_tokens: ``"all"`` feeds the head picture rows, ``"none"`` leaves them out.
        evaluate_every: Steps between held-out acceptance lengths.
        patience: Evaluations without a better one after which training ends.
        seed: Of order and weights.
        start: The head that training begins with; empty for a new one.
    """

    steps: int = 4000
    minutes: float = float("inf")
    batch: int = 16
    learning_rate: float = 1e-3
    hidden_weight: float = 1.0
    token_weight: float = 0.1
    unroll: int = 3
    unroll_decay: float = 0.8
    text_share: float = 0.25
    visual_tokens: str = "all"
    evaluate_every: int = 250
    patience: int = 8
    seed: int = 0
    start: str | None = None

    def lasting(self) -> dict[str, Any]:
        """All but how long a run takes and how often it is looked at, which may change when it goes on."""
        passing = ("steps", "minutes", "evaluate_every", "patience")
        return {name: value for name, value in asdict(self).items() if name not in passing}


@dataclass
class Progress:
    """Where a run stands; what its checkpoint keeps besides weights."""

    step: int = 0
    elapsed_s: float = 0.0
    best: float = 0.0
    since_best: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)

    def ended(self, settings: DrafterSettings) -> bool:
        """Whether steps or minutes are used up."""
        return self.step >= settings.steps or self.elapsed_s / 60 >= settings.minutes

    def done(self, settings: DrafterSettings) -> bool:
        """Whether there is nothing left to do."""
        return self.ended(settings) or self.since_best >= settings.patience


class DrafterTrainer:
    """Trains one head; `run` goes on from the folder's checkpoint when there is one."""

    def __init__(
        self,
        target: Target,
        head: EagleHead,
        settings: DrafterSettings,
        folder: Path,
        precision: str,
        kept_bytes: int = 2 * 2**30,
    ) -> None:
        self.target, self.settings, self.folder = target, settings, folder
        self.accelerator = Accelerator(mixed_precision=precision, cpu=target.device.type == "cpu")
        head.embed_tokens.requires_grad_(False)
        optimizer = torch.optim.AdamW(
            [p for p in head.parameters() if p.requires_grad],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )
        self.head = head
        self.model, self.optimizer = self.accelerator.prepare(
            UnrolledHead(head, settings.unroll), optimizer, device_placement=[False, False]
        )
        self.examples = ExampleStore(target, pictures=settings.visual_tokens == "all", budget_bytes=kept_bytes)
        self.progress = Progress()

    def run(self, answered: Sequence[Answered], held_out: Sequence[Question]) -> EagleHead:
        """Trains to the end and returns the best head seen."""
        self._resume()
        progress, settings = self.progress, self.settings
        began = time.monotonic() - progress.elapsed_s
        bar = tqdm(total=settings.steps, initial=progress.step, desc="drafter", disable=not self._main, mininterval=2.0)
        while not progress.done(settings):
            loss = self._step(_chosen(answered, progress.step, settings, self.accelerator.process_index))
            progress.step += 1
            progress.elapsed_s = self._agreed(time.monotonic() - began)
            if progress.ended(settings) or progress.step % settings.evaluate_every == 0:
                self._evaluate(held_out, loss, bar)
                self._save()
            bar.update()
        bar.close()
        best = torch.load(self.folder / "best.pt", map_location=self.target.device, weights_only=True)
        self.head.load_state_dict(best)
        return self.head

    @property
    def _main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    def _agreed(self, value: float) -> float:
        """The main process's value: rates and ends must not differ by a clock or a last bit."""
        agreed: list[float] = broadcast_object_list([value])
        return agreed[0]

    def _step(self, chosen: Sequence[Answered]) -> float:
        settings, progress = self.settings, self.progress
        done = max(progress.step / settings.steps, progress.elapsed_s / 60 / settings.minutes)
        warm = min(1.0, (progress.step + 1) / max(1, min(100, settings.steps // 10)))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm * 0.5 * (1 + float(torch.cos(torch.tensor(done * torch.pi))))
        batches = self.examples.batches(chosen, _BATCHES)
        total, mean = sum(int(batch.graded.sum()) for batch in batches), 0.0
        for batch in batches:
            with self.accelerator.autocast():
                loss = head_loss(self.model, self.target, batch, settings) * (int(batch.graded.sum()) / total)
            self.accelerator.backward(loss)
            mean += loss.item()
        self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return mean

    def _evaluate(self, held_out: Sequence[Question], loss: float, bar: Any) -> None:
        progress = self.progress
        seen = self.settings.visual_tokens
        length = self._agreed(acceptance_length(self.target, self.head, held_out, seen) if self._main else 0.0)
        progress.curve.append({"step": progress.step, "loss": loss, "acceptance_length": length})
        progress.since_best += 1
        if length > progress.best:
            progress.best, progress.since_best = length, 0
            if self._main:
                with replacing(self.folder / "best.pt") as draft:
                    torch.save(self.head.state_dict(), draft)
        bar.set_postfix(loss=f"{loss:.3f}", acceptance_length=f"{length:.2f}", best=f"{progress.best:.2f}")
        if self._main:
            (self.folder / "curve.json").write_text(json.dumps(progress.curve) + "\n")

    def _save(self) -> None:
        if self._main:
            state = {
                "head": self.head.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "progress": vars(self.progress),
                "settings": self.settings.lasting(),
            }
            with replacing(self.folder / "checkpoint.pt") as draft:
                torch.save(state, draft)
        self.accelerator.wait_for_everyone()

    def _resume(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "checkpoint.pt"
        if path.is_file():
            state = torch.load(path, map_location=self.target.device, weights_only=True)
            self._refuse_others(state.get("settings"))
            self.head.load_state_dict(state["head"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(**state["progress"])
            logger.info("going on from step %d", self.progress.step)

    def _refuse_others(self, before: dict[str, Any] | None) -> None:
        if before is None:
            raise InputError(f"{self.folder} holds a run of an older version; remove it, or give another --out")
        now = self.settings.lasting()
        changed = [f"{name} {was!r}, now {now.get(name)!r}" for name, was in before.items() if now.get(name) != was]
        if changed:
            raise InputError(
                f"{self.folder} holds a run of other settings ({'; '.join(changed)}); "
                "give the same ones to go on with it, or another --out"
            )


def head_loss(model: torch.nn.Module, target: Target, examples: Examples, settings: DrafterSettings) -> Tensor:
    """``sum_s decay^s (w_h SmoothL1(g_j, h_{j+1}) + w_t CE(p(h_{j+1}), q(g_j)))`` over the answers' rows.

    Args:
        model: An `UnrolledHead`, perhaps wrapped for several devices.
        target: Its output layer turns hidden states into logits; it is not trained.
        examples: Teacher-forced sequences.
        settings: Weights.
    """
    graded = examples.graded
    wanted = examples.wanted[graded]
    with torch.no_grad():
        law = target.logits(wanted).float().softmax(dim=-1)
    total = wanted.new_zeros((), dtype=torch.float32)
    rows = examples.rows
    for step, outputs in enumerate(model(rows.token_ids, rows.states, rows.is_picture)):
        kept = outputs[graded]
        tokens = -(law * target.logits(kept.to(wanted.dtype)).float().log_softmax(dim=-1)).sum(-1).mean()
        hidden = functional.smooth_l1_loss(kept.float(), wanted.float())
        part = settings.hidden_weight * hidden + settings.token_weight * tokens
        total = total + settings.unroll_decay**step * part
    return total


def acceptance_length(
    target: Target, head: EagleHead, questions: Sequence[Question], visual_tokens: str = "all", depth: int = 5
) -> float:
    """Mean acceptance length (bonus included) of a greedy chain on held-out questions, pooled over all rounds."""
    drafter = MSDDrafter("", visual_tokens=visual_tokens).with_head(as_served(head, target), target.head)
    engine = Engine(target, drafter, Chain(depth))
    sampling = SamplingParams(max_new_tokens=96)
    outputs = engine.generate_batch([Request(q.pictures(), q.text, sampling) for q in questions], batch_size=16)
    return pooled(output.stats for output in outputs).mean_acceptance_length


def _chosen(answered: Sequence[Answered], step: int, settings: DrafterSettings, process: int) -> Sequence[Answered]:
    """The step's questions, a function of seed, step and process: text alone first, then a rising share of pictures."""
    rng = random.Random(f"{settings.seed}/{step}/{process}")
    text = [one for one in answered if not one.question.picture]
    seen = [one for one in answered if one.question.picture]
    first = int(settings.steps * settings.text_share) if text and seen else 0
    share = 0.0 if step < first else min(1.0, (step - first + 1) / max(1, (settings.steps - first) * 0.95))
    pools = [seen if (seen and (not text or rng.random() < share)) else text for _ in range(settings.batch)]
    return [rng.choice(pool) for pool in pools]
