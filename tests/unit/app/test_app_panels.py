import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from app.charts import Lines, Mark, bar_chart, line_chart, nice_ticks
from app.figures import count, duration, factor, percent, rate
from app.panels import conversation, race_panel
from app.race import RaceView
from app.reports import compare_panel, profile_panel, why_panel
from app.session import RaceFrame
from app.trace import Node, RoundTrace
from app.tree_view import tree_panel, tree_svg

NASTY = "<b onmouseover='x'>&\"</b>"


def parsed(html):
    """Our own HTML is also XML, so that a forgotten tag or an unescaped text shows."""
    return ElementTree.fromstring(f"<div>{visible(html.replace('&nbsp;', ' '))}</div>")


def visible(text):
    """Without the control characters that a random model writes and XML does not know."""
    return re.sub("[\\x00-\\x1f\ufffe\uffff]", "", text)


def words(html):
    return "".join(parsed(html).itertext())


def trace_of(*nodes, bonus="end", tokens=2):
    root = Node("root", -1, 0, 1.0, 1.0, True, True)
    gains = sorted((node.gain for node in nodes), reverse=True)
    return RoundTrace(
        number=3,
        nodes=(root, *nodes),
        bonus=bonus,
        num_dropped=sum(not node.kept for node in nodes),
        best_gains=tuple(gains),
        verify_ms_of=tuple(5.0 + 0.5 * n for n in range(65)),
        draft_ms=3.0,
        verify_ms=6.0,
        tokens=tokens,
        context=80,
        calibrated=False,
    )


TRACE = trace_of(
    Node("good", 0, 1, 0.9, 0.9, True, True),
    Node(NASTY, 0, 1, 0.05, 0.05, True, False),
    Node("late", 1, 2, 0.4, 0.4, False, False),
)


@pytest.fixture
def last(session, picture, settings):
    return list(session.ask("visitor", picture, "What?", settings))[-1]


def test_the_speedup_on_the_page_is_the_engines(last):
    html = race_panel(last)
    slow, quick = last.view.plain.stats, last.view.speculative.stats
    ratio = slow.total_ms / quick.total_ms
    shown = parsed(html).find(".//span[@class='speedup']")
    assert shown.text == f"{ratio:.2f}\u00d7"
    assert float(shown.attrib["data-speedup"]) == pytest.approx(ratio, abs=1e-6)
    assert "identical answer: yes" in words(html)
    assert duration(slow.total_ms) in words(html)


def test_a_difference_would_be_said(last):
    view = replace(last.view, result=replace(last.view.result, identical=False))
    assert "identical answer: no" in words(race_panel(replace(last, view=view)))


def test_both_panes_hold_the_answer_and_rounds_can_be_pressed(last):
    page = parsed(race_panel(last))
    plain, speculative = page.findall(".//p[@class='answer']")
    answer = visible(last.view.plain.text)
    assert "".join(plain.itertext()).startswith(answer)
    assert "".join(speculative.itertext()).startswith(answer)
    rounds = [span.attrib["data-round"] for span in speculative.iter("span") if "data-round" in span.attrib]
    assert rounds == [str(number) for number in range(1, last.view.speculative.stats.rounds + 1)]


def test_what_visitors_and_models_write_is_text():
    frame = RaceFrame(RaceView(NASTY), error="")
    assert NASTY in words(race_panel(frame))
    assert NASTY in words(race_panel(replace(frame, error=NASTY)))
    assert NASTY in words(tree_panel(TRACE, NASTY))


def test_questions_are_text(last):
    turn = replace(last.turns[-1], question=NASTY)
    assert NASTY in words(conversation([turn]))
    assert conversation([]) == ""


