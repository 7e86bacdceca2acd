"""The whole pipeline in its smoke setting, and a stage that is killed and goes on."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mmsmart.errors import ModelError
from mmsmart.training.__main__ import main
from mmsmart.training.families import get_family
from mmsmart.training.pipeline import Pipeline
from mmsmart.training.presets import PRESETS
from mmsmart.training.stage import RunFolder, StageSettings, run_stage
from mmsmart.training.tokenizer import build_tokenizer


class _Line:
    """Fits a line; its batches are a function of the step, and it may be cut off."""

    name = "line"

    def __init__(self, killed_at: int = 10**9) -> None:
        torch.manual_seed(0)
        self.module: nn.Module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        self._killed_at = killed_at

    def loss(self, step: int) -> Tensor:
        if step == self._killed_at:
            raise KeyboardInterrupt
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        output: Tensor = self.module(inputs)
        return (output - inputs.sum(-1, keepdim=True)).square().mean()

    def evaluate(self) -> dict[str, float]:
        return {"all": 0.5}


def test_killed_stage_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmsmart.training.stage.SECONDS_BETWEEN_SAVES", 0.0)
    settings = StageSettings(steps=12, batch=8, learning_rate=1e-2, evaluate_every=4)
    whole, first, second = _Line(), _Line(killed_at=7), _Line()
    run_stage(whole, settings, RunFolder(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run_stage(first, settings, RunFolder(tmp_path / "cut"))
    run_stage(second, settings, RunFolder(tmp_path / "cut"))
    for a, b in zip(whole.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_ended_stage_is_not_run_again(tmp_path: Path) -> None:
    settings = StageSettings(steps=3, batch=8, learning_rate=1e-2)
    run_stage(_Line(), settings, RunFolder(tmp_path))
    run_stage(_Line(killed_at=0), settings, RunFolder(tmp_path))


def test_stage_before_its_ground_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(
        get_family("llava"), PRESETS["smoke"], build_tokenizer(), RunFolder(tmp_path), tmp_path / "model"
    )
    with pytest.raises(ModelError, match="--stage main"):
        pipeline.run("joint")


def test_smoke_run_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["target", "--out", str(out), "--preset", "smoke", "--questions", "2"]) == 0
    card = (out / "model" / "README.md").read_text()
    assert "| joint |" in card
    assert "| value |" in card
    assert (out / "model" / "model.safetensors").stat().st_size < 24_000_000
    assert main(["score", "--model", str(out / "model"), "--questions", "1"]) == 0
    assert "| claimed |" in capsys.readouterr().out


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["target", "--out", str(tmp_path), "--stage", "nothing"]) == 2
    assert "unknown stage 'nothing'" in capsys.readouterr().err
    assert main(["target", "--out", str(tmp_path), "--steps", "3"]) == 2
    assert "need --stage" in capsys.readouterr().err
