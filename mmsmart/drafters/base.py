"""The drafter port: what a drafter gets to see, and what it must answer.

One port serves three kinds. A *stepwise head* runs one forward for each depth and answers `DraftSession.expand` with
the children of the frontier. A *block drafter* runs one forward at `DraftSession.start_round` and answers every
`expand` from it. A *source* (prompt lookup, a list of continuations) answers without any forward, with as many children
as it knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from mmsmart.tree import Bools, CandidatePool, Candidates, Ints, TreeBatch
from mmsmart.verification import Verification


@dataclass(frozen=True)
class PromptContext:
    """What a drafter may know of one prompt.

    Attributes:
        token_ids: ``[T]`` prompt ids, picture placeholders expanded.
        image_mask: ``[T]``, True on picture placeholders.
        image_embeds: ``[P, H]`` the target's projected picture embeddings, in order; ``None`` unless
            `Drafter.needs_hidden_states` is set or when there is no picture.
        hidden_states: ``[T, H]`` the target's last hidden states after its final norm; ``None`` unless asked for.
    """

    token_ids: Ints
    image_mask: Bools
    image_embeds: Tensor | None = None
    hidden_states: Tensor | None = None


@dataclass(frozen=True)
class RoundOutcome:
    """What the target said about a round's trees.

    Attributes:
        tree: The verified trees, rejected nodes included.
        verification: Accepted paths and bonus tokens.
        emitted: The tokens of each row that entered its answer (cut at EOS, stop string or cap).
        hidden_states: ``[B, N, H]`` at every node, for drafters that need them.
        top_token_ids, top_log_probs: ``[B, N, k]`` the target's most probable tokens at *every* node, rejected ones
            too, for drafters with ``observes_top_k = k > 0``; the law before sampling settings.
    """

    tree: TreeBatch
    verification: Verification
    emitted: tuple[tuple[int, ...], ...]
    hidden_states: Tensor | None = None
    top_token_ids: Tensor | None = None
    top_log_probs: Tensor | None = None


class DraftSession(ABC):
    """A drafter's memory for one batch. Rows leave when their answers end."""

    @abstractmethod
    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        """Begins a round from the last committed tokens ``[B]``; nothing below ``depth_limit`` ``[B]`` will be used."""

    @abstractmethod
    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        """The most probable children of pool nodes.

        Args:
            pool: All candidates of this round so far.
            frontier: ``[B, W]`` pool columns to expand, -1 where a row has fewer.
            top_k: Most children wanted for each; fewer may be returned.
        """

    @abstractmethod
    def commit(self, outcome: RoundOutcome) -> None:
        """Takes note of a round, also of one without drafts; cheap, as forwards wait for the next `start_round`."""

    @abstractmethod
    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""


class TargetFacts(Protocol):
    """What a drafter may use of its target: the two tables that heads share, and where and in what dtype they are."""

    name: str
    embed_tokens: Any
    head: Any

    @property
    def packing(self) -> bool:
        """Whether a drafter may rearrange its weights for a CPU."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def device(self) -> torch.device:
        """Of the embeddings."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""


class Drafter(ABC):
    """Proposes what the target may say next.

    Attributes:
        needs_hidden_states: The target's hidden states and picture embeddings must be handed over.
        observes_top_k: How many of the target's most probable tokens it wants to see at every verified node.
    """

    needs_hidden_states: ClassVar[bool] = False
    observes_top_k: ClassVar[int] = 0

    def bind(self, target: TargetFacts) -> Drafter:
        """The drafter for one target; heads load their weights here, and follow its device and dtype."""
        return self

    @abstractmethod
    def open(self, prompts: Sequence[PromptContext], roots: Ints) -> DraftSession:
        """Starts a session for B prompts, after their prefill, whose first answer tokens are ``roots`` ``[B]``."""
