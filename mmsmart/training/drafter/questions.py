"""Questions to train a drafter on: a JSONL file, a folder, or our own synthetic charts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from mmsmart import images
from mmsmart.errors import InputError
from mmsmart.training.drafter.foreign import ForeignPicture, foreign_question
from mmsmart.training.facts import Facts
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import Sample, heldout_samples, training_samples

CHARTS = "mmsmart-charts"
FOREIGN = "mmsmart-foreign"
_HELD_OUT = 200


@dataclass(frozen=True)
class Question:
    """One training question.

    Attributes:
        text: The question.
        picture: Picture files, or what our own generators draw; empty for a question about text alone.
    """

    text: str
    picture: tuple[Path | Facts | ForeignPicture, ...] = ()

    def pictures(self) -> list[Image.Image]:
        """The upright RGB pictures."""
        return [_picture(p) for p in self.picture]


def load_questions(source: str, count: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Training questions and held-out ones.

    Args:
        source: ``mmsmart-charts``; ``mmsmart-foreign`` (made-up pictures and questions unlike charts); a JSONL file
            with one ``{"question": ..., "image": path or list or null}`` a line (paths relative to the file; of
            ShareGPT and LLaVA ``conversations`` the first human turn is read); or a folder with such files.
        count: Most training questions.
        seed: Of the order, or of the generator.

    Raises:
        InputError: A source that is not there, or a line that cannot be read.
    """
    if source == CHARTS:
        held = heldout_samples(_HELD_OUT, seed=seed + 1)
        return _from_samples(training_samples(count, seed=seed)), _from_samples(held)
    if source == FOREIGN:
        made = foreign_questions(count + _HELD_OUT, seed)
        return made[_HELD_OUT:], made[:_HELD_OUT]
    path = Path(source)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise InputError(
            f"no questions at {source!r}; give {CHARTS!r}, {FOREIGN!r}, a JSONL file, or a folder with JSONL files"
        )
    questions = [question for file in files for question in _read(file)]
    questions.sort(key=lambda q: hashlib.sha256(f"{seed}/{q.text}/{q.picture}".encode()).digest())
    held_out = max(1, min(_HELD_OUT, len(questions) // 20))
    if len(questions) < 2:
        raise InputError(
            f"{source!r} holds {len(questions)} question(s); some are needed to train on and some to hold out"
        )
    return questions[held_out:][:count], questions[:held_out]


def load_mixture(
    sources: Sequence[str], counts: Sequence[int], seed: int
) -> tuple[list[Question], dict[str, list[Question]]]:
    """Training questions of several sources, and the held-out ones of each; see `load_questions`.

    Args:
        sources: Each is named once.
        counts: Most training questions of each source, or one number that the sources share evenly.
        seed: See `load_questions`.

    Raises:
        InputError: A source named twice, or another number of counts.
    """
    if len(set(sources)) < len(sources) or len(counts) not in (1, len(sources)):
        raise InputError(
            f"{len(sources)} source(s) {' '.join(sources)} and {len(counts)} number(s) of questions; "
            "name every source once, and give one number for all or one for each"
        )
    shares = list(counts) if len(counts) == len(sources) else [counts[0] // len(sources)] * len(sources)
    loaded = [load_questions(source, count, seed) for source, count in zip(sources, shares, strict=True)]
    questions = [question for training, _ in loaded for question in training]
    return questions, {source: held_out for source, (_, held_out) in zip(sources, loaded, strict=True)}


def _picture(made_from: Path | Facts | ForeignPicture) -> Image.Image:
    if isinstance(made_from, Facts):
        return draw_picture(made_from)
    return made_from.draw() if isinstance(made_from, ForeignPicture) else images.load(made_from)


def foreign_questions(count: int, seed: int) -> list[Question]:
    """Questions about made-up pictures unlike charts; other ones for every seed."""
    numbers = range(seed * 10**7, seed * 10**7 + count)
    return [Question(foreign_question(n), (ForeignPicture(n),)) for n in numbers]


def _from_samples(samples: Sequence[Sample]) -> list[Question]:
    return [Question(sample.question, (sample.facts,)) for sample in samples]


def _read(file: Path) -> list[Question]:
    questions = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            questions.append(_question(json.loads(line), file.parent))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file}:{number} is no question: {error!r}; expected {{'question': ..., 'image': ...}}"
            ) from error
    return questions


def _question(row: dict[str, object], folder: Path) -> Question:
    text = row.get("question")
    if text is None:
        turns = row["conversations"]
        assert isinstance(turns, list)
        text = next(turn["value"] for turn in turns if turn["from"] in ("human", "user"))
    paths = row.get("image") or []
    listed = [paths] if isinstance(paths, str) else list(paths)  # type: ignore[call-overload]
    return Question(str(text).replace("<image>", "").strip(), tuple(folder / path for path in listed))
