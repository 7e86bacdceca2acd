"""mmsmart: faster answers about pictures from multimodal language models, without changing one answer.

>>> import mmsmart
>>> print(mmsmart.generate("chart.png", "Which bar is the tallest?"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmsmart.api import generate, load
    from mmsmart.config import SamplingParams
    from mmsmart.engine import Engine, GenerationOutput, Request, StreamChunk
    from mmsmart.errors import ImageError, InputError, MmsmartError, ModelError, NumericalError
    from mmsmart.stats import GenerationStats

__version__ = "0.1.0"
__all__ = [
    "Engine",
    "GenerationOutput",
    "GenerationStats",
    "ImageError",
    "InputError",
    "MmsmartError",
    "ModelError",
    "NumericalError",
    "Request",
    "SamplingParams",
    "StreamChunk",
    "generate",
    "load",
]

_HOME = {
    "generate": "api",
    "load": "api",
    "SamplingParams": "config",
    "Engine": "engine",
    "GenerationOutput": "engine",
    "Request": "engine",
    "StreamChunk": "engine",
    "GenerationStats": "stats",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mmsmart' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mmsmart.{_HOME.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
