"""What a synthetic picture shows, before it is drawn: sampled from a seeded generator, split by content.

A picture's facts decide everything about it: how it looks, what can be asked and what the right answer is. Whether
facts belong to training or to the held-out side is a function of their content, so no generator seed can bring a
held-out picture into training.
"""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "heldout"]
PictureKind = Literal["column", "bar", "line", "pie", "scene"]

PICTURE_KINDS: tuple[PictureKind, ...] = ("column", "bar", "line", "pie", "scene")
WORDS = (
    *("tea", "fig", "soy", "nut", "rye", "oat", "ham", "egg", "pea", "jam"),
    *("corn", "kiwi", "plum", "pear", "lime", "beet", "rice", "milk", "bean", "leek"),
)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
TOPICS = ("Sales", "Rain", "Votes", "Cost", "Goals", "Stock", "Visits", "Points")
COLORS = {
    "red": (214, 39, 40),
    "orange": (255, 140, 0),
    "yellow": (240, 214, 0),
    "green": (44, 150, 60),
    "blue": (40, 90, 220),
    "purple": (130, 60, 170),
    "pink": (255, 130, 190),
    "brown": (120, 75, 40),
}
SHAPES = ("circle", "square", "triangle", "star", "diamond")
SIZES = ("small", "big")
PAPERS = ("white", "#f6f4ee", "#eef3f8")
VALUES = tuple(range(5, 100, 5))
MAX_ITEMS = 5
HELDOUT_BUCKETS = 16


@dataclass(frozen=True)
class Item:
    """One bar, point, slice or shape.

    Attributes:
        index: Place in reading order, from 1.
        word: Label of a chart item, empty in scenes.
        value: Value of a chart item, 0 in scenes.
        color: Name of its colour.
        shape: Name of its shape, empty in charts.
        size: "small" or "big", empty in charts.
        cell: Cell of the 3x3 grid in reading order from 0; -1 in charts.
        jitter: Shift from the cell's centre, each part in -1..1.
    """

    index: int
    color: str
    word: str = ""
    value: int = 0
    shape: str = ""
    size: str = ""
    cell: int = -1
    jitter: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Facts:
    """Everything a picture shows; ``topic`` is the chart's title (empty in scenes), ``paper`` the background colour."""

    kind: PictureKind
    items: tuple[Item, ...]
    topic: str = ""
    paper: str = "white"

    @property
    def is_chart(self) -> bool:
        """Whether the picture is a chart and not a scene of shapes."""
        return self.kind != "scene"

    def split(self) -> Split:
        """Side of the train/held-out border on which these facts lie, whatever seed made them."""
        content = [(item.word, item.value, item.color, item.shape, item.size, item.cell) for item in self.items]
        bucket = zlib.crc32(repr((self.kind, self.topic, content)).encode()) % HELDOUT_BUCKETS
        return "heldout" if bucket == 0 else "train"


def sample_facts(rng: random.Random, split: Split, kind: PictureKind | None = None, scene_share: float = 0.4) -> Facts:
    """Draws facts from one side of the split.

    Args:
        rng: Seeded generator.
        split: Side of the border.
        kind: A certain kind of picture, or None for scenes with ``scene_share`` and else one of the charts.
        scene_share: Probability of a scene.
    """
    while True:
        picked = kind or _pick_kind(rng, scene_share)
        facts = _sample_scene(rng) if picked == "scene" else _sample_chart(rng, picked)
        if facts.split() == split:
            return facts


def facts_stream(seed: str, split: Split, scene_share: float = 0.4) -> Iterator[Facts]:
    """Endless facts from one seed and one side of the split."""
    rng = random.Random(f"{split}/{seed}")
    while True:
        yield sample_facts(rng, split, scene_share=scene_share)


def _pick_kind(rng: random.Random, scene_share: float) -> PictureKind:
    return "scene" if rng.random() < scene_share else rng.choice(PICTURE_KINDS[:4])


def _sample_chart(rng: random.Random, kind: PictureKind) -> Facts:
    count = rng.randint(3, MAX_ITEMS)
    values = _pie_values(rng, count) if kind == "pie" else rng.sample(VALUES, count)
    use_months = kind == "line" or (kind == "column" and rng.random() < 0.25)
    if use_months:
        start = rng.randrange(len(MONTHS) - count + 1)
        words = list(MONTHS[start : start + count])
    else:
        words = rng.sample(WORDS, count)
    colors = [rng.choice(list(COLORS))] * count if kind == "line" else rng.sample(list(COLORS), count)
    rows = zip(words, values, colors, strict=True)
    items = tuple(Item(i + 1, color, word, value) for i, (word, value, color) in enumerate(rows))
    return Facts(kind, items, rng.choice(TOPICS), rng.choice(PAPERS))


def _pie_values(rng: random.Random, count: int) -> list[int]:
    """Distinct multiples of five that sum to 100."""
    while True:
        cuts = sorted(rng.sample(range(1, 20), count - 1))
        parts = [5 * (b - a) for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
        if len(set(parts)) == count:
            return parts


def _sample_scene(rng: random.Random) -> Facts:
    count = rng.randint(2, MAX_ITEMS)
    looks = rng.sample([(color, shape) for color in COLORS for shape in SHAPES], count)
    cells = sorted(rng.sample(range(9), count))
    items = tuple(
        Item(
            i + 1,
            color,
            shape=shape,
            size=rng.choice(SIZES),
            cell=cell,
            jitter=(round(rng.uniform(-1, 1), 2), round(rng.uniform(-1, 1), 2)),
        )
        for i, (cell, (color, shape)) in enumerate(zip(cells, looks, strict=True))
    )
    return Facts("scene", items, paper=rng.choice(PAPERS))
