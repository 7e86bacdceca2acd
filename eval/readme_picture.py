"""Draws the README's picture: the bundled pictures, a question about each, and what the embedded model answers.

python eval/readme_picture.py --out assets/readme/answers.png
"""

import argparse
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import mmsmart
from mmsmart.embedded import pictures
from mmsmart.training.showcase import EXHIBITS

SIDE, GAP, LINE, WIDTH = 300, 24, 22, 34
INK, SOFT, PAPER = "#1c1c28", "#5a5f73", "#ffffff"


def panel(path: Path, question: str, answer: str, height: int) -> Image.Image:
    """One picture with its question and answer below."""
    sheet = Image.new("RGB", (SIDE, height), PAPER)
    with Image.open(path) as picture:
        sheet.paste(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS), (0, 0))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(17)
    draw.rectangle((0, 0, SIDE - 1, SIDE - 1), outline="#d7d9e0")
    y = SIDE + 12
    for text, colour in ((question, SOFT), (answer, INK)):
        for line in textwrap.wrap(text, WIDTH):
            draw.text((2, y), line, fill=colour, font=font)
            y += LINE
        y += 6
    return sheet


def main() -> None:
    """Asks the embedded model and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("assets/readme/answers.png"))
    arguments = parser.parse_args()
    files = pictures()
    asked = [(files[exhibit.name], exhibit.questions[0]) for exhibit in EXHIBITS]
    shown = [(path, question, str(mmsmart.generate(path, question))) for path, question in asked]
    lines = max(len(textwrap.wrap(q, WIDTH)) + len(textwrap.wrap(a, WIDTH)) for _, q, a in shown)
    height = SIDE + 24 + lines * LINE + 6
    sheet = Image.new("RGB", (GAP + len(shown) * (SIDE + GAP), height + GAP), PAPER)
    for index, (path, question, answer) in enumerate(shown):
        sheet.paste(panel(path, question, answer, height), (GAP + index * (SIDE + GAP), GAP))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(arguments.out, optimize=True)


if __name__ == "__main__":
    main()
