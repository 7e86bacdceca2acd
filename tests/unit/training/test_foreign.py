"""Made-up pictures and questions that are unlike our charts."""

import numpy as np
import pytest

from mmsmart.errors import InputError
from mmsmart.eval.tasks.prompts import EXPLANATION
from mmsmart.training.drafter.foreign import ForeignPicture, foreign_question
from mmsmart.training.drafter.questions import load_mixture, load_questions


def test_a_number_always_gives_the_same_picture_and_question() -> None:
    for seed in range(12):
        picture, again = ForeignPicture(seed).draw(), ForeignPicture(seed).draw()
        assert picture.mode == "RGB"
        assert all(96 <= side <= 640 for side in picture.size)
        assert np.array_equal(np.asarray(picture), np.asarray(again))
        assert foreign_question(seed) == foreign_question(seed)
    assert len({foreign_question(seed) for seed in range(200)}) > 195


def test_most_questions_ask_for_an_explanation_and_some_have_options() -> None:
    asked = [foreign_question(seed) for seed in range(300)]
    assert 0.6 < sum(EXPLANATION in text for text in asked) / len(asked) < 0.95
    assert 0.15 < sum("\nA. " in text for text in asked) / len(asked) < 0.45


def test_held_out_pictures_and_other_seeds_are_other_ones() -> None:
    training, held_out = load_questions("mmsmart-foreign", 50, seed=0)
    other, _ = load_questions("mmsmart-foreign", 50, seed=1)
    assert len(training) == 50
    assert not {*training} & {*held_out}
    assert not {*training, *held_out} & {*other}
    more, same = load_questions("mmsmart-foreign", 90, seed=0)
    assert same == held_out
    assert more[:50] == training


def test_sources_are_mixed_in_the_numbers_asked_for() -> None:
    questions, held_out = load_mixture(["mmsmart-charts", "mmsmart-foreign"], [6, 3], seed=0)
    assert [isinstance(q.picture[0], ForeignPicture) for q in questions] == [False] * 6 + [True] * 3
    assert list(held_out) == ["mmsmart-charts", "mmsmart-foreign"]
    evenly, _ = load_mixture(["mmsmart-charts", "mmsmart-foreign"], [8], seed=0)
    assert sum(isinstance(q.picture[0], ForeignPicture) for q in evenly) == 4


@pytest.mark.parametrize(("sources", "counts"), [(["mmsmart-charts"] * 2, [5]), (["mmsmart-charts"], [1, 2])])
def test_a_mixture_that_makes_no_sense_is_refused(sources: list[str], counts: list[int]) -> None:
    with pytest.raises(InputError, match="every source once"):
        load_mixture(sources, counts, seed=0)
