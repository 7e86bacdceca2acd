"""The page's layout; what it does is in `app.session`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.compare import CompareView
from app.limits import MAX_BATCH, MAX_BUDGET, MAX_PASSES, MAX_QUESTION, MAX_TOKENS, Settings
from app.page import PICK_ROUND, SHOW_RACE
from app.panels import conversation, race_panel
from app.race import RUNNING, RaceView
from app.reports import compare_panel, profile_panel, why_panel
from app.session import CompareFrame, Explained, RaceFrame, Session, examples
from app.tree_view import tree_panel

_HEAD = (
    "<h1>mmsmart</h1><p>The same answer, sooner: a small drafter proposes, the target checks a whole tree in one "
    "forward. Both runs below use the same target.</p>"
)
_RACE_NOTE = (
    '<p class="hint">The two runs do not share the device: plain decoding goes first and stays on screen, then the '
    'speculative run. The picture is encoded once before both. <span class="draft">Accepted drafts</span> and '
    '<span class="bonus">tokens of the target\'s own</span> are coloured; point at a token to see its round, press it '
    "to see the round's tree. Each question stands alone: the embedded models were trained without dialogue, so "
    "earlier turns are not put in the prompt; the picture's encoding is reused.</p>"
)
_QUEUE: dict[str, Any] = {
    "concurrency_id": "device",
    "concurrency_limit": 16,
    "api_visibility": "private",
    "show_progress": "hidden",
}
_UPLOADS_S = (600, 3600)
"""How often uploads are looked through, and how old they may get."""
_LIGHT: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class _Inputs:
    """What a visitor sets, in the order of the handlers' arguments."""

    picture: gr.Image
    question: gr.Textbox
    run: gr.Button
    stop: gr.Button
    settings: tuple[Any, ...]

    @property
    def all(self) -> list[Any]:
        return [self.picture, self.question, *self.settings]


@dataclass(frozen=True)
class _Outputs:
    """What a race shows."""

    race: gr.HTML
    turns: gr.HTML
    round: gr.Slider
    tree: gr.HTML
    why: gr.HTML
    profile: gr.HTML
    tabs: gr.Tabs

    @property
    def all(self) -> list[Any]:
        return [self.race, self.turns, self.round, self.tree, self.why, self.profile]


def build(session: Session) -> gr.Blocks:
    """The page over a session."""
    demo: gr.Blocks
    with gr.Blocks(title="mmsmart", analytics_enabled=False, fill_width=True, delete_cache=_UPLOADS_S) as demo:
        gr.HTML(_HEAD, elem_classes=["mm", "mm-head"])
        with gr.Row():
            with gr.Column(scale=2, min_width=280):
                inputs = _inputs(session)
            with gr.Column(scale=5, min_width=300), gr.Tabs() as tabs:
                with gr.Tab("Race", id="race"):
                    race = _html(race_panel(RaceFrame(RaceView(""))), "race", PICK_ROUND)
                    turns = _html("", "turns")
                    _html(_RACE_NOTE, "race-note")
                with gr.Tab("Tree", id="tree"):
                    number = gr.Slider(1, 2, value=1, step=1, label="Round", elem_id="round", interactive=True)
                    tree = _html(tree_panel(None, ""), "tree")
                with gr.Tab("Why this size", id="why"):
                    why = _html(why_panel(None), "why")
                    profile = _html("", "profile")
                with gr.Tab("Compare", id="compare"):
                    _compare_tab(session, inputs)
        outputs = _Outputs(race, turns, number, tree, why, profile, tabs)
        _wire(demo, session, inputs, outputs)
    return demo


def _html(value: str, name: str, script: str | None = None) -> gr.HTML:
    return gr.HTML(value, elem_id=name, elem_classes="mm", js_on_load=script)


def _inputs(session: Session) -> _Inputs:
    sources: Any = ["upload", "clipboard", "webcam"]
    picture = gr.Image(label="Picture", sources=sources, type="filepath", height=240, elem_id="picture")
    # The file as it was uploaded, whatever is in it: gr.Image would fail with a message of its own. Not by a subclass,
    # as Gradio writes a stub file beside the module that has one.
    picture.preprocess = _uploaded  # type: ignore[method-assign]
    question = gr.Textbox(
        label="Question",
        lines=1,
        max_lines=3,
        max_length=MAX_QUESTION,
        elem_id="question",
        placeholder="Which bar is the tallest?",
        submit_btn=False,
    )
    with gr.Row():
        run = gr.Button("Run", variant="primary", elem_id="run", min_width=100)
        stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=100)
    offered = examples()
    gr.Examples(
        [list(example) for example in offered],
        [picture, question],
        example_labels=[question for _, question in offered],
        examples_per_page=4,
        api_visibility="private",
    )
    return _Inputs(picture, question, run, stop, _settings(session))


def _uploaded(payload: Any) -> str | None:
    return payload.path if payload is not None else None