def test_a_tree_has_every_node_its_kind_and_its_reasons():
    svg = parsed(tree_svg(TRACE))
    kinds = [group.attrib["class"] for group in svg.iter("g")]
    assert sorted(kinds) == sorted(["node root", "node accepted", "node verified", "node dropped", "node bonus"])
    titles = [title.text for title in svg.iter("title")]
    assert any("'good': accepted. Probability 90 %" in title for title in titles)
    assert any("drafted, not verified" in title and "tokens/s" in title for title in titles)
    table = words(tree_panel(TRACE, "a rule"))
    assert "+0.900" in table
    assert "+0.50 ms" in table
    assert "The policy's rule: a rule." in table


def test_nodes_of_a_tree_do_not_overlap(session, picture, settings):
    wide = replace(settings, policy="likelihood")
    for trace in list(session.ask("visitor", picture, "What?", wide))[-1].view.traces:
        boxes = [(rect.attrib["x"], rect.attrib["y"]) for rect in parsed(tree_svg(trace)).iter("rect")]
        assert len(set(boxes)) == len(boxes) == len(trace.nodes) + bool(trace.bonus)


def test_a_round_without_drafts_has_a_tree_too():
    plain = trace_of(tokens=1)
    assert "nothing was drafted" in words(tree_panel(plain, "rest"))
    assert "0 drafts" in words(why_panel(plain))
    assert "Ask something" in words(tree_panel(None, ""))
    assert "Ask something" in words(why_panel(None))


def test_why_marks_the_chosen_size():
    page = parsed(why_panel(TRACE))
    assert len(page.findall(".//figure")) == 3
    assert len(page.findall(".//circle[@class='mark']")) == 3
    rates = [1e3 * t / (3 + 5 + 0.5 * n) for n, t in enumerate((1.0, 1.9, 2.3, 2.35))]
    best = max(range(4), key=rates.__getitem__)
    assert f"the best {best} of its candidates would have promised {rate(rates[best])}" in words(why_panel(TRACE))
    only = trace_of(Node("good", 0, 1, 0.9, 0.9, True, True))
    assert "no other number of its candidates promised more" in words(why_panel(only))


def test_the_profile_is_drawn_and_tabulated(last):
    profile = last.explained.profile
    page = parsed(profile_panel(profile))
    assert len(page.findall(".//figure")) == 2
    cells = [cell.text for cell in page.findall(".//tbody/tr/td")]
    context = profile.table.verify.contexts[0]
    assert cells == [f"{ms:.2f}" for ms in profile.table.verify.curve(1, context)]


def test_a_comparison_is_a_table_and_bars(session, picture, settings):
    frame = list(session.compare("visitor", picture, "What?", replace(settings, max_new_tokens=8), 1, 1))[-1]
    page = parsed(compare_panel(frame))
    assert [cell.text for cell in page.findall(".//tbody/tr/th")] == [row.policy for row in frame.view.rows]
    assert len(page.findall(".//rect[@class='bar']")) == len(frame.view.rows)


def test_charts_stay_inside_their_frame():
    chart = Lines(NASTY, "n", "ms", {"a": [(0, 0.0), (3, 7.3)], NASTY: [(1, 2.0)]}, Mark(5, 9.0, NASTY))
    page = parsed(line_chart(chart))
    width, height = (float(v) for v in page.find(".//svg").attrib["viewBox"].split()[2:])
    for circle in page.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
    assert parsed(bar_chart("t", [(NASTY, 0.0, "0")], 1.0)) is not None
    assert nice_ticks(7.3)[-1] >= 7.3


def test_numbers_are_for_people():
    assert [duration(ms) for ms in (0.123, 8.26, 420, 12_500)] == ["0.12 ms", "8.3 ms", "0.42 s", "12.5 s"]
    assert [rate(r) for r in (8.24, 143.2, 1234)] == ["8.2 tokens/s", "143 tokens/s", "1,234 tokens/s"]
    assert re.fullmatch("2.31.", factor(2.3149))
    assert [percent(p) for p in (0.0, 0.004, 0.37, 1.0)] == ["0 %", "0.4 %", "37 %", "100 %"]
    assert [count(n, "round") for n in (0, 1, 1200)] == ["0 rounds", "1 round", "1,200 rounds"]
