"""MSD: an EAGLE-1 head in which picture tokens and text tokens take different ways in (arXiv 2505.14260).

The head, its keys and its rounds are EAGLE's; only the prompt differs: where the next token belongs to a picture, the
target's projected embedding enters the layer as it is, without ``fc`` and without a hidden state.
"""

from __future__ import annotations

from mmsmart.drafters.eagle import EagleDrafter


class MSDDrafter(EagleDrafter):
    """An MSD head for LLaVA-1.5 or Qwen2-VL; see `EagleDrafter`.

    ``visual_tokens="none"`` drafts from the text alone, which others found to accept more on long visual contexts.
    """

    def __init__(self, checkpoint: str, visual_tokens: str = "all") -> None:
        super().__init__(checkpoint, visual_tokens)
