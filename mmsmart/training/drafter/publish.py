"""Writes a trained head in the published layout, so that it loads like a published drafter."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from safetensors.torch import save_file

from mmsmart.drafters.checkpoints import load_head
from mmsmart.drafters.head import EagleHead, HeadConfig
from mmsmart.targets.base import Target

logger = logging.getLogger(__name__)


def new_head_config(target: Target) -> HeadConfig:
    """The head that a target's family has in the published checkpoints: its own sizes, one layer.

    MSD for LLaVA has no norm before the attention and no q/k/v bias; MSD for Qwen2-VL has both, as the family's layers.
    """
    text = target.text_config
    like_qwen = "qwen" in text.model_type
    return HeadConfig(
        hidden_size=int(text.hidden_size),
        intermediate_size=int(text.intermediate_size),
        num_heads=int(text.num_attention_heads),
        num_kv_heads=int(text.num_key_value_heads),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads),
        vocab_size=target.vocab_size,
        rms_norm_eps=float(text.rms_norm_eps),
        rope_theta=float((getattr(text, "rope_parameters", None) or {}).get("rope_theta", 10000.0)),
        qkv_bias=like_qwen,
        input_layernorm=like_qwen,
    )


def first_head(target: Target, start: str | None) -> EagleHead:
    """The head that training begins with, in float32: a published one, or a new one with the target's embedding.

    Args:
        target: The model to draft for.
        start: Embedded name, folder or hub id of a head, as `mmsmart.load` takes it; `None` for a new head.

    Raises:
        ModelError: A checkpoint that cannot be read or does not fit the target.
    """
    if start is not None:
        return load_head(start, target).to(target.device, torch.float32)
    head = EagleHead(new_head_config(target)).to(target.device)
    head.embed_tokens.load_state_dict({"weight": target.embed_tokens.weight.detach().clone()})
    return head


def as_served(head: EagleHead, target: Target) -> EagleHead:
    """The head as it will draft, in its target's dtype; where that is its own, the weights are shared."""
    with torch.device("meta"):
        served = EagleHead(head.config)
    served.load_state_dict(head.state_dict(), assign=True)
    return served.to(target.dtype).eval()


def publish(head: EagleHead, target: Target, folder: Path) -> None:
    """Saves ``config.json`` and ``model.safetensors`` (bfloat16, the embedding included as in the originals)."""
    config = head.config
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "architectures": [type(target.model).__name__],
        "model_type": target.model.config.model_type,
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    weights = {key: value.detach().to("cpu", torch.bfloat16).contiguous() for key, value in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def plot_curve(curve: list[dict[str, float]], path: Path) -> None:
    """Draws held-out acceptance length over steps; without matplotlib there is no picture, and a remark says so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("no %s: install matplotlib for it (pip install 'mmsmart[eval]')", path.name)
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="mean acceptance length (chain of 5, held out)")
    axes.plot([point["step"] for point in curve], [point["acceptance_length"] for point in curve], marker=".")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
