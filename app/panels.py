"""The tab Race and the conversation as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.figures import count, duration, factor, rate
from app.race import PLAIN, SPECULATIVE, Pane, RaceView
from app.session import RaceFrame, Turn

_DOT = " \u00b7 "
_BUSY = ("", "Done", "Stopped")
_FINISHED = {
    "eos": "ended by itself",
    "stop": "ended at a stop string",
    "length": "ended at the maximum length",
    "stopped": "stopped",
}


def race_panel(frame: RaceFrame) -> str:
    """Status line, verdict, and the two panes."""
    view = frame.view
    panes = "".join((_pane(PLAIN, "plain", view.plain), _pane(SPECULATIVE, "speculative", view.speculative)))
    return f'{status_line(view.phase, frame.error)}{_verdict(view)}<div class="panes">{panes}</div>'


def status_line(phase: str, error: str) -> str:
    """What is going on, or the one line that says why nothing is."""
    if error:
        return f'<p class="error" role="alert">{escape(error)}</p>'
    busy = " busy" if phase not in _BUSY else ""
    words = phase or "Pick a picture, ask a question, and press Run."
    return f'<p class="status{busy}" role="status">{escape(words)}</p>'


def _pane(title: str, kind: str, pane: Pane | None) -> str:
    if pane is None:
        return f'{_head(title, kind)}<p class="numbers">&nbsp;</p><p class="answer"></p></section>'
    stats = pane.stats
    facts = [count(stats.new_tokens, "token"), duration(stats.total_ms), rate(stats.tokens_per_s)]
    if kind == "speculative":
        facts.append(f"{count(stats.rounds, 'round')} of {stats.mean_acceptance_length:.2f} tokens")
    end = f'<span class="finish">{_FINISHED[pane.finish]}</span>' if pane.finish else '<span class="cursor"></span>'
    return (
        f'{_head(title, kind)}<p class="numbers">{_DOT.join(facts)}</p>'
        f'<p class="answer">{_answer(pane, kind)}{end}</p></section>'
    )


def _head(title: str, kind: str) -> str:
    return f'<section class="pane {kind}"><h3>{title}</h3>'


def _answer(pane: Pane, kind: str) -> str:
    if kind == "plain":
        return escape(pane.text)
    rounds: dict[int, list[str]] = {}
    accepted: dict[int, int] = {}
    for span in pane.spans:
        rounds.setdefault(span.round, []).append(f'<span class="{span.origin}">{escape(span.text)}</span>')
        accepted[span.round] = accepted.get(span.round, 0) + (span.origin == "draft")
    return "".join(_round(number, accepted[number], "".join(tokens)) for number, tokens in rounds.items())


def _round(number: int, accepted: int, tokens: str) -> str:
    if number == 0:
        return f'<span class="round" title="The prefill\'s own token">{tokens}</span>'
    words = f"Round {number}: {count(accepted, 'draft')} accepted. Press for its tree."
    return f'<span class="round" role="button" tabindex="0" data-round="{number}" title="{words}">{tokens}</span>'


def _verdict(view: RaceView) -> str:
    if view.result is None or view.plain is None or view.speculative is None:
        return ""
    result, slow, quick = view.result, view.plain.stats, view.speculative.stats
    same = "yes" if result.identical else "no"
    note = (
        f"{duration(slow.total_ms)} / {duration(quick.total_ms)}, each from the question to the last token; the "
        f"rounds alone {factor(result.decode_speedup)}"
    )
    exact = f'data-speedup="{result.speedup:.6f}"'
    return (
        f'<div class="verdict"><span class="speedup" {exact}>{factor(result.speedup)}</span>'
        f'<span class="badge {same}">identical answer: {same}</span><span class="note">{note}</span></div>'
    )


def conversation(turns: Sequence[Turn]) -> str:
    """The questions on the current picture."""
    if not turns:
        return ""
    items = "".join(
        f"<li><b>{escape(turn.question)}</b><span>{escape(turn.answer)}</span>"
        f'<span class="note">{factor(turn.speedup)}{_DOT}{_encoding(turn)}</span></li>'
        for turn in reversed(turns)
    )
    return f'<h3>On this picture</h3><ol class="turns">{items}</ol>'


def _encoding(turn: Turn) -> str:
    return f"picture encoded in {duration(turn.encoding_ms)}" if turn.encoding_ms else "picture encoding reused"
