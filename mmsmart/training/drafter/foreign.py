"""Pictures and questions unlike our charts, all made up: what a drafter has to foresee is what its target says to them.

A small target talks nonsense about pictures that it was not trained on, and a drafter that has never read this nonsense
is seldom right. Photographs are imitated by coloured noise with the spectrum of natural pictures (amplitude falling as
one over frequency) under shapes; documents, by lines of words on paper. No data set has a part in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmsmart.eval.tasks.prompts import EXPLAIN, EXPLANATION, LETTER, SHORT_PHRASE, option_lines


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_THINGS = _words("""
man woman boy dog cat bird horse bus train car street sign window table chair plate bottle cup hat shirt tree
river mountain cloud beach wave ball bat kite umbrella clock tower bridge plane boat phone book picture word
letter number title label axis segment bar line area country city year month company product customer bank
branch colony map arrow stage cycle plant animal cell insect egg larva leaf root seed planet moon sun layer
rock food web circle square triangle figure center edge top bottom left right side half field region value
percentage share rate price sum
""")
_QUALITIES = _words("""
red green blue yellow brown white black large small tall short long wide old young open closed broken wooden
round straight parallel equal identical different longest shortest highest lowest first second last famous
main total average popular common dark light bright empty full
""")
_DEEDS = _words("""
holding wearing riding eating showing growing falling rising moving standing looking pointing reading playing
""")
_FRAMES: tuple[str, ...] = (
    "What is the {q} {t} {d}?",
    "What {t} is {d} the {t2}?",
    "What color is the {t}?",
    "How many {t}s are {d}?",
    "What is the name of the {t} shown?",
    "What is the {t} of the {q} {t2} in {n}?",
    "Which {t} has {n} {t2}s?",
    "Which {t} comes directly after the {t2}?",
    "Is the {t} {q}?",
    "Is the {q} {t} {d} the {t2}?",
    "Are the {q} {t}s of the two {t2}s {q2}?",
    "Does the {t} have a {q} {t2}?",
    "what does the {q} {t} say?",
    "what {t} is this?",
    "Where is the {q} {t}?",
    "Who is {d} the {t}?",
    "Why is the {t} {d}?",
    "In which {t} was the {q} {t2} {n}?",
    "What is the difference between the {q} {t} and the {q2} {t2}?",
    "The picture shows a {q} {t}. Is the {t2} {q2}?",
    "According to this picture, is the {t} {q} or {q2}?",
    "From the {t} above, what would happen if the {t2} was {q}?",
)


@dataclass(frozen=True)
class ForeignPicture:
    """A picture as a number; the same number always gives the same pixels."""

    seed: int

    def draw(self) -> Image.Image:
        """The RGB picture, 96 to 640 pixels a side."""
        rng = random.Random(f"foreign/{self.seed}")
        kind = rng.choices((_photograph, _document, _diagram), weights=(5, 2, 3))[0]
        return kind(rng, (rng.randint(96, 640), rng.randint(96, 640)))


def foreign_question(seed: int) -> str:
    """A question as in visual question answering, with or without options, mostly asking for a long answer."""
    rng = random.Random(f"foreign/question/{seed}")
    text = _sentence(rng)
    if rng.random() < 0.3:
        choices = tuple(rng.choice((_noun, _clause))(rng) for _ in range(rng.randint(2, 5)))
        text = f"{text}\n{option_lines(choices)}"
    if rng.random() < 0.1:
        text = f"Context: {' '.join(_clause(rng).capitalize() + '.' for _ in range(rng.randint(1, 3)))}\n{text}"
    forms = (text + EXPLAIN, EXPLANATION + text, text, text + SHORT_PHRASE, text + LETTER)
    return rng.choices(forms, weights=(7, 1, 1, 0.5, 0.5))[0]


def _noun(rng: random.Random) -> str:
    return rng.choice(
        (rng.choice(_THINGS), f"{rng.choice(_QUALITIES)} {rng.choice(_THINGS)}", str(rng.randint(1, 3000)))
    )


def _clause(rng: random.Random) -> str:
    return f"the {rng.choice(_QUALITIES)} {rng.choice(_THINGS)} is {rng.choice(_DEEDS)} {rng.choice(_THINGS)}s"


def _sentence(rng: random.Random) -> str:
    return rng.choice(_FRAMES).format(
        t=rng.choice(_THINGS),
        t2=rng.choice(_THINGS),
        q=rng.choice(_QUALITIES),
        q2=rng.choice(_QUALITIES),
        d=rng.choice(_DEEDS),
        n=rng.randint(1, 40000),
    )


def _color(rng: random.Random) -> tuple[int, int, int]:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def _photograph(rng: random.Random, size: tuple[int, int]) -> Image.Image:
    picture = _noise(rng, size)
    draw = ImageDraw.Draw(picture)
    for _ in range(rng.randint(0, 6)):
        _shape(rng, draw, size)
    return picture


def _noise(rng: random.Random, size: tuple[int, int]) -> Image.Image:
    """One over frequency in amplitude, the colours correlated, contrast and brightness drawn."""
    width, height = size
    numbers = np.random.default_rng(rng.getrandbits(32))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    falling = 1.0 / np.maximum(frequency, 1.0 / max(size)) ** rng.uniform(0.8, 1.6)
    planes = np.fft.irfft2(np.fft.rfft2(numbers.standard_normal((3, height, width))) * falling, s=(height, width))
    planes /= planes.std(axis=(1, 2), keepdims=True)
    own = rng.uniform(0.1, 0.7)
    colors = (1 - own) * planes[:1] + own * planes
    level = rng.uniform(60, 200) + np.array([rng.uniform(-40, 40) for _ in range(3)])[:, None, None]
    pixels = level + rng.uniform(20, 70) * colors
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0).copy())


def _document(rng: random.Random, size: tuple[int, int]) -> Image.Image:
    picture = Image.new("RGB", size, rng.choice(((255, 255, 255), _color(rng))))
    draw = ImageDraw.Draw(picture)
    height = rng.randint(9, 28)
    for top in range(4, size[1] - height, height + rng.randint(2, 20)):
        words = " ".join(rng.choice(_THINGS) for _ in range(rng.randint(1, 8)))
        draw.text((rng.randint(2, 40), top), words, fill=_color(rng), font=ImageFont.load_default(height))
    return picture


def _diagram(rng: random.Random, size: tuple[int, int]) -> Image.Image:
    picture = Image.new("RGB", size, rng.choice(((255, 255, 255), (255, 255, 255), _color(rng))))
    draw = ImageDraw.Draw(picture)
    for _ in range(rng.randint(3, 24)):
        _shape(rng, draw, size)
    for _ in range(rng.randint(0, 12)):
        place = rng.randrange(size[0]), rng.randrange(size[1])
        draw.text(place, rng.choice((rng.choice(_THINGS), str(rng.randint(0, 9999)))), fill=_color(rng))
    return picture


def _shape(rng: random.Random, draw: ImageDraw.ImageDraw, size: tuple[int, int]) -> None:
    left, right = sorted(rng.randrange(size[0]) for _ in range(2))
    top, bottom = sorted(rng.randrange(size[1]) for _ in range(2))
    box = (left, top, right, bottom)
    forms: tuple[Callable[[], None], ...] = (
        lambda: draw.rectangle(box, fill=_color(rng)),
        lambda: draw.ellipse(box, fill=_color(rng), outline=_color(rng)),
        lambda: draw.line(box, fill=_color(rng), width=rng.randint(1, 6)),
        lambda: draw.polygon([(rng.randrange(size[0]), rng.randrange(size[1])) for _ in range(4)], fill=_color(rng)),
        lambda: draw.pieslice(box, rng.randrange(360), rng.randrange(360), fill=_color(rng)),
    )
    rng.choice(forms)()
