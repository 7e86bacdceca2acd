"""A question and the parts of its answer, before they are put together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Draft:
    """What a kind of question returns.

    Attributes:
        question: The question.
        final: Last sentence of the answer, the one that is scored.
        working: Sentence before it, which writes out what the last one follows from.
        brief: Last sentence of the brief answer, which is written "entity attribute" and needs no listing; empty where
            there is none and "Be brief." changes nothing.
        listing: Whether the answer opens with a listing of everything.
    """

    question: str
    final: str
    working: str = ""
    brief: str = ""
    listing: bool = True
