"""Step one: the target answers the training questions itself, so that a drafter learns what the target will say.

Answers are appended to files as they come, each under a key made of all that it depends on: a killed run goes on where
it stopped, and answers to other questions, of another target, or of another length are never taken for these.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from mmsmart.config import SamplingParams
from mmsmart.engine import Engine, Request
from mmsmart.errors import InputError
from mmsmart.files import replacing
from mmsmart.targets.base import Target
from mmsmart.training.drafter.questions import Question

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answered:
    """A question with the target's own answer, as token ids."""

    question: Question
    token_ids: tuple[int, ...]


def answer_all(
    engine: Engine,
    questions: Sequence[Question],
    folder: Path,
    *,
    max_new_tokens: int,
    share: tuple[int, int] = (0, 1),
    batch_size: int = 16,
) -> None:
    """Writes the target's greedy answers; those that lie in the folder are not asked for again.

    Args:
        engine: The target, with any drafter.
        questions: What to ask.
        folder: Of the files of answers, one answered question a line.
        max_new_tokens: Longest answer.
        share: Number of this process and how many there are: each answers its part, into a file of its own.
        batch_size: Questions answered together.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process, processes = share
    path = folder / f"answers-{process}.jsonl"
    _cut_half_line(path)
    known = _known(folder)
    mine = {_key(engine.target, question, max_new_tokens): question for question in questions[process::processes]}
    todo = [(key, question) for key, question in mine.items() if key not in known]
    with path.open("a", encoding="utf-8") as file, tqdm(total=len(todo), desc=path.stem, disable=not todo) as bar:
        for start in range(0, len(todo), batch_size):
            group = todo[start : start + batch_size]
            rows = _answers(engine, [question for _, question in group], SamplingParams(max_new_tokens=max_new_tokens))
            lines = zip(group, rows, strict=True)
            file.writelines(json.dumps({"key": key, "token_ids": ids}) + "\n" for (key, _), ids in lines)
            file.flush()
            bar.update(len(group))


def read_answers(target: Target, questions: Sequence[Question], folder: Path, *, max_new_tokens: int) -> list[Answered]:
    """What `answer_all` wrote of these questions, whichever process wrote it.

    Answers of one token are left out: it comes from the prefill, and nothing is ever drafted.

    Raises:
        InputError: Nothing is left to train on.
    """
    known = _known(folder)
    answers = [known.get(_key(target, question, max_new_tokens), []) for question in questions]
    answered = [Answered(q, tuple(ids)) for q, ids in zip(questions, answers, strict=True) if len(ids) > 1]
    if not answered:
        raise InputError(f"none of {len(questions)} questions got an answer of two tokens or more; see the log")
    return answered


def usable(engine: Engine, questions: Sequence[Question]) -> list[Question]:
    """The questions that the target can be asked, found out without any model work.

    Raises:
        InputError: There is none.
    """
    kept = []
    for question in questions:
        try:
            engine.prepare(Request(question.pictures(), question.text))
            kept.append(question)
        except (InputError, OSError) as error:
            logger.warning("left out: %s", error)
    if not kept:
        raise InputError(f"none of {len(questions)} held-out question(s) can be asked; see the log")
    return kept


def _key(target: Target, question: Question, max_new_tokens: int) -> str:
    """All that an answer depends on, in short."""
    return hashlib.sha256(repr((target.name, max_new_tokens, question)).encode()).hexdigest()[:32]


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


def _known(folder: Path) -> dict[str, list[int]]:
    """Key to answer, from whole lines only: a killed run may have left half a one."""
    known: dict[str, list[int]] = {}
    for path in sorted(folder.glob("answers-*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if line.endswith(b"\n"):
                try:
                    row = json.loads(line)
                    known[row["key"]] = row["token_ids"]
                except (ValueError, KeyError, TypeError) as error:
                    raise InputError(f"{path}:{number} is no answer: {error!r}; remove the line") from error
    return known


def _cut_half_line(path: Path) -> None:
    if path.is_file() and not (text := path.read_bytes()).endswith(b"\n"):
        with replacing(path) as draft:
            draft.write_bytes(text[: text.rfind(b"\n") + 1])
