"""One answer while it is written, by token and round; and the race of plain against speculative decoding."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from app.device import Token
from app.trace import RoundTrace, Watcher
from mmsmart.costs.online import CostModel
from mmsmart.engine import Engine, Request, Round
from mmsmart.sequence import IncrementalText
from mmsmart.stats import GenerationStats, Stopwatch

PLAIN, SPECULATIVE = "Plain decoding", "Speculative decoding"
RUNNING = (PLAIN, SPECULATIVE)
"""Phases in which rounds are being timed."""

Origin = Literal["target", "draft", "bonus"]
Finish = Literal["eos", "stop", "length", "stopped"]


@dataclass(frozen=True, slots=True)
class Span:
    """The text of one token.

    Attributes:
        text: May be empty: half a character, or a token that is not shown.
        origin: The prefill's own token, an accepted draft, or a round's bonus token.
        round: From 1; 0 for the prefill.
    """

    text: str
    origin: Origin
    round: int


@dataclass(frozen=True, slots=True)
class Pane:
    """An answer as far as it is.

    Attributes:
        spans: Its tokens.
        stats: The engine's own counts and times so far.
        finish: ``None`` while it runs.
    """

    spans: tuple[Span, ...]
    stats: GenerationStats
    finish: Finish | None = None

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True, slots=True)
class Result:
    """Both answers compared, from the engine's own stats.

    Attributes:
        speedup: ``total_ms`` of plain decoding / ``total_ms``: reading the picture, prompt, prefill and rounds. The
            picture's encoding comes before both and is in neither.
        decode_speedup: The same of ``decode_ms``, the rounds alone.
        identical: Whether the token ids are the same.
    """

    speedup: float
    decode_speedup: float
    identical: bool


@dataclass(frozen=True, slots=True)
class RaceView:
    """What the page shows of a race at one moment.

    Attributes:
        phase: What is going on, in words.
        plain, speculative: The panes, ``None`` before they start.
        traces: The speculative answer's rounds.
        result: When both are done.
        encoding_ms: Of the picture; 0 when it was known from an earlier question.
    """

    phase: str
    plain: Pane | None = None
    speculative: Pane | None = None
    traces: tuple[RoundTrace, ...] = ()
    result: Result | None = None
    encoding_ms: float = 0.0


class Run:
    """One answer, a round at a time.

    Args:
        engine: Writes it.
        request: The question.

    Raises:
        InputError: A question, picture or setting that cannot be used.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine = engine
        self.prompt = engine.prepare(request)
        self.batch = engine.start([self.prompt])
        self._decoder = IncrementalText(engine.target.tokenizer)
        self._spans: list[Span] = []
        self._take(["target"] * len(self.token_ids), 0)

    @property
    def token_ids(self) -> list[int]:
        """What was written so far."""
        return self.prompt.sequence.token_ids

    @property
    def done(self) -> bool:
        """Whether the answer has ended."""
        return self.batch.done

    def step(self) -> Round:
        """One round."""
        before = len(self.token_ids)
        done = self.engine.step(self.batch)
        accepted = int(done.record.verification.num_accepted[0])
        new = len(self.token_ids) - before
        origins: list[Origin] = ["draft" if place < accepted else "bonus" for place in range(new)]
        self._take(origins, self.prompt.stats.rounds)
        return done

    def pane(self, *, stopped: bool = False) -> Pane:
        """The answer so far."""
        finish: Finish | None = self.prompt.sequence.finish_reason
        if finish is None and stopped:
            finish = "stopped"
        return Pane(tuple(self._spans), replace(self.prompt.stats), finish)

    def _take(self, origins: list[Origin], number: int) -> None:
        new = self.token_ids[len(self._spans) :]
        for token, origin in zip(new, origins, strict=True):
            self._spans.append(Span(self._decoder.push([token]), origin, number))
        if self.done and (rest := self._decoder.flush()):
            self._spans[-1] = replace(self._spans[-1], text=self._spans[-1].text + rest)


def race(
    plain: Engine, speculative: Engine, request: Request, costs: CostModel, token: Token
) -> Generator[RaceView, None, None]:
    """Plain decoding, then speculative, of one question over one target; a view after each round.

    The picture is encoded once before both, so that neither pays for it.

    Args:
        plain, speculative: Engines over the same target.
        request: What is asked.
        costs: The device's.
        token: Looked at after each round; the view that says so is the last one.
    """
    encoding_ms = encode_picture(plain, request)
    first = Run(plain, request)
    view = RaceView(PLAIN, first.pane(), encoding_ms=encoding_ms)
    yield view
    while not first.done:
        if token.cancelled:
            yield replace(view, phase="Stopped", plain=first.pane(stopped=True))
            return
        first.step()
        view = replace(view, plain=first.pane())
        yield view
    second, watcher = Run(speculative, request), Watcher(speculative, costs)
    view = replace(view, phase=SPECULATIVE, speculative=second.pane())
    yield view
    while not second.done:
        if token.cancelled:
            yield replace(view, phase="Stopped", speculative=second.pane(stopped=True))
            return
        watcher.before(second.batch)
        trace = watcher.after(second.step())
        view = replace(view, speculative=second.pane(), traces=(*view.traces, trace))
        yield view
    yield replace(view, phase="Done", result=compare(first, second))


def compare(plain: Run, other: Run) -> Result:
    """The result of two finished answers."""
    slow, quick = plain.prompt.stats, other.prompt.stats
    return Result(
        speedup=slow.total_ms / quick.total_ms,
        decode_speedup=slow.decode_ms / quick.decode_ms if quick.decode_ms else 1.0,
        identical=plain.token_ids == other.token_ids,
    )


def encode_picture(engine: Engine, request: Request) -> float:
    """Encodes the pictures of a request for all that follow; returns milliseconds, 0 when they were known.

    Raises:
        InputError: A question, picture or setting that cannot be used.
    """
    prompt = engine.prepare(request)
    if all(image.embeds is not None for image in prompt.inputs.images):
        return 0.0
    watch = Stopwatch(engine.target.device)
    with torch.inference_mode():
        engine.target.embed_images([prompt.inputs])
    return watch.lap()
