"""What users run today: transformers' ``generate``, plain, with prompt lookup, and with a small assistant model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mmsmart.bench.arms import Tally
from mmsmart.engine import Request
from mmsmart.images import load_all
from mmsmart.stats import Stopwatch
from mmsmart.targets.base import Target


class GenerateArm:
    """transformers' ``generate`` on the engine's own model and the same prompts, padded on the left.

    Args:
        name: Of the arm.
        target: Whose model answers.
        options: Further arguments of ``generate``.
    """

    def __init__(self, name: str, target: Target, **options: Any) -> None:
        self.name = name
        self._target, self._model, self._device = target, target.model, target.device
        self._options = options
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
            longest = max(request.sampling.max_new_tokens for request in group)  # generate takes one for all rows
            tally.token_ids += self._batch(group, longest)
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
        rows = ids[:, inputs["input_ids"].shape[1] :].tolist()
        return [self._cut(row[: r.sampling.max_new_tokens]) for row, r in zip(rows, requests, strict=True)]

    def _inputs(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        target = self._target
        target.forget_images()  # or the pixels of a picture seen before would be missing
        encoded = [target.encode(load_all(request.image), request.question) for request in requests]
        longest = max(one.length for one in encoded)
        pad = target.tokenizer.pad_token_id or 0
        left = [(longest - one.length, 0) for one in encoded]
        ids = [functional.pad(one.token_ids, side, value=pad) for one, side in zip(encoded, left, strict=True)]
        seen = [functional.pad(torch.ones_like(one.token_ids), side) for one, side in zip(encoded, left, strict=True)]
        inputs = {"input_ids": torch.stack(ids), "attention_mask": torch.stack(seen)}
        pictures = [image for one in encoded for image in one.images]
        if pictures:
            pixels = torch.cat([image.tensors["pixel_values"] for image in pictures])
            inputs["pixel_values"] = pixels.to(target.dtype)
        grids = [image.grid for image in pictures if image.grid is not None]
        if grids:
            inputs["image_grid_thw"] = torch.tensor(grids)
            masks = [functional.pad(one.image_mask.int(), side) for one, side in zip(encoded, left, strict=True)]
            inputs["mm_token_type_ids"] = torch.stack(masks)
        return {name: tensor.to(target.device) for name, tensor in inputs.items()}

    def _cut(self, ids: list[int]) -> list[int]:
        """Without the padding behind the end of an answer."""
        end = next((place for place, token in enumerate(ids) if token in self._ends), len(ids) - 1)
        return ids[: end + 1]
