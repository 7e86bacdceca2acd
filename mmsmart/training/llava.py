"""The family "llava": configuration, construction and growth of ``tiny-llava``."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from mmsmart.training.saving import save_target
from mmsmart.training.tokenizer import IMAGE, MAX_LENGTH, VOCABULARY_SIZE

SIDE = 128
PATCH = 16
GRID = SIDE // PATCH
VISION_WIDTH = 192
TEXT_WIDTH = 256
LAYERS = "model.language_model.layers."
SILENCED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


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
        text_config=_text_config(text_layers, ids),
        image_token_index=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=GRID * GRID,
        tie_word_embeddings=False,
        **ids,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(config)
        table: Any = model.get_input_embeddings().weight
        nn.init.normal_(table, std=TEXT_WIDTH**-0.5)
        with torch.no_grad():
            model.lm_head.weight.copy_(table)
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


def _text_config(layers: int, ids: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=TEXT_WIDTH,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.03,
        tie_word_embeddings=False,
        **ids,
    )


def grow(model: LlavaForConditionalGeneration, text_layers: int) -> LlavaForConditionalGeneration:
    """Returns a deeper copy that computes exactly the same function.

    Each new layer is a copy of the layer below it whose ``o_proj`` and ``down_proj`` are zero, so it adds nothing to
    the residual stream until it is trained.
    """
    config: Any = copy.deepcopy(model.config)
    shallow = config.text_config.num_hidden_layers
    config.text_config.num_hidden_layers = text_layers
    deep = LlavaForConditionalGeneration(config)
    sources = [index * shallow // text_layers for index in range(text_layers)]
    old = model.state_dict()
    deep.load_state_dict({name: _grown_weight(name, old, sources) for name in deep.state_dict()})
    return deep


def _grown_weight(name: str, old: dict[str, Tensor], sources: list[int]) -> Tensor:
    """Weight of the deeper model; ``sources`` says which old layer each new layer comes from."""
    if not name.startswith(LAYERS):
        return old[name]
    index, rest = name[len(LAYERS) :].split(".", 1)
    layer = int(index)
    weight = old[f"{LAYERS}{sources[layer]}.{rest}"]
    is_new = layer > 0 and sources[layer - 1] == sources[layer]
    return torch.zeros_like(weight) if is_new and rest in SILENCED else weight


class LlavaFamily:
    """What the pipeline needs to know of the family."""

    name = "llava"
    grid = GRID
    vision_width = VISION_WIDTH
    text_width = TEXT_WIDTH
    shallow_layers = 4
    deep_layers = 10

    def build(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlavaForConditionalGeneration:
        """Builds the shallow, randomly initialised model."""
        return build_model(tokenizer, self.shallow_layers, seed)

    def grow(self, model: LlavaForConditionalGeneration) -> LlavaForConditionalGeneration:
        """Grows the model to its final depth."""
        return grow(model, self.deep_layers)

    def save(self, model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
        """Writes the model as a folder that transformers loads."""
        save_target(model, tokenizer, folder)
