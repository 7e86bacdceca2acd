"""The language model that the embedded targets share: its sizes and its first weights."""

from typing import Any

import torch
from torch import nn

from mmsmart.training.tokenizer import MAX_LENGTH, VOCABULARY_SIZE

TEXT_WIDTH = 256
SHALLOW_LAYERS, DEEP_LAYERS = 4, 10
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": TEXT_WIDTH,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": MAX_LENGTH,
    "initializer_range": 0.03,
}


def initialised(model_class: Any, config: Any, seed: int) -> Any:
    """Builds a model with random weights, its output layer equal to its embedding.

    Args:
        model_class: A transformers class.
        config: Its configuration.
        seed: Seed of the weights; the caller's own random numbers are left alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
        table: Any = model.get_input_embeddings().weight
        nn.init.normal_(table, std=TEXT_WIDTH**-0.5)
        with torch.no_grad():
            model.lm_head.weight.copy_(table)
    return model
