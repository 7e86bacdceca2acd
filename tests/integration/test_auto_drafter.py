"""Which drafter ``drafter="auto"``, a folder or a hub id stand for."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from mmsmart import registry
from mmsmart.api import load
from mmsmart.drafters.eagle import EagleDrafter
from mmsmart.drafters.head import EagleHead
from mmsmart.drafters.msd import MSDDrafter
from mmsmart.drafters.ngram import NgramDrafter
from mmsmart.errors import ModelError
from mmsmart.training.drafter.publish import new_head_config, publish


@pytest.fixture
def drafter_folder(llava_folder: Path, tmp_path: Path) -> Path:
    target = load(str(llava_folder), drafter="ngram", dtype="bfloat16").target
    torch.manual_seed(0)
    head = EagleHead(new_head_config(target)).to(torch.bfloat16)
    head.embed_tokens.load_state_dict({"weight": target.embed_tokens.weight.detach()})
    publish(head, target, tmp_path / "drafter")
    return tmp_path / "drafter"


def test_auto_takes_the_published_drafter_of_the_target(
    llava_folder: Path, drafter_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.PUBLISHED_DRAFTERS, str(llava_folder), f"msd:checkpoint={drafter_folder}")
    engine = load(str(llava_folder), dtype="bfloat16")
    assert isinstance(engine.drafter, MSDDrafter)
    assert engine.drafter.head.embed_tokens is engine.target.embed_tokens  # held once
    assert engine.generate(tiny.picture(1), "what?", max_new_tokens=6).stats.drafted > 0


def test_auto_falls_back_to_ngram_with_a_sentence(
    llava_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(registry.PUBLISHED_DRAFTERS, str(llava_folder), "msd:checkpoint=no/such-drafter")
    with caplog.at_level(logging.WARNING):
        engine = load(str(llava_folder))
    assert isinstance(engine.drafter, NgramDrafter)
    assert "no/such-drafter" in caplog.text
    with pytest.raises(ModelError, match="no/such-drafter"):
        load(str(llava_folder), drafter="no/such-drafter")  # asked for by name: no silent replacement


def test_a_target_without_a_published_drafter_gets_ngram(llama_folder: Path) -> None:
    assert isinstance(load(str(llama_folder)).drafter, NgramDrafter)


def test_a_folder_says_by_its_config_what_it_is(llava_folder: Path, drafter_folder: Path) -> None:
    assert isinstance(load(str(llava_folder), drafter=str(drafter_folder)).drafter, MSDDrafter)
    config = drafter_folder / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llava"', '"model_type": "llama"'))
    engine = load(str(llava_folder), drafter=str(drafter_folder), policy="likelihood:depth=2,top_k=3,total=8")
    assert type(engine.drafter) is EagleDrafter
    pictures, plain = [tiny.picture(1)], load(str(llava_folder), policy="none")
    answer = engine.generate(pictures, "what?", max_new_tokens=9)  # picture rows are skipped
    assert answer.token_ids == plain.generate(pictures, "what?", max_new_tokens=9).token_ids


def test_a_drafter_for_another_target_is_refused_by_its_sizes(
    llava_folder: Path, drafter_folder: Path, tmp_path: Path
) -> None:
    other: Any = tiny.build("llama", tmp_path / "other", hidden_size=32)
    with pytest.raises(ModelError, match="drafter hidden_size 64, target 32"):
        load(str(other), drafter=str(drafter_folder))
