"""What the page can do, without the page: ask, stop, look at a round, compare; for several visitors at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from app.compare import CompareView, compare_policies
from app.device import Device, Stopped, Token, Waiting
from app.figures import count
from app.limits import MAX_BATCH, MAX_PASSES, Settings, checked_question, one_line, read_picture, within
from app.race import RaceView, race
from app.trace import RoundTrace
from app.workbench import PLAIN, Workbench, rule_of
from mmsmart.costs.online import CostModel
from mmsmart.costs.profiler import Profile
from mmsmart.embedded import pictures
from mmsmart.engine import Engine, Request
from mmsmart.errors import MmsmartError
from mmsmart.images import fingerprint
from mmsmart.registry import POLICIES
from mmsmart.training.showcase import EXHIBITS

logger = logging.getLogger(__name__)

MOST_VISITORS = 32
FRAME_S = 0.08
"""Views that follow each other faster than this are left out, the last of each phase excepted."""

View = TypeVar("View", RaceView, CompareView)


@dataclass(frozen=True)
class Turn:
    """A question and its answer.

    Attributes:
        question, answer: Their texts.
        speedup: Of the race.
        encoding_ms: Of the picture, 0 when an earlier question's was reused.
    """

    question: str
    answer: str
    speedup: float
    encoding_ms: float


@dataclass(frozen=True)
class Explained:
    """What the tabs Tree and Why draw for one answer.

    Attributes:
        traces: Its rounds.
        rule: What its policy does.
        profile: The device's costs.
        policy: The policy's name.
    """

    traces: tuple[RoundTrace, ...]
    rule: str
    profile: Profile
    policy: str


@dataclass
class Visitor:
    """One open page.

    Attributes:
        token: Of the job that it runs or ran last.
        picture: Fingerprint of the picture that the turns are about.
        turns: Questions on it, oldest first.
        explained: The last answer's rounds.
    """

    token: Token = field(default_factory=Token)
    picture: str = ""
    turns: tuple[Turn, ...] = ()
    explained: Explained | None = None


@dataclass(frozen=True)
class RaceFrame:
    """A race as the page draws it; ``error`` is one line, or empty."""

    view: RaceView
    turns: tuple[Turn, ...] = ()
    explained: Explained | None = None
    error: str = ""


@dataclass(frozen=True)
class CompareFrame:
    """A comparison as the page draws it; ``error`` is one line, or empty."""

    view: CompareView
    error: str = ""


class Session:
    """The app's logic: one workbench on one device, shared by all visitors.

    Args:
        workbench: What can be asked.
        device: Runs one job at a time.
    """

    def __init__(self, workbench: Workbench, device: Device | None = None) -> None:
        self.workbench = workbench
        self.device = device or Device()
        self._visitors: OrderedDict[str, Visitor] = OrderedDict()
        self._guard = threading.Lock()

    # ---- visitors

    def visitor(self, key: str) -> Visitor:
        """The visitor of a page; those who have not been seen for longest are forgotten."""
        with self._guard:
            known = self._visitors.setdefault(key, Visitor())
            self._visitors.move_to_end(key)
            while len(self._visitors) > MOST_VISITORS:
                _, oldest = self._visitors.popitem(last=False)
                oldest.token.cancel()
            return known

    @property
    def num_visitors(self) -> int:
        """Pages that are remembered."""
        return len(self._visitors)

    def stop(self, key: str) -> None:
        """Ends what a visitor runs within a round."""
        with self._guard:
            known = self._visitors.get(key)
        if known is not None:
            known.token.cancel()

    def leave(self, key: str) -> None:
        """A visitor closed the page."""
        self.stop(key)
        with self._guard:
            self._visitors.pop(key, None)

    def close(self) -> None:
        """Ends all work."""
        self.device.close()

    def _begin(self, key: str) -> tuple[Visitor, Token]:
        """One job a visitor: an earlier one ends."""
        visitor = self.visitor(key)
        visitor.token.cancel()
        visitor.token = Token()
        return visitor, visitor.token

    # ---- race

    def ask(self, key: str, picture: str | None, question: str, settings: Settings) -> Iterator[RaceFrame]:
        """Answers a question twice, plain and speculative; never raises what a visitor can cause."""
        visitor, token = self._begin(key)
        frame = RaceFrame(RaceView("Starting"), visitor.turns, visitor.explained)
        try:
            asked = checked_question(question)
            settings.sampling()
            states = self.device.run(lambda t: self._race(visitor, picture, asked, settings, t), token)
            with closing(states), closing(thinned(states)) as shown:
                for state in shown:
                    frame = state if isinstance(state, RaceFrame) else replace(frame, view=RaceView(_waiting(state)))
                    yield frame
        except Stopped:
            yield replace(frame, view=replace(frame.view, phase="Stopped"))
        except (MmsmartError, OSError, MemoryError, RuntimeError) as error:
            yield replace(frame, view=RaceView(""), error=explain(error))

    def _race(
        self, visitor: Visitor, picture: str | None, question: str, settings: Settings, token: Token
    ) -> Generator[RaceFrame, None, None]:
        image = read_picture(picture) if picture else None
        if visitor.picture != (key := fingerprint(image) if image else ""):
            visitor.picture, visitor.turns = key, ()
        turns = visitor.turns
        for phase in self._readied(settings, 1, token):
            yield RaceFrame(RaceView(phase), turns)
        pair = settings.model, settings.drafter
        profile = self.workbench.profile(*pair, 1, token.check)
        plain = self.workbench.base(*pair)
        require_picture(image, plain)
        quick = self.workbench.engine(*pair, settings.policy, settings.budget)
        request = Request(image, question, settings.sampling())
        rule, costs = rule_of(quick.policy), CostModel(profile.table)
        for view in race(plain, quick, request, costs, token):
            visitor.explained = Explained(view.traces, rule, profile, settings.policy)
            if view.result is not None and view.plain is not None:
                turn = Turn(question, view.plain.text, view.result.speedup, view.encoding_ms)
                visitor.turns = turns = (*turns, turn)
            yield RaceFrame(view, turns, visitor.explained)

    def _readied(self, settings: Settings, batch: int, token: Token) -> Iterator[str]:
        """Loads and measures what is missing, saying first what is done."""
        pair = settings.model, settings.drafter
        if not self.workbench.loaded(*pair):
            yield f"Loading {settings.model}"
            self.workbench.base(*pair)
        if not self.workbench.profiled(*pair, batch):
            yield "Measuring this device, once" + (f" for batches up to {batch}" if batch > 1 else "")
            self.workbench.profile(*pair, batch, token.check)

    # ---- compare

    def compare(
        self, key: str, picture: str | None, question: str, settings: Settings, batch: int, passes: int
    ) -> Iterator[CompareFrame]:
        """Runs all policies on the question, repeated over the bundled pictures; as `ask` in all else."""
        _, token = self._begin(key)
        frame = CompareFrame(CompareView("Starting", batch))
        try:
            asked = checked_question(question)
            settings.sampling()
            within("the batch", batch, 1, MAX_BATCH)
            within("the number of runs", passes, 1, MAX_PASSES)
            states = self.device.run(
                lambda t: self._compare(picture, asked, settings, int(batch), int(passes), t), token
            )
            with closing(states), closing(thinned(states)) as shown:
                for state in shown:
                    waits = isinstance(state, Waiting)
                    frame = CompareFrame(CompareView(_waiting(state), batch) if waits else state)
                    yield frame
        except Stopped:
            yield replace(frame, view=replace(frame.view, phase="Stopped", done=True))
        except (MmsmartError, OSError, MemoryError, RuntimeError) as error:
            yield CompareFrame(CompareView("", batch), explain(error))

    def _compare(
        self, picture: str | None, question: str, settings: Settings, batch: int, passes: int, token: Token
    ) -> Generator[CompareView, None, None]:
        first = Request(read_picture(picture) if picture else None, question, settings.sampling())
        for phase in self._readied(settings, batch, token):
            yield CompareView(phase, batch)
        pair = settings.model, settings.drafter
        require_picture(first.image, self.workbench.base(*pair))
        names = [PLAIN, *(name for name in POLICIES if name != PLAIN)]
        names += [given for given in self.workbench.choices.policies if given not in (*names, "auto")]
        engines: dict[str, Engine] = {}
        for name in names:
            token.check()
            yield CompareView(f"Preparing {name}", batch)
            engines[name] = self.workbench.engine(*pair, name, settings.budget if name != PLAIN else 0)
        yield from compare_policies(engines, repeated(first, batch), passes, token)


def examples() -> list[tuple[str, str]]:
    """Path and question of the bundled pictures, the first question of each before the second ones."""
    files = pictures()
    most = max(len(exhibit.questions) for exhibit in EXHIBITS)
    return [
        (str(files[exhibit.name]), exhibit.questions[place])
        for place in range(most)
        for exhibit in EXHIBITS
        if exhibit.name in files and place < len(exhibit.questions)
    ]


def repeated(first: Request, batch: int) -> list[Request]:
    """A batch: the visitor's own request, then the bundled pictures with their questions, over and over.

    Without a picture, the questions alone.
    """
    bundled = examples()
    more = (bundled[place % len(bundled)] for place in range(batch - 1))
    blind = first.image is None
    return [first, *(Request(None if blind else path, question, first.sampling) for path, question in more)]


def require_picture(image: Any, engine: Engine) -> None:
    """Refuses a question without a picture, unless the target is a text model.

    Raises:
        ImageError: There is none.
    """
    if image is None and engine.target.image_token_id is not None:
        read_picture(None)


def thinned(states: Iterator[Any], clock: Callable[[], float] = time.monotonic) -> Generator[Any, None, None]:
    """Leaves out views that would come faster than a page can draw, never the last one nor one that ends a phase."""
    held: Any = None
    phase, shown = None, -FRAME_S
    for state in states:
        now, its_phase = clock(), _phase_of(state)
        if its_phase != phase and held is not None:
            yield held
            held = None
        if its_phase != phase or now - shown >= FRAME_S:
            phase, shown, held = its_phase, now, None
            yield state
        else:
            held = state
    if held is not None:
        yield held


def _phase_of(state: Any) -> str:
    view = getattr(state, "view", state)
    return getattr(view, "phase", "waiting")


def _waiting(state: Waiting) -> str:
    return "Waiting for the device" + (f", {count(state.ahead, 'visitor')} before you" if state.ahead else "")


def explain(error: BaseException) -> str:
    """One line for the page; what is not the visitor's doing goes to the log in full."""
    if isinstance(error, MmsmartError):
        return one_line(error)
    logger.error("a visitor's job failed", exc_info=error)
    return f"Something went wrong on the server ({type(error).__name__}); it was logged. Try again."
