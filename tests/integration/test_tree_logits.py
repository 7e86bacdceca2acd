"""At every node of a tree the target's logits are those of a plain sequential run of that node's path."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from mmsmart.api import load
from mmsmart.targets.base import Target
from mmsmart.targets.session import TargetSession
from mmsmart.tree import TreeBatch
from mmsmart.verification import accept

PROMPTS: list[tuple[list[Image.Image], str]] = [
    ([tiny.picture(1, (90, 120))], "what is it?"),
    ([tiny.picture(2, (40, 90)), tiny.picture(3)], "a longer question about both of them"),
    ([], "no picture"),
]


@pytest.fixture(autouse=True)
def inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


def random_tree(rng: np.random.Generator, roots: list[int], nodes: int) -> TreeBatch:
    """Trees of different sizes, padded; siblings are distinct tokens."""
    batch = len(roots)
    tree = TreeBatch(
        token_ids=np.tile(np.array(roots)[:, None], (1, nodes)),
        parents=np.zeros((batch, nodes), np.int64),
        depths=np.zeros((batch, nodes), np.int64),
        valid=np.zeros((batch, nodes), np.bool_),
        log_probs=np.zeros((batch, nodes), np.float32),
    )
    tree.parents[:, 0] = -1
    for row in range(batch):
        size = nodes - row
        tree.valid[row, :size] = True
        for node in range(1, size):
            parent = int(rng.integers(max(0, node - 4), node))
            tree.parents[row, node] = parent
            tree.depths[row, node] = tree.depths[row, parent] + 1
            tree.token_ids[row, node] = 10 * node + int(rng.integers(0, 10))
    return tree


def path_tokens(tree: TreeBatch, row: int, node: int) -> list[int]:
    tokens: list[int] = []
    while node >= 0:
        tokens.append(int(tree.token_ids[row, node]))
        node = int(tree.parents[row, node])
    return tokens[::-1]


def sequential(target: Target, pictures: list[Image.Image], question: str, tokens: list[int]) -> torch.Tensor:
    """Logits after the prompt and these tokens, by one plain transformers forward."""
    inputs = tiny.reference_inputs(target.model, pictures, question)
    extra = torch.tensor([tokens], dtype=torch.int64)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], extra], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(extra)], dim=1)
    logits: torch.Tensor = target.model(**inputs).logits[0, -1]
    return logits


def worst(session: TargetSession, tree: TreeBatch, prompts: list[int], committed: list[list[int]]) -> float:
    logits = session.verify(tree).logits
    errors = [0.0]
    for row, prompt in enumerate(prompts):
        for node in np.flatnonzero(tree.valid[row]).tolist():
            tokens = committed[row] + path_tokens(tree, row, node)
            expected = sequential(session.target, *PROMPTS[prompt], tokens)
            errors.append(float((logits[row, node] - expected).abs().max()))
    return max(errors)


# transformers' eager attention takes its softmax in float32, whatever the model's dtype.
@pytest.mark.parametrize(("attention", "tolerance"), [("sdpa", 1e-9), ("eager", 1e-4)])
@pytest.mark.parametrize("prompts", [[0], [0, 1, 2]], ids=["single", "ragged"])
@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "llama", "qwen2"])
def test_tree_logits_before_and_after_branchy_commits(
    tmp_path: Path, family: str, prompts: list[int], attention: str, tolerance: float
) -> None:
    if family in ("llama", "qwen2"):
        prompts = [2] * len(prompts)
    folder = tiny.build(family, tmp_path / family)
    target = load(str(folder), dtype="float64", attn_implementation=attention).target
    rng = np.random.default_rng(0)
    inputs = [target.encode(*PROMPTS[p]) for p in prompts]
    session, logits, _ = target.prefill(inputs, target.embed_images(inputs))
    for row, p in enumerate(prompts):
        assert (logits[row, 0] - sequential(target, *PROMPTS[p], [])).abs().max() < tolerance
    committed: list[list[int]] = [[] for _ in prompts]
    roots = [7 + row for row in range(len(prompts))]
    for _ in range(3):
        tree = random_tree(rng, roots, 12)
        assert worst(session, tree, prompts, committed) < tolerance
        # Accept a path that leaves gaps: pretend that the target chose the tokens towards some late node of each row.
        chosen = np.full(tree.token_ids.shape, -5, np.int64)
        for row in range(len(prompts)):
            node = int(np.flatnonzero(tree.valid[row])[-1 - row])
            while node > 0:
                chosen[row, tree.parents[row, node]] = tree.token_ids[row, node]
                node = int(tree.parents[row, node])
        verification = accept(tree, chosen)
        assert (verification.num_accepted > 0).all()
        session.commit(verification)
        for row in range(len(prompts)):
            committed[row] += path_tokens(tree, row, int(verification.paths[row, verification.num_accepted[row]]))
        assert session.lengths.tolist() == [i.length + len(c) for i, c in zip(inputs, committed, strict=True)]
        roots = [int(rng.integers(0, 200)) for _ in prompts]


def test_rows_that_leave_do_not_disturb_the_others(tmp_path: Path) -> None:
    target = load(str(tiny.build("qwen2_vl", tmp_path / "qwen2_vl")), dtype="float64").target
    inputs = [target.encode(*prompt) for prompt in PROMPTS]
    session, _, _ = target.prefill(inputs, target.embed_images(inputs))
    session.select_rows([2, 0])
    tree = random_tree(np.random.default_rng(1), [3, 4], 9)
    assert worst(session, tree, [2, 0], [[], []]) < 1e-9
