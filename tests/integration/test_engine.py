"""The engine through its public API: streams, threads, counts, caches, batches and refusals."""

import json
import math
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

import mmsmart
import mmsmart.kv_cache
import mmsmart.targets.base
import support
import tiny
from drafters import ScriptedDrafter
from mmsmart.drafters.ngram import NgramDrafter
from mmsmart.registry import DRAFTERS, POLICIES
from support import LENGTH, ROWS, TEXT_ROWS, VLMS, Row


@pytest.fixture
def folder(request, family):
    return request.getfixturevalue(f"{family}_folder")


def one_line(error, *parts):
    message = str(error)
    assert "\n" not in message
    for part in parts:
        assert part in message


# ---- streams and threads


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("policy", support.POLICIES)
def test_a_streams_chunks_make_up_the_answer(family, folder, policy):
    row = support.rows_of(family)[0]
    wanted = support.expected(folder, row)
    engine = support.load(folder, policy, ScriptedDrafter([wanted]))
    output = support.ask(engine, row)
    chunks = list(engine.stream(row.images, row.question, max_new_tokens=LENGTH))
    assert chunks[0].token_ids == wanted[:1]
    assert all(chunk.token_ids for chunk in chunks)
    assert len(chunks) == 1 + output.stats.rounds
    last = support.joined(chunks)
    counts = ("prompt_tokens", "new_tokens", "rounds", "drafted", "accepted")
    assert [getattr(last.stats, name) for name in counts] == [getattr(output.stats, name) for name in counts]
    assert replace(last, stats=output.stats) == output
    assert "".join(map(str, chunks)) == str(output) == output.text
    assert output.token_ids == wanted


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("policy", ["none", "chain:depth=3", "likelihood:depth=2,top_k=3,total=8"])
def test_streams_stepped_in_turn_equal_their_solo_runs(family, folder, policy):
    rows = (Row("What?", ((1, (120, 90)),)), Row("And what is this one?", ((2, (28, 56)),)), Row("hi"))
    engine = support.load(folder, policy)
    streams = [engine.stream(row.images, row.question, max_new_tokens=LENGTH - 5 * i) for i, row in enumerate(rows)]
    for i, (row, chunks) in enumerate(zip(rows, support.round_robin(*streams), strict=True)):
        assert support.joined(chunks).token_ids == support.expected(folder, row)[: LENGTH - 5 * i]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_threads_get_their_solo_answers(family, folder):
    rows = support.rows_of(family)
    engine = support.load(folder, "best-first:nodes=6,depth=4,top_k=2")
    barrier = threading.Barrier(len(rows), timeout=30)

    def work(row):
        barrier.wait()
        return [support.ask(engine, row).token_ids for _ in range(3)]

    with ThreadPoolExecutor(len(rows)) as pool:
        answers = list(pool.map(work, rows, timeout=60))
    assert answers == [[support.expected(folder, row)] * 3 for row in rows]


# ---- counts


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("depth", [1, 4, 30])
def test_counts_of_a_drafter_that_is_always_right(family, folder, depth):
    row = support.rows_of(family)[0]
    engine = support.load(folder, f"chain:depth={depth}", ScriptedDrafter([support.expected(folder, row)]))
    forwards = support.language_forwards(engine)
    stats = support.ask(engine, row).stats
    assert stats.rounds == math.ceil((LENGTH - 1) / (depth + 1)) == forwards.count - 1  # the prefill is no round
    assert stats.drafted == stats.accepted == LENGTH - 1 - stats.rounds
    assert stats.new_tokens == LENGTH == 1 + stats.rounds + stats.accepted
    assert stats.acceptance_rate == 1
    assert stats.mean_acceptance_length == pytest.approx((LENGTH - 1) / stats.rounds)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_counts_of_a_drafter_that_is_always_wrong(family, folder):
    row = support.rows_of(family)[0]
    engine = support.load(folder, "chain:depth=3", ScriptedDrafter([support.expected(folder, row)], right=False))
    stats = support.ask(engine, row).stats
    assert (stats.rounds, stats.accepted, stats.new_tokens) == (LENGTH - 1, 0, LENGTH)
    assert stats.drafted == 3 * (LENGTH - 1) - 3 - 2 - 1  # no draft stands where the cap leaves no room for it
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (0, 1)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_plain_decoding_never_calls_the_drafter(family, folder):
    row = support.rows_of(family)[0]
    drafter = ScriptedDrafter([support.expected(folder, row)])
    stats = support.ask(support.load(folder, "none", drafter), row).stats
    assert (stats.rounds, stats.drafted, stats.accepted, drafter.calls) == (LENGTH - 1, 0, 0, 0)
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (0, 1)


