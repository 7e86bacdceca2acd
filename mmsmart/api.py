"""The two functions most people need: `load` an engine, or `generate` with the default one."""

from __future__ import annotations

import functools
from typing import Any, Unpack

import torch

from mmsmart.drafters.base import Drafter
from mmsmart.engine import Engine, GenerationOutput, Pictures, SamplingOptions
from mmsmart.policies.base import TreePolicy
from mmsmart.registry import DEFAULT_MODEL, DRAFTERS, POLICIES, create
from mmsmart.targets.loading import load_target

AUTO_DRAFTER = "ngram"
AUTO_POLICY = "best-first:nodes=8"


def load(
    model: str = DEFAULT_MODEL,
    *,
    drafter: str | Drafter = "auto",
    policy: str | TreePolicy = "auto",
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    **options: Any,
) -> Engine:
    """Loads a target with its drafter and policy.

    Args:
        model: An embedded name (``tiny-llava``), a local folder, or a hub id (``llava-hf/llava-1.5-7b-hf``).
        drafter: A name, with options as ``"ngram:longest=3"``, an object, or ``"auto"``.
        policy: Likewise: ``"likelihood:depth=5,top_k=10,total=59"``.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...
        dtype: ``"auto"`` (the checkpoint's on a GPU, float32 on a CPU), a name or a torch dtype.
        options: Handed to transformers' ``from_pretrained``: ``device_map``, ``quantization_config``, ``revision``, ...

    Raises:
        InputError: An unknown name or option.
        ModelError: The model cannot be loaded.
    """
    # Names are checked before the weights are read.
    proposer = _built(DRAFTERS, "drafter", AUTO_DRAFTER if drafter == "auto" else drafter)
    shape = _built(POLICIES, "policy", AUTO_POLICY if policy == "auto" else policy)
    return Engine(load_target(model, device=device, dtype=dtype, **options), proposer, shape)


def generate(image: Pictures, question: str, **sampling: Unpack[SamplingOptions]) -> GenerationOutput:
    """Answers a question about a picture with the embedded model; see `Engine.generate`."""
    return _default_engine().generate(image, question, **sampling)


@functools.cache
def _default_engine() -> Engine:
    return load()


def _built(table: dict[str, str], kind: str, given: Any) -> Any:
    return create(table, kind, given) if isinstance(given, str) else given
