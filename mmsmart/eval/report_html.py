"""The report as one HTML file: no scripts, no links, readable in light and dark and on a phone."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from mmsmart.eval.report import Run, Table, all_tables
from mmsmart.eval.settings import BASELINE
from mmsmart.eval.svg import SERIES, Axes, Points, legend, line_chart

_DEEPEST = 16
_SLOWEST = 8

STYLE = """
:root { color-scheme: light dark; --ink: #1c2127; --faint: #5d6772; --paper: #ffffff; --panel: #f4f6f8; --rule: #d8dee4;
  --s0: #0b62b8; --s1: #c2410c; --s2: #1a7f37; --s3: #8b2fb0; --s4: #9a6700; --s5: #0e7490; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --faint: #9aa5b1; --paper: #14181d; --panel: #1d2329; --rule: #363e47;
    --s0: #6cb2ff; --s1: #ff9c6e; --s2: #6fd08c; --s3: #d79bf5; --s4: #e3b341; --s5: #5fd3e6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; } .note { color: var(--faint); font-size: .9rem; max-width: 48rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .35rem .5rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
thead th { background: var(--panel); white-space: normal; vertical-align: bottom; }
th.text, td.text { text-align: left; }
figure { margin: 1rem 0; max-width: 34rem; } .charts { display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
svg.chart { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 12px; }
.grid { stroke: var(--rule); } .reference { stroke: var(--faint); stroke-dasharray: 4 4; }
.line { fill: none; stroke-width: 2.2; } .legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem;
  margin: 0; padding: 0; font-size: .9rem; } .key { display: inline-block; width: .8rem; height: .8rem;
  border-radius: 50%; margin-right: .4rem; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); }
