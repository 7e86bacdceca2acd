"""Prompt lookup: what followed the last few tokens when they occurred before, in the question or in the answer.

After Saxena, "Prompt Lookup Decoding" (2023), and the n-gram drafters that followed; here all earlier occurrences are
merged into one tree, with their counts as probabilities. No model, no forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mmsmart.config import require_whole
from mmsmart.drafters.base import Drafter, DraftSession, PromptContext, RoundOutcome
from mmsmart.tree import ABSENT, CandidatePool, Candidates, Ints

GAP = -1
"""Stands for a run of picture placeholders: never matched, never drafted."""


class NgramDrafter(Drafter):
    """Looks up the longest suffix of the text that occurred before.

    Args:
        longest: Longest suffix tried, in tokens.
        shortest: Shortest suffix tried.
        horizon: Most tokens read behind a match.
    """

    def __init__(self, longest: int = 4, shortest: int = 1, horizon: int = 16) -> None:
        require_whole("drafter 'ngram': shortest", shortest, 1)
        require_whole("drafter 'ngram': longest", longest, shortest)
        require_whole("drafter 'ngram': horizon", horizon, 1)
        self.longest, self.shortest, self.horizon = longest, shortest, horizon

    def open(self, prompts: Sequence[PromptContext], roots: Ints) -> DraftSession:
        """Starts a session; see the port."""
        return _Session([_Text(self, prompt, root) for prompt, root in zip(prompts, roots.tolist(), strict=True)])


class _Text:
    """The tokens of one row and, for each n, where each n-gram ended."""

    def __init__(self, settings: NgramDrafter, prompt: PromptContext, root: int) -> None:
        self._settings = settings
        self._tokens: list[int] = []
        self._pending: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self.extend(np.where(prompt.image_mask, GAP, prompt.token_ids).tolist())
        self.extend([root])

    def extend(self, tokens: Sequence[int]) -> None:
        self._pending.extend(tokens)

    def _catch_up(self) -> None:
        """Indexes what was committed since the last look: rounds without drafting pay nothing."""
        pending, self._pending = self._pending, []
        for token in pending:
            self._tokens.append(token)
            end = len(self._tokens)
            for n in range(self._settings.shortest, min(self._settings.longest, end) + 1):
                gram = tuple(self._tokens[end - n :])
                if GAP not in gram:
                    self._ends.setdefault(gram, []).append(end)

    def continuations(self) -> list[list[int]]:
        """What stood behind the longest suffix that occurred before, for every occurrence."""
        self._catch_up()
        for n in range(min(self._settings.longest, len(self._tokens)), self._settings.shortest - 1, -1):
            ends = self._ends.get(tuple(self._tokens[-n:]), [])
            found = [self._until_gap(end) for end in ends if end < len(self._tokens)]
            found = [tokens for tokens in found if tokens]
            if found:
                return found
        return []

    def _until_gap(self, start: int) -> list[int]:
        tokens = self._tokens[start : start + self._settings.horizon]
        return tokens[: tokens.index(GAP)] if GAP in tokens else tokens


class _Session(DraftSession):
    def __init__(self, texts: list[_Text]) -> None:
        self._texts = texts
        self._matches: list[dict[int, list[list[int]]]] = []  # row -> pool column -> what may follow it

    def start_round(self, roots: Ints, depth_limit: Ints) -> None:
        self._matches = [{0: text.continuations()} for text in self._texts]

    def expand(self, pool: CandidatePool, frontier: Ints, top_k: int) -> Candidates:
        batch, width = frontier.shape
        token_ids = np.zeros((batch, width, top_k), np.int64)
        log_probs = np.full((batch, width, top_k), ABSENT, np.float32)
        first_column = pool.token_ids.shape[1]
        for row, column in np.argwhere(frontier >= 0).tolist():
            following = self._matches[row].get(int(frontier[row, column]), [])
            counts = Counter(tokens[0] for tokens in following)
            for rank, (token, count) in enumerate(counts.most_common(top_k)):
                token_ids[row, column, rank] = token
                log_probs[row, column, rank] = np.log(count / len(following))
                rest = [tokens[1:] for tokens in following if tokens[0] == token and len(tokens) > 1]
                self._matches[row][first_column + column * top_k + rank] = rest
        return Candidates(token_ids, log_probs)

    def commit(self, outcome: RoundOutcome) -> None:
        for text, tokens in zip(self._texts, outcome.emitted, strict=True):
            text.extend(tokens)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._texts = [self._texts[r] for r in rows]
