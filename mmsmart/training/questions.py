"""Questions about synthetic pictures with their right answers: the table of kinds, samples, the rule that scores."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmsmart.training import chart_kinds, scene_kinds
from mmsmart.training.draft import Draft
from mmsmart.training.facts import Facts, PictureKind, Split, sample_facts

KindFunction = Callable[[Facts, random.Random], Draft | None]

CHART_KINDS: dict[str, KindFunction] = {
    "value": chart_kinds.value,
    "owner": chart_kinds.owner,
    "color": chart_kinds.color,
    "by_color": chart_kinds.by_color,
    "difference": chart_kinds.difference,
    "sum": chart_kinds.addition,
    "comparison": chart_kinds.comparison,
    "larger": chart_kinds.larger,
    "largest": chart_kinds.largest,
    "smallest": chart_kinds.smallest,
    "gap": chart_kinds.gap,
    "count": chart_kinds.count,
    "total": chart_kinds.total,
    "title": chart_kinds.title,
    "chart_type": chart_kinds.chart_type,
    "trend": chart_kinds.trend,
    "above": chart_kinds.above,
    "sort": chart_kinds.sort,
    "report": chart_kinds.report,
}
SCENE_KINDS: dict[str, KindFunction] = {
    "shape_color": scene_kinds.shape_color,
    "color_shape": scene_kinds.color_shape,
    "shape_size": scene_kinds.shape_size,
    "shape_place": scene_kinds.shape_place,
    "place_shape": scene_kinds.place_shape,
    "shape_count": scene_kinds.shape_count,
    "count_color": scene_kinds.count_color,
    "count_form": scene_kinds.count_form,
    "exist": scene_kinds.exist,
    "side": scene_kinds.side,
    "describe": scene_kinds.describe,
}
KINDS: dict[str, KindFunction] = {**CHART_KINDS, **SCENE_KINDS}

CLAIMED_KINDS: tuple[str, ...] = (
    *("value", "owner", "color", "by_color", "difference", "sum", "comparison", "larger", "largest", "smallest"),
    *("gap", "count", "total", "title", "chart_type", "trend", "above", "report"),
    *("shape_color", "color_shape", "shape_size", "shape_place", "place_shape", "shape_count"),
    *("count_color", "count_form", "exist", "side", "describe"),
)
"""The kinds that the model card claims; the others are reported there too."""

EMPHASIS = {
    "value": 2,
    "difference": 2,
    "comparison": 3,
    "larger": 4,
    "smallest": 2,
    "total": 3,
    "trend": 3,
    "shape_size": 2,
    "shape_place": 4,
    "place_shape": 4,
    "side": 2,
}
"""How many times as often as other kinds a kind is trained: what people ask first, and what is learned slowly."""

BRIEF = "Be brief."
SLOPPY_SHARE = 0.15


@dataclass(frozen=True)
class Sample:
    """One question about one picture.

    Attributes:
        facts: What the picture shows.
        kind: Name of the kind of question.
        question: The question as asked.
        answer: The whole right answer.
        final_answer: Its last sentence.
    """

    facts: Facts
    kind: str
    question: str
    answer: str
    final_answer: str


def kinds_for(facts: Facts) -> Mapping[str, KindFunction]:
    """Table of the kinds that can be asked about a picture of this sort."""
    return CHART_KINDS if facts.is_chart else SCENE_KINDS


def listing(facts: Facts) -> str:
    """The sentence that names everything the picture shows, in reading order."""
    if facts.is_chart:
        return f"The chart shows {', '.join(f'{item.word} {item.value}' for item in facts.items)}."
    return f"The picture shows {', '.join(f'{item.size} {item.color} {item.shape}' for item in facts.items)}."


def make_sample(facts: Facts, kind: str, rng: random.Random, brief_share: float = 0.4) -> Sample | None:
    """Asks one question of a kind.

    Args:
        facts: What the picture shows.
        kind: Name of the kind.
        rng: Seeded generator of names and wordings.
        brief_share: Probability of asking for a brief answer.

    Returns:
        The sample, or None where these facts admit no question of that kind.
    """
    draft = KINDS[kind](facts, rng)
    if draft is None:
        return None
    brief = rng.random() < brief_share
    shortened = brief and bool(draft.brief)
    final = draft.brief if shortened else draft.final
    parts = [listing(facts)] if draft.listing and not shortened else []
    if draft.working:
        parts.append(draft.working)
    question = draft.question
    if question.endswith("?") and rng.random() < SLOPPY_SHARE:
        question = f"{question[:-1]} in {rng.choice(('the', 'this'))} {rng.choice(('picture', 'image'))}?"
    if rng.random() < SLOPPY_SHARE:
        question = question.lower().rstrip("?.")
    if rng.random() < SLOPPY_SHARE:
        question = question.replace("color", "colour")
    question = f"{question} {BRIEF}" if brief else question
    return Sample(facts, kind, question, " ".join([*parts, final]), final)


def questions_about(
    facts: Facts, count: int, rng: random.Random, *, lookup_only: bool = False, brief_share: float = 0.4
) -> list[Sample]:
    """Asks several different questions about one picture.

    Args:
        facts: What the picture shows.
        count: How many.
        rng: Seeded generator.
        lookup_only: Whether to ask only for brief lookups (the drill).
        brief_share: Probability of asking for a brief answer, where not ``lookup_only``.
    """
    names = [name for name in kinds_for(facts) for _ in range(EMPHASIS.get(name, 1))]
    samples: list[Sample] = []
    while len(samples) < count:
        name = rng.choice(names)
        if lookup_only and name not in LOOKUP_KINDS:
            continue
        sample = make_sample(facts, name, rng, 1.0 if lookup_only else brief_share)
        if sample is not None:
            samples.append(sample)
    return samples


def heldout_samples(
    count: int, seed: int = 0, kinds: Sequence[str] | None = None, brief_share: float = 0.25
) -> list[Sample]:
    """Questions about held-out pictures, the kinds in turn.

    Args:
        count: How many.
        seed: Seed of the generator; no seed gives a picture that is used in training.
        kinds: Names of the kinds to ask, all by default.
        brief_share: Probability of asking for a brief answer.
    """
    return list(itertools.islice(_samples("heldout", seed, kinds, brief_share), count))


def training_samples(count: int, seed: int = 0, kinds: Sequence[str] | None = None) -> list[Sample]:
    """Questions about training pictures, the kinds in turn: what a drafter is trained on."""
    return list(itertools.islice(_samples("train", seed, kinds, 0.25), count))


def final_sentence(text: str) -> str:
    """Last sentence of an answer."""
    return text.strip().rstrip(".").rsplit(". ", 1)[-1].strip() + "."


def final_answer_correct(prediction: str, sample: Sample) -> bool:
    """Whether the last sentence of a predicted answer is the right one, to the letter."""
    return final_sentence(prediction) == sample.final_answer


def _samples(split: Split, seed: int, kinds: Sequence[str] | None, brief_share: float) -> Iterator[Sample]:
    rng = random.Random(f"{split}/samples/{seed}")
    for kind in itertools.cycle(kinds or tuple(KINDS)):
        sample = None
        while sample is None:
            picture: PictureKind | None = "scene" if kind in SCENE_KINDS else "line" if kind == "trend" else None
            facts = sample_facts(rng, split, picture, scene_share=0.0)
            sample = make_sample(facts, kind, rng, brief_share)
        yield sample


LOOKUP_KINDS: tuple[str, ...] = (
    "value",
    "owner",
    "color",
    "by_color",
    "difference",
    "sum",
    "comparison",
    "larger",
    "title",
    "chart_type",
    "shape_color",
    "color_shape",
    "shape_size",
)
"""The kinds whose brief answer needs no listing: the questions of the drill."""
