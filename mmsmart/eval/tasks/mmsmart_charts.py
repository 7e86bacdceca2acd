"""mmsmart-charts: our own held-out charts and scenes, drawn from a seed as they are asked about; needs no network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import ClassVar

from mmsmart.errors import InputError
from mmsmart.eval.data.source import DataRequest, Row, Source
from mmsmart.eval.tasks.base import EvalSample, Task
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import BRIEF, KINDS, final_sentence, heldout_samples

BLOCK = len(KINDS)
"""Samples made at once: every kind of question once."""
_NEXT_BLOCK = 1_000_003
"""What the next block's seed is larger by."""


class MmsmartCharts(Task):
    """Questions of all kinds in turn about pictures of the held-out side.

    The short mode asks for brevity in the words that the embedded models were trained on; the long mode leaves them
    out. Either form of the right final sentence is accepted.

    Args:
        count: How many there are where no limit is given.
        size: Width and height of the pictures in pixels.
    """

    name = "mmsmart-charts"
    metric = "final_answer"
    axes = ("picture", "kind")
    short_tokens = 64
    long_tokens = 256
    short_style = long_style = "mmsmart"
    short_prompts: ClassVar[Mapping[str, str]] = {short_style: "{question} " + BRIEF}
    long_prompt = "{question}"

    def __init__(self, count: int = 1000, size: int = 128) -> None:
        if count < 1 or size < 1:
            raise InputError(f"mmsmart-charts needs count and size of at least 1, got {count} and {size}")
        self.count, self.size = count, size

    def open(self, request: DataRequest) -> Source:
        """The rows of a seed.

        Raises:
            InputError: A path or hub id, which this data set has no use for.
        """
        if request.data is not None or request.hub_id is not None:
            raise InputError("mmsmart-charts is made from --seed; leave --data and --hub-id out")
        count = request.limit or self.count
        description = f"mmsmart-charts, seed {request.seed}"
        version = f"mmsmart-charts:{request.seed}:{BLOCK}:{self.size}"
        return Source(description, version, lambda: itertools.islice(_rows(request.seed), count))

    def read(self, key: str, row: Row) -> EvalSample:
        """Draws the picture of a row and asks its question."""
        full, brief = row.fields["full"], row.fields["brief"]
        finals = dict.fromkeys((full.final_answer, brief.final_answer))
        groups = {"picture": full.facts.kind, "kind": full.kind}
        image = draw_picture(full.facts, self.size)
        return EvalSample(key, row.index, full.question, (image,), tuple(finals), groups=groups)

    def rate(self, sample: EvalSample, prediction: str) -> tuple[dict[str, float], str]:
        """Whether the last sentence is right, to the letter."""
        final = final_sentence(prediction)
        return {self.metric: float(final in sample.references)}, final


def _rows(seed: int) -> Iterator[Row]:
    index = 0
    for block in itertools.count():
        block_seed = seed + _NEXT_BLOCK * block
        full = heldout_samples(BLOCK, block_seed, brief_share=0.0)
        brief = heldout_samples(BLOCK, block_seed, brief_share=1.0)
        for one, short in zip(full, brief, strict=True):
            yield Row(index, {"full": one, "brief": short})
            index += 1
