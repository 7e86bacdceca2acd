"""Records what a drafter says and what the target makes of it, for policies to be replayed on other devices' costs.

    python eval/acceptance.py --questions 60 --json eval/data/acceptance_tiny_llava.json

At every position of every answer the drafter is led along the target's own greedy answer, ten depths deep: its ten most
probable tokens at each depth, and which of them is the target's. Where the target's token is not among them the trace
goes on along the drafter's first choice, and nothing below can be accepted any more. A drafter's rows come from the
target's true hidden states, so what is recorded at a position does not depend on how it was reached.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import mmsmart
from mmsmart.engine import Engine, Request
from mmsmart.errors import InputError
from mmsmart.files import replacing
from mmsmart.policies.base import RoundContext, TreePolicy, root_frontier
from mmsmart.policies.none import NoDrafting
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import heldout_samples
from mmsmart.tree import Bools, CandidatePool, Ints

SCHEMA = 1
DEPTH, RANKS = 10, 10
_STEP = 1 / 64
"""Resolution of the stored log-probabilities."""


@dataclass(frozen=True)
class Trace:
    """What was recorded.

    Attributes:
        log_probs: ``[P, D, K]`` conditional log-probabilities of the drafter's best tokens, best first.
        ranks: ``[P, D]`` place of the target's token among them, -1 where nothing can be accepted.
        starts: First position of each answer, and P at the end.
        about: Model, drafter, command and versions.
    """

    log_probs: NDArray[np.float32]
    ranks: NDArray[np.int8]
    starts: NDArray[np.int64]
    about: dict[str, Any]

    @property
    def answers(self) -> int:
        """How many answers were recorded."""
        return len(self.starts) - 1

    def save(self, path: Path) -> None:
        """Writes JSON; arrays as base64 of deflated little-endian integers."""
        steps = np.round(self.log_probs / _STEP).clip(-32768, 0)
        record = {"schema": SCHEMA, "about": self.about, "shape": list(self.log_probs.shape)}
        arrays = {"log_probs": steps.astype("<i2"), "ranks": self.ranks.astype("<i1"), "starts": self.starts}
        packed = {name: base64.b64encode(zlib.compress(a.tobytes(), 9)).decode() for name, a in arrays.items()}
        with replacing(path) as draft:
            draft.write_text(json.dumps(record | packed, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Reads a recording.

        Raises:
            InputError: It cannot be read, or is of another schema.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["schema"] != SCHEMA:
                raise InputError(f"the recording {path} is of another version; make it anew: python eval/acceptance.py")
            raw = {name: zlib.decompress(base64.b64decode(record[name])) for name in ("log_probs", "ranks", "starts")}
            shape = tuple(record["shape"])
            log_probs = np.frombuffer(raw["log_probs"], "<i2").reshape(shape).astype(np.float32) * np.float32(_STEP)
            ranks = np.frombuffer(raw["ranks"], "<i1").reshape(shape[:2])
            return cls(log_probs, ranks, np.frombuffer(raw["starts"], "<i8"), record["about"])
        except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the recording {path} cannot be read: {error!r}") from error

    def static_paths(self, count: int, depth: int) -> tuple[tuple[int, ...], ...]:
        """The ``count`` paths of ranks accepted most often, depths taken for independent (Medusa's table)."""
        rates = np.stack([(self.ranks[:, :depth] == rank).mean(axis=0) for rank in range(self.log_probs.shape[2])], 1)
        # From "offered at all" to "given that the parent was accepted".
        before = np.concatenate([[1.0], (self.ranks[:, : depth - 1] >= 0).mean(axis=0)])
        rates /= np.maximum(before, 1e-9)[:, None]
        chosen: list[tuple[int, ...]] = []
        ready = {(rank,): float(rate) for rank, rate in enumerate(rates[0])}
        while ready and len(chosen) < count:
            path = max(ready, key=lambda p: ready[p])
            mass = ready.pop(path)
            chosen.append(path)
            if len(path) < depth:
                ready |= {(*path, rank): mass * float(rate) for rank, rate in enumerate(rates[len(path)])}
        return tuple(chosen)


class Along(TreePolicy):
    """Leads the drafter along a known answer and verifies nothing of it: every round is a plain step."""

    top_k = RANKS

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = answer
        self.position = 0
        self.ranks: list[int] = []

    def frontier(self, pool: CandidatePool, context: RoundContext) -> Ints | None:
        """The answer's next token where it was proposed, else the drafter's first choice."""
        if not pool.blocks:
            self.ranks = []
            return root_frontier(1)
        block, depth = pool.last_block, len(pool.blocks)
        wanted = self.answer[self.position + depth : self.position + depth + 1]
        lost = any(rank < 0 for rank in self.ranks)
        found = [] if lost or not wanted else np.flatnonzero(pool.token_ids[0, block] == wanted[0]).tolist()
        self.ranks.append(found[0] if found else -1)
        if depth == DEPTH:
            return None
        return np.array([[block.start + max(self.ranks[-1], 0)]])

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        """The root alone."""
        return pool.top(0)


def record(engine: Engine, requests: Sequence[Request], about: dict[str, Any]) -> Trace:
    """Answers every request plainly, then walks the drafter along the answer."""
    plain = Engine(engine.target, engine.drafter, NoDrafting())
    log_probs: list[NDArray[np.float32]] = []
    ranks: list[list[int]] = []
    starts = [0]
    for request in requests:
        answer = plain.generate_batch([request])[0].token_ids
        policy = Along(answer)
        walker = Engine(engine.target, engine.drafter, policy)
        batch = walker.start([walker.prepare(request)])
        while not batch.done:
            pool = walker.step(batch).pool
            if len(pool.blocks) == DEPTH:
                log_probs.append(_conditional(pool))
                ranks.append(policy.ranks)
            policy.position += 1
        starts.append(len(ranks))
        print(f"\r{len(starts) - 1}/{len(requests)} answers, {starts[-1]} positions", end="", file=sys.stderr)
    print(file=sys.stderr)
    kept = [a for a, b in itertools.pairwise(starts) if b > a]
    return Trace(np.stack(log_probs), np.array(ranks, np.int8), np.array([*kept, starts[-1]]), about)


def _conditional(pool: CandidatePool) -> NDArray[np.float32]:
    """``[D, K]`` log-probabilities given the parent."""
    parents = pool.parents[0, 1:]
    step: NDArray[np.float32] = (pool.log_probs[0, 1:] - pool.log_probs[0, parents]).reshape(DEPTH, RANKS)
    return step


def main() -> None:
    """Records held-out questions and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llava", help="embedded name, folder or hub id")
    parser.add_argument("--drafter", default="auto", help="drafter of the model")
    parser.add_argument("--questions", type=int, default=60, help="held-out questions")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=0, help="of the questions")
    parser.add_argument("--json", type=Path, required=True, help="write the recording here")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    engine = mmsmart.load(arguments.model, drafter=arguments.drafter, policy="none")
    sampling = mmsmart.SamplingParams(max_new_tokens=arguments.max_new_tokens)
    samples = heldout_samples(arguments.questions, seed=arguments.seed)
    requests = [Request(draw_picture(sample.facts), sample.question, sampling) for sample in samples]
    about = {
        "command": " ".join(["python", *sys.argv]),
        "model": arguments.model,
        "drafter": f"{type(engine.drafter).__name__} {getattr(engine.drafter, 'checkpoint', '')}".strip(),
        "questions": f"{arguments.questions} held-out mmsmart-charts, seed {arguments.seed}, greedy",
        "dtype": str(engine.target.dtype),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    trace = record(engine, requests, about)
    trace.save(arguments.json)
    accepted = (trace.ranks >= 0).sum(axis=1).mean()
    print(f"{trace.answers} answers, {len(trace.ranks)} positions, {arguments.json.stat().st_size / 1000:.0f} KB;")
    print(f"of {DEPTH} depths with {RANKS} children each {accepted:.2f} are accepted on average")


if __name__ == "__main__":
    main()
