"""Text models of the Llama and Qwen2 classes: Vicuna, Llama-3, DeepSeek-R1-Distill and their like."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from torch import Tensor

from mmsmart.errors import InputError
from mmsmart.targets.base import Target
from mmsmart.targets.inputs import EncodedImage


class CausalLMTarget(Target):
    """`LlamaForCausalLM`, `Qwen2ForCausalLM`: no pictures, plain positions."""

    auto_class = "AutoModelForCausalLM"

    def _encode_image(self, image: Image.Image, key: str) -> EncodedImage:
        raise InputError(f"{self.name} is a text model and cannot look at pictures; ask without one")

    def _image_features(self, images: Sequence[EncodedImage]) -> list[Tensor]:
        return []