def test_an_answer_of_one_token_takes_no_round(llava_folder):
    drafter = ScriptedDrafter([support.expected(llava_folder, ROWS[0])])
    engine = support.load(llava_folder, "chain", drafter)
    stats = support.ask(engine, ROWS[0], max_new_tokens=1).stats
    assert (stats.new_tokens, stats.rounds, stats.drafted, drafter.calls) == (1, 0, 0, 0)
    assert (stats.mean_acceptance_length, stats.acceptance_rate) == (1, 0)


def test_times_and_rates_belong_together(llava_folder):
    stats = support.ask(support.load(llava_folder, "chain"), ROWS[0]).stats
    parts = [value for name, value in vars(stats).items() if name.endswith("_ms")]
    assert len(parts) >= 5
    assert all(part > 0 for part in parts)
    assert stats.total_ms == pytest.approx(sum(parts))
    assert stats.tokens_per_s == pytest.approx(1e3 * LENGTH / stats.total_ms)
    assert json.loads(json.dumps(stats.as_dict()))["new_tokens"] == LENGTH
    inputs = tiny.reference_inputs(llava_folder, ROWS[0].images, ROWS[0].question)
    assert stats.prompt_tokens == inputs["input_ids"].shape[1]


# ---- pictures


@pytest.mark.parametrize("family", VLMS)
def test_one_picture_is_encoded_once_for_many_questions(family, folder, tmp_path):
    engine = support.load(folder)
    forwards = support.vision_forwards(engine)
    picture = tiny.picture(1)
    picture.save(tmp_path / "same.png")
    for image in (picture, tiny.picture(1), np.asarray(picture), tmp_path / "same.png"):
        for question in ("What?", "Why?"):
            output = engine.generate(image, question, max_new_tokens=LENGTH)
            wanted = support.expected(folder, Row(question, ((1, (60, 48)),)))
            assert output.token_ids == wanted
    assert forwards.count == 1
    engine.generate(tiny.picture(2), "What?", max_new_tokens=2)
    assert forwards.count == 2


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("batch_size", [3, 2, 1])
def test_one_picture_is_encoded_once_for_a_batch(family, folder, batch_size):
    rows = [Row(question, ((1, (60, 48)),)) for question in ("What?", "Why?", "What is the name of it?")]
    single = support.load(folder)
    once = support.vision_forwards(single)
    support.ask(single, rows[0])
    engine = support.load(folder)
    forwards = support.vision_forwards(engine)
    outputs = engine.generate_batch([row.request() for row in rows], batch_size=batch_size)
    assert [output.token_ids for output in outputs] == [support.expected(folder, row) for row in rows]
    assert sum(forwards.sizes) == sum(once.sizes)


@pytest.mark.parametrize("family", VLMS)
def test_one_picture_is_encoded_once_for_streams_opened_together(family, folder):
    rows = [Row(question, ((1, (60, 48)),)) for question in ("What?", "Why?")]
    engine = support.load(folder)
    forwards = support.vision_forwards(engine)
    streams = [engine.stream(row.images, row.question, max_new_tokens=LENGTH) for row in rows]
    for row, chunks in zip(rows, support.round_robin(*streams), strict=True):
        assert support.joined(chunks).token_ids == support.expected(folder, row)
    assert forwards.count == 1


@pytest.mark.parametrize("family", VLMS)
def test_the_same_picture_twice_in_one_question(family, folder):
    row = Row("Are these the same?", ((1, (60, 48)), (1, (60, 48))))
    assert support.ask(support.load(folder, "chain"), row).token_ids == support.expected(folder, row)


