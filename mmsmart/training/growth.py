"""Makes a shallow model deeper without changing what it computes."""

import copy
from typing import Any

import torch
from torch import Tensor

LAYERS = "model.language_model.layers."
SILENCED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def grow(model: Any, text_layers: int) -> Any:
    """Returns a deeper copy that computes exactly the same function.

    Each new layer is a copy of the layer below it whose ``o_proj`` and ``down_proj`` are zero, so it adds nothing to
    the residual stream until it is trained.
    """
    config = copy.deepcopy(model.config)
    text = config.text_config
    shallow = text.num_hidden_layers
    text.num_hidden_layers = text_layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1] * text_layers
    deep = type(model)(config)
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
