"""Published EAGLE-1/2 and MSD checkpoints: read without running code, checked key by key, fitted to their target."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils.hub import cached_file

from mmsmart.drafters.base import TargetFacts
from mmsmart.drafters.head import EagleHead, HeadConfig
from mmsmart.embedded import drafter_folder
from mmsmart.errors import ModelError
from mmsmart.registry import EMBEDDED_DRAFTERS

logger = logging.getLogger(__name__)

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_IGNORED = ("rotary_emb.inv_freq",)
_PICTURE_FAMILIES = ("llava", "qwen2_vl")


def load_head(source: str, target: TargetFacts) -> EagleHead:
    """Loads a head for a target.

    Its embedding is shared with the target's when the two are equal, which they are in every published checkpoint.

    Args:
        source: Folder or hub id with ``config.json`` and weights in the published layout.
        target: The model that it was trained for.

    Raises:
        ModelError: What is missing, unreadable, or does not fit, by name.
    """
    config, weights = read_checkpoint(source)
    settings = head_config(source, config, weights)
    _check_fit(source, settings, target)
    with torch.device("meta"):
        head = EagleHead(settings)
    _check_keys(source, head, weights)
    head.load_state_dict(weights, assign=True)
    head = head.to(target.device, target.dtype).eval()
    own, theirs = head.embed_tokens.weight, target.embed_tokens.weight
    if torch.equal(own, theirs[: len(own)]):
        head.embed_tokens = target.embed_tokens
        logger.info("%s shares the target's embedding: %.0f MB less memory", source, own.nbytes / 2**20)
    return head


def kind_of(source: str) -> str:
    """The drafter that a checkpoint is for, by its ``model_type``: ``"msd"`` or ``"eagle"``; the keys do not tell.

    Raises:
        ModelError: There is no readable ``config.json``.
    """
    return "msd" if _read_config(source).get("model_type") in _PICTURE_FAMILIES else "eagle"


def read_checkpoint(source: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's raw config and weights, on the CPU in their own dtype.

    Raises:
        ModelError: Files missing, damaged, or a pickle that holds more than tensors.
    """
    config = _read_config(source)
    weights: dict[str, Tensor] = {}
    for path in _weight_paths(source):
        weights |= _read_weights(source, path)
    return config, {_plain(key): value for key, value in weights.items() if not key.endswith(_IGNORED)}


def head_config(source: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> HeadConfig:
    """Sizes from the config, switches from the keys: published configs do not tell them reliably.

    Raises:
        ModelError: A size is missing, or the rotary positions are of a kind that heads are not trained with.
    """
    missing = [key for key in ("hidden_size", "intermediate_size", "num_attention_heads") if key not in config]
    if missing:
        raise ModelError(f"the drafter {source!r} has no {', '.join(missing)} in its config.json")
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise ModelError(f"the drafter {source!r} has rope_scaling of type {kind!r}; EAGLE heads use plain positions")
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    keys = weights.get("layers.0.self_attn.k_proj.weight")
    embedding = weights.get("embed_tokens.weight")
    return HeadConfig(
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_heads=heads,
        num_kv_heads=heads if keys is None else keys.shape[0] // head_dim,
        head_dim=head_dim,
        vocab_size=int(config.get("vocab_size", 0)) if embedding is None else embedding.shape[0],
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(config.get("rope_theta") or 10000.0),
        fc_bias="fc.bias" in weights,
        qkv_bias="layers.0.self_attn.q_proj.bias" in weights,
        input_layernorm="layers.0.input_layernorm.weight" in weights,
    )


def _read_config(source: str) -> dict[str, Any]:
    return _read_object(source, _needed(source, "config.json"))


def _read_object(source: str, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"the drafter {source!r} has a damaged {path.name}: {error}") from error
    if not isinstance(record, dict):
        raise ModelError(f"the drafter {source!r} has a damaged {path.name}: no JSON object")
    return record


def _check_fit(source: str, settings: HeadConfig, target: TargetFacts) -> None:
    width = int(target.embed_tokens.weight.shape[1])
    if settings.hidden_size != width:
        raise ModelError(
            f"the drafter {source!r} does not fit {target.name}: "
            f"drafter hidden_size {settings.hidden_size}, target {width}"
        )
    if settings.vocab_size > target.vocab_size:
        raise ModelError(
            f"the drafter {source!r} does not fit {target.name}: drafter vocab_size {settings.vocab_size}, "
            f"target {target.vocab_size}"
        )


def _check_keys(source: str, head: EagleHead, weights: Mapping[str, Tensor]) -> None:
    wanted = {key: tuple(value.shape) for key, value in head.state_dict().items()}
    missing, extra = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or extra:
        parts = [f"{name} {', '.join(keys)}" for name, keys in (("lacks", missing), ("has unknown", extra)) if keys]
        raise ModelError(f"the drafter {source!r} is not an EAGLE-1/2 or MSD head: it {' and '.join(parts)}")
    for key, shape in wanted.items():
        if tuple(weights[key].shape) != shape:
            raise ModelError(
                f"the drafter {source!r} has {key} of shape {list(weights[key].shape)}, expected {list(shape)}"
            )
        if not weights[key].is_floating_point():
            raise ModelError(f"the drafter {source!r} has {key} in {weights[key].dtype}; expected a floating dtype")


def _plain(key: str) -> str:
    return key.removeprefix("module.")


def _file(source: str, name: str) -> Path | None:
    """Where a file lies, in a folder or on the hub; ``None`` when the checkpoint does not have it."""
    folder = drafter_folder(source) if source in EMBEDDED_DRAFTERS else Path(source).expanduser()
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    try:
        path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"cannot find the drafter {source!r}: {reason}") from error
    return None if path is None else Path(path)


def _needed(source: str, name: str) -> Path:
    path = _file(source, name)
    if path is None:
        raise ModelError(f"the drafter {source!r} has no {name}; expected a folder or hub id in the published layout")
    return path


def _weight_paths(source: str) -> list[Path]:
    for name in _WEIGHT_FILES:
        if (whole := _file(source, name)) is not None:
            return [whole]
        if (index := _file(source, f"{name}.index.json")) is not None:
            shards = _read_object(source, index).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise ModelError(f"the drafter {source!r} has a damaged {index.name}: no weight_map")
            return [_needed(source, str(shard)) for shard in sorted(set(shards.values()))]
    raise ModelError(f"the drafter {source!r} has no weights; expected {' or '.join(_WEIGHT_FILES)}")


def _read_weights(source: str, path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            tensors: dict[str, Tensor] = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"cannot read {path.name} of the drafter {source!r}: {reason}") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ModelError(f"{path.name} of the drafter {source!r} holds more than tensors")
    return tensors