@pytest.mark.parametrize("family", VLMS)
def test_forgotten_pictures_are_encoded_again(family, folder, monkeypatch):
    monkeypatch.setattr(mmsmart.targets.base, "FEATURE_CACHE_BYTES", 1)
    engine = support.load(folder)
    forwards = support.vision_forwards(engine)
    for row in (ROWS[0], ROWS[1], ROWS[0], ROWS[0]):
        assert support.ask(engine, row).token_ids == support.expected(folder, row)
    assert forwards.count == 3


# ---- prefill and cache


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("chunk", [1, 7])
def test_a_prefill_in_chunks_is_the_same(family, folder, chunk, monkeypatch):
    rows = support.rows_of(family)
    target = support.load(folder).target
    inputs = [target.encode(row.images, row.question) for row in rows]
    with torch.inference_mode():
        features = target.embed_images(inputs)
        _, logits, hidden = target.prefill(inputs, features, keep_hidden=True)
        monkeypatch.setattr(mmsmart.targets.base, "PREFILL_CHUNK_TOKENS", chunk)
        session, chunked_logits, chunked_hidden = target.prefill(inputs, features, keep_hidden=True)
    assert session.lengths.tolist() == [one.length for one in inputs]
    torch.testing.assert_close(chunked_logits, logits, rtol=0, atol=1e-9)
    for chunked, whole, one in zip(chunked_hidden, hidden, inputs, strict=True):
        assert chunked.shape[0] == one.length
        torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-9)
    engine = support.load(folder, "likelihood:depth=2,top_k=3,total=8")
    forwards = support.language_forwards(engine)
    wanted = [support.expected(folder, row) for row in rows]
    assert [output.token_ids for output in engine.generate_batch([row.request() for row in rows])] == wanted
    assert support.ask(engine, rows[1]).token_ids == wanted[1]
    assert forwards.count > max(one.length for one in inputs) // chunk


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("policy", ["none", "chain:depth=4", "likelihood:depth=2,top_k=3,total=8"])
def test_a_cache_that_grows_all_the_time_forgets_nothing(family, folder, policy, monkeypatch):
    cache, grown = mmsmart.kv_cache.RaggedCache, set()

    class Tight(cache):
        def __init__(self, *args, capacity, **options):
            super().__init__(*args, capacity=1, **options)

        def begin(self, count, device):
            super().begin(count, device)
            grown.add(self._capacity)

    monkeypatch.setattr(mmsmart.kv_cache, "GROWTH_STEP", 1)
    monkeypatch.setattr(mmsmart.targets.base, "RaggedCache", Tight)
    rows = support.rows_of(family)
    wanted = [support.expected(folder, row) for row in rows]
    caps = (LENGTH, 5, 11)  # rows leave while it grows
    engine = support.load(folder, policy, ScriptedDrafter(wanted, place=1 if policy.startswith("like") else 0))
    outputs = engine.generate_batch([row.request(max_new_tokens=cap) for row, cap in zip(rows, caps, strict=True)])
    assert [output.token_ids for output in outputs] == [w[:cap] for w, cap in zip(wanted, caps, strict=True)]
    assert len(grown) > 1


def test_a_long_answer_outgrows_the_first_cache(llava_folder):
    wanted = support.expected(llava_folder, ROWS[0], 300)
    engine = support.load(llava_folder, "chain:depth=15", ScriptedDrafter([wanted]))
    assert support.ask(engine, ROWS[0], max_new_tokens=300).token_ids == wanted
    assert len(wanted) > 200


# ---- batches


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_finished_rows_leave_the_batch(family, folder):
    rows = support.rows_of(family)
    caps = (3, 9, 6)
    engine = support.load(folder, "none")
    forwards = support.language_forwards(engine)
    outputs = engine.generate_batch([row.request(max_new_tokens=cap) for row, cap in zip(rows, caps, strict=True)])
    assert forwards.sizes == [3] * 3 + [2] * 3 + [1] * 3  # the prefill gives the first tokens
    assert [output.stats.rounds for output in outputs] == [cap - 1 for cap in caps]
    for row, cap, output in zip(rows, caps, outputs, strict=True):
        assert output.token_ids == support.expected(folder, row)[:cap]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("policy", ["none", "best-first:nodes=6,depth=4,top_k=2"])
