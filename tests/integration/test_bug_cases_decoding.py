"""What breaks speculative decoding in practice (G01..G12, G25, G26), replayed against plain transformers."""

import threading
import time

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

import support
import tiny
from drafters import ScriptedDrafter
from mmsmart.engine import Request
from mmsmart.sampling import Sampler
from mmsmart.verification import Verification
from support import LENGTH, POLICIES, ROWS, VLMS, Row

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def folder(request, family):
    return request.getfixturevalue(f"{family}_folder")


def first_row(family):
    return support.rows_of(family)[0]


def first_new(answer, start):
    """Index, from `start` on, of a token that did not occur before."""
    return next(at for at in range(start, len(answer)) if answer[at] not in answer[:at])


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("at", [0, 1, 2, 5])
@pytest.mark.parametrize("policy", ["chain:depth=5", "likelihood:depth=4,top_k=2,total=9"])
def test_g01_eos_inside_an_accepted_block_ends_the_answer(family, folder, at, policy):
    row = first_row(family)
    whole = support.expected(folder, row)
    at = first_new(whole, at)
    wanted = support.expected(folder, row, eos_token_id=whole[at])
    assert wanted == whole[: at + 1]
    engine = support.load(folder, policy, ScriptedDrafter([whole]))
    engine.target.model.generation_config.eos_token_id = whole[at]
    output = support.ask(engine, row)
    assert output.token_ids == wanted
    assert output.finish_reason == "eos"
    assert output.text == support.decode(engine, wanted)
    support.consistent(output)
    stream = support.streamed(engine, row.images, row.question)
    assert (stream.token_ids, stream.text, stream.finish_reason) == (wanted, output.text, "eos")


def test_g01_the_cap_and_the_eos_on_one_token_are_an_eos(llama_folder):
    row = Row("What?")
    whole = support.expected(llama_folder, row)
    at = first_new(whole, 3)
    engine = support.load(llama_folder, "chain:depth=5", ScriptedDrafter([whole]))
    engine.target.model.generation_config.eos_token_id = whole[at]
    output = support.ask(engine, row, max_new_tokens=at + 1)
    assert (output.token_ids, output.finish_reason) == (whole[: at + 1], "eos")


@pytest.mark.parametrize("kind", ["right", "wrong", "ngram"])
@pytest.mark.parametrize("form", ["int", "list", "reversed", "tensor", "both occur"])
def test_g02_every_eos_id_of_the_target_ends_the_answer(llava_folder, kind, form):
    row = ROWS[0]
    whole = support.expected(llava_folder, row)
    at = first_new(whole, 3)
    late = first_new(whole, at + 1)
    never = next(token for token in range(256) if token not in whole)
    ids = {
        "int": whole[at],
        "list": [never, whole[at]],
        "reversed": [whole[at], never],
        "tensor": torch.tensor([never, whole[at]]),
        "both occur": [whole[late], whole[at]],
    }[form]
    engine = support.load(llava_folder, "chain:depth=5", support.drafter_of(kind, [whole]))
    engine.target.model.generation_config.eos_token_id = ids
    output = support.ask(engine, row)
    assert output.token_ids == whole[: at + 1]
    assert output.finish_reason == "eos"


def test_g02_an_end_token_that_only_the_tokenizer_names_is_ignored(llava_folder):
    whole = support.expected(llava_folder, ROWS[0])
    early = first_new(whole, 1)
    late = first_new(whole, early + 1)
    engine = support.load(llava_folder, "chain:depth=8", ScriptedDrafter([whole]))
    engine.target.model.generation_config.eos_token_id = [whole[late]]
    engine.target.tokenizer.eos_token = engine.target.tokenizer.convert_ids_to_tokens(whole[early])
    assert engine.target.tokenizer.eos_token_id == whole[early]
    assert support.ask(engine, ROWS[0]).token_ids == whole[: late + 1]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("policy", ["chain:depth=8", "static", "likelihood:depth=7,top_k=2,total=20"])
