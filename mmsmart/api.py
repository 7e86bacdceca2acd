"""The two functions most people need: `load` an engine, or `generate` with the default one."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any, Literal, Unpack

import torch

from mmsmart import profiling
from mmsmart.costs.online import CostModel
from mmsmart.drafters.base import Drafter
from mmsmart.drafters.checkpoints import kind_of
from mmsmart.engine import Engine, GenerationOutput, Pictures, SamplingOptions
from mmsmart.errors import InputError, ModelError
from mmsmart.policies.base import TreePolicy
from mmsmart.registry import DEFAULT_MODEL, DRAFTERS, POLICIES, PUBLISHED_DRAFTERS, create
from mmsmart.targets.loading import load_target

logger = logging.getLogger(__name__)

FALLBACK_DRAFTER = "ngram"
AUTO_POLICY = "rate-optimal"


def load(
    model: str = DEFAULT_MODEL,
    *,
    drafter: str | Drafter = "auto",
    policy: str | TreePolicy = "auto",
    profile: Literal["auto"] | None = "auto",
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    compile: Literal["auto"] | bool = "auto",
    pack: bool = True,
    **options: Any,
) -> Engine:
    """Loads a target with its drafter and policy.

    Args:
        model: An embedded name (``tiny-llava``), a local folder, or a hub id (``llava-hf/llava-1.5-7b-hf``).
        drafter: A name, with options as ``"ngram:longest=3"``; the folder or hub id of an MSD or EAGLE-1/2 checkpoint;
            an object; or ``"auto"``: the one published for this target, else ``ngram``.
        policy: A name, likewise with options: ``"likelihood:depth=5,top_k=10,total=59"``; an object; or ``"auto"``.
        profile: ``"auto"`` measures this device once for policies that weigh costs, and keeps it in the user's cache;
            ``None`` lets them guess from shapes alone.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...
        dtype: ``"auto"`` (the checkpoint's on a GPU, float32 on a CPU), a name or a torch dtype.
        compile: Whether verification is compiled for few fixed shapes, on a GPU as CUDA graphs: ``"auto"`` does so on
            GPUs where the model allows it, and goes on without where compiling fails; ``True`` insists; ``False`` not.
        pack: Whether a CPU may multiply by weights rearranged for its kernels: faster, for as much memory again.
        options: Handed to transformers' ``from_pretrained``: ``device_map``, ``quantization_config``, ``revision``, ...

    Raises:
        InputError: An unknown name or option, or ``compile=True`` for a model that cannot be compiled.
        ModelError: The model, or the drafter that was asked for, cannot be loaded or does not fit.
    """
    # Names and settings are checked before the weights are read.
    if not isinstance(compile, bool) and compile != "auto":
        raise InputError(f"compile must be 'auto', True or False, got {compile!r}")
    shape = make_policy(policy)
    proposer = make_drafter(drafter, model)
    target = load_target(model, device=device, dtype=dtype, **options)
    target.packing = pack
    if compile is True or (compile == "auto" and target.device.type == "cuda"):
        target.compile(required=compile is True)
    try:
        engine = Engine(target, proposer, shape)
    except ModelError as error:
        if drafter != "auto":
            raise
        logger.warning("drafting with %s instead of the published drafter: %s", FALLBACK_DRAFTER, error)
        engine = Engine(target, make_drafter(FALLBACK_DRAFTER, model), shape)
    bind_costs(engine, profile)
    return engine


def with_policy(engine: Engine, policy: str | TreePolicy, *, profile: Literal["auto"] | None = "auto") -> Engine:
    """The same target and drafter under another policy, without loading anything anew.

    Args:
        engine: Stays as it is.
        policy: As in `load`.
        profile: As in `load`.

    Raises:
        InputError: An unknown name or option.
    """
    other = Engine(engine.target, engine.drafter, make_policy(policy))
    bind_costs(other, profile)
    return other


def bind_costs(engine: Engine, profile: Literal["auto"] | None = "auto") -> None:
    """Gives an engine's policy the costs of this device, where it asks for them; see `load`."""
    if engine.policy.needs_costs:
        measured = profiling.profile(engine) if profile == "auto" else profiling.estimated(engine)
        engine.policy.bind_costs(CostModel(measured.table), measured.curves)
        if measured.table.measured:
            profiling.keep_calibration(engine)


def make_policy(given: str | TreePolicy) -> TreePolicy:
    """A policy of its own from a name with options, ``"auto"`` included; an object is returned as it is.

    Raises:
        InputError: An unknown name or option.
    """
    if not isinstance(given, str):
        return given
    made: TreePolicy = create(POLICIES, "policy", AUTO_POLICY if given == "auto" else given)
    return made


def make_drafter(given: str | Drafter, model: str) -> Drafter:
    """A drafter for a target from what `load` takes; an object is returned as it is.

    Raises:
        InputError: An unknown name or option.
        ModelError: A checkpoint that cannot be read.
    """
    if not isinstance(given, str):
        return given
    if given == "auto":
        given = PUBLISHED_DRAFTERS.get(model, FALLBACK_DRAFTER)
    elif given.partition(":")[0] not in DRAFTERS and ("/" in given or Path(given).is_dir()):
        given = f"{kind_of(given)}:checkpoint={given}"
    made: Drafter = create(DRAFTERS, "drafter", given)
    return made


def generate(image: Pictures, question: str, **sampling: Unpack[SamplingOptions]) -> GenerationOutput:
    """Answers a question about a picture with the embedded model; see `Engine.generate`."""
    return _default_engine().generate(image, question, **sampling)


@functools.cache
def _default_engine() -> Engine:
    return load()