def test_more_requests_than_the_batch_size(family, folder, policy):
    rows = [*support.rows_of(family), *reversed(support.rows_of(family)[:2])]
    engine = support.load(folder, policy)
    forwards = support.language_forwards(engine)
    outputs = engine.generate_batch([row.request() for row in rows], batch_size=2)
    assert [output.token_ids for output in outputs] == [support.expected(folder, row) for row in rows]
    assert max(forwards.sizes) == 2


def test_edges_of_a_batch(llama_folder):
    engine = support.load(llama_folder)
    assert engine.generate_batch([]) == []
    with pytest.raises(mmsmart.InputError, match="batch_size"):
        engine.generate_batch([TEXT_ROWS[0].request()], batch_size=0)
    request = TEXT_ROWS[0].request()
    first, second = engine.generate_batch([request, request])  # one object twice is two requests
    assert first.token_ids == second.token_ids == support.expected(llama_folder, TEXT_ROWS[0])


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (mmsmart.Request(None, ""), "question is empty"),
        (mmsmart.Request("no such file.png", "hi"), "no such file"),
        (mmsmart.Request(None, "hi", mmsmart.SamplingParams(max_new_tokens=5000)), "5000"),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_the_request_that_cannot_be_used_is_named(request_, part, at, llava_folder):
    engine = support.load(llava_folder)
    forwards = support.language_forwards(engine)
    requests = [row.request() for row in ROWS]
    requests[at] = request_
    with pytest.raises(mmsmart.InputError) as caught:
        engine.generate_batch(requests, batch_size=1)
    one_line(caught.value, f"request {at}: ", part)
    assert forwards.count == 0


# ---- what the checkpoint's generation_config asks for


@pytest.mark.parametrize(
    ("name", "value"),
    [("no_repeat_ngram_size", 2), ("num_beams", 4), ("min_new_tokens", 3), ("suppress_tokens", [5]), ("min_length", 9)],
)
def test_an_unsupported_setting_is_refused_by_name(name, value, tmp_path):
    folder = tiny.build("llava", tmp_path, generation={name: value})
    engine = support.load(folder)
    forwards = support.language_forwards(engine)
    with pytest.raises(mmsmart.InputError) as caught:
        support.ask(engine, ROWS[0])
    one_line(caught.value, name, str(value))
    with pytest.raises(mmsmart.InputError, match=name):
        engine.stream(None, "hi")
    assert forwards.count == 0


def test_the_way_out_that_the_refusal_names_works(tmp_path):
    folder = tiny.build("llava", tmp_path, generation={"no_repeat_ngram_size": 2})
    engine = support.load(folder)
    with pytest.raises(mmsmart.InputError) as caught:
        support.ask(engine, ROWS[0])
    assert "engine.target.model.generation_config.no_repeat_ngram_size = 0" in str(caught.value)
    engine.target.model.generation_config.no_repeat_ngram_size = 0
    assert support.ask(engine, ROWS[0]).token_ids == support.expected(folder, ROWS[0], no_repeat_ngram_size=0)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_sampling_settings_of_the_checkpoint_do_not_touch_greedy_decoding(family, tmp_path):
    generation = {"do_sample": True, "temperature": 0.3, "top_p": 0.8, "top_k": 3, "repetition_penalty": 1.2}
    folder = tiny.build(family, tmp_path, generation=generation)
    row = support.rows_of(family)[0]
    assert support.ask(support.load(folder, "chain"), row).token_ids == support.expected(folder, row)


# ---- loading


def test_a_missing_folder(tmp_path):
    with pytest.raises(mmsmart.ModelError) as caught:
        mmsmart.load(str(tmp_path / "nowhere"))
    one_line(caught.value, "nowhere", "no such folder")


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(mmsmart.ModelError) as caught:
        mmsmart.load(str(tmp_path))
    one_line(caught.value, str(tmp_path))


