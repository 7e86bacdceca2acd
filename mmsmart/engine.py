"""The engine: prefill, then rounds of draft, verify, accept, commit, until every answer has ended."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import numpy as np
import torch

from mmsmart import images
from mmsmart.batch import Batch, Prompt, prompt_context
from mmsmart.config import SamplingParams
from mmsmart.drafters.base import Drafter
from mmsmart.drafting import draft
from mmsmart.errors import InputError, MmsmartError
from mmsmart.policies.base import RoundRecord, TreePolicy
from mmsmart.sampling import Sampler
from mmsmart.sequence import FinishReason, Sequence
from mmsmart.stats import GenerationStats, RoundStats, Stopwatch
from mmsmart.targets.base import Target
from mmsmart.targets.generation_config import resolve
from mmsmart.tree import CandidatePool, TreeBatch
from mmsmart.turns import TurnLock
from mmsmart.verification import accept

Pictures = images.ImageInput | Seq[images.ImageInput] | None
"""A picture, several, or none."""


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, as keyword arguments."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float | None
    stop: str | Seq[str]
    seed: int | None


@dataclass(frozen=True)
class Request:
    """One question about one picture, several pictures, or none."""

    image: Pictures
    question: str
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True)
class GenerationOutput:
    """An answer.

    Attributes:
        text: The answer, special tokens left out; ends before a stop string.
        token_ids: Every new id, an EOS or the token that completed a stop string included.
        finish_reason: ``"eos"``, ``"stop"`` or ``"length"``.
        stats: Counts and wall time.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: GenerationStats

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class StreamChunk:
    """What one round added to an answer.

    Attributes:
        text: New text, possibly empty; the chunks of a stream joined are the answer's text.
        token_ids: New ids.
        output: The whole answer, on the last chunk only.
    """

    text: str
    token_ids: list[int]
    output: GenerationOutput | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Round:
    """One round, as it went.

    Attributes:
        pool: Every candidate that was drafted; ``record.tree`` holds those that were verified.
        record: Trees, verification and times.
        taken: ``[B]`` tokens that each answer took; fewer than were emitted where it ended inside the block.
    """

    pool: CandidatePool
    record: RoundRecord
    taken: tuple[int, ...]


