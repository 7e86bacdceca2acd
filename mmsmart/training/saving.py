"""Writes a finished target as a folder that transformers loads without a network, and reads it back as users do."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    CLIPImageProcessorPil,
    GenerationConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from mmsmart.errors import ModelError
from mmsmart.training.tokenizer import IMAGE

MAX_WEIGHT_BYTES = 24_000_000


@dataclass(frozen=True)
class LoadedTarget:
    """A saved target, its weights in float32, with what makes its prompts."""

    model: Any
    tokenizer: PreTrainedTokenizerFast
    image_processor: Any


def build_image_processor(side: int) -> CLIPImageProcessorPil:
    """Any picture becomes ``side`` x ``side`` pixels by plain resizing: nothing is cropped away."""
    return CLIPImageProcessorPil(
        do_resize=True,
        size={"height": side, "width": side},
        resample=3,
        do_center_crop=False,
        crop_size={"height": side, "width": side},
        do_rescale=True,
        do_normalize=True,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
        do_convert_rgb=True,
    )


def save_target(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes a LLaVA target: weights (bfloat16), configurations, tokenizer and processors.

    Raises:
        ModelError: If the weights' file is larger than the package can carry.
    """
    vision: Any = model.config.vision_config
    save_parts(model, tokenizer, build_image_processor(vision.image_size), folder)
    processor = {
        "processor_class": "LlavaProcessor",
        "image_token": IMAGE,
        "patch_size": vision.patch_size,
        "vision_feature_select_strategy": model.config.vision_feature_select_strategy,
        "num_additional_image_tokens": 1,
    }
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=2) + "\n")


def save_parts(model: Any, tokenizer: PreTrainedTokenizerFast, image_processor: Any, folder: Path) -> None:
    """Writes what every family has: weights (bfloat16), configurations, tokenizer and image processor.

    Raises:
        ModelError: If the weights' file is larger than the package can carry.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
        max_new_tokens=96,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    size = (folder / "model.safetensors").stat().st_size
    if size >= MAX_WEIGHT_BYTES:
        raise ModelError(f"model.safetensors has {size} bytes, the package carries at most {MAX_WEIGHT_BYTES}")


def load_target(folder: Path) -> LoadedTarget:
    """Loads a saved folder offline, with float32 weights.

    Raises:
        ModelError: If the folder has no model.
    """
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder} has no config.json; make a model there with `python -m mmsmart train target`")
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return LoadedTarget(model.eval(), tokenizer, AutoImageProcessor.from_pretrained(folder, local_files_only=True))
