import logging
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from app import session as sessions
from app.device import Stopped, Token
from app.limits import MAX_BYTES, Settings
from app.race import PLAIN, SPECULATIVE, RaceView
from app.session import MOST_VISITORS, Session, examples, repeated, thinned
from app.workbench import Choices, Workbench, with_budget
from mmsmart import profiling
from mmsmart.api import AUTO_POLICY
from mmsmart.engine import Request
from mmsmart.errors import InputError
from support import language_forwards, vision_forwards


@pytest.fixture(autouse=True)
def every_view(monkeypatch):
    monkeypatch.setattr(sessions, "FRAME_S", 0.0)


def asked(session, picture, settings, question="What?", key="visitor"):
    return list(session.ask(key, picture, question, settings))


def engines(session, settings):
    bench = session.workbench
    pair = settings.model, settings.drafter
    return bench.base(*pair), bench.engine(*pair, settings.policy, settings.budget)


def test_plain_decoding_comes_first_and_stays_on_screen(session, picture, settings):
    frames = asked(session, picture, settings)
    phases = list(dict.fromkeys(frame.view.phase for frame in frames))
    assert phases[-3:] == [PLAIN, SPECULATIVE, "Done"]
    plain = [frame.view for frame in frames if frame.view.phase == PLAIN]
    assert all(view.speculative is None for view in plain)
    assert [len(view.plain.spans) for view in plain] == list(range(1, len(plain) + 1))
    finished = plain[-1].plain
    assert finished.finish is not None
    assert all(frame.view.plain == finished for frame in frames if frame.view.phase in (SPECULATIVE, "Done"))


def test_the_answers_are_those_of_the_engine(session, picture, settings):
    view = asked(session, picture, settings)[-1].view
    plain, _ = engines(session, settings)
    output = plain.generate(picture, "What?", max_new_tokens=24)
    assert view.result.identical
    assert view.plain.text == view.speculative.text == output.text
    assert len(view.plain.spans) == len(output.token_ids)
    assert view.plain.finish == output.finish_reason


def test_the_speedup_is_the_ratio_of_the_engines_own_times(session, picture, settings):
    view = asked(session, picture, settings)[-1].view
    slow, quick = view.plain.stats, view.speculative.stats
    assert view.result.speedup == slow.total_ms / quick.total_ms
    assert view.result.decode_speedup == slow.decode_ms / quick.decode_ms
    assert slow.total_ms == slow.prepare_ms + slow.vision_ms + slow.prefill_ms + slow.decode_ms
    assert slow.rounds == slow.new_tokens - 1


def test_neither_run_pays_for_the_picture_and_follow_ups_reuse_it(session, settings, tmp_path):
    path = tmp_path / "fresh.png"
    tiny.picture(77, (60, 48)).save(path)
    plain, _ = engines(session, settings)
    tower = vision_forwards(plain)
    first = asked(session, str(path), settings, key="follower")[-1]
    second = asked(session, str(path), settings, "And now?", key="follower")[-1]
    assert tower.count == 1
    tower.remove()
    assert first.view.encoding_ms > 0
    assert second.view.encoding_ms == 0
    assert [turn.question for turn in second.turns] == ["What?", "And now?"]
    assert second.turns[1].answer == second.view.plain.text


def test_another_picture_begins_another_conversation(session, picture, settings, tmp_path):
    asked(session, picture, settings, key="changing")
    path = tmp_path / "other.png"
    tiny.picture(9, (30, 30)).save(path)
    assert len(asked(session, str(path), settings, key="changing")[-1].turns) == 1


def test_origins_and_rounds_add_up_to_the_stats(session, picture, settings):
    pane = asked(session, picture, settings)[-1].view.speculative
    origins = [span.origin for span in pane.spans]
    assert origins[0] == "target"
    assert pane.spans[0].round == 0
    assert origins.count("draft") == pane.stats.accepted
    assert max(span.round for span in pane.spans) == pane.stats.rounds
    for number in range(1, pane.stats.rounds + 1):
        inside = [span.origin for span in pane.spans if span.round == number]
        assert inside in (["draft"] * (len(inside) - 1) + ["bonus"], ["draft"] * len(inside))


