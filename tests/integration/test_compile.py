"""Compiled verification: the same tokens, few compilations, whatever the shapes; settings are checked and known.

Most tests take torch's quick compiler, which traces and checks all that the real one does but makes no machine code.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

import mmsmart
import tiny
from drafters import ScriptedDrafter
from mmsmart import cli
from mmsmart.api import load
from mmsmart.costs.table import CostTable, Grid
from mmsmart.engine import Engine, Request
from mmsmart.errors import InputError
from mmsmart.kv_cache import Storage
from mmsmart.profiling import node_sizes, profile_path, settings_of
from mmsmart.registry import POLICIES, create
from mmsmart.targets.compiled import NODE_SIZES, ROW_SIZES, SLOT_STEP, CompiledSession, Inputs, padded
from support import round_robin, tree_of

FAMILIES = ("llava", "qwen2_vl")
SHAPES = (  # policies, and among which child the drafter puts the truth
    ("none", 0),
    ("chain:depth=5", 0),
    ("likelihood:depth=3,top_k=3,total=11", 1),
    ("best-first:nodes=3,top_k=2", 1),
)
MOST_COMPILED = 4
"""One row or several, one node or several: every other size is dynamic."""

Make = Callable[[str], Engine]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


@pytest.fixture(scope="module")
def folders(llava_folder: Path, qwen2_vl_folder: Path) -> dict[str, str]:
    return {"llava": str(llava_folder), "qwen2_vl": str(qwen2_vl_folder)}


def requests(engine: Engine) -> list[Request]:
    """Unequal prompts and answers, at last only one of them: the first begins below a storage's border, ends beyond."""
    picture, lengths = [tiny.picture(1, (60, 48))], (20, 11, 16)
    around = engine.target.encode(picture, "w").length - 1  # a letter is a token
    questions = ("w" * (SLOT_STEP - 8 - around), "what is it?", "and a question of middling length about it")
    sampling = [mmsmart.SamplingParams(max_new_tokens=length) for length in lengths]
    return [Request(p, q, s) for p, q, s in zip((picture, None, picture), questions, sampling, strict=True)]


def answers(engine: Engine, asked: list[Request], policy: str, expected: list[list[int]], place: int = 0) -> list[Any]:
    drafter = ScriptedDrafter([ids + [5] * 20 for ids in expected], place=place)
    return Engine(engine.target, drafter, create(POLICIES, "policy", policy)).generate_batch(asked)