def test_g03_never_longer_than_the_cap(family, folder, policy):
    row = first_row(family)
    whole = support.expected(folder, row)
    engine = support.load(folder, policy, ScriptedDrafter([whole]))
    for cap in range(1, 10):
        output = support.ask(engine, row, max_new_tokens=cap)
        assert output.token_ids == whole[:cap]
        assert output.finish_reason == "length"
        assert output.stats.new_tokens == cap
        support.consistent(output)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("def",), "abc"),
        ("f", "abcde"),
        (("abc",), ""),
        (("a",), ""),
        (("xyz", "hij", "ghijk"), "abcdefg"),
        (("efz", "efg"), "abcd"),
        (("bd", "cdefghi"), "ab"),
    ],
)
@pytest.mark.parametrize("kind", ["right", "wrong"])
@pytest.mark.parametrize("depth", [1, 5])
def test_g04_text_ids_and_counts_end_at_the_stop_string(llama_folder, stop, text, kind, depth):
    whole = list(LETTERS.encode())
    engine = support.load(llama_folder, f"chain:depth={depth}", support.drafter_of(kind, [whole]))
    support.spell(engine, whole)
    strings = [stop] if isinstance(stop, str) else list(stop)
    wanted = tiny.reference_generate(engine.target.model, None, "hi", max_new_tokens=26, stop_strings=strings)
    assert wanted == whole[: len(wanted)] != whole
    output = engine.generate(None, "hi", max_new_tokens=26, stop=stop)
    assert output.text == text
    assert output.token_ids == wanted
    assert output.finish_reason == "stop"
    support.consistent(output)
    if kind == "right" and depth == 5 and len(wanted) == 6:  # the first token, then five accepted ones
        assert (output.stats.rounds, output.stats.accepted) == (1, 5)
    stream = support.streamed(engine, None, "hi", max_new_tokens=26, stop=stop)
    assert (stream.text, stream.token_ids) == (text, wanted)


@pytest.mark.parametrize("cap", [4, 5, 26])
def test_g04_the_beginning_of_a_stop_string_is_shown_once_it_cannot_be_one(llama_folder, cap):
    engine = support.load(llama_folder, "chain:depth=5", ScriptedDrafter([list(LETTERS.encode())]))
    support.spell(engine, list(LETTERS.encode()))
    output = support.streamed(engine, None, "hi", max_new_tokens=cap, stop=("de!", "yz?"))
    assert (output.text, output.finish_reason) == (LETTERS[:cap], "length")


@pytest.mark.parametrize("family", VLMS)
def test_g04_stop_strings_of_the_checkpoint_are_honoured_like_the_callers(family, folder):
    row = ROWS[0]
    whole = support.expected(folder, row)
    engine = support.load(folder, "chain:depth=5", ScriptedDrafter([whole]))
    at = next(i for i, token in enumerate(whole) if i > 1 and 33 <= token < 127)
    stop = chr(whole[at])
    wanted = tiny.reference_generate(folder, row.images, row.question, max_new_tokens=LENGTH, stop_strings=[stop])
    assert len(wanted) < LENGTH
    assert support.ask(engine, row, stop=stop).token_ids == wanted
    engine.target.model.generation_config.stop_strings = [stop]
    output = support.ask(engine, row)
    assert (output.token_ids, output.finish_reason) == (wanted, "stop")
    assert stop not in output.text


PARENTS = {"chain": (0, 1, 2, 3), "branchy": (0, 0, 1, 1, 2, 4, 4, 6)}


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("shape", PARENTS)
def test_g05_every_node_has_the_logits_of_its_own_path(family, folder, shape):
    rows = support.rows_of(family)
    answers = [support.expected(folder, row) for row in rows]
    committed = [answer[:1] for answer in answers]
    target = support.load(folder).target
    with torch.inference_mode():
        inputs = [target.encode(row.images, row.question) for row in rows]
        session, logits, _ = target.prefill(inputs, target.embed_images(inputs))
        for number, row in enumerate(rows):
            torch.testing.assert_close(logits[number, 0], support.path_logits(folder, row, ()), rtol=0, atol=1e-9)
        for seed in range(2):  # before and after a commit
            tree = support.tree_of([tokens[-1] for tokens in committed], PARENTS[shape], seed)
            output = session.verify(tree)
            for number, row in enumerate(rows):
                for node in range(tree.num_nodes):
                    tokens = committed[number][:-1] + support.path_of(tree, number, node)
                    wanted = support.path_logits(folder, row, tokens)
                    torch.testing.assert_close(output.logits[number, node], wanted, rtol=0, atol=1e-9)
            last = {"chain": [3, 0, 2], "branchy": [8, 5, 0]}[shape]
            paths = []
            for number, node in enumerate(last):
                committed[number] = committed[number][:-1] + support.path_of(tree, number, node) + [7 + seed]
                path = []
                while node >= 0:
                    path.insert(0, node)
                    node = int(tree.parents[number, node])
                paths.append(path)
            depth = max(map(len, paths))
            session.commit(
                Verification(
                    paths=np.array([path + [-1] * (depth - len(path)) for path in paths]),
                    num_accepted=np.array([len(path) - 1 for path in paths]),
                    bonus_token_id=np.full(len(rows), 7 + seed),
                )
            )