def test_one_seed_gives_one_answer_above_temperature_zero(session, picture, settings):
    warm = replace(settings, temperature=1.0, seed=5)
    views = [asked(session, picture, chosen)[-1].view for chosen in (warm, warm, replace(warm, seed=6))]
    assert all(view.result.identical for view in views)
    assert views[0].plain.text == views[1].plain.text != views[2].plain.text


def test_stop_ends_the_work_within_a_round(session, picture, settings):
    plain, _ = engines(session, settings)
    states = session.ask("stopper", picture, "What?", settings)
    while next(states).view.phase != PLAIN:
        pass
    forwards = language_forwards(plain)
    session.stop("stopper")
    rest = list(states)
    assert forwards.count == 0
    forwards.remove()
    assert rest[-1].view.phase == "Stopped"
    assert rest[-1].view.plain.finish == "stopped"
    assert rest[-1].view.result is None
    assert session.device.load == 0


def test_a_visitor_who_leaves_is_forgotten_and_his_work_ends(session, picture, settings):
    states = session.ask("leaver", picture, "What?", settings)
    next(states)
    known = session.num_visitors
    session.leave("leaver")
    assert session.num_visitors == known - 1
    assert list(states)[-1].view.phase == "Stopped"


def test_visitors_are_remembered_up_to_a_number(session):
    for number in range(2 * MOST_VISITORS):
        session.visitor(f"passer-by {number}")
    assert session.num_visitors == MOST_VISITORS


@pytest.mark.parametrize("question", ["", "   ", None, "long " * 300])
def test_a_question_that_cannot_be_used_is_one_line(session, picture, settings, question):
    (frame,) = asked(session, picture, settings, question)
    assert frame.error.startswith("The question ")
    assert "\n" not in frame.error


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "The picture is empty"),
        (b"hello", "The picture is not a picture"),
        (b"\0" * (MAX_BYTES + 1), "at most 12 MiB"),
    ],
)
def test_a_picture_that_cannot_be_used_is_one_line(session, settings, tmp_path, data, words):
    path = tmp_path / "broken.png"
    path.write_bytes(data)
    frame = asked(session, str(path), settings)[-1]
    assert words in frame.error
    assert "\n" not in frame.error
    assert str(tmp_path) not in frame.error


def test_a_picture_of_too_many_pixels_is_refused(session, settings, tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    tiny.picture(1, (60, 48)).save(path)
    monkeypatch.setattr("app.limits.MAX_PIXELS", 100)
    assert "60 x 48 = 2880 pixels" in asked(session, str(path), settings)[-1].error


def test_a_text_model_is_asked_without_a_picture(session, picture, llama_folder):
    other = Session(Workbench(Choices.of(str(llama_folder), "ngram")), session.device)
    chosen = Settings(str(llama_folder), "ngram", "best-first", max_new_tokens=8)
    assert asked(other, None, chosen)[-1].view.result.identical
    assert list(other.compare("visitor", None, "What?", chosen, 2, 1))[-1].view.done
    assert "cannot look at pictures" in asked(other, picture, chosen)[-1].error


def test_no_picture_is_one_line(session, settings):
    assert asked(session, None, settings)[-1].error.startswith("There is no picture")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/etc"}, "the page does not offer model"),
        ({"policy": "static:paths=((0,),)"}, "the page does not offer policy"),
        ({"max_new_tokens": 10**6}, "the maximum length must be from 1 to 512"),
        ({"temperature": -1}, "the temperature must be from 0"),
        ({"temperature": None}, "the temperature must be from 0"),
        ({"budget": 10**6}, "the budget must be from 0"),
        ({"seed": -1}, "the seed must be from 0"),
        ({"seed": None}, "the seed must be from 0"),
    ],
)
def test_settings_that_the_page_does_not_offer_are_refused(session, picture, settings, change, words):
    error = asked(session, picture, replace(settings, **change))[-1].error
    assert words.lower() in error.lower()


