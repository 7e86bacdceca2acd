"""What users run today: transformers' ``generate``, plain, with prompt lookup, and with a small assistant model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from PIL import Image

from mmsmart.bench.arms import Tally
from mmsmart.engine import Request
from mmsmart.stats import Stopwatch
from mmsmart.targets.base import Target


class GenerateArm:
    """transformers' ``generate`` on the engine's own model, as its users write it: a processor with left padding.

    Args:
        name: Of the arm.
        target: Whose model answers.
        folder: Where the processor is loaded from.
        options: Further arguments of ``generate``.
    """

    def __init__(self, name: str, target: Target, folder: str, **options: Any) -> None:
        self.name = name
        self._model, self._device = target.model, target.device
        self._options = options
        self._processor: Any = transformers.AutoProcessor.from_pretrained(folder)
        self._processor.tokenizer.padding_side = "left"
        self._ends = target.eos_token_ids
        self._first_ms: dict[int, float] = {}

    def answer(self, requests: Sequence[Request], batch_size: int) -> Tally:
        """Answers all requests, ``batch_size`` at a time; the time to the first token is taken in the first pass."""
        tally = Tally()
        groups = [requests[start : start + batch_size] for start in range(0, len(requests), batch_size)]
        if batch_size not in self._first_ms:
            self._batch(groups[0], 1)  # warm-up
            watch = Stopwatch(self._device)
            for group in groups:
                self._batch(group, 1)
            self._first_ms[batch_size] = watch.lap()
        watch = Stopwatch(self._device)
        for group in groups:
            tally.token_ids += self._batch(group, group[0].sampling.max_new_tokens)
        tally.wall_ms = watch.lap()
        tally.decode_ms = max(tally.wall_ms - self._first_ms[batch_size], 0.0)
        return tally

    def _batch(self, requests: Sequence[Request], new_tokens: int) -> list[list[int]]:
        sampling = requests[0].sampling
        inputs = self._inputs(requests)
        sampled: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            sampled = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            ids = self._model.generate(**inputs, max_new_tokens=new_tokens, **sampled, **self._options)
        return [self._cut(row) for row in ids[:, inputs["input_ids"].shape[1] :].tolist()]

    def _inputs(self, requests: Sequence[Request]) -> Any:
        prompts = [
            self._processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": request.question}]}],
                add_generation_prompt=True,
            )
            for request in requests
        ]
        bos = self._processor.tokenizer.bos_token
        pictures = [request.image for request in requests if isinstance(request.image, Image.Image)]
        special = not (bos and prompts[0].startswith(bos))
        inputs = self._processor(
            images=pictures, text=prompts, padding=True, add_special_tokens=special, return_tensors="pt"
        )
        return inputs.to(self._device)

    def _cut(self, ids: list[int]) -> list[int]:
        """Without the padding behind the end of an answer."""
        end = next((place for place, token in enumerate(ids) if token in self._ends), len(ids) - 1)
        return ids[: end + 1]
