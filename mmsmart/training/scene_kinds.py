"""The kinds of question about scenes of shapes; the counterpart of ``chart_kinds``."""

import random

from mmsmart.training.draft import Draft
from mmsmart.training.facts import COLORS, SHAPES, Facts, Item

ROWS = ("top", "center", "bottom")
COLUMNS = ("left", "middle", "right")


def _name(item: Item) -> str:
    return f"{item.color} {item.shape}"


def _a(name: str) -> str:
    return f"{'an' if name[0] == 'o' else 'a'} {name}"


def _place(item: Item) -> str:
    row, column = divmod(item.cell, 3)
    return f"{ROWS[row]} {COLUMNS[column]}"


def _unique(facts: Facts, rng: random.Random, attribute: str) -> Item | None:
    """An item whose colour or shape no other item has."""
    seen = [getattr(item, attribute) for item in facts.items]
    items = [item for item in facts.items if seen.count(getattr(item, attribute)) == 1]
    return rng.choice(items) if items else None


def shape_color(facts: Facts, rng: random.Random) -> Draft | None:
    """What colour is the shape of a given form?"""
    item = _unique(facts, rng, "shape")
    if item is None:
        return None
    asked = rng.choice((f"What color is the {item.shape}?", f"What is the color of the {item.shape}?"))
    return Draft(asked, f"The {item.shape} is {item.color}.", brief=f"{item.shape} {item.color}.")


def color_shape(facts: Facts, rng: random.Random) -> Draft | None:
    """What form has the shape of a given colour?"""
    item = _unique(facts, rng, "color")
    if item is None:
        return None
    asked = rng.choice(
        (f"What shape is {item.color}?", f"Which shape is {item.color}?", f"What is the {item.color} shape?")
    )
    return Draft(asked, f"The {item.color} shape is a {item.shape}.", brief=f"{_name(item)}.")


def shape_size(facts: Facts, rng: random.Random) -> Draft | None:
    """Is a shape big or small?"""
    item = rng.choice(facts.items)
    asked = rng.choice((f"Is the {_name(item)} big or small?", f"What size is the {_name(item)}?"))
    return Draft(asked, f"The {_name(item)} is {item.size}.", brief=f"{_name(item)} {item.size}.")


def _placed(facts: Facts) -> str:
    """Every shape with its place."""
    return f"It shows {', '.join(f'{_name(item)} {_place(item)}' for item in facts.items)}."


def shape_place(facts: Facts, rng: random.Random) -> Draft | None:
    """Where is a shape?"""
    item = rng.choice(facts.items)
    final = f"The place is {_name(item)} {_place(item)}."
    return Draft(f"Where is the {_name(item)}?", final, _placed(facts), listing=False)


def place_shape(facts: Facts, rng: random.Random) -> Draft | None:
    """Which shape is at a given place?"""
    item = rng.choice(facts.items)
    asked = rng.choice((f"What is at the {_place(item)}?", f"Which shape is at the {_place(item)}?"))
    working = f"It shows {', '.join(f'{_place(each)} {_name(each)}' for each in facts.items)}."
    return Draft(asked, f"The shape is {_place(item)} {_name(item)}.", working, listing=False)


def shape_count(facts: Facts, rng: random.Random) -> Draft | None:
    """How many shapes are there?"""
    asked = rng.choice(
        (
            "How many shapes are there?",
            "How many shapes do you see?",
            "How many objects are there?",
            "Count the shapes.",
        )
    )
    return Draft(asked, f"There are {len(facts.items)} shapes.")


def _tested(facts: Facts, attribute: str, wanted: str) -> tuple[str, int]:
    """Every shape with yes or no and the count so far."""
    hits = 0
    tests = []
    for item in facts.items:
        hit = getattr(item, attribute) == wanted
        hits += hit
        tests.append(f"{item.size} {_name(item)} {'yes' if hit else 'no'} {hits}")
    return f"Test {', '.join(tests)}.", hits


def count_color(facts: Facts, rng: random.Random) -> Draft | None:
    """How many shapes have a given colour?"""
    present = [item.color for item in facts.items]
    wanted = rng.choice(present) if rng.random() < 0.8 else rng.choice(list(COLORS))
    working, hits = _tested(facts, "color", wanted)
    return Draft(
        f"How many {wanted} shapes are there?", f"The number of {wanted} shapes is {hits}.", working, listing=False
    )


def count_form(facts: Facts, rng: random.Random) -> Draft | None:
    """How many shapes have a given form?"""
    present = [item.shape for item in facts.items]
    wanted = rng.choice(present) if rng.random() < 0.8 else rng.choice(SHAPES)
    working, hits = _tested(facts, "shape", wanted)
    return Draft(f"How many {wanted}s are there?", f"The number of {wanted}s is {hits}.", working, listing=False)


def exist(facts: Facts, rng: random.Random) -> Draft | None:
    """Is there a shape of a given colour and form?"""
    looks = {_name(item) for item in facts.items}
    if rng.random() < 0.5:
        asked = rng.choice(sorted(looks))
    else:
        colors = [item.color for item in facts.items] if rng.random() < 0.5 else list(COLORS)
        asked = f"{rng.choice(colors)} {rng.choice(SHAPES)}"
    tests = ", ".join(f"{_name(item)} {'yes' if _name(item) == asked else 'no'}" for item in facts.items)
    final = f"Yes, there is {_a(asked)}." if asked in looks else f"No, there is no {asked}."
    question = rng.choice((f"Is there {_a(asked)}?", f"Do you see {_a(asked)}?"))
    return Draft(question, final, f"Test {tests}.", listing=False)


def side(facts: Facts, rng: random.Random) -> Draft | None:
    """Is one shape left or right of another?"""
    first, second = rng.sample(facts.items, 2)
    columns = first.cell % 3, second.cell % 3
    if columns[0] == columns[1]:
        return None
    word, yes = rng.choice((("left", columns[0] < columns[1]), ("right", columns[0] > columns[1])))
    names = f"{_name(first)} {'is' if yes else 'is not'} {word} of the {_name(second)}"
    taken = f"Take {_name(first)} {_place(first)} and {_name(second)} {_place(second)}."
    working = f"{_placed(facts)} {taken}"
    question = f"Is the {_name(first)} {word} of the {_name(second)}?"
    return Draft(question, f"{'Yes' if yes else 'No'}, the {names}.", working, listing=False)


def describe(facts: Facts, rng: random.Random) -> Draft | None:
    """What does the scene show, altogether?"""
    asked = rng.choice(
        (
            "Describe the picture.",
            "Describe this image.",
            "What do you see?",
            "What is in the picture?",
            "What is shown?",
            "List all shapes.",
        )
    )
    listing = ", ".join(f"{item.size} {_name(item)}" for item in facts.items)
    return Draft(asked, f"It shows {listing}.", f"This is a picture with {len(facts.items)} shapes.", listing=False)
