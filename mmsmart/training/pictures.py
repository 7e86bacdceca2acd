"""From facts to a picture, and from facts to what each patch of that picture shows."""

import functools
import random
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmsmart.training.charts import INK, TITLE_HEIGHT, Text, draw_bars, draw_columns, draw_line, draw_pie
from mmsmart.training.facts import Facts, PictureKind
from mmsmart.training.scenes import draw_scene

DEFAULT_SIZE = 128
SUPERSAMPLING = 2
LABEL_HEIGHT = 9.5
TITLE_HEIGHT_TEXT = 12.0
NOBODY = 0
TITLE = -1

_CHARTS: dict[PictureKind, Callable[[ImageDraw.ImageDraw, Facts, float], list[Text]]] = {
    "column": draw_columns,
    "bar": draw_bars,
    "line": draw_line,
    "pie": draw_pie,
}


def draw_picture(facts: Facts, size: int = DEFAULT_SIZE) -> Image.Image:
    """Draws the facts as an RGB picture of ``size`` x ``size`` pixels; the same facts always give the same pixels."""
    unit = size / DEFAULT_SIZE
    canvas = Image.new("RGB", (size * SUPERSAMPLING, size * SUPERSAMPLING), facts.paper)
    draw = ImageDraw.Draw(canvas)
    texts: list[Text] = []
    if facts.is_chart:
        texts = _CHARTS[facts.kind](draw, facts, unit * SUPERSAMPLING)
    else:
        draw_scene(draw, facts, unit * SUPERSAMPLING)
    picture = canvas.reduce(SUPERSAMPLING)
    _write(picture, facts.topic, texts, unit)
    return picture


def draw_varied(facts: Facts, rng: random.Random, size: tuple[int, int] = (DEFAULT_SIZE, DEFAULT_SIZE)) -> Image.Image:
    """Like :func:`draw_picture`, but now and then drawn larger and scaled down, as pictures from elsewhere are.

    Args:
        facts: What the picture shows.
        rng: Seeded generator.
        size: Width and height in pixels; a picture that is not square is a stretched square one.
    """
    chance = rng.random()
    factor = 1 if chance < 0.75 else 2 if chance < 0.9 else 3
    picture = draw_picture(facts, max(size) * factor)
    return picture if picture.size == size else picture.resize(size, Image.Resampling.BICUBIC)


def pixels(pictures: list[Image.Image]) -> np.ndarray:
    """Stacks equally sized RGB pictures as uint8 [B, height, width, 3]."""
    return np.stack([np.asarray(picture, dtype=np.uint8) for picture in pictures])


def patch_owners(facts: Facts, grid: tuple[int, int] = (8, 8)) -> np.ndarray:
    """Says which item each patch shows.

    A patch belongs to the item in whose column, row, legend line or cell its centre lies, so label, number and colour
    of an item are bound together wherever they are drawn.

    Args:
        facts: Facts of the picture.
        grid: Rows and columns of patches.

    Returns:
        int64 [rows, columns]: an item's index from 1, ``NOBODY`` or ``TITLE``.
    """
    y, x = np.meshgrid(*((np.arange(n) + 0.5) * DEFAULT_SIZE / n for n in grid), indexing="ij")
    count = len(facts.items)
    if facts.kind == "scene":
        cells = (3 * y // DEFAULT_SIZE * 3 + 3 * x // DEFAULT_SIZE).astype(np.int64)
        owner_of_cell = np.zeros(9, dtype=np.int64)
        for item in facts.items:
            owner_of_cell[item.cell] = item.index
        return owner_of_cell[cells]
    if facts.kind in ("column", "line"):
        owners = 1 + (x * count // DEFAULT_SIZE).astype(np.int64)
    else:
        owners = 1 + ((y - TITLE_HEIGHT) * count // (DEFAULT_SIZE - TITLE_HEIGHT)).astype(np.int64)
    if facts.kind == "pie":
        owners[x < DEFAULT_SIZE / 2] = NOBODY
    owners[y < TITLE_HEIGHT] = TITLE
    return owners


@functools.lru_cache(maxsize=16)
def _font(height: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(height)


def _write(picture: Image.Image, title: str, texts: list[Text], unit: float) -> None:
    draw = ImageDraw.Draw(picture)
    for x, y, anchor, text in texts:
        draw.text((unit * x, unit * y), text, fill=INK, font=_font(LABEL_HEIGHT * unit), anchor=anchor)
    if title:
        center = (unit * DEFAULT_SIZE / 2, unit * TITLE_HEIGHT / 2)
        draw.text(center, title, fill=INK, font=_font(TITLE_HEIGHT_TEXT * unit), anchor="mm")
