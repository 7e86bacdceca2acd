"""The tabs Why and Compare as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate

from app.charts import Lines, Mark, bar_chart, line_chart
from app.compare import CompareView, Row
from app.figures import count, duration, factor, rate
from app.panels import status_line
from app.session import CompareFrame
from app.trace import RoundTrace
from mmsmart.costs.profiler import Profile
from mmsmart.costs.table import Grid


def why_panel(trace: RoundTrace | None) -> str:
    """What n drafts would have cost and brought in one round."""
    if trace is None:
        return '<p class="hint">Ask something; what each round costs and brings is drawn here.</p>'
    return _round_charts(trace)


def _round_charts(trace: RoundTrace) -> str:
    costs, chosen = trace.verify_ms_of, trace.num_drafts
    expected = list(accumulate(trace.best_gains, initial=1.0))
    rates = [trace.rate(tokens, n) for n, tokens in enumerate(expected)]
    best = max(range(len(rates)), key=rates.__getitem__)
    at, here = min(chosen, len(costs) - 1), trace.rate(trace.expected, chosen)
    span = range(min(len(costs), max(len(expected), chosen + 1)))
    charts = (
        Lines("Verification", "drafts n", "ms", {"": [(n, costs[n]) for n in span]}, Mark(chosen, costs[at], "chosen")),
        Lines(
            "Expected tokens",
            "drafts n, best first",
            "tokens",
            {"": list(enumerate(expected))},
            Mark(chosen, trace.expected, f"chosen: {chosen}, {trace.expected:.2f} tokens"),
        ),
        Lines(
            "Expected rate",
            "drafts n, best first",
            "tokens/s",
            {"": list(enumerate(rates))},
            Mark(chosen, here, f"chosen: {chosen}, {rate(here)}"),
        ),
    )
    other = (
        "no other number of its candidates promised more"
        if rates[best] <= here * (1 + 1e-9)
        else f"the best {best} of its candidates would have promised {rate(rates[best])}"
    )
    note = f"<b>Round {trace.number}:</b> the policy verified {count(chosen, 'draft')}, {rate(here)} expected; {other}."
    drawn = "".join(line_chart(chart) for chart in charts)
    return f'<p class="lead">{note}</p><div class="charts">{drawn}</div>'


def profile_panel(profile: Profile) -> str:
    """What this device costs, as measured."""
    table = profile.table
    context = table.verify.contexts[0]

    def series(grid: Grid) -> dict[str, list[tuple[float, float]]]:
        return {
            f"batch {batch}": list(zip(map(float, grid.sizes), grid.curve(batch, context).tolist(), strict=True))
            for batch in grid.batches
        }

    charts = (
        Lines("Target forward", "nodes a row, root included", "ms", series(table.verify)),
        Lines("One depth of drafting", "nodes expanded a row", "ms", series(table.draft)),
    )
    heads = "".join(f"<th>{size}</th>" for size in table.verify.sizes)
    rows = "".join(
        f"<tr><th>batch {batch}</th>{''.join(f'<td>{ms:.2f}</td>' for ms in table.verify.curve(batch, context))}</tr>"
        for batch in table.verify.batches
    )
    names = ", ".join(str(table.settings[key]) for key in ("model", "device", "dtype") if key in table.settings)
    threads = table.settings.get("threads")
    where = escape(names + (f", {count(int(threads), 'thread')}" if threads else ""))
    drawn = "".join(line_chart(chart) for chart in charts)
    return (
        f'<h3>This device</h3><p class="hint">{where}; context {context}; '
        f"{duration(table.fixed_ms)} a round besides.</p>"
        f'<div class="charts">{drawn}</div><div class="scroll" tabindex="0" role="region" aria-label="Device profile">'
        f"<table><thead><tr><th>ms by nodes</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def compare_panel(frame: CompareFrame) -> str:
    """Status line, table and bars."""
    view = frame.view
    return f"{_compare_status(view, frame.error)}{_compare_table(view.rows)}"


def _compare_status(view: CompareView, error: str) -> str:
    if not error and view.phase == "":
        return '<p class="status" role="status">Runs every policy on the picture and question on the left.</p>'
    return status_line(view.phase, error)


def _compare_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    fastest = max(row.speedup for row in rows)
    body = "".join(
        f'<tr class="{"best" if row.speedup == fastest else ""}"><th>{escape(row.policy)}</th>'
        f"<td>{factor(row.speedup)}</td><td>{rate(row.tokens_per_s)}</td><td>{duration(row.wall_ms)}</td><td>{row.mean_acceptance_length:.2f}</td>"
        f"<td>{row.drafts_per_round:.1f}</td><td>{'yes' if row.identical else 'no'}</td></tr>"
        for row in rows
    )
    bars = [(row.policy, row.speedup, factor(row.speedup)) for row in rows]
    return (
        f'{bar_chart("Speedup over plain decoding", bars, 1.0)}<div class="scroll" tabindex="0" role="region" '
        'aria-label="Policies compared"><table><thead><tr><th>policy</th><th>speedup</th><th>rate</th><th>time</th>'
        "<th>tokens a round</th><th>drafts a round</th><th>identical</th></tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
