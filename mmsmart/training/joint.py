"""Stage "joint": the grown model learns from drawn pictures, with or without its vision tower."""

import random

import torch
from torch import Tensor, nn

from mmsmart.training.facts import Facts
from mmsmart.training.language import (
    HELDOUT_ROWS,
    LanguageReader,
    RowSettings,
    ask_batch,
    by_kind,
    final_scores,
    row_logits,
    row_loss,
)
from mmsmart.training.pictures import draw_varied, pixels
from mmsmart.training.regress import PictureReader
from mmsmart.training.rows import Rows, SizedEncoders
from mmsmart.training.view import USUAL_SIZE
from mmsmart.training.vision import normalize


class WholeReader(nn.Module):
    """Both halves of a model."""

    def __init__(self, picture: PictureReader, language: LanguageReader) -> None:
        super().__init__()
        self.picture = picture
        self.language = language


class JointStage:
    """Next-token loss on answers about drawn pictures.

    Args:
        module: Both halves.
        encoders: Pack the rows.
        settings: What the rows hold.
        seed: Seed of pictures and questions.
        trains_tower: Whether the vision tower learns too; otherwise it stays as it is.
    """

    name = "joint"

    def __init__(
        self,
        module: WholeReader,
        encoders: SizedEncoders,
        settings: RowSettings,
        seed: int,
        trains_tower: bool = False,
    ) -> None:
        self.module: nn.Module = module
        self._model = module
        self._encoders = encoders
        self._settings = settings
        self._seed = seed
        module.picture.tower.requires_grad_(trains_tower)

    def loss(self, step: int) -> Tensor:
        """Loss of one batch of packed rows."""
        asked = ask_batch("train", f"joint/{self._seed}/{step}", self._settings, self._settings.batch)
        size = self._model.picture.view.pick_size(f"joint/{self._seed}/{step}")
        rows = self._encoders(size).encode(asked, self._settings.length)
        return row_loss(self._logits(rows, random.Random(f"train/joint/{self._seed}/{step}"), size), rows)

    def evaluate(self) -> dict[str, float]:
        """Share of last sentences whose every token is predicted right, given the ones before; by kind and "all"."""
        scores: list[tuple[str, bool]] = []
        for chunk in range(HELDOUT_ROWS // self._settings.batch):
            asked = ask_batch("heldout", f"joint/{chunk}", self._settings, self._settings.batch)
            rows = self._encoders().encode(asked, self._settings.length)
            scores += final_scores(self._logits(rows, random.Random(f"heldout/joint/{chunk}")), rows)
        return by_kind(scores)

    def _logits(self, rows: Rows, rng: random.Random, size: tuple[int, int] = USUAL_SIZE) -> Tensor:
        visual = self._visual(rows.facts, rng, size)
        return row_logits(self._model.language, self._model.language, self._encoders(size), rows, visual)

    def _visual(self, facts: list[Facts], rng: random.Random, size: tuple[int, int]) -> Tensor:
        images = normalize(torch.from_numpy(pixels([draw_varied(each, rng, size) for each in facts])))
        with torch.autocast("cpu", torch.bfloat16):
            tokens: Tensor = self._model.picture(images)
        return tokens.float()
