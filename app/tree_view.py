"""The Tree tab: a round's draft tree as SVG, and the policy's reasons as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.figures import count, duration, percent
from app.trace import Node, Reason, RoundTrace, reasons

_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _ROW = 84, 34, 108, 42
_MARGIN = 6
_RISES, _FALLS = "\u25b2", "\u25bc"
_LONGEST = 9
_MOST_REASONS = 40


def tree_panel(trace: RoundTrace | None, rule: str) -> str:
    """The whole tab for one round."""
    if trace is None:
        return '<p class="hint">Ask something on the left; the rounds of the speculative answer are drawn here.</p>'
    return f"{_summary(trace, rule)}{_key()}{tree_svg(trace)}{_table(trace)}"


def tree_svg(trace: RoundTrace) -> str:
    """The tree from left to right, the most probable path straight on; it scrolls sideways where there is no room."""
    nodes = trace.nodes
    end = max((place for place, node in enumerate(nodes) if node.accepted), key=lambda place: nodes[place].depth)
    rows = _rows(nodes, end)
    why = {reason.place: reason for reason in reasons(trace)}
    bonus_depth = nodes[end].depth + 1
    parts = [_edge(nodes[node.parent].depth, rows[node.parent], node, rows[place]) for place, node in enumerate(nodes)]
    parts += [_box(node, rows[place], _words(node, why.get(place), trace)) for place, node in enumerate(nodes)]
    if trace.bonus:
        parts.append(_bonus(trace.bonus, bonus_depth, rows[end]))
    width = 2 * _MARGIN + _COLUMN * max(bonus_depth, *(node.depth for node in nodes)) + _BOX_WIDTH
    height = 2 * _MARGIN + _ROW * max(rows) + _BOX_HEIGHT
    label = f"Draft tree of round {trace.number}: {count(trace.num_drafts, 'draft')}, {trace.num_accepted} accepted"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><svg class="tree" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg></div>"
    )


def _rows(nodes: Sequence[Node], end: int) -> list[int]:
    """A row for each node: the best child stays on its parent's, the others go below.

    The accepted path comes first; behind its ``end`` the row is left to the bonus token.
    """
    children: dict[int, list[int]] = {}
    for place, node in enumerate(nodes[1:], 1):
        children.setdefault(node.parent, []).append(place)
    rows, free = [0] * len(nodes), 0
    waiting = [(0, True)]
    while waiting:
        place, straight = waiting.pop()
        if straight:
            rows[place] = rows[nodes[place].parent] if place else 0
        else:
            free += 1
            rows[place] = free
        ranked = sorted(children.get(place, ()), key=lambda child: _rank(nodes[child]))
        straight_on = 0 if place == end else 1
        waiting += [(child, False) for child in reversed(ranked[straight_on:])]
        waiting += [(child, True) for child in ranked[:straight_on]]
    return rows


def _rank(node: Node) -> tuple[bool, bool, float]:
    return not node.accepted, not node.kept, -node.gain


def _edge(depth: int, row: int, node: Node, own: int) -> str:
    if node.parent < 0:
        return ""
    return _curve(depth, row, node.depth, own, _kind(node))


def _curve(depth: int, row: int, to_depth: int, to_row: int, kind: str) -> str:
    x, y = _MARGIN + depth * _COLUMN + _BOX_WIDTH, _MARGIN + row * _ROW + _BOX_HEIGHT / 2
    to_x, to_y = _MARGIN + to_depth * _COLUMN, _MARGIN + to_row * _ROW + _BOX_HEIGHT / 2
    middle = (x + to_x) / 2
    return f'<path class="edge {kind}" d="M{x},{y} C{middle},{y} {middle},{to_y} {to_x},{to_y}"/>'


def _box(node: Node, row: int, words: str) -> str:
    number = "root" if node.depth == 0 else percent(node.probability)
    return _cell(node.text, number, node.depth, row, _kind(node), words)


def _bonus(text: str, depth: int, row: int) -> str:
    words = f"{text!r}: the target's own token after the accepted path"
    return _curve(depth - 1, row, depth, row, "bonus") + _cell(text, "bonus", depth, row, "bonus", words)


def _cell(text: str, number: str, depth: int, row: int, kind: str, words: str) -> str:
    x, y = _MARGIN + depth * _COLUMN, _MARGIN + row * _ROW
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\u2026"
    return (
        f'<g class="node {kind}"><title>{escape(words)}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
        f'<text class="word" x="{x + _BOX_WIDTH / 2}" y="{y + 15}" text-anchor="middle">{escape(short)}</text>'
        f'<text class="number" x="{x + _BOX_WIDTH / 2}" y="{y + 28}" text-anchor="middle">{number}</text></g>'
    )


def _kind(node: Node) -> str:
    if node.depth == 0:
        return "root"
    return "accepted" if node.accepted else "verified" if node.kept else "dropped"


def _words(node: Node, reason: Reason | None, trace: RoundTrace) -> str:
    if reason is None:
        return f"{node.text!r}: the last committed token"
    verdict = "accepted" if node.accepted else "verified, not accepted" if node.kept else "drafted, not verified"
    gain = f", as the policy reckons {percent(node.gain)}" if trace.calibrated else ""
    return (
        f"{node.text!r}: {verdict}. Probability {percent(node.probability)}{gain}. "
        f"Adds {node.gain:.3f} expected tokens for {duration(max(reason.cost_ms, 0.0))}; "
        f"{reason.rate_before:,.0f} to {reason.rate_after:,.0f} tokens/s"
    )


def _summary(trace: RoundTrace, rule: str) -> str:
    if len(trace.nodes) == 1:
        what = "nothing was drafted; the target wrote one token by itself"
    else:
        what = (
            f"{count(trace.num_drafts, 'draft')} verified, {trace.num_accepted} accepted, "
            f"{count(trace.num_dropped, 'candidate')} dropped; {trace.expected:.2f} tokens were expected, "
            f"{trace.tokens} came"
        )
    times = f"Drafting {duration(trace.draft_ms)}, verifying {duration(trace.verify_ms)}."
    return (
        f'<p class="lead"><b>Round {trace.number}:</b> {what}. {times}</p>'
        f'<p class="hint">The policy\'s rule: {escape(rule)}.</p>'
    )


def _key() -> str:
    kinds = {"accepted": "accepted", "verified": "verified", "dropped": "dropped", "bonus": "target's own"}
    items = "".join(f'<li><span class="swatch {kind}"></span>{name}</li>' for kind, name in kinds.items())
    return f'<ul class="legend">{items}</ul>'


def _table(trace: RoundTrace) -> str:
    found = reasons(trace)
    if not found:
        return ""
    rows = "".join(_reason_row(trace.nodes[reason.place], reason) for reason in found[:_MOST_REASONS])
    whose = "as the policy reckons it" if trace.calibrated else "by the drafter's probabilities"
    note = (
        f"Gain: expected tokens that the node adds, {whose}. Cost: milliseconds that verifying it adds, from this "
        "device's measured costs. Rate: expected tokens a second of the round without and with it, drafting as "
        "measured; for a dropped node, beside all verified ones."
    )
    left = len(found) - _MOST_REASONS
    more = f" {count(left, 'further node')} not listed." if left > 0 else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Reasons"><table class="reasons"><thead><tr>'
        "<th>token</th><th>depth</th><th>gain</th><th>cost</th><th>rate before</th><th>after</th><th>outcome</th>"
        f'</tr></thead><tbody>{rows}</tbody></table></div><p class="hint">{note}{more}</p>'
    )


def _reason_row(node: Node, reason: Reason) -> str:
    cells = [
        escape(node.text),
        str(node.depth),
        f"+{node.gain:.3f}",
        f"+{max(reason.cost_ms, 0.0):.2f} ms",
        f"{reason.rate_before:,.0f}",
        f"{reason.rate_after:,.0f} {_RISES if reason.rate_after > reason.rate_before else _FALLS}",
        {"root": "", "accepted": "accepted", "verified": "not accepted", "dropped": "dropped"}[_kind(node)],
    ]
    return f'<tr class="{_kind(node)}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
