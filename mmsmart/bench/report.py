"""A benchmark's table for people, its JSON, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmsmart.errors import ModelError

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("speedup", "x none", "{:.2f}"),
    ("speedup_over_generate", "x generate", "{:.2f}"),
    ("decode_speedup", "decode x", "{:.2f}"),
    ("tokens_per_s", "tokens/s", "{:.0f}"),
    ("spread", "+-%", "{:.1%}"),
    ("mean_acceptance_length", "length", "{:.2f}"),
    ("acceptance_rate", "rate", "{:.2f}"),
    ("nodes", "nodes", "{:.1f}"),
    ("depth", "depth", "{:.1f}"),
    ("draft_ms", "draft", "{:.2f}"),
    ("verify_ms", "verify", "{:.2f}"),
    ("policy_ms", "policy", "{:.2f}"),
    ("other_ms", "other", "{:.2f}"),
    ("cost_error", "cost err", "{:.1%}"),
)
"""Key, heading and form of the table's columns."""


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of one batch size as text."""
    width = max(len(str(row["arm"])) for row in rows)
    lines = [f"{'arm':{width}}" + "".join(f"{head:>11}" for _, head, _ in COLUMNS) + f"{'identical':>12}"]
    for row in rows:
        if "failure" in row:
            lines.append(f"{row['arm']:{width}}  left out: {row['failure']}")
            continue
        cells = "".join(f"{form.format(row[key]) if key in row else '':>11}" for key, _, form in COLUMNS)
        lines.append(f"{row['arm']:{width}}{cells}{row['identical']:>8}/{row['questions']}")
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws speedup over plain decoding, and over ``generate``, against batch size.

    Raises:
        ModelError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModelError("a plot needs matplotlib: pip install 'mmsmart[eval]'") from error
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    keys = (("speedup", "over plain decoding (none)"), ("speedup_over_generate", "over transformers' generate"))
    for place, (key, what) in enumerate(keys, 1):
        axes = figure.add_subplot(1, 2, place, xlabel="batch", ylabel="wall speedup", title=what, xscale="log")
        axes.axhline(1.0, color="grey", linewidth=0.8)
        for arm in dict.fromkeys(row["arm"] for row in rows):
            points = [(row["batch"], row[key]) for row in rows if row["arm"] == arm and key in row]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=arm)
        batches = sorted({row["batch"] for row in rows})
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
