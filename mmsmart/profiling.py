"""Profiles of engines: measured once for each device and setting, kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import statistics
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmsmart import __version__
from mmsmart.batch import Batch, Prompt
from mmsmart.config import SamplingParams
from mmsmart.costs.calibration import Calibration
from mmsmart.costs.estimate import estimate
from mmsmart.costs.profiler import BATCHES, CONTEXTS, NODES, WIDTHS, Bench, Profile, measure, paper_curves
from mmsmart.costs.table import CostTable
from mmsmart.drafters.base import PromptContext, RoundOutcome
from mmsmart.engine import Engine
from mmsmart.files import replacing
from mmsmart.policies.likelihood import Likelihood
from mmsmart.sequence import Sequence
from mmsmart.stats import GenerationStats
from mmsmart.targets.base import Target
from mmsmart.targets.compiled import NODE_SIZES
from mmsmart.targets.inputs import ModelInputs
from mmsmart.tree import CandidatePool, Ints, TreeBatch
from mmsmart.verification import Verification

logger = logging.getLogger(__name__)

_ROUNDS = 64
"""Tokens that a profiled batch may still write."""


def settings_of(engine: Engine) -> dict[str, Any]:
    """What a profile is for: another device, model, drafter, dtype, thread count or library needs another one."""
    target, drafter = engine.target, engine.drafter
    gpu = target.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(target.device) if gpu else f"cpu {platform.machine()} {os.cpu_count()}",
        "model": target.name,
        "drafter": f"{type(drafter).__name__} {getattr(drafter, 'checkpoint', '')}".strip(),
        "dtype": str(target.dtype),
        "compiled": target.compiled is not None,
        "packed": target.packed,
        "threads": 0 if gpu else torch.get_num_threads(),
        "versions": {"mmsmart": __version__}
        | {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
    }


def profile_path(settings: dict[str, Any]) -> Path:
    """Where the profile of these settings lies: under ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmsmart"
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return base / "profiles" / f"{name}.json"


def profile(
    engine: Engine,
    *,
    batches: Seq[int] = BATCHES,
    refresh: bool = False,
    progress: bool = True,
    check: Callable[[], None] = lambda: None,
) -> Profile:
    """The profile of an engine, from the cache or measured now (which is said on the log).

    Args:
        engine: Its target and drafter are measured.
        batches: Batch sizes that are needed.
        refresh: Measure anew in any case.
        progress: Show a bar on stderr.
        check: Called between forwards; what it raises ends the measuring.
    """
    settings = settings_of(engine)
    path = profile_path(settings)
    if path.is_file() and not refresh:
        table = CostTable.load(path, settings)
        if set(batches) <= set(table.verify.batches):
            return Profile(table, paper_curves(table))
    logger.warning("measuring this device once for %s; the profile is kept in %s", engine.target.name, path)
    limit = engine.target.max_positions - 80
    contexts = tuple(c for c in CONTEXTS if c <= limit) or (limit,)
    gpu = engine.target.device.type == "cuda"

    def wait() -> None:
        if gpu:
            torch.cuda.synchronize()
        check()

    with torch.inference_mode():
        result = measure(
            lambda rows, context: EngineBench(engine, rows, context),
            settings,
            batches=batches,
            contexts=contexts,
            nodes=node_sizes(engine.target),
            synchronize=wait,
            progress=progress,
        )
    result.table.save(path)
    return result


