"""The page in a real browser, over the embedded model."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import browser
from support import Forwards, language_forwards

TIMEOUT_MS = 120_000
"""Generous, as machines may be busy."""


class Site:
    """An open page of the app, and the engine behind it."""

    def __init__(self, chromium: Any, address: str, session: Any) -> None:
        self.chromium, self.address, self.session = chromium, address, session

    @property
    def engine(self) -> Any:
        return self.session.workbench.base("tiny-llava", "auto")

    def visit(self, **options: Any) -> Any:
        page = self.chromium.new_context(viewport={"width": 1280, "height": 900}, **options).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(self.address)
        page.wait_for_selector("#run")
        return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    browser.chromium()
    from app.session import Session
    from app.workbench import Choices, Workbench

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        session = Session(Workbench(Choices.of()))
        session.workbench.base("tiny-llava", "auto")
        with browser.served(session) as address, browser.opened_browser() as chromium:
            yield Site(chromium, address, session)


@pytest.fixture
def page(site: Site) -> Iterator[Any]:
    opened = site.visit()
    yield opened
    opened.context.close()


def take_example(page: Any, question: str) -> None:
    page.get_by_text(question, exact=True).first.click()
    page.wait_for_function("() => document.querySelector('#question textarea').value !== ''")
    page.wait_for_selector("#picture img")


def answers(page: Any) -> list[str]:
    return [page.inner_text(f"#race .pane.{kind} .answer") for kind in ("plain", "speculative")]


def wait_for_verdict(page: Any) -> None:
    page.wait_for_selector("#race .badge")


@pytest.fixture
def slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes every forward of the target take a while, so that there is something to stop."""
    pause_s, forward = 0.25, site.engine.target.forward
    monkeypatch.setattr(site.engine.target, "forward", lambda *given: (time.sleep(pause_s), forward(*given))[1])
    return pause_s


def test_a_question_about_a_bundled_picture_fills_both_panes(site: Site, page: Any) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    take_example(page, "Which bar is the tallest?")
    page.click("#run")
    wait_for_verdict(page)
    plain, speculative = answers(page)
    assert "The tallest bar is rice 90." in plain
    assert plain == speculative
    assert page.inner_text("#race .badge") == "identical answer: yes"
    assert re.fullmatch("\\d+\\.\\d\\d\u00d7", page.inner_text("#race .speedup"))
    assert page.locator("#race .pane.speculative .draft").count() > 0
    assert not [url for url in asked if site.address not in url and not url.startswith(("data:", "blob:"))]


def test_nothing_is_asked_of_other_hosts_when_the_page_opens(site: Site) -> None:
    context = site.chromium.new_context()
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site.address)
    page.wait_for_selector("#run")
    page.wait_for_load_state("load")
    page.wait_for_timeout(1000)
    context.close()
    assert asked
    assert not [url for url in asked if not url.startswith((site.address, "data:", "blob:"))]


def test_a_press_on_a_round_shows_its_tree_and_its_size(page: Any) -> None:
    take_example(page, "Which bar is the tallest?")
    page.click("#run")
    wait_for_verdict(page)
    page.locator("#race [data-round='2']").click()
    page.wait_for_selector("#tree svg.tree")
    page.get_by_text("Round 2:", exact=False).first.wait_for()
    assert page.locator("#tree .node.accepted, #tree .node.verified").count() > 0
    page.get_by_role("tab", name="Why this size").click()
    page.wait_for_selector("#why figure.chart")
    assert page.locator("#why figure.chart").count() == 3
    assert page.locator("#profile figure.chart").count() == 2


def test_the_keyboard_is_enough(page: Any) -> None:
    take_example(page, "Which slice is the smallest?")
    page.focus("#question textarea")
    page.keyboard.press("Enter")
    wait_for_verdict(page)
    page.focus("#race [data-round='1']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tree svg.tree")


def test_follow_up_questions_reuse_the_picture(page: Any) -> None:
    take_example(page, "How many shapes are there?")
    page.click("#run")
    page.wait_for_selector("#turns li")
    page.fill("#question textarea", "What color is the circle?")
    page.click("#run")
    page.wait_for_function("() => document.querySelectorAll('#turns li').length === 2")
    assert "picture encoding reused" in page.inner_text("#turns li >> nth=0")