def _settings(session: Session) -> tuple[Any, ...]:
    choices = session.workbench.choices
    with gr.Accordion("Settings", open=False, elem_id="settings"):
        return (
            gr.Dropdown(list(choices.models), value=choices.models[0], label="Model", filterable=False),
            gr.Dropdown(list(choices.drafters), value=choices.drafters[0], label="Drafter", filterable=False),
            gr.Dropdown(list(choices.policies), value=choices.policies[0], label="Policy", filterable=False),
            gr.Slider(0, 1.5, value=0, step=0.1, label="Temperature", info="0 takes the most probable token"),
            gr.Slider(8, MAX_TOKENS, value=128, step=8, label="Maximum length", info="tokens", elem_id="length"),
            gr.Slider(0, MAX_BUDGET, value=0, step=1, label="Budget", info="most drafts a round; 0: the policy's own"),
            gr.Number(0, precision=0, minimum=0, label="Seed", info="of both runs, for temperatures above 0"),
        )


def _compare_tab(session: Session, inputs: _Inputs) -> None:
    with gr.Row():
        batch = gr.Slider(
            1, MAX_BATCH, value=1, step=1, label="Batch", info="further rows repeat the bundled pictures", min_width=200
        )
        passes = gr.Slider(
            1, MAX_PASSES, value=3, step=1, label="Runs of each", info="the median counts", min_width=200
        )
    with gr.Row():
        start = gr.Button("Compare policies", variant="primary", elem_id="compare-run", min_width=140)
        stop = gr.Button("Stop", variant="stop", elem_id="compare-stop", min_width=100)
    shown = _html(compare_panel(CompareFrame(CompareView(""))), "compare")

    def compare(request: gr.Request, picture: Any, question: Any, *rest: Any) -> Iterator[str]:
        *settings, size, times = rest
        chosen = Settings(*settings)
        for frame in session.compare(_key(request), picture, question, chosen, size, times):
            yield compare_panel(frame)

    def stop_comparing(request: gr.Request) -> None:
        session.stop(_key(request))

    start.click(compare, [*inputs.all, batch, passes], shown, **_QUEUE)
    stop.click(stop_comparing, None, None, **_LIGHT)


def _wire(demo: gr.Blocks, session: Session, inputs: _Inputs, outputs: _Outputs) -> None:
    """What happens when something is pressed."""

    def ask(request: gr.Request, picture: Any, question: Any, *settings: Any) -> Iterator[list[Any]]:
        for frame in session.ask(_key(request), picture, question, Settings(*settings)):
            yield _drawn(frame)

    def stop(request: gr.Request) -> None:
        session.stop(_key(request))

    def leave(request: gr.Request) -> None:
        session.leave(_key(request))

    def show_round(request: gr.Request, number: float) -> list[str]:
        return list(_round_panels(session.visitor(_key(request)).explained, int(number)))

    def pick_round(request: gr.Request, event: gr.EventData) -> list[Any]:
        number = int(event.round)
        return [gr.Slider(value=number), gr.Tabs(selected="tree"), *show_round(request, number)]

    asked = [inputs.run.click, inputs.question.submit]
    gr.on(asked, ask, inputs.all, outputs.all, trigger_mode="once", **_QUEUE)
    gr.on(asked, None, None, None, js=SHOW_RACE)
    inputs.stop.click(stop, None, None, **_LIGHT)
    outputs.round.release(show_round, outputs.round, [outputs.tree, outputs.why], **_LIGHT)
    outputs.round.input(show_round, outputs.round, [outputs.tree, outputs.why], trigger_mode="always_last", **_LIGHT)
    picked = [outputs.round, outputs.tabs, outputs.tree, outputs.why]
    outputs.race.select(pick_round, None, picked, **_LIGHT)
    demo.unload(leave)


def _key(request: gr.Request) -> str:
    return str(request.session_hash)


def _drawn(frame: RaceFrame) -> list[Any]:
    """A frame as the values of `_Outputs.all`."""
    explained, race = frame.explained, race_panel(frame)
    if explained is None:
        return [race, *[gr.skip()] * 5]
    if frame.view.phase in RUNNING:  # little is drawn beside rounds that are being timed
        trace = explained.traces[-1] if explained.traces else None
        return [race, gr.skip(), gr.skip(), gr.skip(), why_panel(trace), gr.skip()]
    rounds = len(explained.traces)
    slider = gr.Slider(maximum=max(rounds, 2), value=max(rounds, 1))
    panels = _round_panels(explained, rounds)
    return [race, conversation(frame.turns), slider, *panels, profile_panel(explained.profile)]


def _round_panels(explained: Explained | None, number: int) -> tuple[str, str]:
    """The tabs Tree and Why for one round."""
    if explained is None:
        return tree_panel(None, ""), why_panel(None)
    traces = explained.traces
    trace = traces[min(max(number, 1), len(traces)) - 1] if traces else None
    return tree_panel(trace, explained.rule), why_panel(trace)
