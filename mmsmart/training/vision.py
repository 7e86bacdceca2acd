"""Stage "vision": the vision tower alone learns to say, patch by patch, what the picture shows."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmsmart.training.facts import Facts, Split, sample_facts
from mmsmart.training.labels import ATTRIBUTES
from mmsmart.training.pictures import draw_varied, pixels
from mmsmart.training.view import USUAL_SIZE, View

EMPTY_WEIGHT = 0.2
HELDOUT_PICTURES = 192
SCENE_SHARE = 0.45


class DenseReader(nn.Module):
    """A vision tower with one linear head per attribute; the heads are thrown away after the stage."""

    def __init__(self, tower: nn.Module, width: int, view: View) -> None:
        super().__init__()
        self.tower = tower
        self._features = view.features
        self.heads = nn.Linear(width, sum(len(a.classes) + 1 for a in ATTRIBUTES))

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images [B, 3, height, width] to logits [B, patches, classes of all attributes]."""
        logits: Tensor = self.heads(self._features(self.tower, images))
        return logits


def draw_batch(split: Split, seed: str, count: int, size: tuple[int, int] = USUAL_SIZE) -> tuple[list[Facts], Tensor]:
    """Draws pictures of one size from one side of the split.

    Returns:
        Facts of the pictures and their normalised images [count, 3, height, width].
    """
    rng = random.Random(f"{split}/pictures/{seed}")
    pictures = [sample_facts(rng, split, scene_share=SCENE_SHARE) for _ in range(count)]
    return pictures, normalize(torch.from_numpy(pixels([draw_varied(facts, rng, size) for facts in pictures])))


def normalize(images: Tensor) -> Tensor:
    """Maps uint8 [B, height, width, 3] to float [B, 3, height, width] in -1..1, as the image processor does."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def compile_for_usual_size(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Compiles a module for images of the usual size; others, which are rarer, are not worth a compilation each."""
    compiled = torch.compile(module)

    def forward(images: Tensor) -> Tensor:
        output: Tensor = (compiled if tuple(images.shape[:-3:-1]) == USUAL_SIZE else module)(images)
        return output

    return forward


class VisionStage:
    """Cross-entropy on dense labels, every batch freshly drawn."""

    name = "vision"

    def __init__(
        self, tower: nn.Module, width: int, batch: int, seed: int, compiled: bool = False, view: View | None = None
    ) -> None:
        self._view = view or View()
        self.module: nn.Module = DenseReader(tower, width, self._view)
        self._forward = compile_for_usual_size(self.module) if compiled else self.module
        self._batch = batch
        self._seed = seed
        self._heldout: tuple[list[Facts], Tensor] | None = None

    def loss(self, step: int) -> Tensor:
        """Weighted cross-entropy of one batch."""
        size = self._view.pick_size(f"{self._seed}/{step}")
        facts, images = draw_batch("train", f"{self._seed}/{step}", self._batch, size)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self._forward(images)
        return _dense_loss(logits.float(), self._view.labels(facts, size))

    def evaluate(self) -> dict[str, float]:
        """Accuracy of each attribute on the patches that show it, and the lowest of them as "all"."""
        if self._heldout is None:
            self._heldout = draw_batch("heldout", "vision", HELDOUT_PICTURES)
        facts, images = self._heldout
        with torch.autocast("cpu", torch.bfloat16):
            logits = torch.cat([self._forward(chunk) for chunk in images.split(self._batch)]).float()
        scores = attribute_scores(logits, self._view.labels(facts))
        return {**scores, "all": min(scores.values())}


def attribute_scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy by attribute, of logits [B, P, classes] against labels [B, P, attributes], where something is shown."""
    scores = {}
    for i, (attribute, part) in enumerate(zip(ATTRIBUTES, _split(logits), strict=True)):
        shown = labels[..., i] > 0
        if not shown.any():
            continue
        right = part.argmax(-1)[shown] == labels[..., i][shown]
        scores[attribute.name] = right.float().mean().item()
    return scores


def _split(logits: Tensor) -> tuple[Tensor, ...]:
    return torch.split(logits, [len(a.classes) + 1 for a in ATTRIBUTES], dim=-1)


def _dense_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over attributes; patches that show nothing of an attribute weigh ``EMPTY_WEIGHT``."""
    total = logits.new_zeros(())
    for i, part in enumerate(_split(logits)):
        target = labels[..., i].reshape(-1)
        losses = functional.cross_entropy(part.reshape(-1, part.shape[-1]), target, reduction="none")
        weights = torch.where(target > 0, 1.0, EMPTY_WEIGHT)
        total = total + (losses * weights).sum() / weights.sum()
    return total
