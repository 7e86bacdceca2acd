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
        questions: What is asked about it.
    """

    name: str
    kind: PictureKind
    seed: int
    questions: tuple[str, ...]

    def facts(self) -> Facts:
        """The held-out facts that this picture shows."""
        return sample_facts(random.Random(f"showcase/{self.seed}"), "heldout", self.kind)


EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit("chart.png", "column", 0, ("Which bar is the tallest?", "What is the total?")),
    Exhibit("line.png", "line", 5, ("Does the line go up or down?", "What is the largest value?")),
    Exhibit("pie.png", "pie", 3, ("Describe the chart.", "Which slice is the smallest?")),
    Exhibit("scene.png", "scene", 6, ("How many shapes are there?", "Describe the picture.")),
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
        ModelError: If an answer's facts are not those of the picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for exhibit in EXHIBITS:
        facts = exhibit.facts()
        path = folder / exhibit.name
        draw_picture(facts, SIDE).save(path, optimize=True)
        pictures = [Image.open(path)] * len(exhibit.questions)
        for question, answer in zip(
            exhibit.questions, answer_pictures(target, pictures, exhibit.questions), strict=True
        ):
            shown = listing(facts)
            if facts.is_chart and shown.split("shows ")[1] not in answer:
                raise ModelError(f"{exhibit.name}, {question!r}: the model answers {answer!r}, the picture is: {shown}")
            lines.append(f"| `{exhibit.name}` | {shown} | {question} | {answer} |\n")
    (folder / "README.md").write_text(HEADER + "".join(lines))


def contact_sheet(folder: Path) -> Image.Image:
    """All sample pictures side by side, to look at."""
    sheet = Image.new("RGB", (len(EXHIBITS) * SIDE, SIDE), "white")
    for i, exhibit in enumerate(EXHIBITS):
        sheet.paste(Image.open(folder / exhibit.name), (i * SIDE, 0))
    return sheet
