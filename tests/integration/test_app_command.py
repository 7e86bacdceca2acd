"""``python -m app`` from a shell, and the embedded examples."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.limits import Settings
from app.session import Session, examples
from app.workbench import Choices, Workbench
from mmsmart.stats import pooled

ROOT = Path(__file__).resolve().parent.parent.parent


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "rate-optimum"], "did you mean 'rate-optimal'?"),
        (["--drafter", "nngram"], "did you mean 'ngram'?"),
        (["--model", "./nowhere"], "no such folder: ./nowhere"),
        (["--port", "many"], "invalid int value"),
        (["--threads", "0"], "--threads"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, words):
    pytest.importorskip("gradio")
    result = command(*arguments)
    assert result.returncode in (1, 2)
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken_is_one_sentence():
    pytest.importorskip("gradio")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = command("--port", str(port))
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].startswith(f"mmsmart: cannot open 127.0.0.1:{port}")
    assert "--port" in result.stderr


def test_without_gradio_it_says_what_to_install(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'gradio' else find(name, *rest)\n"
    )
    result = command(PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.strip() == "app: the page needs Gradio; install it with: pip install 'mmsmart[app]'"


def test_the_bundled_examples_are_faster_and_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = Session(Workbench(Choices.of()))
    try:
        # Machines may be busy with other things: the best of three tries.
        speedups = [speedup_of_examples(session) for _ in range(3)]
    finally:
        session.close()
    assert max(speedups) > 1


def speedup_of_examples(session: Session) -> float:
    views = [
        list(session.ask("visitor", picture, question, Settings("tiny-llava", "auto", "auto")))[-1].view
        for picture, question in examples()
    ]
    assert all(view.result is not None and view.result.identical for view in views)
    plain, speculative = (pooled(getattr(view, name).stats for view in views) for name in ("plain", "speculative"))
    return plain.total_ms / speculative.total_ms
