"""The target port: the model whose law is kept, run through its own transformers forward.

A family adds how it writes a prompt, reads a picture and counts positions. Nothing is ever kept on the model:
positions, offsets and cache belong to a `TargetSession`, so that any number of requests may be in flight.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmsmart.errors import InputError, ModelError
from mmsmart.images import fingerprint
from mmsmart.kv_cache import RaggedCache, Storage
from mmsmart.packed import Projection
from mmsmart.targets.compiled import CompiledForward, obstacle
from mmsmart.targets.generation_config import eos_token_ids
from mmsmart.targets.inputs import EncodedImage, ModelInputs
from mmsmart.targets.lean import LeanDecoder
from mmsmart.targets.session import TargetSession, chunk_mask

logger = logging.getLogger(__name__)

PREFILL_CHUNK_TOKENS = 2048
"""Most tokens, rows counted together, in one forward of the prefill."""
FEATURE_CACHE_BYTES = 256 * 2**20
"""Memory for picture features kept for further questions."""


class Target(ABC):
    """A causal model with or without eyes.

    Attributes:
        auto_class: Name of the transformers Auto class that loads the family.
        axes: Number of rotary position axes.
        reserved: Texts that the family gives a meaning of their own and that a question must not contain.
    """

    auto_class: ClassVar[str]
    axes: ClassVar[int] = 1

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any = None, *, name: str = "") -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.name = name
        self.decoder = model.get_decoder()
        self._lean = LeanDecoder(self.decoder)
        self.head = Projection(model.get_output_embeddings())
        self.embed_tokens = model.get_input_embeddings()
        parameters = inspect.signature(self.decoder.forward).parameters
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.compiled: CompiledForward | None = None
        self._features: OrderedDict[str, EncodedImage] = OrderedDict()
        self._check_attention()

    # ---- facts, all from the model itself

    @property
    def text_config(self) -> Any:
        """The language model's config."""
        return self.model.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """Where token embeddings live."""
        device: torch.device = self.embed_tokens.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        dtype: torch.dtype = self.embed_tokens.weight.dtype
        return dtype

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return int(self.text_config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Longest sequence that the positions were made for."""
        return int(self.text_config.max_position_embeddings)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer, read anew each time: a user may set them on the model's generation_config."""
        return eos_token_ids(self.model.generation_config, self.tokenizer.eos_token_id)

    @property
    def image_token_id(self) -> int | None:
        """The placeholder's id; ``None`` for text targets."""
        return None

    @property
    def reserved(self) -> tuple[str, ...]:
        """Texts that a question must not contain, as the family binds pictures to them."""
        return ()

    # ---- prompt

    def encode(self, images: Sequence[Image.Image], question: str) -> ModelInputs:
        """Writes the prompt of a question about upright RGB pictures.

        Raises:
            InputError: Empty question, a reserved text in it, or pictures that the target cannot take.
            ModelError: A chat template that loses the question or the pictures.
        """
        if not isinstance(question, str) or not question.strip():
            raise InputError(f"the question is empty ({question!r}); ask something about the picture")
        for text in self.reserved:
            if text in question:
                raise InputError(
                    f"the question contains {text!r}, which {self.name} uses as a picture placeholder; reword it"
                )
        if images and self.image_token_id is None:
            raise InputError(f"{self.name} is a text model and cannot look at pictures; ask without one")
        encoded = tuple(self._known_or_encoded(image) for image in images)
        token_ids = self._expand(self._tokenize(self._render(question, len(images))), encoded)
        image_mask = token_ids == (-1 if self.image_token_id is None else self.image_token_id)
        positions, offset = self._positions(token_ids, image_mask, encoded)
        return ModelInputs(token_ids, image_mask, positions, offset, encoded)

    def _known_or_encoded(self, image: Image.Image) -> EncodedImage:
        key = fingerprint(image)
        known = self._features.get(key)
        return known if known is not None else self._encode_image(image, key)

    def _render(self, question: str, num_images: int) -> str:
        if not self.tokenizer.chat_template:
            return self._default_prompt(question, num_images)
        parts: list[dict[str, str]] = [{"type": "image"}] * num_images + [{"type": "text", "text": question}]
        content: Any = parts if self.image_token_id is not None else question
        messages = [{"role": "user", "content": content}]
        prompt: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if question.strip() not in prompt:
            raise ModelError(f"the chat template of {self.name} drops the question; it gave {prompt!r}")
        return prompt

    def _default_prompt(self, question: str, num_images: int) -> str:
        """The prompt of a checkpoint without a chat template."""
        return question

    def _tokenize(self, prompt: str) -> list[int]:
        bos = self.tokenizer.bos_token
        special = not (bos and prompt.startswith(bos))
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=special)["input_ids"]
        return ids

    def _expand(self, token_ids: list[int], images: Sequence[EncodedImage]) -> Tensor:
        found = token_ids.count(self.image_token_id) if self.image_token_id is not None else 0
        if found != len(images):
            raise ModelError(
                f"the chat template of {self.name} made {found} picture placeholders for {len(images)} pictures"
            )
        sizes = iter(image.num_tokens for image in images)
        expanded: list[int] = []
        for token in token_ids:
            expanded.extend([token] * (next(sizes) if token == self.image_token_id and images else 1))
        return torch.tensor(expanded, dtype=torch.int64)

    def _positions(self, token_ids: Tensor, image_mask: Tensor, images: Sequence[EncodedImage]) -> tuple[Tensor, int]:
        return torch.arange(len(token_ids))[None], 0

    # ---- pictures

    @abstractmethod
    def _encode_image(self, image: Image.Image, key: str) -> EncodedImage:
        """Runs the image processor on one picture."""

    @abstractmethod
    def _image_features(self, images: Sequence[EncodedImage]) -> list[Tensor]:
        """Vision tower and projector: ``[num_tokens, H]`` for each picture."""

    def embed_images(self, inputs: Sequence[ModelInputs]) -> list[list[Tensor]]:
        """The projected features of every picture of every prompt; each distinct picture is computed once."""
        images: dict[str, EncodedImage] = {}
        for image in (image for one in inputs for image in one.images):
            if image.embeds is not None or image.fingerprint not in images:
                images[image.fingerprint] = self._features.get(image.fingerprint, image)
        new = [image for image in images.values() if image.embeds is None]
        if new:
            for image, embeds in zip(new, self._image_features(new), strict=True):
                if len(embeds) != image.num_tokens:
                    raise ModelError(
                        f"{self.name} makes {len(embeds)} features of a picture that takes {image.num_tokens} "
                        "placeholders; its image processor and its vision config do not fit together"
                    )
                images[image.fingerprint] = EncodedImage(
                    image.fingerprint, image.num_tokens, grid=image.grid, embeds=embeds
                )
        self._remember(images.values())
        return [[_embeds(images[image.fingerprint]) for image in one.images] for one in inputs]

    def forget_images(self) -> None:
        """Drops all remembered picture features."""
        self._features.clear()

    def _remember(self, images: Iterable[EncodedImage]) -> None:
        for image in images:
            self._features[image.fingerprint] = image
            self._features.move_to_end(image.fingerprint)
        used = sum(_embeds(image).nbytes for image in self._features.values())
        while used > FEATURE_CACHE_BYTES and len(self._features) > 1:
            _, oldest = self._features.popitem(last=False)
            used -= _embeds(oldest).nbytes

    # ---- forwards

    def prefill(
        self, inputs: Sequence[ModelInputs], features: Sequence[Sequence[Tensor]], *, keep_hidden: bool = False
    ) -> tuple[TargetSession, Tensor, list[Tensor] | None]:
        """Runs B prompts, right-padded, in chunks of bounded size.

        Args:
            inputs: The prompts.
            features: Each prompt's picture features, from `embed_images`.
            keep_hidden: Also return every prompt position's last hidden state.

        Returns:
            The session, the logits after each prompt ``[B, 1, V]``, and per prompt ``[T_b, H]`` or ``None``.
        """
        self._lean.refresh()
        self.head.refresh()
        lengths = np.array([one.length for one in inputs])
        longest, batch = int(lengths.max()), len(inputs)
        embeds, positions = self._padded(inputs, features, longest)
        cache = RaggedCache(
            int(self.text_config.num_hidden_layers), batch, capacity=longest + 64, one_device=self.one_device
        )
        step = max(1, PREFILL_CHUNK_TOKENS // batch)
        last: list[Tensor | None] = [None] * batch
        kept: list[Tensor] = []
        for start in range(0, longest, step):
            end = min(start + step, longest)
            cache.begin(end - start, self.device)
            mask = chunk_mask(start, end, embeds)
            hidden = self.forward(embeds[:, start:end], positions[:, :, start:end], mask, cache)
            cache.advance([end - start] * batch)
            for row in np.flatnonzero((lengths > start) & (lengths <= end)):
                last[row] = hidden[row, lengths[row] - 1 - start]
            if keep_hidden:
                kept.append(hidden)
        cache.lengths = lengths
        offsets = np.array([one.position_offset for one in inputs])
        logits = self.logits(torch.stack([h for h in last if h is not None])[:, None])
        states = [torch.cat([c[row] for c in kept])[:length] for row, length in enumerate(lengths)] if kept else None
        session = TargetSession(self, cache, offsets)
        return session if self.compiled is None else self.compiled.adopt(session), logits, states

    def _padded(
        self, inputs: Sequence[ModelInputs], features: Sequence[Sequence[Tensor]], longest: int
    ) -> tuple[Tensor, Tensor]:
        """Input embeddings ``[B, T, H]`` with pictures in place, and positions ``[A, B, T]``."""
        token_ids = torch.zeros(len(inputs), longest, dtype=torch.int64)
        positions = torch.zeros(self.axes, len(inputs), longest, dtype=torch.int64)
        for row, one in enumerate(inputs):
            token_ids[row, : one.length] = one.token_ids
            positions[:, row, : one.length] = one.positions
        embeds = self.embed_tokens(token_ids.to(self.device))
        for row, (one, images) in enumerate(zip(inputs, features, strict=True)):
            if images:
                where = one.image_mask.nonzero()[:, 0].to(embeds.device)
                embeds[row, where] = torch.cat(list(images)).to(embeds.device, embeds.dtype)
        return embeds, positions.to(self.device)

    def forward(
        self, embeds: Tensor, positions: Tensor, mask: Tensor | None, cache: RaggedCache | Storage, decoder: Any = None
    ) -> Tensor:
        """The language model's own forward: embeddings ``[B, n, H]``, positions ``[A, B, n]`` to last hidden states."""
        if decoder is None and self._lean.ready():
            return self._lean.forward(embeds, positions if self.axes > 1 else positions[0], mask, cache)
        output = (self.decoder if decoder is None else decoder)(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions if self.axes > 1 else positions[0],
            use_cache=True,
            **{self.cache_argument: cache},
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., H]`` to ``[..., V]``, on the device of the embeddings also when the model is spread over several."""
        logits: Tensor = self.head(hidden).to(self.device)
        return logits

    def compile(self, *, required: bool = True) -> None:
        """Verifies through a `CompiledForward` from now on; answers stay the same.

        Args:
            required: Raise where compiling is not possible; otherwise say so on the log and go on without.

        Raises:
            InputError: The model cannot be compiled.
        """
        if (reason := obstacle(self)) is None:
            self.compiled = CompiledForward(self, required=required)
        elif required:
            raise InputError(f"{self.name} cannot be compiled, as it {reason}; use compile=False")
        else:
            logger.info("%s is not compiled, as it %s", self.name, reason)

    @property
    def packing(self) -> bool:
        """Whether weights may be rearranged, the drafter's included; set before a drafter is bound."""
        return self._lean.packing

    @packing.setter
    def packing(self, allowed: bool) -> None:
        self._lean.packing = self.head.packing = allowed

    @property
    def packed(self) -> bool:
        """Whether forwards run on rearranged weights; see `mmsmart.packed`."""
        with torch.inference_mode():
            return self._lean.ready() and self._lean.packed()

    @property
    def one_device(self) -> bool:
        """Whether all layers are on one device."""
        return len(set((getattr(self.model, "hf_device_map", None) or {"": 0}).values())) == 1

    def _check_attention(self) -> None:
        kind = getattr(self.text_config, "_attn_implementation", "sdpa")
        if kind not in ("sdpa", "eager"):
            raise ModelError(
                f"{self.name} was loaded with attn_implementation={kind!r}, which cannot verify trees; use 'sdpa'"
            )
        if "sliding_attention" in (getattr(self.text_config, "layer_types", None) or ()):
            raise ModelError(f"{self.name} uses sliding-window attention, which mmsmart does not support")


def _embeds(image: EncodedImage) -> Tensor:
    assert image.embeds is not None
    return image.embeds
