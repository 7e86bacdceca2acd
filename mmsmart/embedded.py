"""The models and pictures that come with the package."""

from __future__ import annotations

from pathlib import Path

from mmsmart.errors import ModelError
from mmsmart.registry import EMBEDDED_DRAFTERS, EMBEDDED_MODELS

_HERE = Path(__file__).resolve().parent
# In a wheel the assets lie inside the package, in a checkout beside it.
_ROOTS = (_HERE / "assets", _HERE.parent / "assets")


def model_folder(name: str) -> Path:
    """Where an embedded model's files lie.

    Raises:
        ModelError: The package was built without them.
    """
    return _folder(name, EMBEDDED_MODELS[name])


def drafter_folder(name: str) -> Path:
    """Where an embedded drafter's files lie.

    Raises:
        ModelError: The package was built without them.
    """
    return _folder(name, EMBEDDED_DRAFTERS[name])


def _folder(name: str, folder_name: str) -> Path:
    for root in _ROOTS:
        folder = root / "models" / folder_name
        if (folder / "config.json").is_file():
            return folder
    raise ModelError(f"the embedded model {name!r} is missing from this installation; reinstall mmsmart from its wheel")


def pictures() -> dict[str, Path]:
    """Name to path of the bundled sample pictures."""
    return {path.name: path for root in _ROOTS for path in sorted((root / "pictures").glob("*.png"))}
