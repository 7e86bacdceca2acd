"""One benchmark: the engine, its arms, and the best fixed tree in hindsight."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm

from mmsmart.api import load, make_drafter, with_policy
from mmsmart.bench.arms import Arm, EngineArm
from mmsmart.bench.baselines import GenerateArm
from mmsmart.bench.measure import Measured, measure, summary
from mmsmart.bench.workload import WrongDrafter, requests
from mmsmart.config import SamplingParams
from mmsmart.engine import Engine
from mmsmart.eval.provenance import device_name, git_state, versions
from mmsmart.eval.settings import split_policies
from mmsmart.registry import EMBEDDED_MODELS
from mmsmart.targets.loading import load_target, quiet

PLAIN, REFERENCE = "none", "generate"
LOOKUP_TOKENS = 10
"""Tokens that transformers' prompt lookup proposes: the number its documentation uses."""
FIXED = (
    *(f"chain:depth={depth}" for depth in (1, 2, 3, 4, 5, 6, 8, 10)),
    *(f"best-first:nodes={nodes}" for nodes in (4, 8, 16, 32)),
    "likelihood:depth=5,top_k=10,total=59",
)
"""Fixed trees that the oracle tries; plain decoding counts as one too."""
FINALISTS = 2
"""Fixed trees that run beside the other arms after the oracle's sweep."""


class Benchmark:
    """Everything that is loaded once."""

    def __init__(
        self, arguments: argparse.Namespace, sizes: Sequence[int], baselines: Sequence[str], sampling: SamplingParams
    ) -> None:
        self._arguments = arguments
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        quiet(progress=arguments.model not in EMBEDDED_MODELS)
        drafter: Any = arguments.drafter
        if drafter == "wrong":
            drafter = WrongDrafter(make_drafter("auto", arguments.model))
        self.engine: Engine = load(
            arguments.model, drafter=drafter, policy=PLAIN, device=arguments.device, dtype=arguments.dtype
        )
        names = dict.fromkeys((PLAIN, *split_policies(arguments.policies)))
        self._ours: list[Arm] = [self._arm(name) for name in names]
        self._theirs = [self._baseline(name) for name in baselines]
        self._questions = requests(max(arguments.questions, *sizes), arguments.seed, sampling, arguments.workload)

    def run(self, size: int) -> list[dict[str, Any]]:
        """All rows of one batch size."""
        ours = list(self._ours)
        names = {arm.name for arm in ours}
        sweep: list[Measured] = []
        if self._arguments.oracle:
            sweep = self._measure([self._arm(name) for name in FIXED], size, 0, "oracle")
            best = sorted((one for one in sweep if one.tallies), key=_wall)[:FINALISTS]
            ours += [self._arm(one.name) for one in best if one.name not in names]
        measured = self._measure([*self._theirs, *ours], size, self._arguments.repeats, f"batch {size}")
        plain = next(one for one in measured if one.name == PLAIN)
        reference = next((one for one in measured if one.name == REFERENCE), None)
        rows = [summary(one, plain, reference) for one in measured]
        if self._arguments.oracle:
            fixed = [row for row in rows if row["arm"] in (PLAIN, *FIXED) and "wall_ms" in row]
            min(fixed, key=lambda row: float(row["wall_ms"]))["best_fixed_tree"] = True
            rows[0]["oracle_sweep_ms"] = {one.name: round(_wall(one), 1) for one in sweep if one.tallies}
        return rows

    def settings(self) -> dict[str, Any]:
        """Where the figures come from."""
        target = self.engine.target
        return {
            "command": " ".join(["python", "-m", "mmsmart", *sys.argv[1:]]),
            "model": target.name,
            "device": device_name(self.engine),
            "dtype": str(target.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "git": git_state(),
        }

    def title(self) -> str:
        """For a figure."""
        facts = self.settings()
        threads = f"{facts['threads']} threads"
        what = f"{self._arguments.drafter}, {self._arguments.workload}"
        return ", ".join([facts["model"], what, facts["device"], facts["dtype"], threads])

    def _arm(self, policy: str) -> Arm:
        return EngineArm(policy, with_policy(self.engine, policy))

    def _baseline(self, name: str) -> Arm:
        arguments = self._arguments
        options: dict[str, Any] = {}
        if name == "prompt-lookup":
            options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
        elif name == "assisted":
            small = load_target(arguments.assistant, device=arguments.device, dtype=arguments.dtype)
            options = {"assistant_model": small.model}
        return GenerateArm(name, self.engine.target, **options)

    def _measure(self, arms: Sequence[Arm], size: int, repeats: int, what: str) -> list[Measured]:
        passes = len(arms) * (repeats + 1)
        with tqdm(total=passes, desc=what, disable=self._arguments.no_progress, leave=False) as bar:
            return measure(arms, self._questions, size, repeats, bar)


def _wall(measured: Measured) -> float:
    return statistics.median(tally.wall_ms for tally in measured.tallies)
