"""What is loaded: targets, their drafters and policies, and what they cost on this device."""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmsmart import api, profiling
from mmsmart.costs.online import CostModel
from mmsmart.costs.profiler import BATCHES, Profile
from mmsmart.engine import Engine
from mmsmart.errors import InputError
from mmsmart.policies.base import TreePolicy
from mmsmart.registry import DEFAULT_MODEL, EMBEDDED_MODELS, POLICIES, load_class

logger = logging.getLogger(__name__)

PLAIN = "none"
_BUDGETS = ("nodes", "total", "b_verify", "depth")
"""Options that bound a policy's tree, the first that it has counts."""
_MOST_ENGINES = 24
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Choices:
    """What the page offers; what the command line names comes first.

    Attributes:
        models, drafters, policies: Names or specs, as `mmsmart.load` takes them.
    """

    models: tuple[str, ...]
    drafters: tuple[str, ...]
    policies: tuple[str, ...]

    @classmethod
    def of(cls, model: str = DEFAULT_MODEL, drafter: str = "auto", policy: str = "auto") -> Choices:
        """The embedded models and the registry's policies, and what was given besides."""
        return cls(
            _unique(model, *EMBEDDED_MODELS),
            _unique(drafter, "auto", "ngram"),
            _unique(policy, "auto", *(name for name in POLICIES if name != PLAIN)),
        )


def _unique(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


class Workbench:
    """Targets, loaded once each, and engines over them; used on the device's thread only."""

    def __init__(self, choices: Choices, load: Callable[..., Engine] = api.load) -> None:
        self.choices = choices
        self._load = load
        self._bases: dict[tuple[str, str], Engine] = {}
        self._engines: OrderedDict[tuple[str, str, str], Engine] = OrderedDict()
        self._profiles: dict[tuple[str, str], Profile] = {}

    def loaded(self, model: str, drafter: str) -> bool:
        """Whether asking for this pair takes no time."""
        return (model, drafter) in self._bases

    def base(self, model: str, drafter: str) -> Engine:
        """Plain decoding with a target; its drafter is bound, and loaded, but not asked.

        Raises:
            InputError: A model or drafter that the page does not offer.
            ModelError: It cannot be loaded.
        """
        if model not in self.choices.models or drafter not in self.choices.drafters:
            raise InputError(f"the page does not offer model {model!r} with drafter {drafter!r}; choose from its lists")
        key = (model, drafter)
        if key not in self._bases:
            known = next((engine for (name, _), engine in self._bases.items() if name == model), None)
            if known is None:
                engine = self._load(model, drafter=drafter, policy=PLAIN)
            else:  # the weights are in memory
                engine = Engine(known.target, api.make_drafter(drafter, model), api.make_policy(PLAIN))
            _warm_up(engine)
            self._bases[key] = engine
        return self._bases[key]

    def profile(self, model: str, drafter: str, batch: int, check: Callable[[], None]) -> Profile:
        """What this pair costs for batches of up to ``batch``: measured once, then from the cache.

        Args:
            model, drafter: The pair.
            batch: Largest batch that the costs are for.
            check: Called between forwards while measuring; may raise to give up.
        """
        key = (model, drafter)
        wanted = [size for size in BATCHES if size < batch]
        wanted += [size for size in BATCHES if size >= batch][:1]
        known = self._profiles.get(key)
        if known is None or not set(wanted) <= set(known.table.verify.batches):
            base = self.base(model, drafter)
            self._profiles[key] = profiling.profile(base, batches=wanted, progress=False, check=check)
            for engine in self._of(key):
                self._bind(engine, key)
        return self._profiles[key]

    def profiled(self, model: str, drafter: str, batch: int) -> bool:
        """Whether `profile` takes no measuring in this process."""
        known = self._profiles.get((model, drafter))
        return known is not None and max(known.table.verify.batches) >= batch

    def engine(self, model: str, drafter: str, policy: str, budget: int = 0) -> Engine:
        """The pair under a policy, with the costs of `profile`, which must have been called.

        Raises:
            InputError: A policy that the page does not offer, or a budget that it refuses.
        """
        if policy not in (PLAIN, *self.choices.policies):
            raise InputError(f"the page does not offer policy {policy!r}; choose from its list")
        base, spec = self.base(model, drafter), with_budget(policy, budget)
        if spec == PLAIN:
            return base
        key = (model, drafter, spec)
        if key not in self._engines:
            engine = Engine(base.target, base.drafter, api.make_policy(spec))
            self._bind(engine, key[:2])
            _warm_up(engine)
            self._engines[key] = engine
            while len(self._engines) > _MOST_ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(key)
        return self._engines[key]

    def _of(self, pair: tuple[str, str]) -> Sequence[Engine]:
        return [engine for key, engine in self._engines.items() if key[:2] == pair]

    def _bind(self, engine: Engine, pair: tuple[str, str]) -> None:
        if engine.policy.needs_costs:
            measured = self._profiles[pair]
            engine.policy.bind_costs(CostModel(measured.table), measured.curves)


def with_budget(policy: str, budget: int) -> str:
    """A policy's spec with at most ``budget`` drafts a round; 0 leaves the policy its own."""
    if budget == 0:
        return policy
    name = (api.AUTO_POLICY if policy == "auto" else policy).partition(":")[0]
    parameters = inspect.signature(load_class(POLICIES, "policy", name)).parameters
    option = next((option for option in _BUDGETS if option in parameters), None)
    return policy if option is None else f"{name}:{option}={budget}"


def rule_of(policy: TreePolicy) -> str:
    """What a policy does, in the words of its own docstring."""
    first = (inspect.getdoc(type(policy)) or type(policy).__name__).splitlines()[0]
    return first.partition(";")[0].rstrip(".").replace("``", "")


def _warm_up(engine: Engine) -> None:
    """The first forwards of a process are slow; no visitor's answer shall pay for them."""
    engine.generate(None, "What is it?", max_new_tokens=_WARM_UP_TOKENS)