def test_stop_stops(site: Site, page: Any, slow: float) -> None:
    take_example(page, "Which bar is the tallest?")
    forwards = language_forwards(site.engine)
    page.click("#run")
    page.wait_for_function("() => document.querySelector('#race .pane.plain .answer')?.innerText.length > 3")
    page.click("#stop")
    page.get_by_text("Stopped", exact=True).wait_for()
    stands_still(forwards, slow)
    assert page.locator("#race .badge").count() == 0


def test_a_visitor_who_leaves_frees_the_device(site: Site, slow: float) -> None:
    page = site.visit()
    take_example(page, "Which bar is the tallest?")
    forwards = language_forwards(site.engine)
    page.click("#run")
    page.wait_for_function("() => document.querySelector('#race .pane.plain .answer')?.innerText.length > 3")
    page.context.close()
    deadline = time.monotonic() + 20
    while site.session.device.load and time.monotonic() < deadline:
        time.sleep(0.1)
    assert site.session.device.load == 0
    stands_still(forwards, slow)


def stands_still(forwards: Forwards, pause_s: float) -> None:
    time.sleep(2 * pause_s)  # the round that was running
    before = forwards.count
    time.sleep(4 * pause_s)
    assert forwards.count == before
    assert before > 0
    forwards.remove()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("broken.png", b"\x89PNG\r\n\x1a\nnot a picture"),
        ("cut.jpg", b"\xff\xd8\xff\xe0" + b"\0" * 64),
        ("text.png", b"hello"),
    ],
)
def test_a_broken_upload_is_one_line_and_the_page_lives_on(page: Any, tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    page.set_input_files("#picture input[type=file]", str(path))
    page.wait_for_selector("#picture img")
    page.fill("#question textarea", "What is this?")
    page.click("#run")
    page.wait_for_selector("#race .error")
    line = page.inner_text("#race .error")
    assert line.startswith("The picture")
    assert "\n" not in line
    assert "Traceback" not in page.content()
    page.get_by_label("Remove Image").or_(page.get_by_label("Clear")).first.click()
    take_example(page, "Which bar is the tallest?")
    page.click("#run")
    wait_for_verdict(page)


def test_an_empty_question_is_one_line(page: Any) -> None:
    take_example(page, "Which bar is the tallest?")
    page.fill("#question textarea", "   ")
    page.click("#run")
    page.wait_for_selector("#race .error")
    assert page.inner_text("#race .error") == "The question is empty; ask something about the picture"


def test_two_visitors_at_once_both_get_answers(site: Site) -> None:
    first, second = site.visit(), site.visit()
    take_example(first, "Which bar is the tallest?")
    take_example(second, "Which slice is the smallest?")
    first.click("#run")
    second.click("#run")
    for page, right in ((first, "The tallest bar is rice 90."), (second, "The smallest slice is soy 10.")):
        wait_for_verdict(page)
        assert all(right in answer for answer in answers(page))
        page.context.close()


def test_policies_are_compared(page: Any) -> None:
    take_example(page, "Which bar is the tallest?")
    page.get_by_role("tab", name="Compare").click()
    page.get_by_label("number input for Runs of each").fill("1")
    page.keyboard.press("Tab")
    page.click("#compare-run")
    page.get_by_text("Done", exact=True).wait_for()
    names = page.locator("#compare tbody th").all_inner_texts()
    assert {"none", "likelihood", "smart", "rate-optimal"} <= set(names)
    assert set(page.locator("#compare tbody td:last-child").all_inner_texts()) == {"yes"}


def test_it_fits_a_phone(site: Site) -> None:
    page = site.visit(has_touch=True)
    page.set_viewport_size({"width": 360, "height": 740})
    take_example(page, "Which bar is the tallest?")
    page.click("#run")
    wait_for_verdict(page)
    for tab in ("Tree", "Why this size", "Compare", "Race"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.context.close()


def test_closing_the_page_ends_its_threads() -> None:
    browser.chromium()
    from app.limits import Settings
    from app.session import Session
    from app.workbench import Choices, Workbench

    before = set(threading.enumerate())
    session = Session(Workbench(Choices.of()))
    with browser.served(session):
        list(session.ask("visitor", None, "What?", Settings("tiny-llava", "auto", "auto")))
    ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("mmsmart-device")]
    assert not ours
