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
from mmsmart.training.facts import Facts
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import Sample, heldout_samples, training_samples

CHARTS = "mmsmart-charts"


@dataclass(frozen=True)
class Question:
    """One training question.

    Attributes:
        text: The question.
        picture: Picture files, or facts that our own generator draws; empty for a question about text alone.
    """

    text: str
    picture: tuple[Path | Facts, ...] = ()

    def pictures(self) -> list[Image.Image]:
        """The upright RGB pictures."""
        return [draw_picture(p) if isinstance(p, Facts) else images.load(p) for p in self.picture]


def load_questions(source: str, count: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Training questions and held-out ones.

    Args:
        source: ``mmsmart-charts``; a JSONL file with one ``{"question": ..., "image": path or list or null}`` a line
            (paths relative to the file; of ShareGPT and LLaVA ``conversations`` the first human turn is read); or a
            folder with such files.
        count: Most training questions.
        seed: Of the order, or of the generator.

    Raises:
        InputError: A source that is not there, or a line that cannot be read.
    """
    if source == CHARTS:
        held = heldout_samples(200, seed=seed + 1)
        return _from_samples(training_samples(count, seed=seed)), _from_samples(held)
    path = Path(source)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise InputError(f"no questions at {source!r}; give {CHARTS!r}, a JSONL file, or a folder with JSONL files")
    questions = [question for file in files for question in _read(file)]
    questions.sort(key=lambda q: hashlib.sha256(f"{seed}/{q.text}/{q.picture}".encode()).digest())
    held_out = max(1, min(200, len(questions) // 20))
    if len(questions) < 2:
        raise InputError(
            f"{source!r} holds {len(questions)} question(s); some are needed to train on and some to hold out"
        )
    return questions[held_out:][:count], questions[:held_out]


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
