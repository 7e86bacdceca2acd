"""The wheel carries the embedded models and pictures, and answers in an empty folder without a network."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("mmsmart-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, folder: Path, *arguments: str) -> str:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "no-hub"), "PYTHONPATH": str(site)}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | offline,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_answers_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    picture = site / "mmsmart" / "assets" / "pictures" / "chart.png"
    code = "import mmsmart, sys; print(mmsmart.__file__); print(mmsmart.generate(sys.argv[1], sys.argv[2]))"
    where, answer = run(site, tmp_path, "-c", code, str(picture), "Which bar is the tallest?").strip().split("\n", 1)
    assert where.startswith(str(site))
    assert answer == run(site, tmp_path, "-m", "mmsmart", "generate", str(picture), "Which bar is the tallest?").strip()


def test_the_wheel_says_what_it_carries(site: Path) -> None:
    models = site / "mmsmart" / "assets" / "models"
    assert (models / "tiny-llava" / "model.safetensors").stat().st_size < 25_000_000
    assert (models / "tiny-llava" / "README.md").is_file()
    assert not list(site.rglob("tests"))
