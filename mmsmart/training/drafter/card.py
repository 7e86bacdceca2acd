"""The model card of a trained drafter: how it was made, and what it does on held-out questions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mmsmart.batch import prompt_context
from mmsmart.config import SamplingParams
from mmsmart.drafters.head import EagleHead
from mmsmart.drafters.msd import MSDDrafter
from mmsmart.engine import Engine, Request
from mmsmart.policies.base import TreePolicy
from mmsmart.policies.chain import Chain
from mmsmart.policies.likelihood import Likelihood
from mmsmart.policies.none import NoDrafting
from mmsmart.stats import GenerationStats, Stopwatch, pooled
from mmsmart.targets.base import Target
from mmsmart.training.drafter.publish import as_served
from mmsmart.training.drafter.questions import Question

MAX_NEW_TOKENS = 96
SHAPES: dict[str, TreePolicy] = {
    "chain of 5": Chain(5),
    "chain of 8": Chain(8),
    "tree of 59 (depth 5, k 10)": Likelihood(5, 10, 59),
}


@dataclass(frozen=True)
class Line:
    """One row of the card's table.

    Attributes:
        visual_tokens, shape: What was run.
        stats: Pooled over the questions, greedy, batch 1.
        prompt_read_ms: Median time in which the head reads a prompt.
        identical: Questions whose token ids equal plain decoding's.
        speedup: Wall time of plain decoding over wall time, both pooled, preparation left out.
    """

    visual_tokens: str
    shape: str
    stats: GenerationStats
    prompt_read_ms: float
    identical: int
    speedup: float


def measure(target: Target, head: EagleHead, questions: Sequence[Question]) -> list[Line]:
    """Runs every shape with and without visual tokens in the drafter, beside plain decoding, question by question."""
    if not questions:
        return []
    requests = [Request(q.pictures(), q.text, SamplingParams(max_new_tokens=MAX_NEW_TOKENS)) for q in questions]
    engines: dict[tuple[str, str], Engine] = {}
    head = as_served(head, target)
    for visual in ("all", "none"):
        drafter = MSDDrafter("", visual_tokens=visual).with_head(head, target.head)
        engines |= {(visual, name): Engine(target, drafter, policy) for name, policy in SHAPES.items()}
    plain = Engine(target, MSDDrafter("").with_head(head, target.head), NoDrafting())
    base: list[GenerationStats] = []
    runs: dict[tuple[str, str], list[tuple[GenerationStats, bool]]] = {key: [] for key in engines}
    for request in requests:  # interleaved, so that a busy moment meets all alike
        expected = plain.generate_batch([request])[0]
        base.append(expected.stats)
        for key, engine in engines.items():
            output = engine.generate_batch([request])[0]
            runs[key].append((output.stats, output.token_ids == expected.token_ids))
    reading = {visual: _prompt_read_ms(target, head, requests, visual) for visual in ("all", "none")}
    wall_ms = _wall_ms(pooled(base))
    lines = []
    for (visual, name), results in runs.items():
        total = pooled(stats for stats, _ in results)
        identical = sum(same for _, same in results)
        lines.append(Line(visual, name, total, reading[visual], identical, wall_ms / _wall_ms(total)))
    return lines


def write_card(
    folder: Path,
    target: Target,
    *,
    command: str,
    minutes: float,
    curve: Sequence[dict[str, float]],
    lines: Mapping[str, Sequence[Line]],
) -> None:
    """Writes ``README.md`` beside the weights.

    Args:
        folder: Where the drafter lies.
        target: What it drafts for.
        command, minutes, curve: How it was made, in what training time, with which held-out acceptance lengths.
        lines: Rows of the table of every source of held-out questions.
    """
    count, kind = len(curve), str(target.dtype).removeprefix("torch.")
    gpu = target.device.type == "cuda"
    where = torch.cuda.get_device_name(target.device) if gpu else f"CPU, {torch.get_num_threads()} torch thread(s)"
    tables = "".join(_table(source, some) for source, some in lines.items() if some)
    best = max((point["acceptance_length"] for point in curve), default=0.0)
    text = f"""# MSD drafter for {target.name}

An EAGLE-1 head with MSD's decoupled picture tokens (arXiv 2505.14260), in the published layout: `config.json`
and `model.safetensors` (bfloat16). Made by

    {command}

in {minutes:.0f} minutes of training ({where}), on answers that the target wrote itself.
Best held-out mean acceptance length of a chain of 5 while training: {best:.2f} ({count} evaluations, `curve.png`).

Held-out questions, greedy, {kind}, batch 1, every arm interleaved with plain decoding; acceptance length counts the
bonus token; draft and verify are milliseconds a round; the prompt is read once.
{tables}
"identical" counts the questions whose token ids equal plain decoding's.

Licence: Apache-2.0.
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def _table(source: str, lines: Sequence[Line]) -> str:
    rows = "".join(
        f"| {x.visual_tokens} | {x.shape} | {x.stats.mean_acceptance_length:.2f} | {x.stats.acceptance_rate:.2f} "
        f"| {x.stats.draft_ms / max(1, x.stats.rounds):.2f} | {x.stats.verify_ms / max(1, x.stats.rounds):.2f} "
        f"| {x.prompt_read_ms:.2f} | {x.speedup:.2f}x | {x.identical} |\n"
        for x in lines
    )
    return f"""
Questions of `{source}`, {lines[0].stats.new_tokens} tokens an arm:

| visual tokens | shape | acceptance length | rate | draft ms | verify ms | prompt ms | speedup | identical |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}"""


def _wall_ms(stats: GenerationStats) -> float:
    return stats.prefill_ms + stats.decode_ms


def _prompt_read_ms(target: Target, head: EagleHead, requests: Sequence[Request], visual: str) -> float:
    """Median milliseconds of the head's first forward, over the prompt's rows."""
    drafter = MSDDrafter("", visual_tokens=visual).with_head(head, target.head)
    times = []
    with torch.inference_mode():
        for request in requests[:20]:
            inputs = target.encode(list(request.image or []), request.question)  # type: ignore[arg-type]
            features = target.embed_images([inputs])
            _, _, hidden = target.prefill([inputs], features, keep_hidden=True)
            assert hidden is not None
            session = drafter.open([prompt_context(inputs, features[0], hidden[0])], np.array([0]))
            watch = Stopwatch(target.device)
            session.start_round(np.array([0]), np.array([1]))
            times.append(watch.lap())
    return statistics.median(times)
