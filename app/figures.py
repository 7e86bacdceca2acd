"""Numbers as people read them."""

from __future__ import annotations


def duration(ms: float) -> str:
    """``8.3 ms``, ``0.42 s``, ``12.5 s``."""
    if ms < 1:
        return f"{ms:.2f} ms"
    if ms < 100:
        return f"{ms:.1f} ms"
    return f"{ms / 1e3:.2f} s" if ms < 9995 else f"{ms / 1e3:.1f} s"


def rate(tokens_per_s: float) -> str:
    """``143 tokens/s``, ``8.2 tokens/s``."""
    return f"{tokens_per_s:.1f} tokens/s" if tokens_per_s < 99.95 else f"{tokens_per_s:,.0f} tokens/s"


def factor(value: float) -> str:
    """``2.31`` and the sign for times."""
    return f"{value:.2f}\u00d7"


def percent(share: float) -> str:
    """``0.4 %``, ``37 %``."""
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def count(number: int, noun: str) -> str:
    """``1 round``, ``12 rounds``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
