"""The task port: a data set's samples, the prompts of its two modes, and its official score."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from mmsmart.errors import InputError
from mmsmart.eval.data import fields
from mmsmart.eval.data.fields import Picture
from mmsmart.eval.data.hub import open_hub
from mmsmart.eval.data.local import open_local
from mmsmart.eval.data.source import DataRequest, HubSet, Row, RowError, Source
from mmsmart.eval.tasks.prompts import EXPLAIN, OTHERS, Prompt

Mode = Literal["short", "long"]
MODES: tuple[Mode, ...] = ("short", "long")


@dataclass(frozen=True)
class EvalSample:
    """One question of a data set.

    Attributes:
        id: Unique within the data set and the same in every run on the same data.
        index: Place in the data set, from 0.
        question: The question, without any prompt's words.
        images: Pictures, not decoded yet; a damaged file shows when it is decoded.
        references: Right answers; empty where the data has none to score against.
        choices: Texts of the options of a multiple-choice question.
        groups: What the sample counts under, by axis: ``{"type": "human"}``.
        extra: Further texts that a prompt needs (hint, OCR tokens).
        error: Why the row cannot be asked; "" for a good one.
    """

    id: str
    index: int
    question: str = ""
    images: tuple[Picture, ...] = ()
    references: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Shard:
    """One process's part of a data set: the samples with ``index % count == number``."""

    number: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise InputError(f"a shard needs 0 <= number < count, got {self.number} of {self.count}")


