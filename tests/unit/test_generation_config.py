import pytest
import torch
from transformers import GenerationConfig

from mmsmart.config import SamplingParams
from mmsmart.errors import InputError
from mmsmart.targets.generation_config import eos_token_ids, resolve

SETTINGS = {
    "num_beams": 4,
    "num_beam_groups": 2,
    "penalty_alpha": 0.6,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 3,
    "encoder_repetition_penalty": 1.2,
    "bad_words_ids": [[5]],
    "force_words_ids": [[5]],
    "constraints": [object()],
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "suppress_tokens": [1],
    "begin_suppress_tokens": [1],
    "sequence_bias": {(5,): -10.0},
    "min_length": 5,
    "min_new_tokens": 5,
    "guidance_scale": 1.5,
    "exponential_decay_length_penalty": (5, 1.1),
    "remove_invalid_values": True,
    "watermarking_config": {"bias": 2.0},
    "dola_layers": "high",
    "max_time": 1.0,
    "token_healing": True,
}
SAMPLING_SETTINGS = {"min_p": 0.1, "top_h": 0.4, "typical_p": 0.9, "epsilon_cutoff": 3e-4, "eta_cutoff": 3e-4}


def config_with(**settings):
    config = GenerationConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_setting_that_would_change_the_tokens_is_refused_by_name_and_value(name, temperature):
    with pytest.raises(InputError, match=rf"\b{name}=") as caught:
        resolve(SamplingParams(temperature=temperature), config_with(**{name: SETTINGS[name]}))
    assert repr(SETTINGS[name]) in str(caught.value)


@pytest.mark.parametrize("name", SAMPLING_SETTINGS)
def test_a_setting_of_drawing_is_refused_when_drawing_only(name):
    config = config_with(**{name: SAMPLING_SETTINGS[name]})
    resolve(SamplingParams(), config)
    with pytest.raises(InputError, match=rf"\b{name}="):
        resolve(SamplingParams(temperature=0.5), config)


def test_the_way_out_that_the_message_names_works():
    for name, value in SETTINGS.items():
        config = config_with(**{name: value})
        with pytest.raises(InputError) as caught:
            resolve(SamplingParams(), config)
        neutral = str(caught.value).rpartition(" = ")[2]
        setattr(config, name, {"None": None, "[]": [], "{}": {}, "False": False}.get(neutral, neutral))
        if isinstance(getattr(config, name), str):
            setattr(config, name, float(neutral))
        resolve(SamplingParams(), config)


def test_a_plain_config_and_its_neutral_values_are_accepted():
    resolve(SamplingParams(temperature=1.0), GenerationConfig())
    neutral = config_with(
        num_beams=1, no_repeat_ngram_size=0, min_length=0, guidance_scale=1.0, suppress_tokens=[], bad_words_ids=None
    )
    resolve(SamplingParams(temperature=1.0), neutral)


def test_the_callers_sampling_holds_against_the_checkpoints():
    config = GenerationConfig(do_sample=True, temperature=0.2, top_p=0.1, top_k=3, max_new_tokens=5)
    assert resolve(SamplingParams(repetition_penalty=1.0), config) == SamplingParams(repetition_penalty=1.0)


@pytest.mark.parametrize(("own", "config", "result"), [(None, 1.05, 1.05), (1.0, 1.05, 1.0), (None, None, 1.0)])
def test_the_penalty_is_the_callers_or_else_the_checkpoints(own, config, result):
    resolved = resolve(SamplingParams(repetition_penalty=own), config_with(repetition_penalty=config))
    assert resolved.repetition_penalty == result


def test_stop_strings_of_both_hold_each_once():
    resolved = resolve(SamplingParams(stop=("a", "b")), config_with(stop_strings=["b", "c"]))
    assert resolved.stop == ("a", "b", "c")
    assert resolve(SamplingParams(), config_with(stop_strings="END")).stop == ("END",)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, {2}),
        ([2, 7], {2, 7}),
        ((2,), {2}),
        (torch.tensor(2), {2}),
        (torch.tensor([2, 7, 7]), {2, 7}),
        (0, {0}),
        (None, {9}),
        ([], set()),
    ],
)
def test_end_tokens_in_every_form(value, expected):
    assert eos_token_ids(config_with(eos_token_id=value), 9) == frozenset(expected)


def test_no_end_token_anywhere_is_none():
    assert eos_token_ids(GenerationConfig(), None) == frozenset()
    assert eos_token_ids(GenerationConfig(), 0) == {0}
