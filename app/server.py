"""The server around the page: bounded, offline, and ended without a trace."""

from __future__ import annotations

import os
import socket
from typing import Any

from app.limits import MAX_BYTES
from app.page import CSS
from app.session import MOST_VISITORS, Session
from mmsmart.errors import InputError

_WAITING = 32
"""Requests that may wait in the page's queue; the device's own queue is shorter and says so in words."""


def serve(session: Session, host: str, port: int, *, share: bool = False, block: bool = True) -> Any:
    """Opens the page.

    Args:
        session: What it shows.
        host, port: Where.
        share: Also make a public address through Gradio's relay.
        block: Wait until the process is interrupted; otherwise the demo is returned, for its ``close``.

    Raises:
        InputError: The port is taken, or the address is not this machine's.
    """
    _require_free(host, port)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    import gradio as gr

    from app.ui import build

    demo = build(session)
    demo.queue(max_size=_WAITING, api_open=False)
    system = ["system-ui", "sans-serif"]  # named fonts would be fetched from elsewhere
    demo.launch(
        server_name=host,
        server_port=port,
        share=share,
        max_file_size=MAX_BYTES,
        state_session_capacity=MOST_VISITORS,
        theme=gr.themes.Soft(font=system, font_mono=["ui-monospace", "monospace"]),
        head=f"<style>{CSS}</style>",  # as it is: Gradio would rewrite the selectors of its css argument
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        quiet=True,
        prevent_thread_lock=True,
        show_error=False,
    )
    print(f"open {demo.local_url}" + (f" or {demo.share_url}" if share else ""), flush=True)
    if block:
        demo.block_thread()
    return demo


def _require_free(host: str, port: int) -> None:
    """Refuses an address that cannot be bound.

    Raises:
        InputError: Says which, and the way out.
    """
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise InputError(
            f"cannot open {host}:{port} ({error.strerror or error}); choose another one with --port or --host"
        ) from error
