"""Takes the README's pictures of the app: every tab at desktop and phone width.

    python eval/app_pictures.py --out assets/readme

Drives the system's Chromium over a server of its own. Look at the pictures before you keep them.
"""

import argparse
import io
import shutil
import socket
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from app.server import serve
from app.session import Session
from app.workbench import Choices, Workbench

TIMEOUT_MS = 600_000
QUESTION = "What is the total?"
TABS = {"race": "Race", "tree": "Tree", "why": "Why this size", "compare": "Compare"}
COLOURS = 128


def main() -> int:
    """Serves, drives, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("assets/readme"))
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--batch", type=int, default=1, help="of the comparison")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no Chromium on this machine: apt-get install chromium")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    session = Session(Workbench(Choices.of(policy=arguments.policy)))
    demo = serve(session, "127.0.0.1", port, block=False)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            address = f"http://127.0.0.1:{port}"
            take(browser, address, arguments.out, "desktop", arguments.batch)
            take(browser, address, arguments.out, "phone", arguments.batch)
            browser.close()
    finally:
        demo.close()
        session.close()
    return 0


def take(browser: Browser, address: str, folder: Path, form: str, batch: int) -> None:
    """One visit: asks, then a picture of each tab."""
    phone = form == "phone"
    size = {"width": 360, "height": 800} if phone else {"width": 1200, "height": 860}
    page = browser.new_context(viewport=size, device_scale_factor=2 if phone else 1, has_touch=phone).new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(address)
    page.wait_for_selector("#run")
    ask(page)
    for name, label in TABS.items():
        page.get_by_role("tab", name=label).click()
        if name == "tree":
            page.fill("#round input[type=number]", "3")
            page.keyboard.press("Tab")
            page.evaluate("document.activeElement.blur()")
            page.get_by_text("Round 3:").first.wait_for()
        if name == "compare":
            compare(page, batch)
        page.wait_for_timeout(800)
        if phone:
            page.evaluate("document.querySelector('[role=tablist]').scrollIntoView()")
        else:
            page.evaluate("window.scrollTo(0, 0)")
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)
        save(page.screenshot(), folder / f"app-{name}-{form}.png")
    page.context.close()


def ask(page: Page) -> None:
    """Runs the race a few times, as policies learn; the last one is kept."""
    page.get_by_text("2", exact=True).first.click()  # the second page of the examples
    page.get_by_text(QUESTION, exact=True).first.click()
    page.wait_for_function("q => document.querySelector('#question textarea').value === q", arg=QUESTION)
    page.wait_for_selector("#picture img")
    for number in range(1, 6):
        page.click("#run")
        page.wait_for_function("n => document.querySelectorAll('#turns li').length >= n", arg=number)


def compare(page: Page, batch: int) -> None:
    """Compares all policies."""
    page.get_by_label("number input for Batch").fill(str(batch))
    page.keyboard.press("Tab")
    page.click("#compare-run")
    page.wait_for_function("() => document.querySelector('#compare .status')?.innerText === 'Done'")


def save(data: bytes, path: Path) -> None:
    """Writes a compact PNG: the page has few colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(io.BytesIO(data)) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    sys.exit(main())
