"""From a name, a folder or a hub id to a `Target`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils.hub import cached_file

from mmsmart.embedded import model_folder
from mmsmart.errors import InputError, MmsmartError, ModelError
from mmsmart.registry import EMBEDDED_MODELS, TARGETS, load_class, lookup
from mmsmart.targets.base import Target

logger = logging.getLogger(__name__)

_HUB_OPTIONS = ("revision", "cache_dir", "token", "local_files_only")


def load_target(model: str, *, device: str = "auto", dtype: str | torch.dtype = "auto", **options: Any) -> Target:
    """Loads a target through transformers.

    Args:
        model: An embedded name, a local folder or a hub id.
        device: ``"auto"`` takes the GPU when there is one; ignored when ``device_map`` is among the options.
        dtype: ``"auto"`` takes the checkpoint's own on a GPU and float32 on a CPU.
        options: Handed to ``from_pretrained``: ``device_map``, ``quantization_config``, ``attn_implementation``, ...

    Raises:
        InputError: Unknown device or dtype.
        ModelError: The checkpoint cannot be found or read, or is of a family that mmsmart does not know.
    """
    source = str(model_folder(model)) if model in EMBEDDED_MODELS else model
    place = _device(device)
    kind = _dtype(dtype, place)
    placed = "device_map" in options or "quantization_config" in options
    hub: dict[str, Any] = {
        key: options[key] for key in ("revision", "cache_dir", "token", "local_files_only") if key in options
    }
    with _one_line_errors(model):
        config = transformers.AutoConfig.from_pretrained(source, **hub)
        try:
            lookup(TARGETS, "target family", config.model_type)
        except InputError as error:
            raise ModelError(
                f"{model} is a {config.model_type!r} model; mmsmart knows: {', '.join(sorted(TARGETS))}"
            ) from error
        family = load_class(TARGETS, "target family", config.model_type)
        loader = getattr(transformers, family.auto_class)
        options.setdefault("attn_implementation", "sdpa")
        weights = loader.from_pretrained(source, dtype=kind, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **hub)
        processor = None
        if family.auto_class == "AutoModelForImageTextToText":
            processor = transformers.AutoImageProcessor.from_pretrained(source, **hub)
        if not tokenizer.chat_template:
            tokenizer.chat_template = _processor_template(source, hub)
    weights.eval()
    target: Target = family(weights if placed else weights.to(place), tokenizer, processor, name=model)
    return target


class _one_line_errors:  # noqa: N801 - reads as a verb where it is used
    """Turns what loading may raise into one `ModelError` that names the model."""

    def __init__(self, model: str) -> None:
        self._model = model

    def __enter__(self) -> None:
        if self._model.startswith((".", "/", "~")) and not Path(self._model).is_dir():
            raise ModelError(f"no such folder: {self._model}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MmsmartError):
            return
        if isinstance(error, (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)):
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ModelError(
                f"cannot load {self._model!r}: {reason} (embedded models: {', '.join(EMBEDDED_MODELS)}; "
                "otherwise give a folder or a hub id in the transformers layout)"
            ) from error


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}; use 'auto', 'cpu' or 'cuda'") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {device!r} was asked for, but torch sees no GPU; use device='cpu'")
    return place


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    known = {"float32", "float64", "bfloat16", "float16"}
    if dtype not in known:
        raise InputError(f"unknown dtype {dtype!r}; use 'auto' or one of {', '.join(sorted(known))}")
    resolved: torch.dtype = getattr(torch, dtype)
    return resolved


def _processor_template(source: str, hub: dict[str, Any]) -> str | None:
    """The chat template of older checkpoints, which keep it in a file that only processors read."""
    path = cached_file(
        source,
        "chat_template.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **hub,
    )
    if path is None:
        logger.info("%s has no chat template; using the family's plain prompt", source)
        return None
    template: str = json.loads(Path(path).read_text(encoding="utf-8"))["chat_template"]
    return template


def quiet(*, progress: bool) -> None:
    """Keeps transformers' own remarks off the terminal; progress bars are of use while a large model loads."""
    transformers.logging.set_verbosity_error()
    if not progress:
        transformers.logging.disable_progress_bar()
