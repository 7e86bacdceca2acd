"""What a checkpoint's ``generation_config`` says, honoured or refused by name, never ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mmsmart.config import SamplingParams
from mmsmart.errors import InputError

# Settings that would change the tokens and that mmsmart does not implement, with the values at which they do nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0, 0.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1, 1.0),
    "bad_words_ids": (None, []),
    "force_words_ids": (None, []),
    "constraints": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, {}),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "guidance_scale": (None, 1, 1.0),
    "exponential_decay_length_penalty": (None,),
    "remove_invalid_values": (None, False),
    "watermarking_config": (None,),
    "dola_layers": (None,),
    "max_time": (None,),
    "token_healing": (None, False),
}
# Likewise, but only for drawing tokens; greedy decoding does not look at them.
_UNSUPPORTED_SAMPLING: dict[str, tuple[Any, ...]] = {
    "min_p": (None, 0, 0.0),
    "top_h": (None,),
    "typical_p": (None, 1, 1.0),
    "epsilon_cutoff": (None, 0, 0.0),
    "eta_cutoff": (None, 0, 0.0),
}


def resolve(sampling: SamplingParams, generation_config: Any) -> SamplingParams:
    """Fills what the caller left to the checkpoint, and refuses what it asks for and mmsmart cannot do.

    The caller's own temperature, top-p and top-k hold; a repetition penalty of ``None`` and stop strings come from
    the checkpoint, as transformers' ``generate(do_sample=False)`` takes them.

    Raises:
        InputError: Names the setting, its value and the way out.
    """
    refused = _UNSUPPORTED | (_UNSUPPORTED_SAMPLING if sampling.temperature > 0 else {})
    for name, neutral in refused.items():
        value = getattr(generation_config, name, None)
        if value not in neutral:
            raise InputError(
                f"the checkpoint's generation_config sets {name}={value!r}, which mmsmart does not support; to answer "
                f"without it, set engine.target.model.generation_config.{name} = {neutral[-1]!r}"
            )
    penalty = sampling.repetition_penalty
    if penalty is None:
        penalty = float(getattr(generation_config, "repetition_penalty", None) or 1.0)
    own_stop = getattr(generation_config, "stop_strings", None) or ()
    own_stop = (own_stop,) if isinstance(own_stop, str) else tuple(own_stop)
    stop = (*sampling.stop, *(s for s in own_stop if s not in sampling.stop))
    return replace(sampling, repetition_penalty=penalty, stop=stop)


def eos_token_ids(generation_config: Any, fallback: int | None) -> frozenset[int]:
    """All ids that end an answer; the config holds one id, a list, a tensor, or nothing."""
    value = getattr(generation_config, "eos_token_id", None)
    if value is None:
        value = [] if fallback is None else fallback
    return frozenset(torch.as_tensor(value, dtype=torch.int64).reshape(-1).tolist())