def check(folder: str) -> None:
    """Every shape of tree against the eager plain answers, across a border of the storage."""
    plain = load(folder, policy="none", drafter="ngram", dtype="float64")
    engine = load(folder, policy="none", drafter="ngram", dtype="float64", compile=True)
    assert plain.target.compiled is None
    asked = requests(plain)
    expected = [output.token_ids for output in plain.generate_batch(asked)]
    for policy, place in SHAPES:
        outputs = answers(engine, asked, policy, expected, place)
        assert [output.token_ids for output in outputs] == expected, policy
        assert (outputs[0].stats.accepted > 0) == (policy != "none")
    assert counters["stats"]["unique_graphs"] <= MOST_COMPILED


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("quick")
def test_tokens_are_those_of_plain_decoding(folders: dict[str, str], family: str) -> None:
    check(folders[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_so_they_are_with_machine_code(folders: dict[str, str], family: str) -> None:
    check(folders[family])


def test_machine_code_of_a_chain(folders: dict[str, str]) -> None:
    asked = [Request(None, "what is it, what is it?", mmsmart.SamplingParams(max_new_tokens=20))]
    plain = load(folders["llava"], policy="none", drafter="ngram", dtype="float32").generate_batch(asked)[0]
    engine = load(folders["llava"], policy="none", drafter="ngram", dtype="float32", compile=True)
    output = answers(engine, asked, "chain:depth=3", [plain.token_ids])[0]
    assert output.token_ids == plain.token_ids
    assert output.stats.accepted > output.stats.rounds


@pytest.mark.usefixtures("quick")
def test_streams_that_take_turns_do_not_share_memory(folders: dict[str, str]) -> None:
    questions = ("what is it?", "is it this, is it this?")
    plain = load(folders["qwen2_vl"], policy="none", drafter="ngram", dtype="float64")
    expected = [plain.generate(tiny.picture(1), q, max_new_tokens=16).token_ids for q in questions]
    engine = load(folders["qwen2_vl"], policy="chain:depth=3", drafter="ngram", dtype="float64", compile=True)
    streams = [engine.stream(tiny.picture(1), q, max_new_tokens=16) for q in questions]
    assert [chunks[-1].output.token_ids for chunks in round_robin(*streams)] == expected


class Played:
    """A recording as a CPU can have it: fixed inputs, fixed outputs, and nothing of the first run kept but those."""

    made = 0

    def __init__(self, run: Callable[[Inputs], tuple[torch.Tensor, ...]], fixed: Inputs, pool: object) -> None:
        Played.made += 1
        self.run, self.inputs = run, Inputs(*(tensor.clone() for tensor in fixed.tensors()))
        self.outputs = tuple(torch.full_like(output, torch.nan) for output in run(self.inputs))

    def replay(self, given: Inputs) -> tuple[torch.Tensor, ...]:
        for fixed, new in zip(self.inputs.tensors(), given.tensors(), strict=True):
            fixed.copy_(new)
        for fixed, new in zip(self.outputs, self.run(self.inputs), strict=True):
            fixed.copy_(new)
        return self.outputs


def test_recordings_belong_to_their_memory_and_give_results_of_their_own(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda call, **options: call)
    monkeypatch.setattr("mmsmart.targets.compiled.Graph", Played)
    plain = load(folders["qwen2_vl"], policy="none", drafter="ngram", dtype="float64")
    engine = load(folders["qwen2_vl"], policy="none", drafter="ngram", dtype="float64", compile=True)
    engine.target.compiled._pool = object()
    asked = requests(plain)
    expected = [output.token_ids for output in plain.generate_batch(asked)]
    for policy, place in SHAPES:
        outputs = answers(engine, asked, policy, expected, place)
        assert [output.token_ids for output in outputs] == expected, policy
    made = Played.made
    answers(engine, asked, *SHAPES[1][:1], expected)
    assert Played.made == made
    inputs = [plain.target.encode([], "what?")]
    with torch.inference_mode():
        session, _, _ = engine.target.prefill(inputs, [[]])
        first = session.verify(tree_of([7], [0, 1, 1]), keep_hidden=True)
        logits, hidden = first.logits.clone(), first.hidden_states.clone()
        second = session.verify(tree_of([9], [0, 0, 2], seed=1), keep_hidden=True)
        assert torch.equal(first.logits, logits)
        assert torch.equal(first.hidden_states, hidden)
        assert not torch.equal(second.logits, logits)


@pytest.mark.usefixtures("quick")
def test_memory_is_used_again_and_cleaned(folders: dict[str, str]) -> None:
    plain = load(folders["llava"], policy="none", drafter="ngram", dtype="float64")
    engine = load(folders["llava"], policy="none", drafter="ngram", dtype="float64", compile=True)
    expected = plain.generate(None, "what?", max_new_tokens=8).token_ids
    assert engine.generate(None, "what?", max_new_tokens=8).token_ids == expected
    (kept,) = engine.target.compiled._free
    with torch.inference_mode():
        kept.data.fill_(torch.nan)
    assert engine.generate(None, "what?", max_new_tokens=8).token_ids == expected
    assert engine.target.compiled._free == [kept]
    engine.target.compiled._kept_bytes = 2 * kept.nbytes  # what is kept stays bounded
    engine.generate_batch([Request(None, "what?", mmsmart.SamplingParams(max_new_tokens=n)) for n in (2, 4, 6)])
    sizes = [storage.nbytes for storage in engine.target.compiled._free]
    assert 0 < sum(sizes) <= 2 * kept.nbytes


def test_many_targets_in_a_process_do_not_use_up_torchs_limit(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    targets = torch._dynamo.config.recompile_limit // 2 + 1  # each compiles twice: one node, and several
    for _ in range(targets):
        engine = load(folders["llava"], policy="chain:depth=3", drafter="ngram", compile=True)
        engine.generate(None, "what is what is what?", max_new_tokens=8)
    assert counters["stats"]["unique_graphs"] == 2 * targets


def test_where_compiling_fails_auto_goes_on_without(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here\nand a long story")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=refuses))
    expected = load(folders["llava"], policy="none", drafter="ngram").generate(None, "what?", max_new_tokens=8)
    engine = load(folders["llava"], policy="none", drafter="ngram")
    engine.target.compile(required=False)  # what "auto" does on a GPU
    with caplog.at_level(logging.WARNING):
        assert engine.generate(None, "what?", max_new_tokens=8).token_ids == expected.token_ids
    assert "going on without compiling" in caplog.text
    assert engine.target.compiled is None
    insisting = load(folders["llava"], policy="none", drafter="ngram", compile=True)
    with pytest.raises(RuntimeError, match="no compiler here"):
        insisting.generate(None, "what?", max_new_tokens=8)


def test_nothing_is_set_on_the_model(folders: dict[str, str]) -> None:
    engine = load(folders["llava"], policy="none", drafter="ngram", compile=True)
    decoder = engine.target.decoder
    assert [layer.self_attn.layer_idx for layer in decoder.layers] == [0, 1, 2]
    twin = engine.target.compiled._decoder
    shared = {id(p) for p in decoder.parameters()}
    assert {id(p) for p in twin.parameters()} == shared


def test_the_setting_is_checked_before_the_weights_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("yes", None, 1):
        with pytest.raises(InputError, match=f"compile must be 'auto', True or False, got {wrong!r}"):
            load("./nowhere", compile=wrong)
    with pytest.raises(SystemExit) as caught:
        cli.main(["generate", "none", "hm?", "--compile", "yes"])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_auto_is_off_on_a_cpu_and_impossible_models_are_refused(folders: dict[str, str]) -> None:
    engine = load(folders["llava"], policy="none", drafter="ngram")
    assert engine.target.compiled is None
    engine.target.model.is_quantized = True
    engine.target.compile(required=False)
    assert engine.target.compiled is None
    with pytest.raises(InputError, match="is quantized; use compile=False"):
        engine.target.compile()


def test_profiles_know_it(folders: dict[str, str], tmp_path: Path) -> None:
    plain = load(folders["llava"], policy="none", drafter="ngram")
    compiled = load(folders["llava"], policy="none", drafter="ngram", compile=True)
    assert profile_path(settings_of(plain)) != profile_path(settings_of(compiled))
    grid = Grid((1,), (1,), (1,), (((1.0,),),))
    CostTable(grid, grid, 0.0, settings_of(plain)).save(tmp_path / "profile.json")
    with pytest.raises(InputError, match="compiled False instead of True"):
        CostTable.load(tmp_path / "profile.json", settings_of(compiled))
    assert node_sizes(plain.target) == ()
    sizes = node_sizes(compiled.target)
    assert {padded(size, NODE_SIZES) for size in sizes} == {1, 2, 4, 8, 16, 32, 48, 64}


def test_sizes() -> None:
    assert [padded(n, NODE_SIZES) for n in (1, 2, 3, 33, 60, 128, 129, 300)] == [1, 2, 4, 48, 64, 128, 256, 384]
    assert [padded(n, ROW_SIZES) for n in (1, 3, 32, 33)] == [1, 4, 32, 64]


@pytest.mark.usefixtures("quick")
def test_rows_that_leave_move_to_a_smaller_storage(folders: dict[str, str]) -> None:
    engine = load(folders["qwen2_vl"], policy="none", drafter="ngram", dtype="float64", compile=True)
    inputs = [engine.target.encode([], question) for question in ("one", "the other", "third one")]
    with torch.inference_mode():
        session, _, _ = engine.target.prefill(inputs, engine.target.embed_images(inputs))
        assert isinstance(session, CompiledSession)
        assert session.cache.storage.rows == 4
        before = session.cache.storage.data[:, :, [2]].clone()
        session.select_rows([2])
        storage = session.cache.storage
    assert isinstance(storage, Storage)
    assert storage.rows == 1
    length = int(session.lengths[0])
    assert torch.equal(storage.data[..., :length, :], before[..., :length, :])
    assert session.lengths.tolist() == [inputs[2].length]
    assert np.all(storage.data[..., length:, :].numpy() == 0)
