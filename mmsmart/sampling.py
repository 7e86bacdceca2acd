"""From the target's logits to its token, at every node of a tree at once.

The order of the rules is that of transformers' ``generate``: repetition penalty, temperature, top-k, top-p. Every node
is processed with its own ancestors, and every position of an answer has its own uniform number: nodes of one depth
share it. Only one of them can end up in the answer, so the law is untouched, and a seed gives the same answer whatever
was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmsmart.config import SamplingParams
from mmsmart.errors import NumericalError
from mmsmart.tree import Ints, TreeBatch


class Sampler:
    """The sampling state of a batch: settings, random numbers and seen tokens of each row."""

    def __init__(
        self,
        params: Sequence[SamplingParams],
        prompts: Sequence[Tensor],
        vocab_size: int,
        device: torch.device,
        first_number: int = 0,
    ) -> None:
        """Prepares B rows.

        Args:
            params: Settings of each row.
            prompts: Prompt ids of each row ``[T_b]``.
            vocab_size: V.
            device: Where the logits are.
            first_number: The first row's number among the caller's requests, for error messages.
        """
        self.params = list(params)
        self.device = device
        self._vocab_size = vocab_size
        self._uniforms = [_uniforms(p) for p in params]
        self._numbers = list(range(first_number, first_number + len(params)))
        self._seen: Tensor | None = None
        if any(p.repetition_penalty not in (None, 1.0) for p in params):
            self._seen = torch.zeros(len(params), vocab_size, dtype=torch.bool, device=device)
            for row, ids in enumerate(prompts):
                self._seen[row, ids[ids < vocab_size].to(device)] = True
        self._rebuild()

    def choose(self, logits: Tensor, tree: TreeBatch, positions: Sequence[int]) -> Ints:
        """The target's token after every node.

        Args:
            logits: ``[B, N, V]``, any floating dtype; worked on in float32 as transformers does.
            tree: The nodes the logits belong to.
            positions: How many tokens of each answer are committed; the root's choice is the next one.

        Returns:
            ``[B, N]`` token ids.

        Raises:
            NumericalError: NaN or infinity in the logits.
        """
        logits = logits.to(torch.float32)
        totals = logits.sum(dim=-1)
        if self._seen is not None:
            logits = self._penalised(logits, tree)
        tokens = logits.argmax(dim=-1)
        if self._sampled:
            draws = self._draw(logits, tree, positions)
            tokens = torch.where(self._temperature > 0, draws, tokens)
        self._require_finite(totals, tree)
        chosen: Ints = tokens.cpu().numpy()
        return chosen

    def probabilities(self, logits: Tensor) -> Tensor:
        """The processed law of every node: temperature, then top-k, then top-p; ``[B, N, V]`` float32 to the same."""
        # Relative to the largest, so that a temperature near zero tends to greedy instead of overflowing.
        logits = logits - logits.amax(dim=-1, keepdim=True)
        logits = logits / torch.where(self._temperature > 0, self._temperature, 1.0)[:, :, None]
        if self._filtered:
            ranked = logits.sort(dim=-1, descending=True).values
            floor = ranked.gather(-1, self._top_k.expand(-1, ranked.shape[1])[:, :, None])
            ranked = ranked.masked_fill(ranked < floor, -torch.inf)
            mass = ranked.softmax(dim=-1)
            # A token stays while the mass strictly above it is below top_p (Holtzman et al., 2020, arXiv 1904.09751).
            kept = (mass.cumsum(dim=-1) - mass < self._top_p[:, :, None]).sum(dim=-1, keepdim=True).clamp(min=1)
            floor = torch.maximum(floor, ranked.gather(-1, kept - 1))
            logits = logits.masked_fill(logits < floor, -torch.inf)
        return logits.softmax(dim=-1)

    def commit(self, row: int, token_ids: Sequence[int]) -> None:
        """Notes the tokens that a row emitted, for the repetition penalty."""
        if self._seen is not None:
            self._seen[row, torch.as_tensor(token_ids, device=self.device)] = True

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        self.params = [self.params[r] for r in rows]
        self._numbers = [self._numbers[r] for r in rows]
        self._uniforms = [self._uniforms[r] for r in rows]
        if self._seen is not None:
            self._seen = self._seen[torch.as_tensor(rows, device=self.device)]
        self._rebuild()

    def _rebuild(self) -> None:
        def column(values: list[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)[:, None]

        params = self.params
        self._sampled = any(p.temperature > 0 for p in params)
        self._filtered = any(p.top_k > 0 or p.top_p < 1 for p in params)
        self._temperature = column([p.temperature for p in params], torch.float32)
        self._penalty = column([p.repetition_penalty or 1.0 for p in params], torch.float32)
        self._top_p = column([p.top_p if p.top_p < 1 else 2.0 for p in params], torch.float32)
        self._top_k = column([min(p.top_k or self._vocab_size, self._vocab_size) - 1 for p in params], torch.int64)

    def _penalised(self, logits: Tensor, tree: TreeBatch) -> Tensor:
        assert self._seen is not None
        penalty = self._penalty[:, :, None]
        penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
        result = torch.where(self._seen[:, None, :], penalised, logits)
        if tree.num_nodes > 1:
            # Each node also sees its own drafted ancestors; elsewhere the root stands in, which is seen already.
            tokens = np.where(tree.ancestor_mask(), tree.token_ids[:, None, :], tree.token_ids[:, :1, None])
            index = torch.from_numpy(tokens).to(self.device)
            result = result.scatter(-1, index, penalised.gather(-1, index))
        return result

    def _draw(self, logits: Tensor, tree: TreeBatch, positions: Sequence[int]) -> Tensor:
        numbers = np.stack(
            [u[np.minimum(p + d, len(u) - 1)] for u, p, d in zip(self._uniforms, positions, tree.depths, strict=True)]
        )
        uniforms = torch.from_numpy(numbers).to(self.device)
        return inverse_cdf(self.probabilities(logits), uniforms)

    def _require_finite(self, totals: Tensor, tree: TreeBatch) -> None:
        good = torch.isfinite(totals).cpu().numpy() | ~tree.valid
        if not good.all():
            number = self._numbers[int(np.argwhere(~good)[0][0])]
            raise NumericalError(
                f"the target's logits hold NaN or infinity for request {number}; "
                "try dtype='float32' (float16 overflows on some models), or check the checkpoint"
            )


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draws tokens by inverting the distribution function, in float64.

    Args:
        probs: ``[..., V]``, not necessarily summing to exactly 1.
        uniforms: ``[...]`` float64 in [0, 1).

    Returns:
        ``[...]`` token ids; a token of probability 0 is never drawn.
    """
    cdf = probs.to(torch.float64).cumsum(dim=-1)
    total = cdf[..., -1:]
    level = torch.minimum(uniforms[..., None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, level, right=True)[..., 0]


def _uniforms(params: SamplingParams) -> np.ndarray:
    if params.temperature == 0:
        return np.zeros(1)
    generator = torch.Generator()
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    numbers: np.ndarray = torch.rand(params.max_new_tokens, dtype=torch.float64, generator=generator).numpy()
    return numbers