@dataclass(frozen=True)
class Score:
    """One scored answer; plain enough for a JSON row (``dataclasses.asdict`` and ``Score(**row)``).

    Attributes:
        values: Metric's name to value in 0..1; the official metric first.
        verdict: What the rule read out of the answer, where it reads something out.
        groups: The sample's groups.
    """

    values: Mapping[str, float]
    verdict: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mean:
    """A mean of ``count`` values, with the sum of their squares for an interval around it."""

    total: float = 0.0
    squares: float = 0.0
    count: int = 0

    def plus(self, value: float) -> Mean:
        """With one value more."""
        return Mean(self.total + value, self.squares + value * value, self.count + 1)

    @property
    def value(self) -> float | None:
        """The mean; ``None`` of nothing."""
        return self.total / self.count if self.count else None

    @property
    def percent(self) -> float | None:
        """The mean times 100, rounded to two decimals as the official scorers print it."""
        return None if self.value is None else round(100 * self.value, 2)

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean; ``None`` below two values."""
        if self.count < 2:
            return None
        variance = max(0.0, self.squares - self.total**2 / self.count) / (self.count - 1)
        return float((variance / self.count) ** 0.5)


@dataclass(frozen=True)
class Summary:
    """Scores of a whole run.

    Attributes:
        metrics: Metric to its mean; the official one first.
        groups: Axis to group to metric to mean.
        unscored: Samples without a reference.
    """

    metrics: Mapping[str, Mean]
    groups: Mapping[str, Mapping[str, Mapping[str, Mean]]]
    unscored: int = 0


class Task(ABC):
    """A data set.

    Attributes:
        name: Its name in ``mmsmart.registry.TASKS``.
        metric: Name of the official metric.
        hub: Where the hub has it.
        axes: The official splits or types by which scores are also given.
        needs_picture: Whether a row without a picture is an error.
        short_prompts: Style to template of the short mode; a model family's (``config.model_type``) where it has one.
        short_style: The style of all other families.
        long_prompt: Template of the long mode.
        long_style: Its name.
        short_tokens: Usual cap on new tokens in the short mode.
        long_tokens: The same in the long mode.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    hub: ClassVar[HubSet | None] = None
    axes: ClassVar[tuple[str, ...]] = ()
    needs_picture: ClassVar[bool] = True
    short_prompts: ClassVar[Mapping[str, str]]
    short_style: ClassVar[str] = OTHERS
    long_prompt: ClassVar[str] = "{question}" + EXPLAIN
    long_style: ClassVar[str] = "msd"
    short_tokens: ClassVar[int] = 16
    long_tokens: ClassVar[int] = 512

    # ---- samples

    def open(self, request: DataRequest) -> Source:
        """Finds the rows; parses none of a file, and asks the hub only whether they are there.

        Raises:
            InputError: They cannot be had; the message says what to pass.
        """
        hub = self._hub()
        if request.data is None:
            return open_hub(self.name, hub, request.hub_id, stream=request.limit is not None)
        return open_local(request.data, self.name, hub.split)

    def samples(
        self, source: Source, *, limit: int | None = None, shard: Shard | None = None, done: Container[str] = ()
    ) -> Iterator[EvalSample]:
        """Reads samples one at a time, in the order of the data; a bad row is a sample with an error.

        Args:
            source: From `open`.
            limit: Only the first so many of the data set, shards and finished ones counted.
            shard: Only one process's part.
            done: Ids to pass over.

        Raises:
            InputError: The source holds no rows, or breaks off.
        """
        shard = shard or Shard()
        row = None
        for row in itertools.islice(source.rows(), limit):
            if row.index % shard.count == shard.number and (key := sample_id(row)) not in done:
                yield self._checked(key, row)
        if row is None:
            raise InputError(f"{source.description} holds no rows; pass another file, folder or hub id")

    @abstractmethod
    def read(self, key: str, row: Row) -> EvalSample:
        """The sample of a row.

        Raises:
            RowError: Something that the task needs is missing.
        """

    def _checked(self, key: str, row: Row) -> EvalSample:
        if row.error:
            return EvalSample(key, row.index, error=row.error)
        try:
            sample = self.read(key, row)
        except RowError as error:
            return EvalSample(key, row.index, error=f"row {row.index}: {error}")
        if self.needs_picture and not sample.images:
            names = ", ".join(fields.PICTURES)
            return replace(sample, error=f"row {row.index}: no picture in the fields {names}")
        return sample

    def _hub(self) -> HubSet:
        if self.hub is None:
            raise InputError(f"{self.name} is made from a seed and reads no data")
        return self.hub

    # ---- prompts

    def prompt(self, sample: EvalSample, mode: Mode, family: str) -> Prompt:
        """The question as the model gets it, to be put into the family's chat template.

        Args:
            sample: A sample without an error.
            mode: "short" for accuracy, "long" for speed.
            family: The target's ``config.model_type``.

        Raises:
            InputError: No such mode.
        """
        if mode not in MODES:
            raise InputError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
        style = self.long_style if mode == "long" else self._style(sample, family)
        template = self.long_prompt if mode == "long" else self.short_prompts[style]
        text = template.format(**self._words(sample, style))
        return Prompt(text, f"{self.name}/{mode}/{style}")

    def max_new_tokens(self, mode: Mode) -> int:
        """Usual cap on new tokens."""
        return self.short_tokens if mode == "short" else self.long_tokens

    def _style(self, sample: EvalSample, family: str) -> str:
        """Key of the template in ``short_prompts``."""
        return family if family in self.short_prompts else self.short_style

    def _words(self, sample: EvalSample, style: str) -> dict[str, str]:
        """What a template may name."""
        return {"question": sample.question}

    # ---- scores

    def score(self, sample: EvalSample, prediction: str) -> Score | None:
        """The official score of one answer, with tolerant ones beside it; ``None`` without references."""
        if not sample.references:
            return None
        values, verdict = self.rate(sample, prediction)
        return Score(values, verdict, sample.groups)

    @abstractmethod
    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """Metric to value, the official one first, and what was read out of the answer ("" if nothing is)."""

    def summarize(self, scores: Iterable[Score | None]) -> Summary:
        """Means over all samples and per group of each axis; reads the scores once and keeps none."""
        metrics: dict[str, Mean] = {}
        groups: dict[str, dict[str, dict[str, Mean]]] = {axis: defaultdict(dict) for axis in self.axes}
        unscored = 0
        for score in scores:
            if score is None:
                unscored += 1
                continue
            _add(metrics, score)
            for axis in self.axes:
                if score.groups.get(axis):
                    _add(groups[axis][score.groups[axis]], score)
        found = {axis: dict(sorted(members.items())) for axis, members in groups.items() if members}
        return Summary(metrics, found, unscored)


def sample_id(row: Row) -> str:
    """A row's id: its place, and the data's own id where it has one, as those are not always unique."""
    own = fields.first(row, fields.IDS)
    return str(row.index) if own is None else f"{row.index}:{own}"


def _add(means: dict[str, Mean], score: Score) -> None:
    for metric, value in score.values.items():
        means[metric] = means.get(metric, Mean()).plus(value)