def test_g05_the_picture_shifts_the_positions(qwen2_vl_folder):
    target = support.load(qwen2_vl_folder).target
    assert target.encode([tiny.picture(1, (90, 120))], "What?").position_offset < 0  # else the test above shows nothing


@pytest.mark.parametrize("kind", ["right", "ngram"])
def test_g06_no_rope_delta_leaks_into_the_next_request(qwen2_vl_folder, kind):
    first, text, small = Row("What?", ((1, (120, 90)),)), Row("hi"), Row("What?", ((2, (60, 60)),))
    engine = support.load(qwen2_vl_folder, "chain:depth=3")
    for row in (first, text, small, first):
        wanted = support.expected(qwen2_vl_folder, row)
        if kind == "right":
            engine.drafter = ScriptedDrafter([wanted])
        fresh = support.load(qwen2_vl_folder, "none")
        assert support.ask(engine, row).token_ids == wanted == support.ask(fresh, row).token_ids
        assert engine.target.model.model.rope_deltas is None


def test_g07_three_axis_positions_without_the_processors_key(qwen2_vl_folder):
    row = ROWS[0]
    wanted = support.expected(qwen2_vl_folder, row)
    parts = tiny.reference(qwen2_vl_folder)
    inputs = tiny.reference_inputs(qwen2_vl_folder, row.images, row.question)
    inputs.pop("mm_token_type_ids")
    flat = parts.model.generate(**inputs, max_new_tokens=LENGTH, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert flat.tolist() != wanted  # the silent fall-back that is to be avoided
    engine = support.load(qwen2_vl_folder)
    processor = engine.target.image_processor
    assert "mm_token_type_ids" not in processor(row.images, return_tensors="pt")
    encoded = engine.target.encode(row.images, row.question)
    positions, delta = parts.model.model.get_rope_index(
        **{
            k: v
            for k, v in tiny.reference_inputs(qwen2_vl_folder, row.images, row.question).items()
            if k != "pixel_values"
        }
    )
    assert torch.equal(encoded.positions, positions[:, 0])
    assert encoded.position_offset == int(delta) != 0
    assert support.ask(engine, row).token_ids == wanted


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("policy", ["chain:depth=3", "likelihood:depth=2,top_k=3,total=8"])
def test_g08_every_rejected_draft_leaves_the_cache(family, folder, policy):
    row = first_row(family)
    wanted = support.expected(folder, row, 30)
    engine = support.load(folder, policy, ScriptedDrafter([wanted], right=False))
    prompt = engine.prepare(row.request(max_new_tokens=30))
    batch = engine.start([prompt])
    for done in range(1, 21):
        engine.step(batch)
        committed = prompt.inputs.length + len(prompt.sequence.token_ids)
        assert len(prompt.sequence.token_ids) == done + 1
        cache = batch.target.cache
        assert cache.get_seq_length() == cache.layers[-1].get_seq_length() == committed - 1
        assert cache.lengths.tolist() == [committed - 1]
    assert prompt.stats.accepted == 0 < prompt.stats.drafted
    assert prompt.sequence.token_ids == wanted[:21]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("policy", ["static", "likelihood:depth=2,top_k=3,total=8"])
def test_g09_branchy_trees_under_either_attention(family, folder, attention, policy):
    rows = support.rows_of(family)
    answers = [support.expected(folder, row) for row in rows]
    for place in (0, 1):
        engine = support.load(folder, policy, ScriptedDrafter(answers, place=place), attn_implementation=attention)
        assert engine.target.text_config._attn_implementation == attention
        outputs = engine.generate_batch([row.request() for row in rows])
        assert [output.token_ids for output in outputs] == answers
        assert all(output.stats.accepted > 0 for output in outputs)


@pytest.mark.parametrize(("attention", "tolerance"), [("eager", 1e-4), ("sdpa", 1e-9)])  # eager: a float32 softmax
def test_g09_siblings_do_not_see_each_other(llava_folder, attention, tolerance):
    target = support.load(llava_folder, attn_implementation=attention).target
    tree = support.tree_of([5], (0, 0, 0, 1, 1))
    with torch.inference_mode():
        inputs = [target.encode(ROWS[0].images, ROWS[0].question)]
        session, _, _ = target.prefill(inputs, target.embed_images(inputs))
        logits = session.verify(tree).logits[0]
    for node in range(tree.num_nodes):
        wanted = support.path_logits(llava_folder, ROWS[0], support.path_of(tree, 0, node))
        torch.testing.assert_close(logits[node], wanted, rtol=0, atol=tolerance)


def test_g09_an_attention_that_cannot_take_trees_is_refused(llama_folder):
    engine = support.load(llama_folder)
    engine.target.model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(support.mmsmart.ModelError, match="flash_attention_2"):
        type(engine.target)(engine.target.model, engine.target.tokenizer, name="x")


@pytest.fixture(scope="module")
def penalised(tmp_path_factory):
    root = tmp_path_factory.mktemp("penalised")
    return {f: tiny.build(f, root / f, generation={"repetition_penalty": 1.3}) for f in (*VLMS, "llama")}


@pytest.mark.parametrize("family", [*VLMS, "llama"])
@pytest.mark.parametrize("kind", ["right", "wrong", "ngram"])
@pytest.mark.parametrize("policy", ["none", "static", "likelihood:depth=2,top_k=3,total=8"])
def test_g10_the_checkpoints_repetition_penalty_holds_on_every_path(family, kind, policy, penalised, folder):
    rows = support.rows_of(family)
    answers = [support.expected(penalised[family], row) for row in rows]
    assert answers != [support.expected(folder, row) for row in rows]
    engine = support.load(penalised[family], policy, support.drafter_of(kind, answers))
    assert [o.token_ids for o in engine.generate_batch([row.request() for row in rows])] == answers


@pytest.mark.parametrize("family", VLMS)
def test_g10_the_callers_repetition_penalty_wins(family, penalised, folder):
    row = ROWS[0]
    assert support.ask(support.load(penalised[family]), row, repetition_penalty=1.0).token_ids == support.expected(
        folder, row
    )
    wanted = support.expected(folder, row, repetition_penalty=1.7)
    engine = support.load(penalised[family], "static", ScriptedDrafter([wanted]))
    assert support.ask(engine, row, repetition_penalty=1.7).token_ids == wanted


def test_g10_a_node_is_penalised_for_its_own_ancestors_only(llama_folder):
    row, penalty = Row("What?"), 8.0
    target = support.load(llama_folder).target
    inputs = target.encode([], row.question)
    root = support.expected(llama_folder, row)[0]
    processor = RepetitionPenaltyLogitsProcessor(penalty)

    def wanted(tokens):
        ids = torch.cat([inputs.token_ids, torch.tensor(tokens)])[None]
        return int(processor(ids, support.path_logits(llama_folder, row, tokens)[None].float()).argmax())

    child = 200
    following = wanted([root, child])
    sampler = Sampler([row.request(repetition_penalty=penalty).sampling], [inputs.token_ids], target.vocab_size, "cpu")
    sampler.commit(0, [root])
    tree = support.tree_of([root], (0, 0, 1, 1))
    tree.token_ids[0, 1:] = [child, following, following, wanted([root, child, following])]
    with torch.inference_mode():
        session, _, _ = target.prefill([inputs], [[]])
        chosen = sampler.choose(session.verify(tree).logits, tree, [1])
    paths = [support.path_of(tree, 0, node) for node in range(tree.num_nodes)]
    assert chosen[0].tolist() == [wanted(path) for path in paths]
    assert chosen[0, 1] == following  # although its sibling and its own child carry that very token


@torch.inference_mode()
def test_g10_a_node_is_penalised_for_its_drafted_ancestors_too(llama_folder):
    row, penalty = Row("What?"), 8.0
    target = support.load(llama_folder).target
    prompt = target.encode([], row.question).token_ids
    root, first = support.expected(llama_folder, row)[0], 200
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    paths = torch.tensor([[root, first, second] for second in range(256)])
    ids = torch.cat([prompt.expand(256, -1), paths], dim=1)
    logits = tiny.reference(llama_folder).model(input_ids=ids, use_cache=False).logits[:, -1].float()
    wanted = processor(ids, logits).argmax(dim=-1)
    careless = processor(ids[:, :-2], logits).argmax(dim=-1)  # the committed tokens only
    at = int((wanted != careless).nonzero()[0, 0])
    sampler = Sampler([row.request(repetition_penalty=penalty).sampling], [prompt], target.vocab_size, "cpu")
    sampler.commit(0, [root])
    tree = support.tree_of([root], (0, 1))
    tree.token_ids[0] = paths[at]
    session, _, _ = target.prefill([target.encode([], row.question)], [[]])
    assert sampler.choose(session.verify(tree).logits, tree, [1])[0, 2] == wanted[at]


SAMPLING = [
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_p": 0.6, "seed": 2},
    {"temperature": 1.5, "top_k": 5, "seed": 3},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3, "seed": 4},
]


