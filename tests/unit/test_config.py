import math

import pytest

from mmsmart.config import SamplingParams
from mmsmart.errors import InputError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 2.5),
        ("max_new_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 3.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("seed", -1),
        ("seed", 0.5),
        ("seed", 2**64),  # torch's generators take 64 bits
        ("stop", ("a", "")),
        ("stop", ""),
        ("stop", (3,)),
        ("stop", 7),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_value(name, value):
    with pytest.raises(InputError, match=name) as caught:
        SamplingParams(**{name: value})
    assert repr(value) in str(caught.value) or name == "stop"
    assert "\n" not in str(caught.value)


def test_the_ends_of_every_range_are_accepted():
    SamplingParams(max_new_tokens=1, temperature=0, top_p=1, top_k=0, repetition_penalty=1, seed=0)
    SamplingParams(top_p=1e-9, seed=2**64 - 1, repetition_penalty=0.5)


def test_one_stop_string_is_not_taken_apart_into_letters():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