.card { background: var(--panel); border-radius: .5rem; padding: .8rem; font-size: .9rem; overflow-wrap: anywhere; }
.card img { display: block; max-width: 100%; max-height: 11rem; border-radius: .3rem; margin-bottom: .5rem; }
@media (max-width: 30rem) { svg text { font-size: 15px; } }
details { margin: .6rem 0; } pre { background: var(--panel); padding: .8rem; overflow-x: auto; font-size: .8rem; }
""" + "".join(
    f".line.s{n} {{ stroke: var(--s{n}); }} .dot.s{n}, .key.s{n} {{ fill: var(--s{n}); background: var(--s{n}); }}\n"
    for n in range(SERIES)
)


def page(runs: Sequence[Run]) -> str:
    """The whole file."""
    tables = all_tables(runs)
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>mmsmart evaluation</title><style>{STYLE}</style></head><body>",
            f"<h1>mmsmart evaluation</h1><p>{escape(_headline(runs))}</p>",
            f'<p class="note">{escape(_machines(runs))}</p>',
            *map(_table, tables[:-1]),
            _charts(runs),
            _table(tables[-1]),
            _slowest(runs),
            _failures(runs),
            "<h2>Where the numbers come from</h2>",
            *map(_provenance, runs),
            "</body></html>\n",
        ]
    )


def _headline(runs: Sequence[Run]) -> str:
    equalities = [figures["equality"] for run in runs for figures in run.policies.values() if figures["equality"]]
    equal, compared = (sum(e[name] for e in equalities) for name in ("equal", "compared"))
    failed = sum(run.result["failed"] for run in runs)
    samples = sum(run.result["samples"] for run in runs)
    words = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, {samples} samples, {failed} failed."
    if compared:
        words += f" {equal} of {compared} answers with drafting have the very token ids of plain decoding."
    return words


def _machines(runs: Sequence[Run]) -> str:
    """What the times are of."""
    sessions = [session for run in runs for process in run.result["sessions"] for session in process]
    words = (f"{s['device_name']} ({s['dtype']}, torch threads: {s['threads']})" for s in sessions)
    return f"Measured on {'; '.join(dict.fromkeys(words))}."


def _table(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        kinds = (' class="text"' if place < table.labels else "" for place in range(len(row)))
        return "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    head = f"<thead><tr>{cells(table.columns, 'th')}</tr></thead>"
    return f'<h2>{escape(table.title)}</h2>{note}<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _charts(runs: Sequence[Run]) -> str:
    figures = []
    for key in dict.fromkeys(_chart_key(run) for run in runs):
        mine = [run for run in runs if _chart_key(run) == key]
        model, mode, temperature = key
        where = f"{model}, {mode} answers, T\u00a0=\u00a0{temperature:g}"
        figures += [_by_batch(mine, where), _by_depth(mine, where)]
    return f'<div class="charts">{"".join(figures)}</div>'


def _chart_key(run: Run) -> tuple[str, str, float]:
    return str(run.settings["model"]), str(run.settings["mode"]), float(run.settings["temperature"])


def _by_batch(runs: Sequence[Run], where: str) -> str:
    found: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        for policy, figures in run.policies.items():
            ratio = figures["speed"]["speedup"]
            if policy != BASELINE and ratio is not None and run.claims_speed:
                found[policy][run.setting[2]][run.dataset] = ratio
    series = {policy: points for policy, by_batch in found.items() if (points := _means(by_batch))}
    ticks = sorted({batch for points in series.values() for batch, _ in points})
    axes = Axes("batch size", "speedup", ticks, reference=1.0, top=1.5)
    note = "Mean over the data sets that were run at every batch size; dashed: plain decoding."
    return _figure(f"Speedup against batch size: {where}", note, series, axes)


def _means(by_batch: Mapping[int, Mapping[str, float]]) -> list[tuple[float, float]]:
    """A point for each batch size, of the same data sets everywhere."""
    same = set.intersection(*(set(ratios) for ratios in by_batch.values()))
    return [(float(b), fmean(ratios[name] for name in same)) for b, ratios in sorted(by_batch.items()) if same]


def _by_depth(runs: Sequence[Run], where: str) -> str:
    counts: dict[str, list[int]] = {}
    for run in runs:
        for policy, figures in run.policies.items():
            mine = counts.setdefault(policy, [])
            more = figures["speed"]["accepted_counts"]
            mine.extend([0] * (len(more) - len(mine)))
            for accepted, rounds in enumerate(more):
                mine[accepted] += rounds
    series: dict[str, Points] = {
        policy: _survival(mine) for policy, mine in counts.items() if sum(mine) and len(mine) > 1
    }
    deepest = max((len(points) for points in series.values()), default=1)
    axes = Axes("depth", "share of rounds", list(range(1, deepest + 1)), top=1.0)
    note = "Share of the drafting rounds that accepted a draft token at this depth."
    return _figure(f"Acceptance by depth: {where}", note, series, axes)


def _survival(counts: Sequence[int]) -> list[tuple[float, float]]:
    deepest = min(len(counts), _DEEPEST + 1)
    return [(depth, sum(counts[depth:]) / sum(counts)) for depth in range(1, deepest)]


def _figure(title: str, note: str, series: Mapping[str, Points], axes: Axes) -> str:
    if not series:
        return ""
    words = f'<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
    return f"<figure>{words}{line_chart(series, axes, title)}{legend(list(series))}</figure>"


def _slowest(runs: Sequence[Run]) -> str:
    found = [(record, run) for run in runs for record in run.result["slowest"]]
    found.sort(key=lambda pair: pair[0]["total_ms"], reverse=True)
    if not found:
        return ""
    cards = "".join(_card(record, run) for record, run in found[:_SLOWEST])
    return f'<h2>Slowest samples</h2><div class="cards">{cards}</div>'


def _card(record: dict[str, Any], run: Run) -> str:
    file = run.path / record["thumbnail"]
    picture = ""
    if file.is_file():
        data = base64.b64encode(file.read_bytes()).decode()
        picture = f'<img alt="picture of sample {escape(record["sample"])}" src="data:image/jpeg;base64,{data}">'
    figures = f"{record['total_ms']:.0f} ms, {record['new_tokens']} tokens, {record['rounds']} rounds"
    where = f"{run.dataset} {record['sample']}, {record['policy']}, batch {run.setting[2]}"
    return (
        f'<div class="card">{picture}<strong>{escape(figures)}</strong>'
        f'<p class="note">{escape(where)}</p><p>{escape(record["question"])}</p><p>{escape(record["text"])}</p></div>'
    )


def _failures(runs: Sequence[Run]) -> str:
    rows = [
        [run.dataset, failure["sample"], failure["policy"], failure["error"]]
        for run in runs
        for failure in run.result["failures"]
    ]
    return _table(Table("Failed samples", ("data set", "sample", "policy", "error"), rows, labels=4)) if rows else ""


def _provenance(run: Run) -> str:
    session = run.result["sessions"][0][-1]
    facts: Iterable[tuple[str, Any]] = (
        ("command", session["command"]),
        ("folder", str(run.path)),
        ("settings", run.settings),
        ("speed", run.result["speed"]),
        ("prompt templates", run.result["templates"]),
        ("sessions", run.result["sessions"]),
    )
    text = "\n".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, indent=1)}" for name, value in facts
    )
    title = f"{run.dataset}, {run.settings['mode']}, batch {run.settings['batch size']}, {session['device_name']}"
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
