"""Draws the sample pictures of the package and asks the finished model about them."""

import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from mmsmart.errors import ModelError
from mmsmart.training.facts import Facts, PictureKind, sample_facts
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import listing
from mmsmart.training.saving import LoadedTarget
from mmsmart.training.score import answer_pictures

SIDE = 384


@dataclass(frozen=True)
class Exhibit:
    """One sample picture.

    Attributes:
        name: File name.
        kind: What it shows.
        seed: Seed of its facts, on the held-out side.
        asked: Questions about it, each with the last sentence of its right answer.
    """

    name: str
    kind: PictureKind
    seed: int
    asked: tuple[tuple[str, str], ...]

    @property
    def questions(self) -> tuple[str, ...]:
        """What is asked about it."""
        return tuple(question for question, _ in self.asked)

    def facts(self) -> Facts:
        """The held-out facts that this picture shows."""
        return sample_facts(random.Random(f"showcase/{self.seed}"), "heldout", self.kind)


EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit(
        "chart.png",
        "column",
        0,
        (
            ("Which bar is the tallest?", "The tallest bar is rice 90."),
            ("What is the total?", "The total is 225."),
        ),
    ),
    Exhibit(
        "line.png",
        "line",
        5,
        (
            ("What is the largest value?", "The largest value is May 90."),
            ("Does the line go up or down?", "The line goes up."),
        ),
    ),
    Exhibit(
        "pie.png",
        "pie",
        3,
        (
            ("Which slice is the smallest?", "The smallest slice is soy 10."),
            ("What color is tea?", "The color of tea is brown."),
        ),
    ),
    Exhibit(
        "scene.png",
        "scene",
        6,
        (
            ("How many shapes are there?", "There are 5 shapes."),
            ("What color is the circle?", "The circle is blue."),
        ),
    ),
)

HEADER = """# Sample pictures

Drawn by the package's own generator from held-out seeds (`mmsmart/training/showcase.py`); free to use under Apache-2.0.
The answers are those of the embedded `tiny-llava`, float32, greedy. This file and the pictures are made by
`python -m mmsmart train pictures --model assets/models/tiny-llava --out assets/pictures`.

| picture | it shows | question | answer of tiny-llava |
| --- | --- | --- | --- |
"""


def write_pictures(target: LoadedTarget, folder: Path) -> None:
    """Writes the sample pictures and, beside them, ``README.md`` with a question and the model's answer to each.

    Raises:
        ModelError: If an answer is wrong.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for exhibit in EXHIBITS:
        facts = exhibit.facts()
        path = folder / exhibit.name
        draw_picture(facts, SIDE).save(path, optimize=True)
        answers = answer_pictures(target, [Image.open(path)] * len(exhibit.asked), exhibit.questions)
        for (question, right), answer in zip(exhibit.asked, answers, strict=True):
            if not answer.endswith(right):
                raise ModelError(f"{exhibit.name}: the model answers {question!r} with {answer!r}, right is {right!r}")
            lines.append(f"| `{exhibit.name}` | {listing(facts)} | {question} | {answer} |\n")
    (folder / "README.md").write_text(HEADER + "".join(lines))
