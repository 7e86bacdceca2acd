"""MSD and EAGLE-1/2 heads against numbers recorded from the original modules (tests/data/golden/README.md)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mmsmart.drafters.base import DraftSession, PromptContext, RoundOutcome
from mmsmart.drafters.eagle import EagleDrafter, EagleSession
from mmsmart.drafters.msd import MSDDrafter
from mmsmart.drafting import draft, grow
from mmsmart.policies.base import RoundContext
from mmsmart.policies.likelihood import Likelihood
from mmsmart.policies.static import StaticTree
from mmsmart.tree import Bools, CandidatePool, TreeBatch
from mmsmart.verification import accept

FOLDER = Path(__file__).resolve().parent.parent / "data" / "golden"
CASES = ("msd_llava", "msd_qwen2vl", "eagle1_llama_bias", "eagle1_llama3_gqa_nobias", "eagle1_qwen2_qkvbias")
PLACEHOLDER = {"msd_llava": -200, "msd_qwen2vl": 93}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


class Watching(Likelihood):
    """The original's tree, with its pool of proposals kept for comparison."""

    pool: CandidatePool

    def select(self, pool: CandidatePool, context: RoundContext) -> Bools:
        self.pool = pool
        return super().select(pool, context)


class FakeTarget:
    """The two tables that a head shares with its target."""

    name = "golden"

    def __init__(self, head: torch.Tensor, embedding: torch.Tensor, packing: bool) -> None:
        self.packing = packing
        self.head = torch.nn.Linear(*reversed(head.shape), bias=False)
        self.head.weight = torch.nn.Parameter(head)
        self.embed_tokens = torch.nn.Embedding.from_pretrained(embedding.clone())
        self.vocab_size, self.device, self.dtype = head.shape[0], torch.device("cpu"), torch.float32


