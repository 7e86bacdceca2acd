"""What the integration tests share: questions, the answers that transformers gives, and counters of forwards."""

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import drafters
import mmsmart
import tiny
from mmsmart.engine import Engine, GenerationOutput, Request
from mmsmart.tree import TreeBatch

VLMS = ("llava", "qwen2_vl")
LENGTH = 24
POLICIES = (
    "none",
    "chain:depth=4",
    "static",
    "likelihood:depth=2,top_k=3,total=8",
    "best-first:nodes=6,depth=4,top_k=2",
)


@dataclass(frozen=True)
class Row:
    """A question about pictures, each given by its seed and size."""

    question: str
    pictures: tuple[tuple[int, tuple[int, int]], ...] = ()

    @property
    def images(self) -> list[Image.Image]:
        return [tiny.picture(seed, size) for seed, size in self.pictures]

    def request(self, **sampling: Any) -> Request:
        return Request(self.images, self.question, mmsmart.SamplingParams(**({"max_new_tokens": LENGTH} | sampling)))


ROWS = (
    Row("What?", ((1, (60, 48)),)),
    Row("Which one of these two pictures is the darker one?", ((2, (30, 90)), (3, (84, 60)))),
    Row("hi"),
)
TEXT_ROWS = (Row("What?"), Row("Say something much longer than the others do, please."), Row("hi"))


def rows_of(family: str) -> tuple[Row, ...]:
    return ROWS if family in VLMS else TEXT_ROWS


@functools.cache
def _expected(folder: str, row: Row, length: int, options: tuple[tuple[str, Any], ...]) -> tuple[int, ...]:
    return tuple(tiny.reference_generate(folder, row.images, row.question, max_new_tokens=length, **dict(options)))


def expected(folder: Path, row: Row, length: int = LENGTH, **options: Any) -> list[int]:
    """Token ids of transformers' own greedy generate; options must be hashable."""
    return list(_expected(str(folder), row, length, tuple(sorted(options.items()))))


def load(folder: Path | str, policy: Any = "none", drafter: Any = "ngram", **options: Any) -> Engine:
    return mmsmart.load(str(folder), dtype="float64", policy=policy, drafter=drafter, **options)


def drafter_of(kind: str, answers: Sequence[Sequence[int]], **options: Any) -> Any:
    """The drafter named ``right``, ``wrong`` or ``ngram``."""
    return "ngram" if kind == "ngram" else drafters.ScriptedDrafter(answers, right=kind == "right", **options)


def ask(engine: Engine, row: Row, **sampling: Any) -> GenerationOutput:
    return engine.generate(row.images, row.question, **({"max_new_tokens": LENGTH} | sampling))


def decode(engine: Engine, token_ids: Sequence[int]) -> str:
    return engine.target.tokenizer.decode(list(token_ids), skip_special_tokens=True)


def consistent(output: GenerationOutput) -> None:
    """The identities that tie an answer's counts to its tokens."""
    stats = output.stats
    assert stats.new_tokens == len(output.token_ids)
    assert 0 <= stats.accepted <= stats.drafted
    missing_bonus = 1 + stats.rounds + stats.accepted - stats.new_tokens  # 1 when the end lies inside the last drafts
    assert missing_bonus == 0 or (missing_bonus == 1 and output.finish_reason in ("eos", "stop"))


def streamed(engine: Engine, image: Any, question: str, **sampling: Any) -> GenerationOutput:
    """The answer of a stream, whose chunks were checked to make it up."""
    return joined(engine.stream(image, question, **({"max_new_tokens": LENGTH} | sampling)))


def joined(chunks: Iterable[mmsmart.StreamChunk]) -> GenerationOutput:
    kept = list(chunks)
    output = kept[-1].output
    assert output is not None
    assert all(chunk.output is None for chunk in kept[:-1])
    assert "".join(chunk.text for chunk in kept) == output.text
    assert list(itertools.chain.from_iterable(chunk.token_ids for chunk in kept)) == output.token_ids
    return output


