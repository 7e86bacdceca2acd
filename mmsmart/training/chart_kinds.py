"""The kinds of question about charts: each a function from facts to a drafted question and answer.

A fact is always written ``entity value``, as in the listing, and yes/no comes after the facts. The wording of an
answer is a function of the wording of its question.
"""

import random
from collections.abc import Sequence

from mmsmart.training.draft import Draft
from mmsmart.training.facts import MONTHS, Facts, Item

NOUNS = {"column": "bar", "bar": "bar", "line": "point", "pie": "slice"}
CHART_NAMES = {"column": "bar chart", "bar": "bar chart", "line": "line chart", "pie": "pie chart"}
TALLEST = {"column": ("tallest", "shortest"), "bar": ("longest", "shortest"), "line": ("highest", "lowest")}


def _fact(item: Item) -> str:
    return f"{item.word} {item.value}"


def _two(facts: Facts, rng: random.Random) -> tuple[Item, Item]:
    first, second = rng.sample(facts.items, 2)
    return first, second


def value(facts: Facts, rng: random.Random) -> Draft | None:
    """What is the value of one item?"""
    item = rng.choice(facts.items)
    asked = rng.choice(
        (
            f"What is the value of {item.word}?",
            f"How much is {item.word}?",
            f"What value does {item.word} have?",
            f"How large is {item.word}?",
            f"How many is {item.word}?",
            f"Tell me the value of {item.word}.",
            f"What value is shown for {item.word}?",
        )
    )
    return Draft(asked, f"The value of {item.word} is {item.value}.", brief=f"{_fact(item)}.")


def owner(facts: Facts, rng: random.Random) -> Draft | None:
    """Which item has a given value?"""
    item = rng.choice(facts.items)
    noun = NOUNS[facts.kind]
    asked = rng.choice((f"Which {noun} has the value {item.value}?", f"Which item has the value {item.value}?"))
    return Draft(asked, f"The one with {item.value} is {item.word}.", brief=f"{item.value} {item.word}.")


def color(facts: Facts, rng: random.Random) -> Draft | None:
    """What colour is one item?"""
    if facts.kind == "line":
        shown = facts.items[0].color
        return Draft("What color is the line?", f"The line is {shown}.", brief=f"line {shown}.")
    item = rng.choice(facts.items)
    noun = NOUNS[facts.kind]
    asked = rng.choice(
        (
            f"What color is {item.word}?",
            f"What color is the {item.word} {noun}?",
            f"What is the color of {item.word}?",
            f"Which color does {item.word} have?",
        )
    )
    return Draft(asked, f"The color of {item.word} is {item.color}.", brief=f"{item.word} {item.color}.")


def by_color(facts: Facts, rng: random.Random) -> Draft | None:
    """Which item has a given colour?"""
    if facts.kind == "line":
        return None
    item = rng.choice(facts.items)
    noun = NOUNS[facts.kind]
    asked = rng.choice(
        (f"What is {item.color}?", f"Which {noun} is {item.color}?", f"What is the {item.color} {noun}?")
    )
    if rng.random() < 0.25:
        asked = f"What is the value of the {item.color} {noun}?"
    brief = f"{item.color} {_fact(item)}."
    return Draft(asked, f"The {item.color} {noun} is {_fact(item)}.", brief=brief)


def difference(facts: Facts, rng: random.Random) -> Draft | None:
    """How far are two items apart?"""
    first, second = _two(facts, rng)
    asked = rng.choice(
        (
            f"What is the difference between {first.word} and {second.word}?",
            f"How far apart are {first.word} and {second.word}?",
        )
    )
    high, low = sorted((first.value, second.value), reverse=True)
    final = f"The difference is {high} - {low} = {high - low}."
    return Draft(asked, final, f"Take {_fact(first)} and {_fact(second)}.", brief=final)


def addition(facts: Facts, rng: random.Random) -> Draft | None:
    """What do two items make together?"""
    first, second = _two(facts, rng)
    asked = rng.choice(
        (
            f"What is the sum of {first.word} and {second.word}?",
            f"How much are {first.word} and {second.word} together?",
            f"What is {first.word} plus {second.word}?",
        )
    )
    final = f"The sum is {first.value} + {second.value} = {first.value + second.value}."
    return Draft(asked, final, f"Take {_fact(first)} and {_fact(second)}.", brief=final)


def comparison(facts: Facts, rng: random.Random) -> Draft | None:
    """Which of two items is larger or smaller?"""
    first, second = _two(facts, rng)
    word = rng.choice(("larger", "larger", "smaller"))
    asked = rng.choice(("Which is {}, {} or {}?", "What is {}, {} or {}?")).format(word, first.word, second.word)
    picked = min(first, second, key=lambda item: item.value if word == "smaller" else -item.value)
    taken = f"Take {_fact(first)} and {_fact(second)}."
    return Draft(asked, f"The {word} one is {_fact(picked)}.", taken, listing=False)


def larger(facts: Facts, rng: random.Random) -> Draft | None:
    """Is one item larger or smaller than another, yes or no?"""
    first, second = _two(facts, rng)
    word = rng.choice(("larger", "larger", "smaller"))
    low, high = (second, first) if word == "larger" else (first, second)
    yes = high.value > low.value
    tested = f"Take {_fact(low)}. Above {low.value}: {_fact(high)} {'yes' if yes else 'no'}."
    start, verb = ("Yes", "is") if yes else ("No", "is not")
    final = f"{start}, {first.word} {verb} {word} than {second.word}."
    return Draft(f"Is {first.word} {word} than {second.word}?", final, tested, listing=False)