def test_an_unforeseen_failure_is_one_line_and_a_log_entry(session, picture, settings, monkeypatch, caplog):
    plain, _ = engines(session, settings)

    def fail(*given):
        raise RuntimeError("CUDA error: out of luck\nat line 3")

    monkeypatch.setattr(plain.target, "forward", fail)
    with caplog.at_level(logging.ERROR):
        frame = asked(session, picture, settings)[-1]
    assert frame.error == "Something went wrong on the server (RuntimeError); it was logged. Try again."
    assert "out of luck" in caplog.text
    monkeypatch.undo()
    assert asked(session, picture, settings)[-1].view.result.identical


def test_policies_are_compared_on_a_batch(session, picture, settings):
    chosen = replace(settings, max_new_tokens=12)
    frames = list(session.compare("visitor", picture, "What?", chosen, 2, 2))
    view = frames[-1].view
    assert not frames[-1].error
    assert view.done
    assert view.batch == 2
    names = [row.policy for row in view.rows]
    assert names[0] == "none"
    assert {"likelihood", "smart", "rate-optimal", "best-first"} <= set(names)
    assert all(row.identical for row in view.rows)
    assert view.rows[0].speedup == 1
    assert view.rows[0].drafts_per_round == 0
    assert all(row.speedup == view.rows[0].wall_ms / row.wall_ms for row in view.rows)


@pytest.mark.parametrize(("batch", "passes"), [(0, 1), (33, 1), (1, 9), (None, 1)])
def test_a_batch_that_is_too_large_is_refused(session, picture, settings, batch, passes):
    frame = list(session.compare("visitor", picture, "What?", settings, batch, passes))[-1]
    assert "must be from 1 to" in frame.error


def test_measuring_can_be_given_up(session, settings):
    base = session.workbench.base(settings.model, settings.drafter)
    token = Token()
    token.cancel()
    with pytest.raises(Stopped):
        profiling.profile(base, batches=(1,), refresh=True, progress=False, check=token.check)


def test_a_comparison_can_be_stopped(session, picture, settings):
    states = session.compare("visitor", picture, "What?", settings, 1, 1)
    while not next(states).view.phase.startswith("Running"):
        pass
    session.stop("visitor")
    assert list(states)[-1].view.phase == "Stopped"
    assert session.device.load == 0


def test_a_batch_repeats_the_bundled_pictures_behind_the_visitors_own(settings):
    first = Request("mine.png", "Mine?", settings.sampling())
    batch = repeated(first, 12)
    assert batch[0] is first
    assert [(r.image, r.question) for r in batch[1:9]] == examples()
    assert batch[9].image == batch[1].image
    assert len({Path(path).name for path, _ in examples()[:4]}) == 4


def test_views_come_no_faster_than_a_page_can_draw_but_phases_end_whole(monkeypatch):
    monkeypatch.setattr(sessions, "FRAME_S", 1.0)
    views = [RaceView(phase, encoding_ms=number) for number, phase in enumerate("aaaabbbb")]
    clock = iter([0.0, 0.4, 0.8, 1.2, 1.3, 1.4, 1.5, 1.6]).__next__
    assert [view.encoding_ms for view in thinned(iter(views), clock)] == [0, 3, 4, 7]


@pytest.mark.parametrize(
    ("policy", "spec"),
    [
        ("best-first", "best-first:nodes=7"),
        ("likelihood", "likelihood:total=7"),
        ("smart", "smart:b_verify=7"),
        ("rate-optimal", "rate-optimal:nodes=7"),
        ("chain:depth=3", "chain:depth=7"),
        ("static", "static"),
    ],
)
def test_a_budget_bounds_each_policy_by_its_own_option(policy, spec):
    assert with_budget(policy, 7) == spec
    assert with_budget(policy, 0) == policy


def test_a_budget_bounds_the_policy_that_auto_stands_for():
    assert with_budget("auto", 7) == with_budget(AUTO_POLICY, 7) != AUTO_POLICY
    assert with_budget("auto", 0) == "auto"


def test_a_budget_is_kept(session, picture, settings):
    view = asked(session, picture, replace(settings, budget=3))[-1].view
    assert view.speculative.stats.drafted <= 3 * view.speculative.stats.rounds
    assert max(trace.num_drafts for trace in view.traces) <= 3


def test_only_what_is_offered_is_loaded(session):
    with pytest.raises(InputError, match="does not offer"):
        session.workbench.base("meta-llama/Llama-2-70b", "auto")
