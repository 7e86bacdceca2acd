"""Draws charts: bars standing or lying, lines, pies. All lengths are in units of 1/128 of the picture's side."""

from PIL import ImageDraw

from mmsmart.training.facts import COLORS, Facts

INK = (40, 40, 40)
GRID = (205, 205, 205)
TITLE_HEIGHT = 16.0
AXIS_BOTTOM = 112.0
BAR_LEFT = 32.0
PIE_BOX = (6.0, 38.0, 62.0, 94.0)
LEGEND_LEFT = 72.0

Text = tuple[float, float, str, str]
"""x, y, anchor as PIL spells it, text."""


def draw_columns(draw: ImageDraw.ImageDraw, facts: Facts, unit: float) -> list[Text]:
    """Draws standing bars and returns the texts to write over them; ``unit`` is pixels per length unit."""
    slot = 128 / len(facts.items)
    texts: list[Text] = []
    for i, item in enumerate(facts.items):
        center = (i + 0.5) * slot
        top = AXIS_BOTTOM - item.value * 0.76
        box = (center - slot * 0.32, top, center + slot * 0.32, AXIS_BOTTOM)
        draw.rectangle([unit * v for v in box], fill=COLORS[item.color])
        texts.append((center, top - 2, "ms", str(item.value)))
        texts.append((center, 123, "ms", item.word))
    draw.line([unit * v for v in (2, AXIS_BOTTOM, 126, AXIS_BOTTOM)], fill=INK, width=max(1, round(unit)))
    return texts


def draw_bars(draw: ImageDraw.ImageDraw, facts: Facts, unit: float) -> list[Text]:
    """Draws lying bars and returns the texts to write over them."""
    slot = (128 - TITLE_HEIGHT) / len(facts.items)
    texts: list[Text] = []
    for i, item in enumerate(facts.items):
        center = TITLE_HEIGHT + (i + 0.5) * slot
        right = BAR_LEFT + item.value * 0.82
        box = (BAR_LEFT, center - slot * 0.32, right, center + slot * 0.32)
        draw.rectangle([unit * v for v in box], fill=COLORS[item.color])
        texts.append((right + 3, center, "lm", str(item.value)))
        texts.append((BAR_LEFT - 4, center, "rm", item.word))
    draw.line([unit * v for v in (BAR_LEFT, 18, BAR_LEFT, 126)], fill=INK, width=max(1, round(unit)))
    return texts


def draw_line(draw: ImageDraw.ImageDraw, facts: Facts, unit: float) -> list[Text]:
    """Draws a line with a marker per point and returns the texts to write over it."""
    slot = 128 / len(facts.items)
    points = [((i + 0.5) * slot, AXIS_BOTTOM - 6 - item.value * 0.68) for i, item in enumerate(facts.items)]
    for level in (0.25, 0.5, 0.75):
        y = AXIS_BOTTOM - 6 - 68 * level
        draw.line([unit * v for v in (2, y, 126, y)], fill=GRID, width=max(1, round(unit / 2)))
    color = COLORS[facts.items[0].color]
    draw.line([(unit * x, unit * y) for x, y in points], fill=color, width=round(2.5 * unit))
    texts: list[Text] = []
    for (x, y), item in zip(points, facts.items, strict=True):
        draw.ellipse([unit * v for v in (x - 3, y - 3, x + 3, y + 3)], fill=color)
        texts.append((x, y - 5, "ms", str(item.value)))
        texts.append((x, 123, "ms", item.word))
    draw.line([unit * v for v in (2, AXIS_BOTTOM, 126, AXIS_BOTTOM)], fill=INK, width=max(1, round(unit)))
    return texts


def draw_pie(draw: ImageDraw.ImageDraw, facts: Facts, unit: float) -> list[Text]:
    """Draws a pie and its legend's swatches, and returns the legend's texts."""
    slot = (128 - TITLE_HEIGHT) / len(facts.items)
    total = sum(item.value for item in facts.items)
    angle = -90.0
    texts: list[Text] = []
    for i, item in enumerate(facts.items):
        end = angle + 360 * item.value / total
        draw.pieslice([unit * v for v in PIE_BOX], angle, end, fill=COLORS[item.color], outline="white")
        angle = end
        center = TITLE_HEIGHT + (i + 0.5) * slot
        swatch = (LEGEND_LEFT, center - 4, LEGEND_LEFT + 8, center + 4)
        draw.rectangle([unit * v for v in swatch], fill=COLORS[item.color])
        texts.append((LEGEND_LEFT + 11, center, "lm", item.word))
        texts.append((125, center, "rm", str(item.value)))
    return texts
