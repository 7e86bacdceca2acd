"""Packs several questions about one picture into one row, so that the picture is paid for once.

Every question sees the prompt's beginning with the picture and itself, and its positions go on where the picture ends:
to the model each question looks as if it were asked alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmsmart.training.facts import COLORS, MONTHS, SHAPES, SIZES, TOPICS, WORDS, Facts
from mmsmart.training.questions import Sample
from mmsmart.training.tokenizer import EOS, IMAGE
from mmsmart.training.view import USUAL_SIZE, View

PAD_SEGMENT = -1


@dataclass(frozen=True)
class PromptForm:
    """The text around picture, question and answer, and how a family counts positions; the defaults are LLaVA's.

    Attributes:
        prefix: Text before the picture.
        image: Token of the picture.
        question: Text after the picture, with the question in it.
        end: Token after the answer.
        picture_positions: Maps rows and columns of visual tokens to their positions on each axis [A, P], counted from
            the first; None where positions have one axis and simply go on.
    """

    prefix: str = "<s>USER: "
    image: str = IMAGE
    question: str = "\n{} ASSISTANT:"
    end: str = EOS
    picture_positions: Callable[[tuple[int, int]], Tensor] | None = None


@dataclass(frozen=True)
class FinalSpan:
    """Where the last sentence of one answer, with its end token, lies: targets ``start`` to ``stop`` of a row."""

    row: int
    start: int
    stop: int
    kind: str


@dataclass(frozen=True)
class Rows:
    """A packed batch of B rows of T tokens.

    Attributes:
        ids: int64 [B, T].
        positions: int64 [B, T], or [A, B, T] where they have several axes.
        segments: int64 [B, T]; 0 for the shared beginning, k for the k-th question, -1 for padding.
        weights: float32 [B, T]; weight of the loss of predicting this token.
        facts: The B pictures' facts.
        finals: Where the last sentences lie.
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    weights: Tensor
    facts: list[Facts]
    finals: list[FinalSpan]

    def attention_mask(self) -> Tensor:
        """Which token sees which: bool [B, 1, T, T]."""
        length = self.segments.shape[1]
        queries, keys = self.segments[:, :, None], self.segments[:, None, :]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        diagonal = torch.eye(length, dtype=torch.bool)
        return (((queries == keys) | (keys == 0)) & causal | diagonal)[:, None]


class RowEncoder:
    """Turns samples about pictures of one size into packed rows.

    Args:
        tokenizer: Tokenizer of the family.
        grid: Rows and columns of visual tokens.
        filler_weight: Weight of the loss on tokens that carry no facts.
        form: Prompt of the family.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        grid: tuple[int, int],
        filler_weight: float,
        form: PromptForm | None = None,
    ) -> None:
        self._form = form or PromptForm()
        image = tokenizer.convert_tokens_to_ids(self._form.image)
        prefix = tokenizer(self._form.prefix, add_special_tokens=False).input_ids
        image_tokens = grid[0] * grid[1]
        self.image_start = len(prefix)
        self.image_stop = len(prefix) + image_tokens
        self._prefix = [*prefix, *[image] * image_tokens]
        self._prefix_positions = _prefix_positions(len(prefix), grid, self._form)
        self._tokenizer = tokenizer
        self._pad = tokenizer.pad_token_id
        self._content = _content_ids(tokenizer)
        self._filler_weight = filler_weight

    def encode(self, pictures: Sequence[Sequence[Sample]], length: int) -> Rows:
        """Packs the questions of each picture into one row of ``length`` tokens; what does not fit is left out."""
        shape = (len(pictures), length)
        ids = torch.full(shape, self._pad)
        positions = torch.zeros(len(self._prefix_positions), *shape, dtype=torch.long)
        segments = torch.full(shape, PAD_SEGMENT)
        weights = torch.zeros(shape)
        finals: list[FinalSpan] = []
        start, position = len(self._prefix), int(self._prefix_positions.max()) + 1
        ids[:, :start] = torch.tensor(self._prefix)
        positions[..., :start] = self._prefix_positions[:, None]
        segments[:, :start] = 0
        for row, samples in enumerate(pictures):
            at = start
            for number, sample in enumerate(samples, start=1):
                question, answer, final_length = self.segment(sample)
                stop = at + len(question) + len(answer)
                if stop > length:
                    continue
                ids[row, at:stop] = torch.tensor(question + answer)
                positions[:, row, at:stop] = torch.arange(position, position + stop - at)
                segments[row, at:stop] = number
                weights[row, at + len(question) : stop] = torch.tensor([self._weight(i) for i in answer])
                finals.append(FinalSpan(row, stop - final_length, stop, sample.kind))
                at = stop
        if self._form.picture_positions is None:
            positions = positions[0]
        return Rows(ids, positions, segments, weights, [samples[0].facts for samples in pictures], finals)

    def segment(self, sample: Sample) -> tuple[list[int], list[int], int]:
        """Ids of a question as it follows the picture, of its answer with end token; length of the last sentence."""
        question = self._ids(self._form.question.format(sample.question))
        answer = self._ids(f" {sample.answer}{self._form.end}")
        return question, answer, len(self._ids(f" {sample.final_answer}{self._form.end}"))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _weight(self, token: int) -> float:
        return 1.0 if token in self._content else self._filler_weight


class SizedEncoders:
    """A row encoder for every size of picture, made when it is first asked for."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, view: View, form: PromptForm, filler_weight: float) -> None:
        self._made: dict[tuple[int, int], RowEncoder] = {}
        self._tokenizer, self._view, self._form, self._filler_weight = tokenizer, view, form, filler_weight

    def __call__(self, size: tuple[int, int] = USUAL_SIZE) -> RowEncoder:
        """The encoder of pictures of a certain width and height."""
        grid = self._view.grid(size)
        if grid not in self._made:
            self._made[grid] = RowEncoder(self._tokenizer, grid, self._filler_weight, self._form)
        return self._made[grid]


def _prefix_positions(text: int, grid: tuple[int, int], form: PromptForm) -> Tensor:
    """Positions of the text before the picture and of the picture: [A, text + P]."""
    before = torch.arange(text)[None]
    if form.picture_positions is None:
        return torch.arange(text + grid[0] * grid[1])[None]
    picture = form.picture_positions(grid) + text
    return torch.cat([before.expand(len(picture), -1), picture], dim=1)


def _content_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Tokens that carry facts: names, numbers, colours, shapes, sizes, yes and no."""
    words = (*WORDS, *MONTHS, *TOPICS, *COLORS, *SHAPES, *SIZES, "yes", "no", "Yes", "No", "not", "up", "down")
    places = ("top", "center", "bottom", "left", "middle", "right", "line", "bar", "pie")
    names = [f" {word}" for word in (*words, *places)]
    numbers = [f" {n}" for n in range(500)]
    ids = (tokenizer(piece, add_special_tokens=False).input_ids for piece in (*names, *numbers))
    return frozenset(piece[0] for piece in ids if len(piece) == 1)