@pytest.mark.parametrize("family", [*VLMS, "llama"])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_g11_a_seed_gives_one_answer_whatever_was_drafted(family, folder, sampling):
    row = first_row(family)
    sampling = sampling | {"max_new_tokens": 14}
    plain = support.ask(support.load(folder), row, **sampling).token_ids
    assert plain != support.expected(folder, row, 14)
    assert plain != support.ask(support.load(folder), row, **(sampling | {"seed": 99})).token_ids
    for policy in POLICIES[1:]:
        for kind in ("right", "wrong", "ngram"):
            engine = support.load(folder, policy, support.drafter_of(kind, [plain]))
            output = support.ask(engine, row, **sampling)
            assert output.token_ids == plain, (policy, kind)
            assert kind != "wrong" or output.stats.accepted == 0
            assert kind != "right" or output.stats.accepted > 5


def test_g11_rows_of_one_batch_sample_by_their_own_settings(llava_folder):
    settings = [SAMPLING[1], {}, SAMPLING[3]]
    alone = [support.ask(support.load(llava_folder), r, **s).token_ids for r, s in zip(ROWS, settings, strict=True)]
    requests = [row.request(**s) for row, s in zip(ROWS, settings, strict=True)]
    for kind in ("right", "wrong", "ngram"):
        engine = support.load(llava_folder, "best-first:nodes=6", support.drafter_of(kind, alone))
        assert [o.token_ids for o in engine.generate_batch(requests)] == alone


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("kind", ["right", "wrong", "ngram"])
@pytest.mark.parametrize("policy", ["none", "chain:depth=4", "likelihood:depth=2,top_k=3,total=8"])
def test_g12_every_row_of_a_batch_equals_its_solo_run(family, folder, kind, policy):
    rows = support.rows_of(family)
    answers = [support.expected(folder, row) for row in rows]
    for count in (2, 3):
        engine = support.load(folder, policy, support.drafter_of(kind, answers[:count]))
        outputs = engine.generate_batch([row.request() for row in rows[:count]])
        assert [output.token_ids for output in outputs] == answers[:count]
        for output in outputs:
            assert output.text == support.decode(engine, output.token_ids)
            support.consistent(output)


