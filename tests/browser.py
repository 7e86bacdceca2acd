"""A real browser and a page of our own for it; what is missing is a reason to skip."""

import contextlib
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def chromium() -> str:
    """The system's Chromium; skips where there is none."""
    pytest.importorskip("gradio", reason="the app needs gradio: pip install 'mmsmart[app]'")
    pytest.importorskip("playwright.sync_api", reason="needs playwright's Python package")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    return found


@contextlib.contextmanager
def opened_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def served(session: Any) -> Iterator[str]:
    """The address of a page over a session, which is closed afterwards."""
    from app.server import serve

    port = free_port()
    demo = serve(session, "127.0.0.1", port, block=False)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        demo.close()
        session.close()
