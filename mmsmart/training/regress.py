"""Stage "regress": vision tower and projector learn to produce the oracle tokens that the language model reads."""

import torch
from torch import Tensor, nn

from mmsmart.training.facts import Facts
from mmsmart.training.labels import ATTRIBUTES
from mmsmart.training.oracle import OracleTokens
from mmsmart.training.view import View
from mmsmart.training.vision import EMPTY_WEIGHT, HELDOUT_PICTURES, compile_for_usual_size, draw_batch

SHOWN = tuple(i for i, attribute in enumerate(ATTRIBUTES) if attribute.name in ("topic", "index"))


class PictureReader(nn.Module):
    """Vision tower and projector: from images to the tokens that stand for the picture."""

    def __init__(self, tower: nn.Module, projector: nn.Module, view: View | None = None) -> None:
        super().__init__()
        self.view = view or View()
        self.tower = tower
        self.projector = projector

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images [B, 3, height, width] to visual tokens [B, P, H]."""
        tokens: Tensor = self.projector(self.view.features(self.tower, images))
        return tokens


class RegressStage:
    """Mean squared error against the frozen oracle tokens.

    Args:
        reader: Vision tower, already trained, and projector.
        oracle: Frozen oracle.
        table: Frozen input embeddings [V, H] of the language model.
        batch: Pictures a step.
        seed: Seed of the pictures.
        compiled: Whether to compile the reader.
    """

    name = "regress"

    def __init__(
        self, reader: PictureReader, oracle: OracleTokens, table: Tensor, batch: int, seed: int, compiled: bool = False
    ) -> None:
        self.module: nn.Module = reader
        self._oracle = oracle.requires_grad_(False)
        self._table = table.detach()
        self._batch = batch
        self._seed = seed
        self._view = reader.view
        self._forward = compile_for_usual_size(reader) if compiled else reader
        self._heldout: tuple[list[Facts], Tensor] | None = None
        self._rescale(reader)

    def loss(self, step: int) -> Tensor:
        """Weighted squared error of one batch, relative to the targets' mean square."""
        size = self._view.pick_size(f"regress/{self._seed}/{step}")
        facts, images = draw_batch("train", f"regress/{self._seed}/{step}", self._batch, size)
        labels = self._view.labels(facts, size)
        target = self._oracle(labels, self._table)
        with torch.autocast("cpu", torch.bfloat16):
            tokens = self._forward(images)
        errors = (tokens.float() - target).square().mean(-1)
        weights = torch.where((labels[..., SHOWN] > 0).any(-1), 1.0, EMPTY_WEIGHT)
        loss: Tensor = (errors * weights).sum() / weights.sum() / target.square().mean()
        return loss

    def evaluate(self) -> dict[str, float]:
        """Share of patches whose token lies nearest to the right class of each attribute, the others given."""
        if self._heldout is None:
            self._heldout = draw_batch("heldout", "regress", HELDOUT_PICTURES)
        facts, images = self._heldout
        with torch.autocast("cpu", torch.bfloat16):
            tokens = torch.cat([self._forward(chunk) for chunk in images.split(self._batch)]).float()
        labels = self._view.labels(facts)
        target = self._oracle(labels, self._table)
        scores = {}
        for i, attribute in enumerate(ATTRIBUTES):
            rows = self._oracle.rows(attribute, self._table)
            residual = tokens - target + nn.functional.embedding(labels[..., i], rows)
            nearest = (residual @ rows.T - 0.5 * rows.square().sum(-1)).argmax(-1)
            shown = labels[..., i] > 0
            if not shown.any():
                continue
            scores[attribute.name] = (nearest == labels[..., i])[shown].float().mean().item()
        return {**scores, "all": min(scores.values())}

    @torch.no_grad()
    def _rescale(self, reader: PictureReader) -> None:
        """Scales the projector's last layer so that its output has the root mean square of the targets."""
        facts, images = draw_batch("train", "rescale", 8)
        target_rms = self._oracle(self._view.labels(facts), self._table).square().mean().sqrt()
        factor = target_rms / reader(images).square().mean().sqrt()
        last = [module for module in reader.projector.modules() if isinstance(module, nn.Linear)][-1]
        for parameter in last.parameters():
            parameter.mul_(factor)