@pytest.mark.parametrize("policy", ["none", "chain:depth=4", "likelihood:depth=2,top_k=3,total=8"])
def test_g12_rows_may_end_at_different_places_for_different_reasons(llava_folder, policy):
    wholes = [support.expected(llava_folder, row) for row in ROWS]
    at = first_new(wholes[0], 7)
    ends = [wholes[0].index(wholes[0][at]), 4, 15]
    engine = support.load(llava_folder, policy, ScriptedDrafter(wholes))
    engine.target.model.generation_config.eos_token_id = wholes[0][at]
    caps = [LENGTH, 5, 16]
    wanted = [
        support.expected(llava_folder, row, cap, eos_token_id=wholes[0][at])
        for row, cap in zip(ROWS, caps, strict=True)
    ]
    assert len(wanted[0]) == ends[0] + 1
    outputs = engine.generate_batch([r.request(max_new_tokens=cap) for r, cap in zip(ROWS, caps, strict=True)])
    assert [output.token_ids for output in outputs] == wanted
    assert outputs[0].finish_reason == "eos"


SPOKEN = "é漢🙂!"


@pytest.mark.parametrize("depth", range(1, 11))
@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_g25_no_half_character_is_ever_shown(llama_folder, depth, kind):
    spoken = list(SPOKEN.encode())
    engine = support.load(llama_folder, f"chain:depth={depth}")
    spoken.append(engine.target.tokenizer.eos_token_id)
    support.spell(engine, spoken)
    assert tiny.reference_generate(engine.target.model, None, "hi") == spoken
    engine.drafter = support.drafter_of(kind, [spoken])
    chunks = list(engine.stream(None, "hi", max_new_tokens=40))
    assert all("\ufffd" not in chunk.text for chunk in chunks)
    output = support.joined(chunks)
    assert (output.text, output.token_ids, output.finish_reason) == (SPOKEN, spoken, "eos")
    assert len(chunks) == 1 + output.stats.rounds
    assert engine.generate(None, "hi", max_new_tokens=40).text == SPOKEN


