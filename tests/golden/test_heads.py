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
from mmsmart.drafting import grow
from mmsmart.policies.base import RoundContext
from mmsmart.policies.likelihood import Likelihood
from mmsmart.tree import Bools, CandidatePool, TreeBatch
from mmsmart.verification import accept

HERE = Path(__file__).resolve().parent.parent
FOLDERS = (HERE / "data" / "golden", HERE.parent.parent / "shared" / "golden")
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

    def __init__(self, head: torch.Tensor, embedding: torch.Tensor) -> None:
        self.head = torch.nn.Linear(*reversed(head.shape), bias=False)
        self.head.weight = torch.nn.Parameter(head)
        self.embed_tokens = torch.nn.Embedding.from_pretrained(embedding.clone())
        self.vocab_size, self.device, self.dtype = head.shape[0], torch.device("cpu"), torch.float32


def case_files(case: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    for folder in FOLDERS:
        if (folder / f"{case}.json").is_file():
            return json.loads((folder / f"{case}.json").read_text()), load_file(folder / f"{case}.safetensors")
    pytest.skip(f"{case} is neither in tests/data/golden nor in ../shared/golden")


def scenarios() -> list[tuple[str, str]]:
    found = []
    for case in CASES:
        path = next((f / f"{case}.json" for f in FOLDERS if (f / f"{case}.json").is_file()), None)
        found += [(case, name) for name in json.loads(path.read_text())["scenarios"]] if path else [(case, "any")]
    return found


def bound_drafter(case: str, tensors: dict[str, torch.Tensor], config: dict[str, Any], folder: Path) -> EagleDrafter:
    weights = {key.removeprefix("ckpt/"): value for key, value in tensors.items() if key.startswith("ckpt/")}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    target = FakeTarget(tensors["target/lm_head.weight"], weights["embed_tokens.weight"])
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


@pytest.mark.parametrize(("case", "scenario"), scenarios())
@torch.inference_mode()
def test_rounds_equal_the_original(case: str, scenario: str, tmp_path: Path) -> None:
    record, tensors = case_files(case)
    settings = record["scenarios"][scenario]
    drafter = bound_drafter(case, tensors, record["config"], tmp_path)
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
