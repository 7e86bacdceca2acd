"""Draws scenes: shapes on a jittered 3x3 grid. Lengths are in units of 1/128 of the picture's side."""

import math

from PIL import ImageDraw

from mmsmart.training.facts import COLORS, Facts, Item

CELL = 128 / 3
RADIUS = {"small": 8.0, "big": 16.0}
MAX_SHIFT = 4.0
POLYGON_ANGLES = {"triangle": (-90, 30, 150), "diamond": (-90, 0, 90, 180), "square": (-135, -45, 45, 135)}
REACH = {"triangle": 1.15, "diamond": 1.15, "square": 1.2, "star": 1.15}


def draw_scene(draw: ImageDraw.ImageDraw, facts: Facts, unit: float) -> None:
    """Draws the shapes of a scene; ``unit`` is pixels per length unit."""
    for item in facts.items:
        row, column = divmod(item.cell, 3)
        x = (column + 0.5) * CELL + item.jitter[0] * MAX_SHIFT
        y = (row + 0.5) * CELL + item.jitter[1] * MAX_SHIFT
        _draw_shape(draw, item, unit * x, unit * y, unit * RADIUS[item.size])


def _draw_shape(draw: ImageDraw.ImageDraw, item: Item, x: float, y: float, radius: float) -> None:
    fill = COLORS[item.color]
    if item.shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
        return
    reach = radius * REACH[item.shape]
    if item.shape == "star":
        points = [_point(x, y, reach * (1.0 if i % 2 == 0 else 0.45), -90 + 36 * i) for i in range(10)]
    else:
        points = [_point(x, y, reach, angle) for angle in POLYGON_ANGLES[item.shape]]
    draw.polygon(points, fill=fill)


def _point(x: float, y: float, radius: float, degrees: float) -> tuple[float, float]:
    angle = math.radians(degrees)
    return x + radius * math.cos(angle), y + radius * math.sin(angle)
