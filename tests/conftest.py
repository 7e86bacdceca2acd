"""Fixtures of all tests: no network, no progress bars, and one tiny random target of each family a session."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: whatever asks the hub fails at once

import pytest
import torch
from transformers.utils import logging

import tiny
from mmsmart import profiling

logging.disable_progress_bar()
torch.set_num_threads(1)  # threads cost more than they give on models this small

MEASURING = ("test_profiling", "test_app", "/app/", "test_bench")


@pytest.fixture(autouse=True)
def estimated_costs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tests of measuring measure costs, which takes seconds for every target; the others guess them."""
    if not any(name in request.node.nodeid for name in MEASURING):
        monkeypatch.setattr(profiling, "profile", lambda engine, **_: profiling.estimated(engine))


@pytest.fixture(scope="session")
def llava_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("llava", tmp_path_factory.mktemp("tiny") / "llava")


@pytest.fixture(scope="session")
def qwen2_vl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_vl", tmp_path_factory.mktemp("tiny") / "qwen2_vl")


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("llama", tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2", tmp_path_factory.mktemp("tiny") / "qwen2")