class Engine:
    """Answers questions about pictures exactly as the target would, by drafting and verifying.

    Safe to use from several threads: rounds of different calls take turns.
    """

    def __init__(self, target: Target, drafter: Drafter, policy: TreePolicy) -> None:
        self.target = target
        self.drafter = drafter.bind(target)
        self.policy = policy
        self._lock = TurnLock()

    def generate(self, image: Pictures, question: str, **sampling: Unpack[SamplingOptions]) -> GenerationOutput:
        """Answers one question.

        Args:
            image: A path, bytes, file object, PIL image, NumPy array, a list of these, or ``None``.
            question: What to ask.
            sampling: Fields of `SamplingParams`.

        Raises:
            InputError: A picture, question or setting that cannot be used; raised before any model work.
            NumericalError: NaN or infinity in the target's logits.
        """
        return self.generate_batch([Request(image, question, _params(sampling))])[0]

    def generate_batch(self, requests: Seq[Request], *, batch_size: int = 32) -> list[GenerationOutput]:
        """Answers many questions, at most ``batch_size`` at a time; prompts may differ in length and settings.

        Raises:
            InputError: Names the request that cannot be used; raised before any model work.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        prompts = [self.prepare(request, index, len(requests)) for index, request in enumerate(requests)]
        for start in range(0, len(prompts), batch_size):
            batch = self.start(prompts[start : start + batch_size], start)
            while not batch.done:
                self.step(batch)
        return [output_of(prompt) for prompt in prompts]

    def stream(self, image: Pictures, question: str, **sampling: Unpack[SamplingOptions]) -> Iterator[StreamChunk]:
        """Answers one question, a chunk each round; closing the iterator ends the work within one round.

        Raises:
            InputError: At the call, not at the first chunk.
        """
        return self._stream(self.prepare(Request(image, question, _params(sampling))))

    def _stream(self, prompt: Prompt) -> Iterator[StreamChunk]:
        batch = self.start([prompt])
        shown, sent = 0, 0
        while True:
            text, ids = prompt.sequence.text, prompt.sequence.token_ids
            output = output_of(prompt) if batch.done else None
            yield StreamChunk(text[shown:], ids[sent:], output)
            if output is not None:
                return
            shown, sent = len(text), len(ids)
            self.step(batch)

    def step(self, batch: Batch) -> Round:
        """One round for every running request of a batch; what it returns is for those who watch."""
        with self._lock, torch.inference_mode():
            watch = Stopwatch(self.target.device)
            assert batch.draft is not None
            context = batch.context()
            pool = draft(self.policy, batch.draft, batch.roots, context)
            tree = TreeBatch.pack(pool, self.policy.select(pool, context))
            draft_ms = watch.lap()
            output = batch.target.verify(tree, keep_hidden=self.drafter.needs_hidden_states)
            verify_ms = watch.lap()
            verification = accept(tree, batch.sampler.choose(output.logits, tree, batch.positions))
            taken = batch.commit(tree, verification, output, self.drafter.observes_top_k)
            accepted = np.minimum(verification.num_accepted, taken)
            record = RoundRecord(draft_ms, verify_ms, tree, verification, context.context_lengths, batch.unread)
            batch.unread = max(taken) + (0 if pool.blocks else batch.unread)
            self.policy.record(record)
            drafted = tree.num_draft_tokens.tolist()
            batch.record(RoundStats(draft_ms, verify_ms, watch.lap(), tuple(drafted), tuple(accepted.tolist())))
            batch.drop_finished()
        return Round(pool, record, tuple(taken))

    def prepare(self, request: Request, index: int = 0, count: int = 1) -> Prompt:
        """Checks and encodes a request, without any model work; ``index`` of ``count`` is for the error's words.

        Raises:
            InputError: A picture, question or setting that cannot be used.
        """
        watch = Stopwatch(self.target.device)
        try:
            with self._lock:
                sampling = resolve(request.sampling, self.target.model.generation_config)
                inputs = self.target.encode(images.load_all(request.image), request.question)
            _check_length(inputs.length, sampling.max_new_tokens, self.target)
        except MmsmartError as error:
            if count == 1:
                raise
            raise type(error)(f"request {index}: {error}") from error
        sequence = Sequence(sampling, self.target.eos_token_ids, self.target.tokenizer)
        stats = GenerationStats(prompt_tokens=inputs.length, prepare_ms=watch.lap())
        return Prompt(inputs, sampling, sequence, stats)

    def start(self, prompts: list[Prompt], first_number: int = 0) -> Batch:
        """Vision, prefill and the first token of every answer; `step` then runs a round at a time until ``done``."""
        with self._lock, torch.inference_mode():
            watch = Stopwatch(self.target.device)
            inputs = [p.inputs for p in prompts]
            features = self.target.embed_images(inputs)
            vision_ms = watch.lap()
            keep = self.drafter.needs_hidden_states
            session, logits, hidden = self.target.prefill(inputs, features, keep_hidden=keep)
            prefill_ms = watch.lap()
            params, ids = [p.sampling for p in prompts], [one.token_ids for one in inputs]
            sampler = Sampler(params, ids, self.target.vocab_size, self.target.device, first_number)
            batch = Batch(prompts, session, sampler)
            last = TreeBatch.roots([int(i.token_ids[-1]) for i in inputs])
            batch.commit_first(sampler.choose(logits, last, batch.positions))
            states = hidden if hidden is not None else [None] * len(inputs)
            contexts = [prompt_context(*parts) for parts in zip(inputs, features, states, strict=True)]
            batch.draft = self.drafter.open(contexts, batch.roots)
            other_ms = watch.lap()
            for prompt in prompts:
                prompt.stats.vision_ms, prompt.stats.prefill_ms = vision_ms, prefill_ms
                prompt.stats.other_ms += other_ms
                prompt.stats.new_tokens = len(prompt.sequence.token_ids)
            batch.drop_finished()
        return batch


def _params(sampling: SamplingOptions) -> SamplingParams:
    return SamplingParams(**sampling)  # type: ignore[arg-type]


def output_of(prompt: Prompt) -> GenerationOutput:
    """The answer to a prompt whose batch is done."""
    sequence = prompt.sequence
    assert sequence.finish_reason is not None
    return GenerationOutput(sequence.text, sequence.token_ids, sequence.finish_reason, prompt.stats)


def _check_length(prompt_tokens: int, new_tokens: int, target: Target) -> None:
    limit = target.max_positions
    if prompt_tokens + new_tokens > limit:
        room = limit - prompt_tokens
        way = f"set max_new_tokens to at most {room}" if room > 0 else "shorten the question or use a smaller picture"
        raise InputError(
            f"the prompt has {prompt_tokens} tokens (pictures included) and max_new_tokens is {new_tokens}, but "
            f"{target.name} has a limit of {limit} positions; {way}"
        )