def keep_calibration(engine: Engine) -> None:
    """Gives the policy what earlier processes learnt of its drafter, and has it written down when the policy goes.

    It lies beside the profile; what cannot be read is forgotten with a remark, what cannot be written is lost.
    """
    calibration = engine.policy.calibration
    if calibration is None:
        return
    path = profile_path(settings_of(engine)).with_suffix(".acceptance.json")
    try:
        calibration.restore(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s is not read, acceptance is learnt anew: %r", path, error)
    weakref.finalize(engine.policy, _write_calibration, calibration, calibration.seen, path)


def _write_calibration(calibration: Calibration, before: int, path: Path) -> None:
    if calibration.seen > before:
        with contextlib.suppress(OSError), replacing(path) as draft:
            draft.write_text(json.dumps(calibration.state()) + "\n", encoding="utf-8")


def node_sizes(target: Target) -> tuple[int, ...]:
    """Tree sizes to measure, where they are others than usual.

    A compiled target pads to few sizes: a size and the next one, on both sides of each step, make a staircase.
    """
    if target.compiled is None:
        return ()
    tops = [size for size in NODE_SIZES if size <= max(NODES)]
    return tuple(sorted({*tops, *(top + 1 for top in tops[:-1])}))


def estimated(engine: Engine) -> Profile:
    """A profile guessed from shapes alone, in relative units; its table says so."""
    layers = int(engine.target.text_config.num_hidden_layers)
    table = estimate(
        layers=layers, drafter_layers=int(engine.drafter.needs_hidden_states), device=engine.target.device.type
    )
    logger.warning("no measured profile: costs are guessed from the shapes of %s", engine.target.name)
    return Profile(table, paper_curves(table, context=0))


class EngineBench(Bench):
    """A batch of random prompts with everything in place, through the code that really runs."""

    def __init__(self, engine: Engine, rows: int, context: int) -> None:
        self.engine = Engine(engine.target, engine.drafter, Likelihood(2, 4, 16))
        ids = np.random.default_rng(0).integers(0, min(engine.target.vocab_size, 1000), context)
        with torch.inference_mode():
            self.batch = self._batch(ids, rows)
        self.rows = rows
        self.limits = np.full(rows, _ROUNDS, np.int64)
        self.pool = CandidatePool(self.batch.roots)

    def _batch(self, ids: Ints, rows: int) -> Batch:
        """One prompt, read once, standing in every row."""
        batch = self.engine.start([_prompt(self.engine, ids)])
        assert batch.draft is not None
        first, copies = batch.running[0].sequence.token_ids, [0] * rows
        if self.engine.drafter.needs_hidden_states:
            batch.draft.start_round(batch.roots, np.full(1, _ROUNDS))
            batch.draft.select_rows(copies)
        else:  # such sessions may keep what they learn of each row; they read fast
            read = PromptContext(ids, np.zeros(len(ids), np.bool_))
            batch.draft = self.engine.drafter.open([read] * rows, np.repeat(batch.roots, rows))
        batch.target.select_rows(copies)
        batch.sampler.select_rows(copies)
        batch.running = [_prompt(self.engine, ids) for _ in copies]
        for prompt in batch.running:
            prompt.sequence.commit(first)
        return batch

    def verify(self, nodes: int) -> None:
        """A chain of ``nodes``: the tree's size is what costs, not its shape."""
        self.batch.target.verify(self._chain(nodes), keep_hidden=self.engine.drafter.needs_hidden_states)

    def draft(self, width: int) -> None:
        """Width 0 is the opening: catching up on four committed tokens and drafting the root's children."""
        session = self.batch.draft
        assert session is not None
        if width == 0:
            session.commit(self._outcome())
            self.pool = CandidatePool(self.batch.roots)
            session.start_round(self.batch.roots, self.limits)
            root = np.zeros((self.rows, 1), np.int64)
            self.pool.append(root, session.expand(self.pool, root, max(WIDTHS)), self.limits)
            return
        columns = np.minimum(np.arange(1, width + 1), self.pool.token_ids.shape[1] - 1)
        session.expand(self.pool, np.broadcast_to(columns, (self.rows, width)).copy(), 4)

    def other_ms(self) -> float:
        """The rest of a round, from a few real ones."""
        stats = self.batch.running[0].stats
        times = []
        for _ in range(5):
            before = stats.other_ms
            self.engine.step(self.batch)
            times.append(stats.other_ms - before)
        return statistics.median(times)

    def _chain(self, nodes: int) -> TreeBatch:
        index, shape = np.arange(nodes), (self.rows, nodes)
        return TreeBatch(
            token_ids=np.broadcast_to(self.batch.roots[:, None], shape).copy(),
            parents=np.broadcast_to(index - 1, shape).copy(),
            depths=np.broadcast_to(index, shape).copy(),
            valid=np.ones(shape, np.bool_),
            log_probs=np.zeros(shape, np.float32),
        )

    def _outcome(self) -> RoundOutcome:
        """A round in which three drafts were accepted, for the drafter to catch up on."""
        tree = self._chain(4)
        paths = np.broadcast_to(np.arange(4), (self.rows, 4)).copy()
        roots = self.batch.roots
        verification = Verification(paths, np.full(self.rows, 3), roots)
        target = self.engine.target
        width = int(target.text_config.hidden_size)
        hidden = torch.zeros(self.rows, 4, width, dtype=target.dtype, device=target.device)
        return RoundOutcome(tree, verification, tuple((int(r),) * 4 for r in roots), hidden)


def _prompt(engine: Engine, ids: Ints) -> Prompt:
    """A prompt of these ids that never ends before it is told to."""
    target, sampling = engine.target, SamplingParams(max_new_tokens=_ROUNDS, repetition_penalty=1.0)
    positions = torch.arange(len(ids)).expand(target.axes, -1)
    inputs = ModelInputs(torch.from_numpy(ids), torch.zeros(len(ids), dtype=torch.bool), positions, 0, ())
    return Prompt(inputs, sampling, Sequence(sampling, (), target.tokenizer), GenerationStats())