def _extreme(facts: Facts, rng: random.Random, words: Sequence[str], pick: Item) -> Draft:
    noun = NOUNS[facts.kind]
    word = rng.choice(words)
    owners = ("month", "item") if pick.word in MONTHS else ("item", noun)
    asked, final = rng.choice(
        (
            (f"Which {noun} is the {word}?", f"The {word} {noun} is {_fact(pick)}."),
            (f"Which item is the {word}?", f"The {word} item is {_fact(pick)}."),
            (f"What is the {word} value?", f"The {word} value is {_fact(pick)}."),
            (f"What is the {word} {noun}?", f"The {word} {noun} is {_fact(pick)}."),
            (f"Which {rng.choice(owners)} has the {word} value?", f"The {word} value is {_fact(pick)}."),
        )
    )
    return Draft(asked, final)


def largest(facts: Facts, rng: random.Random) -> Draft | None:
    """Which item is the largest?"""
    words = ["largest", "largest", "biggest", "highest", "maximum", *TALLEST.get(facts.kind, ())[:1] * 2]
    return _extreme(facts, rng, words, max(facts.items, key=lambda item: item.value))


def smallest(facts: Facts, rng: random.Random) -> Draft | None:
    """Which item is the smallest?"""
    words = ["smallest", "smallest", "lowest", "minimum", *TALLEST.get(facts.kind, ())[1:] * 2]
    return _extreme(facts, rng, words, min(facts.items, key=lambda item: item.value))


def gap(facts: Facts, rng: random.Random) -> Draft | None:
    """How far are the largest and the smallest item apart?"""
    top = max(facts.items, key=lambda item: item.value)
    bottom = min(facts.items, key=lambda item: item.value)
    asked = rng.choice(
        (
            "What is the gap between the largest and the smallest value?",
            "What is the difference between the largest and the smallest value?",
            "How wide is the gap?",
        )
    )
    working = f"The largest is {_fact(top)} and the smallest is {_fact(bottom)}."
    return Draft(asked, f"The gap is {top.value} - {bottom.value} = {top.value - bottom.value}.", working)


def count(facts: Facts, rng: random.Random) -> Draft | None:
    """How many items are there?"""
    noun = NOUNS[facts.kind]
    plural = rng.choice((f"{noun}s", "items"))
    asked = rng.choice(("How many {} are there?", "How many {} does the chart have?", "Count the {}.")).format(plural)
    return Draft(asked, f"There are {len(facts.items)} {plural}.")


def total(facts: Facts, rng: random.Random) -> Draft | None:
    """What do all items make together?"""
    steps = []
    running = facts.items[0].value
    for item in facts.items[1:]:
        steps.append(f"{running} + {item.value} = {running + item.value}")
        running += item.value
    asked = rng.choice(
        ("What is the total?", "What is the sum of all values?", "How much is it in total?", "What is the total value?")
    )
    return Draft(asked, f"The total is {running}.", f"Add {', '.join(steps)}.")


def title(facts: Facts, rng: random.Random) -> Draft | None:
    """What is the chart about?"""
    asked = rng.choice(("What is the title?", "What is the chart about?", "What is the title of the chart?"))
    return Draft(asked, f"The title is {facts.topic}.", brief=f"{facts.topic}.")


def chart_type(facts: Facts, rng: random.Random) -> Draft | None:
    """What kind of chart is it?"""
    asked = rng.choice(("What kind of chart is this?", "What type of chart is this?", "What is this?"))
    name = CHART_NAMES[facts.kind]
    return Draft(asked, f"This is a {name}.", brief=f"{name}.")


def trend(facts: Facts, rng: random.Random) -> Draft | None:
    """Does a line end higher than it starts?"""
    if facts.kind != "line":
        return None
    first, last = facts.items[0], facts.items[-1]
    asked = rng.choice(("Does the line go up or down?", "What is the trend?", "Does the line rise or fall?"))
    direction = "up" if last.value > first.value else "down"
    ends = f"It starts with {_fact(first)} and ends with {_fact(last)}."
    larger = f"The larger one is {_fact(max(first, last, key=lambda item: item.value))}."
    return Draft(asked, f"The line goes {direction}.", f"{ends} {larger}", listing=False)


def above(facts: Facts, rng: random.Random) -> Draft | None:
    """Which items are above a threshold, tested one by one?"""
    threshold = rng.randrange(20, 90, 10)
    tests = [(item, item.value > threshold) for item in facts.items]
    asked = rng.choice((f"Which items are above {threshold}?", f"Which values are above {threshold}?"))
    tested = ", ".join(f"{_fact(item)} {'yes' if passed else 'no'}" for item, passed in tests)
    return Draft(asked, f"Above {threshold}: {tested}.", listing=False)


def sort(facts: Facts, rng: random.Random) -> Draft | None:
    """What is the order from the largest to the smallest?"""
    ordered = sorted(facts.items, key=lambda item: -item.value)
    asked = rng.choice(("Sort the items from largest to smallest.", "Rank the items."))
    return Draft(asked, f"The order is {', '.join(_fact(item) for item in ordered)}.")


def report(facts: Facts, rng: random.Random) -> Draft | None:
    """What does the chart show, altogether?"""
    asked = rng.choice(
        (
            "Describe the chart.",
            "Describe the picture.",
            "Describe this image.",
            "What does the chart show?",
            "What is shown?",
            "Report all values.",
            "List all values.",
        )
    )
    working = f"This is a {CHART_NAMES[facts.kind]} about {facts.topic}."
    return Draft(asked, f"It shows {', '.join(map(_fact, facts.items))}.", working, listing=False)
