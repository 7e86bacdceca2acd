"""The family "llava": configuration, construction and growth of ``tiny-llava``."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from mmsmart.training.card import CardNotes
from mmsmart.training.growth import grow
from mmsmart.training.rows import PromptForm
from mmsmart.training.saving import save_target
from mmsmart.training.stage import StageSettings
from mmsmart.training.text_model import DEEP_LAYERS, SHALLOW_LAYERS, TEXT, TEXT_WIDTH, initialised
from mmsmart.training.tokenizer import IMAGE, build_tokenizer
from mmsmart.training.view import View

SIDE = 128
PATCH = 16
GRID = SIDE // PATCH
VISION_WIDTH = 192


def build_model(tokenizer: PreTrainedTokenizerFast, text_layers: int, seed: int) -> LlavaForConditionalGeneration:
    """Builds a randomly initialised model.

    Args:
        tokenizer: Gives the ids of the special tokens.
        text_layers: Layers of the language model.
        seed: Seed of the initial weights.
    """
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    image_token: Any = tokenizer.convert_tokens_to_ids(IMAGE)
    config = LlavaConfig(
        vision_config=_vision_config(),
        text_config=LlamaConfig(**TEXT, **ids, num_hidden_layers=text_layers, head_dim=32, tie_word_embeddings=False),
        image_token_index=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=GRID * GRID,
        tie_word_embeddings=False,
        **ids,
    )
    model: LlavaForConditionalGeneration = initialised(LlavaForConditionalGeneration, config, seed)
    return model


def _vision_config() -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=VISION_WIDTH,
        intermediate_size=4 * VISION_WIDTH,
        num_hidden_layers=6,
        num_attention_heads=6,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=VISION_WIDTH,
    )


class LlavaFamily:
    """What the pipeline needs to know of the family."""

    name = "llava"
    feature_width = VISION_WIDTH
    text_width = TEXT_WIDTH
    shallow_layers = SHALLOW_LAYERS
    deep_layers = DEEP_LAYERS
    view = View()
    form = PromptForm()
    joint_trains_tower = False
    card_notes = CardNotes(
        seen=f"{SIDE}x{SIDE} pixels ({GRID * GRID} visual tokens)",
        scaling=f"Everything is scaled to {SIDE}x{SIDE} pixels, so keep pictures near square.",
        processes="`vision` then `regress` ran in one one-thread process beside `drill` then `main` in another,\n"
        "`joint` on both cores.",
    )
    full_stages: Mapping[str, StageSettings] = MappingProxyType({})
    rotary_pairs = tuple(range(16))

    def build_tokenizer(self) -> PreTrainedTokenizerFast:
        """Builds the tokenizer."""
        return build_tokenizer()

    def build(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlavaForConditionalGeneration:
        """Builds the shallow, randomly initialised model."""
        return build_model(tokenizer, self.shallow_layers, seed)

    def tower(self, model: LlavaForConditionalGeneration) -> nn.Module:
        """The vision tower."""
        tower: nn.Module = model.model.vision_tower
        return tower

    def projector(self, model: LlavaForConditionalGeneration) -> nn.Module:
        """What maps the tower's features to visual tokens."""
        projector: nn.Module = model.model.multi_modal_projector
        return projector

    def grow(self, model: LlavaForConditionalGeneration) -> LlavaForConditionalGeneration:
        """Grows the model to its final depth."""
        deep: LlavaForConditionalGeneration = grow(model, self.deep_layers)
        return deep

    def save(self, model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
        """Writes the model as a folder that transformers loads."""
        save_target(model, tokenizer, folder)
