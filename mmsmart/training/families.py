"""Families of targets that can be trained here: one row each."""

import difflib
import importlib
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedTokenizerFast

from mmsmart.errors import InputError

FAMILIES = {"llava": "mmsmart.training.llava:LlavaFamily"}


class Family(Protocol):
    """What the pipeline needs to know of a family.

    Attributes:
        name: Its name in the table.
        grid: Visual tokens along one side of a picture.
        vision_width: Width of the vision tower.
        text_width: Width of the language model.
    """

    name: str
    grid: int
    vision_width: int
    text_width: int

    def build(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> Any:
        """Builds the shallow, randomly initialised model."""

    def grow(self, model: Any) -> Any:
        """Returns the deep model that computes the same function."""

    def save(self, model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
        """Writes the model as a folder that transformers loads."""


def get_family(name: str) -> Family:
    """Looks a family up.

    Raises:
        InputError: If there is none of that name.
    """
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, 1) or list(FAMILIES)
        raise InputError(f"unknown family {name!r}; did you mean {near[0]!r}?")
    module, attribute = FAMILIES[name].split(":")
    family: Family = getattr(importlib.import_module(module), attribute)()
    return family
