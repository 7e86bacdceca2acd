"""Families of targets that can be trained here: one row each."""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from transformers import PreTrainedTokenizerFast

from mmsmart.errors import InputError
from mmsmart.training.card import CardNotes
from mmsmart.training.rows import PromptForm
from mmsmart.training.stage import StageSettings
from mmsmart.training.view import View

FAMILIES = {
    "llava": "mmsmart.training.llava:LlavaFamily",
    "qwen2_vl": "mmsmart.training.qwen2_vl:Qwen2VLFamily",
}


class Family(Protocol):
    """What the pipeline needs to know of a family.

    Attributes:
        name: Its name in the table.
        feature_width: Width of the vision tower's features of a visual token.
        text_width: Width of the language model.
        view: How it looks at pictures.
        form: Its prompt.
        card_notes: What the model card says of it.
        joint_trains_tower: Whether its vision tower learns in the stage "joint" too.
        full_stages: Stages of the preset "full" that it trains otherwise than the table of presets says.
        rotary_pairs: For each rotary pair of a head, the pair of a LLaVA head that a warm start puts there.
    """

    name: str
    feature_width: int
    text_width: int
    view: View
    form: PromptForm
    card_notes: CardNotes
    joint_trains_tower: bool
    full_stages: Mapping[str, StageSettings]
    rotary_pairs: Sequence[int]

    def build_tokenizer(self) -> PreTrainedTokenizerFast:
        """Builds the tokenizer."""

    def build(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> Any:
        """Builds the shallow, randomly initialised model."""

    def tower(self, model: Any) -> nn.Module:
        """The vision tower, as ``view.features`` takes it."""

    def projector(self, model: Any) -> nn.Module:
        """What maps the tower's features to visual tokens."""

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