@pytest.mark.parametrize(
    "config", [{"model_type": "gpt2"}, {"model_type": "no-such-model"}, {}], ids=["known", "unknown", "none"]
)
def test_an_unknown_model_type(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(mmsmart.ModelError) as caught:
        mmsmart.load(str(tmp_path))
    one_line(caught.value, str(tmp_path), config.get("model_type", "model_type"))


def test_a_hub_id_without_a_network():
    with pytest.raises(mmsmart.ModelError) as caught:
        mmsmart.load("llava-hf/llava-1.5-7b-hf")
    one_line(caught.value, "llava-hf/llava-1.5-7b-hf")


@pytest.mark.parametrize("option", [{"dtype": "float8"}, {"dtype": "int"}, {"device": "gpu"}])
def test_an_unknown_dtype_or_device(option, llama_folder):
    with pytest.raises(mmsmart.InputError) as caught:
        mmsmart.load(str(llama_folder), **option)
    (name, value), *_ = option.items()
    one_line(caught.value, f"unknown {name} '{value}'", "use 'auto'")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "preprocessor_config.json"])
@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_damaged_folder(file, damage, llava_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(llava_folder, broken)
    (broken / "processor_config.json").unlink()  # it would stand in for preprocessor_config.json
    data = (broken / file).read_bytes()
    (broken / file).unlink()
    if damage == "cut":
        (broken / file).write_bytes(data[: len(data) // 2])
    with pytest.raises(mmsmart.ModelError) as caught:
        mmsmart.load(str(broken))
    one_line(caught.value, str(broken))


def test_weights_that_the_config_does_not_fit(llama_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(llama_folder, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"hidden_size": 32, "head_dim": 8}))
    with pytest.raises(mmsmart.ModelError) as caught:
        mmsmart.load(str(broken))
    one_line(caught.value, str(broken))


@pytest.mark.parametrize(
    ("option", "parts"),
    [
        ({"policy": "chian"}, ("chian", "did you mean 'chain'")),
        ({"drafter": "n-gram"}, ("n-gram", "did you mean 'ngram'")),
        ({"policy": "chain:deep=3"}, ("deep", "depth")),
        ({"policy": "chain:depth=0"}, ("depth", "0")),
        ({"policy": "chain:depth"}, ("depth", "name=value")),
        ({"policy": "static:paths=abc"}, ("static", "abc")),
    ],
)
def test_names_and_options_are_checked_before_the_weights_are_read(option, parts):
    with pytest.raises(mmsmart.InputError) as caught:
        mmsmart.load("/no/such/folder", **option)
    one_line(caught.value, *parts)


# ---- ports


class Observer(ScriptedDrafter):
    observes_top_k = 3

    def open(self, prompts, roots):
        self.outcomes, self.prompts = [], prompts
        session = super().open(prompts, roots)
        commit = session.commit

        def observing(outcome):
            self.outcomes.append(outcome)
            commit(outcome)

        session.commit = observing
        return session


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("right", [True, False])
def test_a_drafter_observes_the_top_k_of_every_verified_node(family, folder, right):
    rows = support.rows_of(family)
    answers = [support.expected(folder, row) for row in rows]
    drafter = Observer(answers, right=right, place=1)
    engine = support.load(folder, "likelihood:depth=1,top_k=2,total=5", drafter)
    engine.generate_batch([row.request(max_new_tokens=6) for row in rows])
    done = [answer[:1] for answer in answers]
    assert drafter.outcomes
    for outcome in drafter.outcomes[:2]:
        tree = outcome.tree
        assert tree.num_draft_tokens.min() > outcome.verification.num_accepted.max()  # some were rejected
        assert outcome.top_token_ids.shape == outcome.top_log_probs.shape == (*tree.token_ids.shape, 3)
        assert outcome.hidden_states is None
        for number, row in enumerate(rows):
            for node in range(tree.num_nodes):
                path = done[number][:-1] + support.path_of(tree, number, node)
                best = support.path_logits(folder, row, path).log_softmax(dim=-1).topk(3)
                assert outcome.top_token_ids[number, node].tolist() == best.indices.tolist()
                torch.testing.assert_close(outcome.top_log_probs[number, node], best.values, rtol=0, atol=1e-9)
            done[number] += outcome.emitted[number]
            assert done[number] == answers[number][: len(done[number])]


class Hungry(Observer):
    needs_hidden_states = True
    observes_top_k = 0


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_drafter_gets_the_hidden_states_it_asks_for(family, folder):
    rows = support.rows_of(family)
    answers = [support.expected(folder, row) for row in rows]
    drafter = Hungry(answers)
    engine = support.load(folder, "chain:depth=3", drafter)
    outputs = engine.generate_batch([row.request() for row in rows])
    assert [output.token_ids for output in outputs] == answers
    head = engine.target.head
    for row, prompt in zip(rows, drafter.prompts, strict=True):
        assert prompt.hidden_states.shape[0] == len(prompt.token_ids) == len(prompt.image_mask)
        with torch.inference_mode():
            logits = head(prompt.hidden_states[-1])
        torch.testing.assert_close(logits, support.path_logits(folder, row, ()), rtol=0, atol=1e-9)
        assert (prompt.image_embeds is None) == (not row.pictures)
        assert prompt.image_embeds is None or len(prompt.image_embeds) == prompt.image_mask.sum()
    outcome = drafter.outcomes[0]
    assert outcome.hidden_states.shape[:2] == outcome.tree.token_ids.shape
    assert outcome.top_token_ids is outcome.top_log_probs is None
    with torch.inference_mode():
        chosen = head(outcome.hidden_states).argmax(dim=-1)
    assert chosen[:, 0].tolist() == [answer[1] for answer in answers]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_new_policy_is_one_row_and_one_file(family, folder, monkeypatch):
    monkeypatch.setitem(POLICIES, "fan", "extension:Fan")
    row = support.rows_of(family)[0]
    wanted = support.expected(folder, row)
    engine = support.load(folder, "fan:width=3", ScriptedDrafter([wanted], place=2))
    assert engine.policy.top_k == 3
    output = support.ask(engine, row)
    assert output.token_ids == wanted
    assert output.stats.accepted == (LENGTH - 1) // 2
    with pytest.raises(mmsmart.InputError, match="width"):
        support.load(folder, "fan:width=0")
    with pytest.raises(mmsmart.InputError, match=r"no option 'depth'.*width"):
        support.load(folder, "fan:depth=1")


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("policy", [*support.POLICIES, "fan:width=256"])
def test_a_new_drafter_is_one_row_and_one_file(family, folder, policy, monkeypatch):
    monkeypatch.setitem(DRAFTERS, "guess", "extension:Guess")
    monkeypatch.setitem(POLICIES, "fan", "extension:Fan")
    row = support.rows_of(family)[0]
    wanted = support.expected(folder, row)
    first = 0 if policy.startswith("fan") else wanted[1]
    engine = support.load(folder, policy, f"guess:first={first}")
    assert engine.drafter.first == first
    output = support.ask(engine, row)
    assert output.token_ids == wanted
    assert policy == "none" or output.stats.accepted > 0


def test_the_ngram_drafter_by_name_takes_its_options(llama_folder):
    engine = support.load(llama_folder, "chain", "ngram:longest=2,horizon=3")
    assert isinstance(engine.drafter, NgramDrafter)
    assert (engine.drafter.longest, engine.drafter.horizon) == (2, 3)
    row = Row("abcabcabcabc")
    assert support.ask(engine, row).token_ids == support.expected(llama_folder, row)


def test_nan_in_the_logits_is_an_error_that_says_so(tmp_path):
    engine = support.load(tiny.build("llava", tmp_path), "chain")
    with torch.no_grad():
        engine.target.head.weight[7] = torch.nan
    with pytest.raises(mmsmart.NumericalError, match="NaN"):
        support.ask(engine, ROWS[0])
