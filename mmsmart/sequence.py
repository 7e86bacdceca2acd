"""One answer while it grows: committed tokens, the exact place where it ends, and its text piece by piece."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Literal, Protocol

from mmsmart.config import SamplingParams

FinishReason = Literal["eos", "stop", "length"]

REPLACEMENT = "\ufffd"


class Decodes(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, token_ids: Seq[int], skip_special_tokens: bool = ...) -> str:
        """Text of token ids."""


class IncrementalText:
    """Turns tokens into text as they come, never showing half a character.

    A token may hold only some bytes of a character; its text is held back until the rest arrives. Decoding looks back a
    few tokens only, so a long answer costs no more per token than a short one.
    """

    def __init__(self, tokenizer: Decodes) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0  # first token of the window that is decoded
        self._shown = 0  # tokens whose text has been returned

    def push(self, token_ids: Seq[int]) -> str:
        """The text that became certain with these tokens; may be empty."""
        self._ids.extend(token_ids)
        text = self._pending()
        return "" if text.endswith(REPLACEMENT) else self._show(text)

    @property
    def certain(self) -> str:
        """The text that is held back, as far as it is whole characters."""
        return self._pending().rstrip(REPLACEMENT)

    def flush(self) -> str:
        """Whatever is left, whole or not."""
        return self._show(self._pending())

    def _decode(self, token_ids: Seq[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def _pending(self) -> str:
        before = self._decode(self._ids[self._context : self._shown])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _show(self, text: str) -> str:
        if text:
            self._context, self._shown = self._shown, len(self._ids)
        return text


class Sequence:
    """The committed answer of one request.

    Attributes:
        token_ids: Committed ids; with an EOS or the token that completed a stop string as the last one.
        finish_reason: ``None`` while running.
    """

    def __init__(self, sampling: SamplingParams, eos_token_ids: Collection[int], tokenizer: Decodes) -> None:
        self.sampling = sampling
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._eos = frozenset(eos_token_ids)
        self._decoder = IncrementalText(tokenizer)
        self._decoded = 0  # tokens given to the decoder
        self._closed = False
        self._text = ""
        self._held = ""  # decoded, but perhaps the beginning of a stop string

    @property
    def text(self) -> str:
        """What may be shown so far; never part of a stop string, never half a character."""
        self._decode()  # here and not in every round, unless there are stop strings to look for
        return self._text

    @property
    def remaining(self) -> int:
        """Tokens that may still be written."""
        return self.sampling.max_new_tokens - len(self.token_ids)

    def commit(self, token_ids: Seq[int]) -> int:
        """Takes one round's tokens up to the exact end of the answer.

        Returns:
            How many were taken; the rest lies behind an EOS, a completed stop string or the cap.
        """
        taken = 0
        for token in token_ids:
            if self.finish_reason is not None:
                break
            self.token_ids.append(token)
            taken += 1
            if token in self._eos:
                self.finish_reason = "eos"
            if self.sampling.stop:
                self._decode()
            if self.finish_reason is None and self.remaining == 0:
                self.finish_reason = "length"
        return taken

    def _decode(self) -> None:
        if self._closed:
            return
        new = self.token_ids[self._decoded :]
        self._decoded = len(self.token_ids)
        self._take(self._decoder.push(new) if new else "")
        if self.finish_reason is not None:
            if not self._closed:
                self._take(self._decoder.flush())
            self._text += self._held
            self._held = ""
            self._closed = True

    def _take(self, piece: str) -> None:
        self._held += piece
        # A token may complete a stop string and begin a character that is not whole yet.
        text = self._held + (self._decoder.certain if self.sampling.stop else "")
        found = [at for at in (text.find(s) for s in self.sampling.stop) if at >= 0]
        if found:
            self._text += text[: min(found)]
            self._held = ""
            self._closed = True
            self.finish_reason = self.finish_reason or "stop"
            return
        keep = max((_overlap(self._held, s) for s in self.sampling.stop), default=0)
        cut = len(self._held) - keep
        self._text, self._held = self._text + self._held[:cut], self._held[cut:]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` with which ``stop`` begins."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
