"""SMART's two cost curves (arXiv 2604.09731, equations 4 and 5), fitted to a handful of timed forwards.

``C_draft(n) = lambda n`` and ``C_verify(n) = gamma (exp(delta n**rho) - 1)``, both through the origin as in the paper
(its biases beta and eta are fixed to 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_RHO = np.linspace(0.05, 2.0, 79)
_DELTA = np.geomspace(1e-5, 3.0, 121)
_MAX_EXPONENT = 50.0


@dataclass(frozen=True)
class SmartCurves:
    """The fitted curves, milliseconds over n drafted tokens with the root counted.

    Attributes:
        draft_slope: lambda of equation 4.
        gamma, delta, rho: Of equation 5.
        plain_ms: c_T, one decode step of the target.
    """

    draft_slope: float
    gamma: float
    delta: float
    rho: float
    plain_ms: float

    def spec_ms(self, n: ArrayLike) -> Floats:
        """``C_spec`` of equation 9, for any n of at least 1."""
        n = np.asarray(n, np.float64)
        return np.asarray(self.draft_slope * n + self.gamma * np.expm1(self._exponent(n)), np.float64)

    def marginal_ms(self, n: ArrayLike) -> Floats:
        """``dC_spec`` of equation 15."""
        n = np.asarray(n, np.float64)
        verify = self.gamma * self.delta * self.rho * n ** (self.rho - 1) * np.exp(self._exponent(n))
        return np.asarray(self.draft_slope + verify, np.float64)

    def _exponent(self, n: Floats) -> Floats:
        return np.minimum(self.delta * n**self.rho, _MAX_EXPONENT)


def fit_curves(
    draft_tokens: ArrayLike, draft_ms: ArrayLike, verify_tokens: ArrayLike, verify_ms: ArrayLike, plain_ms: float
) -> SmartCurves:
    """Least squares on relative errors; five points each are enough, as in the paper.

    Args:
        draft_tokens, draft_ms: Sizes of whole draft trees and the time to draft them.
        verify_tokens, verify_ms: Input sizes of verification forwards and their times.
        plain_ms: One plain decode step.
    """
    n, y = np.asarray(draft_tokens, np.float64), np.asarray(draft_ms, np.float64)
    slope = float((n * y / y**2).sum() / (n**2 / y**2).sum())
    tokens, times = np.asarray(verify_tokens, np.float64), np.asarray(verify_ms, np.float64)
    gamma, delta, rho = _fit_verify(tokens, times, _DELTA, _RHO)
    for _ in range(3):  # refine around the best grid point
        near_delta = np.geomspace(delta / 1.3, delta * 1.3, 41)
        near_rho = np.linspace(max(rho - 0.05, 0.01), rho + 0.05, 41)
        gamma, delta, rho = _fit_verify(tokens, times, near_delta, near_rho)
    return SmartCurves(slope, gamma, delta, rho, plain_ms)


def _fit_verify(tokens: Floats, times: Floats, deltas: Floats, rhos: Floats) -> tuple[float, float, float]:
    """The best of a grid of delta and rho; gamma is linear and has a closed form."""
    exponent = np.minimum(deltas[:, None, None] * tokens ** rhos[None, :, None], _MAX_EXPONENT)
    shape = np.expm1(exponent) / times  # relative to the measured time
    gamma = shape.sum(-1) / (shape**2).sum(-1)
    error = ((gamma[..., None] * shape - 1) ** 2).sum(-1)
    i, j = np.unravel_index(int(error.argmin()), error.shape)
    return float(gamma[i, j]), float(deltas[i]), float(rhos[j])
