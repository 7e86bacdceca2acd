"""What a run is asked to do: checked on construction, before anything is loaded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmsmart.api import AUTO_POLICY, make_policy
from mmsmart.config import SamplingParams, require_whole
from mmsmart.errors import InputError
from mmsmart.eval.data.source import DataRequest
from mmsmart.eval.tasks.base import MODES, Mode, Task
from mmsmart.registry import DEFAULT_MODEL, TASKS, create

BASELINE = "none"
"""The policy that the others are measured against."""
DEFAULT_POLICIES = (BASELINE, "auto")
_MOST_SEED = 2**63 - 1
_NEXT_POLICY = re.compile(r",(?=\s*[A-Za-z][\w-]*\s*(?::|,|$))")


@dataclass(frozen=True)
class RunSettings:
    """One run: a data set, a model with its drafter, and the policies that are compared.

    Attributes:
        dataset: Name of the data set, with options as ``"textvqa:ocr=True"``.
        request: Where its rows come from, and how many of them.
        mode: ``"short"`` for accuracy, ``"long"`` for speed.
        model, drafter, device, dtype, device_map: As `mmsmart.load` takes them.
        policies: Specifications of the policies, each once; ``"auto"`` is written out.
        measure_costs: Measure this device for policies that weigh costs; else they guess.
        batch_size: Samples answered at once.
        max_new_tokens: Most tokens of an answer; ``None`` takes what is usual for the data set and mode.
        temperature: 0 is greedy.
    """

    dataset: str
    request: DataRequest = field(default_factory=DataRequest)
    mode: Mode = "short"
    model: str = DEFAULT_MODEL
    drafter: str = "auto"
    policies: tuple[str, ...] = DEFAULT_POLICIES
    measure_costs: bool = True
    batch_size: int = 1
    max_new_tokens: int | None = None
    temperature: float = 0.0
    device: str = "auto"
    dtype: str = "auto"
    device_map: str | None = None

    def __post_init__(self) -> None:
        policies = tuple(AUTO_POLICY if policy == "auto" else policy for policy in self.policies)
        object.__setattr__(self, "policies", policies)
        if not policies:
            raise InputError("no policy to run; pass --policies none,auto")
        if len(set(policies)) < len(policies):
            raise InputError(f"a policy is named twice: {', '.join(policies)}")
        for policy in policies:
            make_policy(policy)
        if self.mode not in MODES:
            raise InputError(f"unknown mode {self.mode!r}; known: {', '.join(MODES)}")
        require_whole("batch_size", self.batch_size, 1)
        require_whole("seed", self.request.seed, 0, _MOST_SEED)
        self.sampling(self.task(), 0)

    @property
    def profile(self) -> Literal["auto"] | None:
        """As `mmsmart.load` takes it."""
        return "auto" if self.measure_costs else None

    def task(self) -> Task:
        """The data set's task.

        Raises:
            InputError: No such data set or option.
        """
        task: Task = create(TASKS, "data set", self.dataset)
        return task

    def new_tokens(self, task: Task) -> int:
        """Most tokens of an answer."""
        return task.max_new_tokens(self.mode) if self.max_new_tokens is None else self.max_new_tokens

    def sampling(self, task: Task, index: int) -> SamplingParams:
        """How the answer to a sample is drawn; every sample has a seed of its own, the same for every policy."""
        digest = hashlib.sha256(f"{self.request.seed}:{index}".encode()).digest()
        seed = int.from_bytes(digest[:4])  # torch's CPU generator takes no more
        return SamplingParams(max_new_tokens=self.new_tokens(task), temperature=self.temperature, seed=seed)


def split_policies(text: str) -> tuple[str, ...]:
    """``"none,likelihood:depth=5,top_k=10"`` to its two specifications: a comma before ``name=`` is an option's."""
    return tuple(part.strip() for part in _NEXT_POLICY.split(text) if part.strip())


def differences(mine: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """What two records of settings disagree on, in words."""
    keys = dict.fromkeys([*mine, *theirs])
    return [f"{key} {theirs.get(key)!r}, now {mine.get(key)!r}" for key in keys if mine.get(key) != theirs.get(key)]
