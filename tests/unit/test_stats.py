import json
from dataclasses import fields

import pytest

from mmsmart.stats import GenerationStats, RoundStats, pooled


def test_a_request_books_its_own_row_and_the_whole_time_of_the_round():
    stats = GenerationStats(vision_ms=1, prefill_ms=10)
    stats.add_round(RoundStats(2.0, 3.0, 0.5, drafted=(4, 7), accepted=(0, 5)), row=1)
    stats.add_round(RoundStats(2.0, 3.0, 0.5, drafted=(6,), accepted=(1,)), row=0)
    assert (stats.rounds, stats.drafted, stats.accepted) == (2, 13, 6)
    assert stats.decode_ms == 11
    assert stats.total_ms == 22
    assert stats.mean_acceptance_length == 4
    assert stats.acceptance_rate == pytest.approx(6 / 13)


def test_rates_are_per_second_and_the_first_token_belongs_to_the_prefill():
    stats = GenerationStats(new_tokens=11, prefill_ms=500, verify_ms=1500)
    assert stats.tokens_per_s == pytest.approx(5.5)
    assert stats.decode_tokens_per_s == pytest.approx(10 / 1.5)


def test_an_answer_of_nothing_has_rates_of_zero():
    stats = GenerationStats()
    assert (stats.tokens_per_s, stats.decode_tokens_per_s, stats.acceptance_rate) == (0, 0, 0)
    assert stats.mean_acceptance_length == 1


def test_pooled_rates_weigh_by_time_and_every_field_is_summed():
    names = [f.name for f in fields(GenerationStats)]
    quick = GenerationStats(**{name: i for i, name in enumerate(names, 1)})
    slow = GenerationStats(**{name: 100 * i for i, name in enumerate(names, 1)})
    both = pooled(iter([quick, slow]))
    assert [getattr(both, name) for name in names] == [101 * i for i in range(1, len(names) + 1)]
    tokens, milliseconds = quick.new_tokens + slow.new_tokens, quick.total_ms + slow.total_ms
    assert both.tokens_per_s == pytest.approx(1e3 * tokens / milliseconds)
    assert quick.new_tokens == 2  # the parts are left alone


def test_the_dictionary_is_json_with_counts_and_rates():
    values = json.loads(json.dumps(GenerationStats(rounds=2, accepted=3).as_dict()))
    assert values["mean_acceptance_length"] == 2.5
    assert {f.name for f in fields(GenerationStats)} < set(values)
