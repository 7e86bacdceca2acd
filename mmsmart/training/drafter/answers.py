"""Step one: the target answers the training questions itself, so that a drafter learns what the target will say.

Answers are appended to a file as they come, so that a killed run goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from mmsmart.config import SamplingParams
from mmsmart.engine import Engine, Request
from mmsmart.errors import InputError
from mmsmart.training.drafter.questions import Question

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answered:
    """A question with the target's own answer, as token ids."""

    question: Question
    token_ids: tuple[int, ...]


def answer_all(
    engine: Engine, questions: Sequence[Question], cache: Path, *, max_new_tokens: int, batch_size: int = 16
) -> list[Answered]:
    """The target's greedy answers; those in the cache are not asked again, and a question that fails is left out.

    Args:
        engine: The target, with any drafter.
        questions: What to ask.
        cache: JSONL file, one answered question a line, in the order of the questions.
        max_new_tokens: Longest answer.
        batch_size: Questions answered together.
    """
    known = _read(cache)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.open("a", encoding="utf-8") as file, tqdm(total=len(questions), desc=cache.stem) as bar:
        bar.update(min(len(known), len(questions)))
        for start in range(len(known), len(questions), batch_size):
            group = questions[start : start + batch_size]
            rows = _answers(engine, group, SamplingParams(max_new_tokens=max_new_tokens))
            file.writelines(json.dumps({"index": start + i, "token_ids": ids}) + "\n" for i, ids in enumerate(rows))
            file.flush()
            known += rows
            bar.update(len(group))
    pairs = zip(questions, known, strict=False)
    return [Answered(question, tuple(ids)) for question, ids in pairs if ids]


def _answers(engine: Engine, questions: Sequence[Question], sampling: SamplingParams) -> list[list[int]]:
    requests: list[Request | None] = []
    for question in questions:
        try:
            requests.append(Request(question.pictures(), question.text, sampling))
        except (InputError, OSError) as error:
            logger.warning("left out: %s", error)
            requests.append(None)
    try:
        outputs = iter(engine.generate_batch([r for r in requests if r is not None]))
        return [next(outputs).token_ids if r is not None else [] for r in requests]
    except InputError:  # one of them does not fit this target: ask them one by one
        return [_single(engine, request) for request in requests]


def _single(engine: Engine, request: Request | None) -> list[int]:
    try:
        return engine.generate_batch([request])[0].token_ids if request is not None else []
    except InputError as error:
        logger.warning("left out: %s", error)
        return []


def _read(cache: Path) -> list[list[int]]:
    """Whole lines only: a killed run may have left half a one, which is cut off."""
    if not cache.is_file():
        return []
    lines = cache.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(lines):
        cache.write_bytes(b"".join(whole))
    return [json.loads(line)["token_ids"] for line in whole]
