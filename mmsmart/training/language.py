"""Stages "drill" and "main": the language model learns to answer from oracle tokens, without any vision tower."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmsmart.training.facts import Facts, Split, sample_facts
from mmsmart.training.oracle import OracleTokens, add_noise
from mmsmart.training.questions import Sample, questions_about
from mmsmart.training.rows import RowEncoder, Rows, SizedEncoders
from mmsmart.training.view import USUAL_SIZE, View

SCENE_SHARE = 0.4
HELDOUT_ROWS = 64


@dataclass(frozen=True)
class RowSettings:
    """What the rows of a stage hold.

    Attributes:
        batch: Rows a step.
        length: Tokens a row.
        questions: Questions offered a row.
        lookup_only: Whether only brief lookups are asked.
        noise: Noise on the oracle tokens as a share of their root mean square.
    """

    batch: int
    length: int
    questions: int
    lookup_only: bool = False
    noise: float = 0.12


class LanguageReader(nn.Module):
    """The language half of a model: embeddings and layers, output head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.text = model.model.language_model
        self.head = model.lm_head

    @property
    def table(self) -> Tensor:
        """Input embeddings [V, H]."""
        weight: Tensor = self.text.get_input_embeddings().weight
        return weight

    def forward(self, embeddings: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """Maps embeddings [B, T, H], mask [B, 1, T, T] and positions [B, T] or [A, B, T] to logits [B, T, V]."""
        output = self.text(inputs_embeds=embeddings, attention_mask=mask, position_ids=positions, use_cache=False)
        logits: Tensor = self.head(output.last_hidden_state)
        return logits


class OracleReader(nn.Module):
    """The language half with the oracle in the place of the picture."""

    def __init__(self, reader: LanguageReader, oracle: OracleTokens) -> None:
        super().__init__()
        self.reader = reader
        self.oracle = oracle


def ask_batch(split: Split, seed: str, settings: RowSettings, rows: int) -> list[list[Sample]]:
    """Draws facts and asks several questions about each."""
    rng = random.Random(f"{split}/rows/{seed}")
    asked = []
    for _ in range(rows):
        facts = sample_facts(rng, split, scene_share=SCENE_SHARE)
        asked.append(questions_about(facts, settings.questions, rng, lookup_only=settings.lookup_only))
    return asked


class LanguageStage:
    """Next-token loss on answers, the picture given as oracle tokens.

    Args:
        name: Name of the stage.
        module: Language model and oracle.
        encoders: Pack the rows.
        settings: What the rows hold.
        seed: Seed of the training questions.
        view: How the family looks at pictures.
        frozen_embeddings: Whether embeddings and oracle stay as they are.
        compiled: Whether to compile the language model.
    """

    def __init__(
        self,
        name: str,
        module: OracleReader,
        encoders: SizedEncoders,
        settings: RowSettings,
        seed: int,
        view: View,
        frozen_embeddings: bool = False,
        compiled: bool = False,
    ) -> None:
        self.name = name
        self.module: nn.Module = module
        self._model = module
        self._encoders = encoders
        self._view = view
        self._settings = settings
        self._seed = seed
        self._forward = torch.compile(module.reader) if compiled else module.reader
        if frozen_embeddings:
            module.oracle.requires_grad_(False)
            module.reader.text.get_input_embeddings().requires_grad_(False)

    def loss(self, step: int) -> Tensor:
        """Loss of one batch of packed rows."""
        asked = ask_batch("train", f"{self.name}/{self._seed}/{step}", self._settings, self._settings.batch)
        size = self._view.pick_size(f"{self.name}/{self._seed}/{step}")
        encoder = self._encoders(size)
        rows = encoder.encode(asked, self._settings.length)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        visual = add_noise(self._visual(rows.facts, size), self._settings.noise, generator)
        return row_loss(row_logits(self._forward, self._model.reader, encoder, rows, visual), rows)

    def evaluate(self) -> dict[str, float]:
        """Share of last sentences whose every token is predicted right, given the ones before; by kind and "all"."""
        scores: list[tuple[str, bool]] = []
        for chunk in range(HELDOUT_ROWS // self._settings.batch):
            asked = ask_batch("heldout", f"{self.name}/{chunk}", self._settings, self._settings.batch)
            encoder = self._encoders()
            rows = encoder.encode(asked, self._settings.length)
            visual = self._visual(rows.facts)
            scores += final_scores(row_logits(self._forward, self._model.reader, encoder, rows, visual), rows)
        return by_kind(scores)

    def _visual(self, facts: list[Facts], size: tuple[int, int] = USUAL_SIZE) -> Tensor:
        tokens: Tensor = self._model.oracle(self._view.labels(facts, size), self._model.reader.table)
        return tokens


def row_logits(
    forward: Callable[..., Tensor], reader: LanguageReader, encoder: RowEncoder, rows: Rows, visual: Tensor
) -> Tensor:
    """Logits [B, T, V] of rows whose picture is ``visual`` [B, P, H]; ``forward`` is ``reader``, compiled or not."""
    before = functional.embedding(rows.ids[:, : encoder.image_start], reader.table)
    after = functional.embedding(rows.ids[:, encoder.image_stop :], reader.table)
    embeddings = torch.cat([before, visual, after], dim=1)
    with torch.autocast("cpu", torch.bfloat16):
        logits: Tensor = forward(embeddings, rows.attention_mask(), rows.positions)
    return logits


def row_loss(logits: Tensor, rows: Rows) -> Tensor:
    """Weighted cross-entropy of predicting every answer token from the ones before it."""
    losses = functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), rows.ids[:, 1:].flatten(), reduction="none")
    weights = rows.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def final_scores(logits: Tensor, rows: Rows) -> list[tuple[str, bool]]:
    """Kind of each packed question, and whether its whole last sentence is predicted right."""
    predicted = logits.argmax(-1)
    scores = []
    for span in rows.finals:
        guess = predicted[span.row, span.start - 1 : span.stop - 1]
        scores.append((span.kind, bool((guess == rows.ids[span.row, span.start : span.stop]).all())))
    return scores


def by_kind(scores: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """Averages scores by kind and over all questions."""
    grouped: defaultdict[str, list[bool]] = defaultdict(list)
    for kind, right in scores:
        grouped[kind].append(right)
        grouped["all"].append(right)
    return {kind: sum(rights) / len(rights) for kind, rights in sorted(grouped.items())}