def vision_tower(engine: Engine) -> torch.nn.Module:
    inner = engine.target.model.model
    return inner.visual if hasattr(inner, "visual") else inner.vision_tower


class Forwards:
    """Counts the forwards of a module and the length of their first tensor's first axis."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.sizes: list[int] = []
        self._handle = module.register_forward_pre_hook(self._seen, with_kwargs=True)

    def _seen(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = [kwargs.get(name) for name in ("inputs_embeds", "pixel_values", "hidden_states")]
        self.sizes.append(len(next(value for value in (*args, *named) if isinstance(value, torch.Tensor))))

    @property
    def count(self) -> int:
        return len(self.sizes)

    def remove(self) -> None:
        self._handle.remove()


def language_forwards(engine: Engine) -> Forwards:
    return Forwards(engine.target.model.get_decoder())


def vision_forwards(engine: Engine) -> Forwards:
    return Forwards(vision_tower(engine))


def spell(engine: Engine, token_ids: Sequence[int]) -> None:
    """Rewrites a text target so that it answers every question with these tokens, all of them different."""
    model = engine.target.model
    chain = [int(engine.target.encode([], "hi").token_ids[-1]), *token_ids]
    embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert len(set(chain)) == len(chain) <= embed.shape[1]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        head.zero_()
        for place, (token, following) in enumerate(itertools.pairwise(chain)):
            embed[token] = 0
            embed[token, place] = 1
            head[following, place] = 1


@torch.inference_mode()
def path_logits(folder: Path, row: Row, token_ids: Sequence[int]) -> torch.Tensor:
    """``[V]`` of plain transformers after the prompt and these tokens, without any cache."""
    inputs = tiny.reference_inputs(folder, row.images, row.question)
    extra = torch.tensor([list(token_ids)], dtype=torch.long)
    for name, filler in (("input_ids", extra), ("attention_mask", extra * 0 + 1), ("mm_token_type_ids", extra * 0)):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], filler], dim=1)
    return tiny.reference(folder).model(**inputs, use_cache=False).logits[0, -1]


def tree_of(roots: Sequence[int], parents: Sequence[int], seed: int = 0) -> TreeBatch:
    """Trees of one shape (a parent for each node behind the root) over random byte tokens, siblings different."""
    rng = np.random.default_rng(seed)
    size = (len(roots), 1 + len(parents))
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    token_ids = np.stack([rng.choice(256, size[1], replace=False) for _ in roots]).astype(np.int64)
    token_ids[:, 0] = roots
    return TreeBatch(
        token_ids=token_ids,
        parents=np.broadcast_to(np.array([-1, *parents], np.int64), size).copy(),
        depths=np.broadcast_to(np.array(depths, np.int64), size).copy(),
        valid=np.ones(size, np.bool_),
        log_probs=np.zeros(size, np.float32),
    )


def path_of(tree: TreeBatch, row: int, node: int) -> list[int]:
    """Tokens from the root to a node."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, int(tree.token_ids[row, node]))
        node = int(tree.parents[row, node])
    return path


def round_robin(*streams: Iterator[mmsmart.StreamChunk]) -> list[list[mmsmart.StreamChunk]]:
    """The chunks of streams that are stepped in turn."""
    chunks: list[list[mmsmart.StreamChunk]] = [[] for _ in streams]
    for turn in itertools.zip_longest(*streams):
        for kept, chunk in zip(chunks, turn, strict=True):
            kept.extend([] if chunk is None else [chunk])
    return chunks


def chart_questions(folder: Path, count: int, broken: Iterable[int] = ()) -> Path:
    """A ChartQA file of questions about small JPEGs, some of them cut in the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        picture = folder / f"{number}.jpg"
        tiny.picture(number, (40 + number, 32)).save(picture, "JPEG")
        if number in broken:
            picture.write_bytes(picture.read_bytes()[:200])
        row = {"question": f"What is bar {number}?", "answer": str(number), "image": picture.name, "type": "human_test"}
        lines.append(json.dumps(row) + "\n")
    path = folder / "chartqa.jsonl"
    path.write_text("".join(lines))
    return path
