"""A session over a tiny random target, with a cache of its own for the profile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from app.limits import Settings
from app.session import Session
from app.workbench import Choices, Workbench


@pytest.fixture(scope="session")
def settings(llava_folder: Path) -> Settings:
    return Settings(str(llava_folder), "ngram", "best-first", max_new_tokens=24)


@pytest.fixture(scope="session")
def session(llava_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        made = Session(Workbench(Choices.of(str(llava_folder), "ngram")))
        yield made
        made.close()


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    tiny.picture(1, (60, 48)).save(path)
    return str(path)
