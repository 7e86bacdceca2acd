"""One policy's answers to a batch of samples, with what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmsmart.batch import Batch
from mmsmart.engine import Engine, GenerationOutput, Request, output_of
from mmsmart.errors import MmsmartError
from mmsmart.eval.results import Speed
from mmsmart.stats import Stopwatch

FAILURES = (MmsmartError, OSError, ValueError, RuntimeError)
"""What a sample may raise without ending the run; out of memory is a RuntimeError."""


@dataclass(frozen=True)
class Answer:
    """An answer, or why there is none.

    Attributes:
        output: The answer; ``None`` after a failure.
        speed: What it cost; ``None`` after a failure.
        error: What went wrong.
    """

    output: GenerationOutput | None = None
    speed: Speed | None = None
    error: str = ""


def answer(engine: Engine, requests: Sequence[Request]) -> list[Answer]:
    """Answers a batch; if that fails, each request alone, so that one bad sample spoils no other."""
    try:
        return _batch(engine, requests)
    except FAILURES as error:
        if len(requests) == 1:
            return [Answer(error=one_line(error))]
    alone = [answer(engine, [request])[0] for request in requests]
    return [replace(one, speed=replace(one.speed, timed=False)) if one.speed else one for one in alone]


def one_line(error: BaseException) -> str:
    """An error's words on one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _batch(engine: Engine, requests: Sequence[Request]) -> list[Answer]:
    engine.target.forget_images()  # or the first policy would pay the others' pictures
    watch = Stopwatch(engine.target.device)
    prompts = [engine.prepare(request) for request in requests]
    batch = engine.start(prompts)
    first_ms = watch.lap()
    counts: list[Counter[int]] = [Counter() for _ in prompts]
    places = {id(prompt): place for place, prompt in enumerate(prompts)}
    while not batch.done:
        for identity, accepted in _round(engine, batch):
            counts[places[identity]][accepted] += 1
    decode_ms = watch.lap()
    rows, wall_ms = len(prompts), first_ms + decode_ms
    answers = []
    for prompt, count in zip(prompts, counts, strict=True):
        depths = tuple(count[depth] for depth in range(max(count) + 1)) if count else ()
        speed = Speed(rows, True, wall_ms / rows, decode_ms / rows, first_ms, depths, prompt.stats)
        answers.append(Answer(output_of(prompt), speed))
    return answers


def _round(engine: Engine, batch: Batch) -> list[tuple[int, int]]:
    """One round; of the requests that drafted, their identity and how many drafts were accepted."""
    before = [(prompt, prompt.stats.drafted, prompt.stats.accepted) for prompt in batch.running]
    engine.step(batch)
    return [
        (id(prompt), prompt.stats.accepted - accepted)
        for prompt, drafted, accepted in before
        if prompt.stats.drafted > drafted
    ]
