"""Oracle tokens: what a perfect vision tower and projector would tell the language model about each patch.

The token of a patch is the sum of the language model's own embeddings of the words that the patch shows, plus rows of
its own for what has no word (object index, grid cell, kind of picture) and for the place of the patch.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmsmart.training.labels import ATTRIBUTES, Attribute


class OracleTokens(nn.Module):
    """Maps patch labels to oracle tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, patches: int, width: int) -> None:
        """Makes random rows; with no ``patches``, tokens do not depend on their place."""
        super().__init__()
        self.own_rows = nn.ModuleDict(
            {a.name: nn.Embedding(len(a.classes) + 1, width) for a in ATTRIBUTES if not a.is_token}
        )
        self.places = nn.Embedding(patches, width) if patches else None
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=width**-0.5)
        for attribute in ATTRIBUTES:
            if attribute.is_token:
                ids = [tokenizer(f" {name}", add_special_tokens=False).input_ids for name in attribute.classes]
                self.register_buffer(f"{attribute.name}_ids", torch.tensor([0, *(piece[0] for piece in ids)]), False)

    def forward(self, labels: Tensor, table: Tensor) -> Tensor:
        """Sums embeddings.

        Args:
            labels: int64 [B, P, attributes], of ``patch_labels``.
            table: The language model's input embeddings [V, H].

        Returns:
            float [B, P, H].
        """
        tokens = table.new_zeros(*labels.shape[:2], table.shape[1])
        if self.places is not None:
            tokens = self.places.weight.expand(labels.shape[0], -1, -1)
        for i, attribute in enumerate(ATTRIBUTES):
            tokens = tokens + nn.functional.embedding(labels[..., i], self.rows(attribute, table))
        return tokens

    def rows(self, attribute: Attribute, table: Tensor) -> Tensor:
        """What each class of an attribute adds to a token: [classes + 1, H]."""
        if not attribute.is_token:
            return self.own_rows[attribute.name].get_parameter("weight")
        ids = self.get_buffer(f"{attribute.name}_ids")
        nothing = table.new_zeros(1, table.shape[1])
        return torch.cat([nothing, nn.functional.embedding(ids[1:], table)])


def add_noise(tokens: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Adds Gaussian noise of ``share`` of the tokens' root mean square."""
    rms = tokens.detach().square().mean().sqrt()
    return tokens + share * rms * torch.randn(tokens.shape, generator=generator)
