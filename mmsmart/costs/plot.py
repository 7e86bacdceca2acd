"""The picture of a profile: measured points, the table's lines, and the paper's fitted curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mmsmart.costs.profiler import Profile
from mmsmart.errors import ModelError


def plot_profile(profile: Profile, path: Path) -> None:
    """Writes a PNG (or what the file's ending says).

    Raises:
        ModelError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModelError("a plot needs matplotlib: pip install 'mmsmart[eval]'") from error
    table, context = profile.table, profile.table.verify.contexts[0]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left = figure.add_subplot(1, 2, 1, xlabel="nodes a row (root included)", ylabel="ms", title="verification")
    right = figure.add_subplot(1, 2, 2, xlabel="nodes expanded a row", ylabel="ms", title="one depth of drafting")
    for axes, grid in ((left, table.verify), (right, table.draft)):
        for batch in grid.batches:
            axes.plot(grid.sizes, grid.curve(batch, context), marker=".", label=f"batch {batch}")
        axes.grid(alpha=0.3)
    sizes = np.linspace(1, max(table.verify.sizes), 200)
    curves = profile.curves
    label = "equation 5, batch 1"
    left.plot(sizes, curves.spec_ms(sizes) - curves.draft_slope * sizes, linestyle="--", color="black", label=label)
    left.legend(fontsize=8)
    name = ", ".join(str(table.settings[key]) for key in ("model", "device", "dtype") if key in table.settings)
    figure.suptitle(f"{name}, context {context}")
    figure.savefig(path, dpi=120)
