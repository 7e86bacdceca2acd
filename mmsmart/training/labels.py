"""What every patch of a picture shows, as class numbers: the vision tower's labels, the oracle tokens' recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmsmart.training.facts import (
    COLORS,
    MAX_ITEMS,
    MONTHS,
    PICTURE_KINDS,
    SHAPES,
    SIZES,
    TOPICS,
    VALUES,
    WORDS,
    Facts,
    Item,
)
from mmsmart.training.pictures import TITLE, patch_owners


@dataclass(frozen=True)
class Attribute:
    """One thing that a patch can show.

    Attributes:
        name: What it is called in logs.
        classes: Its possible values; class 0 is "none", class k is ``classes[k - 1]``.
        is_token: Whether the values are words of the language, whose embeddings make up the oracle token.
    """

    name: str
    classes: tuple[str, ...]
    is_token: bool


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("word", (*WORDS, *MONTHS), True),
    Attribute("value", tuple(map(str, VALUES)), True),
    Attribute("color", tuple(COLORS), True),
    Attribute("shape", SHAPES, True),
    Attribute("size", SIZES, True),
    Attribute("topic", TOPICS, True),
    Attribute("index", tuple(str(i + 1) for i in range(MAX_ITEMS)), False),
    Attribute("cell", tuple(str(i) for i in range(9)), False),
    Attribute("kind", PICTURE_KINDS, False),
)
_CLASS_NUMBERS = tuple({name: i + 1 for i, name in enumerate(attribute.classes)} for attribute in ATTRIBUTES)


def patch_labels(pictures: Sequence[Facts], grid: tuple[int, int] = (8, 8), hidden: Sequence[str] = ()) -> Tensor:
    """Labels every patch.

    Args:
        pictures: Facts of B pictures.
        grid: Rows and columns of patches.
        hidden: Names of attributes that are left out.

    Returns:
        int64 [B, rows * columns, attributes]; 0 where a patch shows nothing of an attribute.
    """
    rows = np.stack([_table(facts)[patch_owners(facts, grid).reshape(-1)] for facts in pictures])
    rows[..., [i for i, attribute in enumerate(ATTRIBUTES) if attribute.name in hidden]] = 0
    return torch.from_numpy(rows)


def _table(facts: Facts) -> np.ndarray:
    """Labels by owner: 0 nobody, k the k-th item, -1 (the last row) the title."""
    table = np.zeros((MAX_ITEMS + 2, len(ATTRIBUTES)), dtype=np.int64)
    for item in facts.items:
        table[item.index] = _numbers(_shown(item))
    table[TITLE] = _numbers(("", "", "", "", "", facts.topic, "", "", ""))
    table[:, -1] = 1 + PICTURE_KINDS.index(facts.kind)
    return table


def _shown(item: Item) -> tuple[str, ...]:
    value = str(item.value) if item.value else ""
    cell = str(item.cell) if item.cell >= 0 else ""
    return (item.word, value, item.color, item.shape, item.size, "", str(item.index), cell, "")


def _numbers(shown: Sequence[str]) -> list[int]:
    return [numbers.get(name, 0) for numbers, name in zip(_CLASS_NUMBERS, shown, strict=True)]
