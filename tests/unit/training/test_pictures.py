"""Pictures and their facts: the same seed gives the same, the split holds, patches know what they show."""

import random

import numpy as np
import pytest

from mmsmart.training.facts import COLORS, PICTURE_KINDS, Facts, Item, PictureKind, sample_facts
from mmsmart.training.labels import ATTRIBUTES, patch_labels
from mmsmart.training.pictures import TITLE, draw_picture, draw_varied, patch_owners


@pytest.mark.parametrize("kind", PICTURE_KINDS)
def test_same_seed_same_picture(kind: PictureKind) -> None:
    first, second = (sample_facts(random.Random(7), "train", kind) for _ in range(2))
    assert first == second
    assert draw_picture(first).tobytes() == draw_picture(second).tobytes()
    assert draw_varied(first, random.Random(1)).tobytes() == draw_varied(first, random.Random(1)).tobytes()


@pytest.mark.parametrize("size", [64, 128, 224])
def test_size_is_a_parameter(size: int) -> None:
    picture = draw_picture(sample_facts(random.Random(3), "train"), size)
    assert picture.size == (size, size)
    assert picture.mode == "RGB"


def test_split_is_a_function_of_content() -> None:
    rng = random.Random(0)
    for _ in range(200):
        assert sample_facts(rng, "train").split() == "train"
    for _ in range(20):
        assert sample_facts(rng, "heldout").split() == "heldout"


def test_split_ignores_paper_and_jitter() -> None:
    item = Item(1, "red", shape="star", size="big", cell=4)
    moved = Item(1, "red", shape="star", size="big", cell=4, jitter=(0.5, 0.5))
    assert Facts("scene", (item,)).split() == Facts("scene", (moved,), paper="#eef3f8").split()


@pytest.mark.parametrize("kind", PICTURE_KINDS)
def test_every_item_owns_a_patch(kind: PictureKind) -> None:
    rng = random.Random(5)
    for _ in range(50):
        facts = sample_facts(rng, "train", kind)
        owners = patch_owners(facts)
        assert {item.index for item in facts.items} <= set(owners.reshape(-1).tolist())
        assert (TITLE in owners) == facts.is_chart


def test_patches_show_their_items_color() -> None:
    rng = random.Random(9)
    for kind in ("column", "scene"):
        facts = sample_facts(rng, "train", kind)
        pixels = np.asarray(draw_picture(facts))
        owners = np.kron(patch_owners(facts), np.ones((16, 16), dtype=int))
        colors = [item.color for item in facts.items]
        for item in facts.items:
            if colors.count(item.color) > 1:
                continue
            painted = (pixels == COLORS[item.color]).all(-1)
            seen = np.bincount(np.maximum(owners[painted], 0))
            assert seen.argmax() == item.index


def test_pie_adds_up_to_a_hundred() -> None:
    rng = random.Random(2)
    for _ in range(30):
        assert sum(item.value for item in sample_facts(rng, "train", "pie").items) == 100


def test_labels_name_what_is_shown() -> None:
    facts = sample_facts(random.Random(4), "train", "column")
    labels = patch_labels([facts])
    assert labels.shape == (1, 64, len(ATTRIBUTES))
    words = {ATTRIBUTES[0].classes[i - 1] for i in labels[0, :, 0].tolist() if i > 0}
    assert words == {item.word for item in facts.items}