def case_files(case: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return json.loads((FOLDER / f"{case}.json").read_text()), load_file(FOLDER / f"{case}.safetensors")


def scenarios() -> list[tuple[str, str]]:
    return [(case, name) for case in CASES for name in case_files(case)[0]["scenarios"]]


def bound_drafter(
    case: str, tensors: dict[str, torch.Tensor], config: dict[str, Any], folder: Path, packing: bool = True
) -> EagleDrafter:
    weights = {key.removeprefix("ckpt/"): value for key, value in tensors.items() if key.startswith("ckpt/")}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    target = FakeTarget(tensors["target/lm_head.weight"], weights["embed_tokens.weight"], packing)
    drafter = (MSDDrafter if case.startswith("msd") else EagleDrafter)(str(folder)).bind(target)
    assert isinstance(drafter, EagleDrafter)
    assert drafter.head.embed_tokens is target.embed_tokens  # equal tables are held once
    return drafter


def prompt_context(case: str, at: str, tensors: dict[str, torch.Tensor]) -> PromptContext:
    ids, pictures = tensors[f"{at}/in/prompt_ids"].numpy(), tensors.get(f"{at}/in/image_embeds")
    if case == "msd_llava" and pictures is not None:  # one mark stands for all rows of the picture
        where = int(np.flatnonzero(ids == -200)[0])
        ids = np.concatenate([ids[:where], np.full(len(pictures), -200), ids[where + 1 :]])
    mask = ids == PLACEHOLDER.get(case, -1)
    return PromptContext(np.where(mask, 0, ids), mask, pictures, tensors[f"{at}/in/target_hidden"])


def check_tree(tensors: dict[str, torch.Tensor], at: str, pool: CandidatePool, tree: TreeBatch) -> None:
    def golden(name: str) -> np.ndarray:
        array: np.ndarray = tensors[f"{at}/tree/{name}"].numpy()
        return array

    assert pool.token_ids[0, 1:].tolist() == golden("pool_tokens").tolist()
    np.testing.assert_allclose(pool.log_probs[0, 1:], golden("pool_scores"), **CLOSE)
    assert tree.token_ids[0].tolist() == golden("draft_tokens").tolist()
    assert tree.parents[0].tolist() == golden("parents").tolist()
    assert tree.depths[0].tolist() == golden("position_offsets").tolist()
    np.testing.assert_allclose(tree.log_probs[0, 1:], golden("scores"), **CLOSE)
    assert (tree.ancestor_mask()[0] == golden("ancestor_mask")).all()


def check_cache(tensors: dict[str, torch.Tensor], at: str, session: DraftSession) -> None:
    assert isinstance(session, EagleSession)
    data, length = session.cache._blocks[0].data, int(session.cache.lengths[0])
    assert data is not None
    assert session.seed is not None
    torch.testing.assert_close(session.seed[0], tensors[f"{at}/pass/out_hidden"][-1], **CLOSE)
    if f"{at}/pass/kv_keys" in tensors:
        for index, name in enumerate(("kv_keys", "kv_values")):
            torch.testing.assert_close(data[index, 0, 0, :, :length], tensors[f"{at}/pass/{name}"], **CLOSE)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(("case", "scenario"), scenarios())
@torch.inference_mode()
def test_rounds_equal_the_original(case: str, scenario: str, packing: bool, tmp_path: Path) -> None:
    record, tensors = case_files(case)
    settings = record["scenarios"][scenario]
    drafter = bound_drafter(case, tensors, record["config"], tmp_path, packing)
    policy = Watching(depth=settings["depth"], top_k=settings["top_k"], total=settings["drafts"])
    roots = tensors[f"{scenario}/in/first_token"].numpy()
    context = prompt_context(case, scenario, tensors)
    session = drafter.open([context], roots)
    final = [*context.token_ids.tolist(), int(roots[0])]
    for number, wanted in enumerate(settings["rounds"]):
        at = f"{scenario}/r{number}"
        limits = RoundContext(np.array([99]), np.array([len(final)]))
        tree = grow(policy, session, roots, limits)
        assert isinstance(session, EagleSession)
        assert session.cache.get_seq_length() == wanted["kv_len"]
        check_cache(tensors, at, session)
        check_tree(tensors, at, policy.pool, tree)
        if "accept_length" not in wanted:
            break
        logits, hidden = tensors[f"{at}/verify/tree_logits"], tensors[f"{at}/verify/tree_hidden"]
        verification = accept(tree, logits.argmax(-1).numpy()[None])
        path = verification.paths[0, : 1 + int(verification.num_accepted[0])]
        emitted = verification.emitted(tree)[0]
        assert int(verification.num_accepted[0]) == wanted["accept_length"]
        assert path.tolist() == tensors[f"{at}/verify/path_nodes"].tolist()
        assert emitted == tensors[f"{at}/verify/emitted"].tolist()
        session.commit(RoundOutcome(tree, verification, (tuple(emitted),), hidden[None]))
        roots, final = np.array(emitted[-1:]), [*final, *emitted]
    assert final[-5:] == tensors[f"{scenario}/out/final_ids"].tolist()[-5:]


def token_paths(token_ids: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    """Each node's tokens from below the root on: what it is, in whatever order the nodes stand."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(token_ids[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths


@torch.inference_mode()
def test_the_fixed_tree_of_eagle_1_equals_the_original(tmp_path: Path) -> None:
    record, tensors = case_files("eagle1_static_tree")
    ranks = [tuple(r for r in row if r >= 0) for row in tensors["tree/paths"].tolist()]
    parents = [-1, *(1 + ranks.index(path[:-1]) if path[:-1] else 0 for path in ranks)]
    policy = StaticTree(ranks)
    drafter = bound_drafter("eagle1_static_tree", tensors, record["config"], tmp_path)
    roots = tensors["s/in/first_token"].numpy()
    session = drafter.open([prompt_context("eagle1_static_tree", "s", tensors)], roots)
    assert isinstance(session, EagleSession)
    for number, wanted in enumerate([*record["scenarios"]["s"]["rounds"], None]):
        at = f"s/r{number}"
        pool = draft(policy, session, roots, RoundContext(np.array([99]), np.array([99])))
        tree = TreeBatch.pack(pool, policy.select(pool, RoundContext(np.array([99]), np.array([99]))))
        torch.testing.assert_close(session.seed, tensors[f"{at}/pass/out_hidden"][-1:], **CLOSE)
        logits = tensors[f"{at}/topk_logits"].numpy()[0, : policy.top_k]
        first = pool.log_probs[0, 1 : 1 + policy.top_k]
        np.testing.assert_allclose(first - first[0], logits - logits[0], **CLOSE)
        theirs = token_paths(tensors[f"{at}/draft_tokens"].tolist(), parents)
        ours = token_paths(tree.token_ids[0].tolist(), tree.parents[0].tolist())
        assert sorted(ours) == sorted(theirs)
        if wanted is None:
            break
        order = [theirs.index(path) for path in ours]
        verification = accept(tree, tensors[f"{at}/verify/tree_logits"][order].argmax(-1).numpy()[None])
        emitted = verification.emitted(tree)[0]
        assert int(verification.num_accepted[0]) == wanted["accept_length"]
        assert emitted == tensors[f"{at}/verify/emitted"].tolist()
        hidden = tensors[f"{at}/verify/tree_hidden"][order]
        session.commit(RoundOutcome(tree, verification, (tuple(emitted),), hidden[None]))
        roots = np.array(emitted[-1:])


@pytest.mark.parametrize("case", ["tie_orphan_0", "tie_orphan_1"])
def test_where_the_original_orphans_a_node_by_a_tie_its_parent_is_kept(case: str) -> None:
    record, tensors = case_files("defects")
    settings, scores = record["items"][case], tensors[f"{case}/pool_scores"].numpy()
    width, parents = settings["top_k"], tensors[f"{case}/pool_parents_list"].tolist()
    pool = CandidatePool([0])
    pool.token_ids = np.append(0, tensors[f"{case}/pool_tokens"].numpy())[None]
    pool.parents = np.array([[-1, *(parents[place // width] for place in range(len(scores)))]])
    pool.log_probs = np.append(np.float32(0), scores)[None]
    kept = np.flatnonzero(pool.top(settings["total_tokens"] - 1)[0])[1:] - 1
    assert kept.tolist() == tensors[f"{case}/right_kept_pool_index"].tolist()
    assert kept.tolist() != tensors[f"{case}/kept_pool_index"].tolist()
    above = pool.parents[0, kept + 1]
    assert set(above.tolist()) <= {0, *(kept + 1).tolist()}  # closed under ancestors, unlike the original's choice