def test_g25_a_stop_string_of_many_bytes(llama_folder):
    spoken = list(SPOKEN.encode())
    engine = support.load(llama_folder, "chain:depth=5", ScriptedDrafter([spoken]))
    support.spell(engine, spoken)
    output = support.streamed(engine, None, "hi", max_new_tokens=10, stop="🙂")
    assert (output.text, output.finish_reason) == ("é漢", "stop")
    assert output.token_ids == list("é漢🙂".encode())


def test_g25_a_character_cut_by_the_cap_shows_only_in_the_last_chunk(llama_folder):
    spoken = list(SPOKEN.encode())
    engine = support.load(llama_folder, "chain:depth=2", ScriptedDrafter([spoken]))
    support.spell(engine, spoken)
    chunks = list(engine.stream(None, "hi", max_new_tokens=4))
    assert "".join(chunk.text for chunk in chunks[:-1]).strip("\ufffd") in ("", "é")
    output = support.joined(chunks)
    assert output.token_ids == spoken[:4]
    assert output.text == support.decode(engine, spoken[:4])


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_g26_a_closed_stream_stops_working(family, folder, taken):
    row, other = ROWS[0], ROWS[1]
    engine = support.load(folder, "chain:depth=2")
    forwards = support.language_forwards(engine)
    stream = engine.stream(row.images, row.question, max_new_tokens=LENGTH)
    for _ in range(taken):
        next(stream)
    stream.close()
    before = forwards.count
    assert before <= taken
    time.sleep(0.05)
    assert forwards.count == before
    with pytest.raises(StopIteration):
        next(stream)
    assert support.ask(engine, other).token_ids == support.expected(folder, other)
    answers = []
    worker = threading.Thread(target=lambda: answers.append(support.ask(engine, row).token_ids), daemon=True)
    worker.start()
    worker.join(30)
    assert answers == [support.expected(folder, row)]


def test_g26_a_waiting_thread_gets_its_turn(llava_folder):
    row, other = ROWS[0], ROWS[1]
    engine = support.load(llava_folder, "chain:depth=2")
    answers, workers = [], []

    def start_another(module, args):
        if not workers:
            workers.append(threading.Thread(target=lambda: answers.append(support.ask(engine, other)), daemon=True))
            workers[0].start()
            time.sleep(0.05)
            assert not answers  # it waits: this round is not over

    handle = engine.target.model.get_decoder().register_forward_pre_hook(start_another)
    stream = engine.stream(row.images, row.question, max_new_tokens=LENGTH)
    next(stream)
    handle.remove()
    workers[0].join(30)  # the stream is still open, but between rounds
    assert [answer.token_ids for answer in answers] == [support.expected(llava_folder, other)]
    stream.close()


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("part", ["vision", "prefill", "round"])
def test_g26_ctrl_c_leaves_the_engine_usable(family, folder, part):
    row = ROWS[0]
    engine = support.load(folder, "likelihood:depth=2,top_k=3,total=8")
    module = support.vision_tower(engine) if part == "vision" else engine.target.model.get_decoder()
    seen = []

    def interrupt(*args):
        seen.append(1)
        if len(seen) == (3 if part == "round" else 1):
            raise KeyboardInterrupt

    handle = module.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate_batch([Request(row.images, row.question), Request(None, "hi")])
    handle.remove()
    for one in (row, ROWS[1], row):
        assert support.ask(engine, one).token_ids == support.expected(folder, one)
    answers = []
    worker = threading.Thread(target=lambda: answers.append(support.ask(engine, row).token_ids), daemon=True)
    worker.start()
    worker.join(30)
    assert answers == [support.expected(folder, row)]
