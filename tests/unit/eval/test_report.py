"""Reports: the paper's table from results, figures, and one HTML file that needs nothing else."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tiny
from mmsmart.errors import InputError
from mmsmart.eval.folder import recorded
from mmsmart.eval.merge import merge
from mmsmart.eval.report import (
    NOTHING,
    Run,
    accuracy_tables,
    details,
    read_run,
    speed_tables,
    to_markdown,
    write_report,
)
from mmsmart.eval.report_html import page
from mmsmart.eval.results import ResultRow, Speed, write_json
from mmsmart.eval.svg import Axes, legend, line_chart, nice_ticks
from mmsmart.eval.tasks.base import Score, Task
from mmsmart.registry import TASKS, create
from mmsmart.stats import GenerationStats

DRAFTING = "smart"


def make_run(folder: Path, wall_ms: float = 50.0, *, dataset: str = "chartqa", **options: Any) -> Path:
    """A finished run of four samples: plain decoding takes 100 ms a sample, drafting ``wall_ms``."""
    settings = {"dataset": dataset, "model": "tiny", "mode": "short", "batch size": 1, "temperature": 0.0}
    settings |= {"policies": ["none", DRAFTING], "processes": 1} | options.pop("settings", {})
    template = options.pop("template", f"{dataset}/short/llava")
    devices = options.pop("devices", ["host cpu"])
    session = {"command": "python -m mmsmart.eval", "devices": devices, "device_name": "a cpu", "dtype": "float32"}
    session |= {"threads": options.pop("threads", 1)}
    folder.mkdir(parents=True)
    write_json(folder / "run.json", {"settings": settings, "sessions": [session], "finished": True})
    rows = []
    for index in range(4):
        for policy, wall in (("none", 100.0), (DRAFTING, wall_ms)):
            rows.append(_row(index, policy, wall, template, **options))
    (folder / "rows.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    found, task = recorded(folder, 1), create(TASKS, "data set", dataset)
    assert found is not None
    assert isinstance(task, Task)
    merge(task, folder, found)
    return folder


def _row(index: int, policy: str, wall: float, template: str, **options: Any) -> ResultRow:
    drafts = {"drafted": 10, "accepted": 6} if policy == DRAFTING else {}
    stats = GenerationStats(new_tokens=10, rounds=3, verify_ms=wall + index, **drafts)
    counts = (1, 0, 1, 0, 1) if drafts else ()
    values = {"chartqa_relaxed": float(index > 0)}
    score = Score(values, groups={"type": "human"})
    question = options.get("question", f"What is bar {index}?")
    speed = Speed(1, True, wall, wall, 5.0, counts, stats)
    ids = (1, 2, index if policy == "none" or index != options.get("differs") else 99)
    return ResultRow(str(index), index, policy, template, question, ("1",), "an answer", ids, "eos", score, speed)


def runs_of(*paths: Path) -> list[Run]:
    return [read_run(path) for path in paths]


def test_the_table_has_speedup_and_acceptance_of_policies_by_data_set_and_temperature(tmp_path: Path) -> None:
    runs = runs_of(
        make_run(tmp_path / "a", 50.0),
        make_run(tmp_path / "b", 80.0, dataset="textvqa"),
        make_run(tmp_path / "c", 40.0, settings={"temperature": 1.0}),
    )
    (table,) = speed_tables(runs)
    assert table.title == "Speedup (acceptance rate): tiny, short answers, batch 1"
    assert list(table.columns) == ["T", "policy", "chartqa", "textvqa", "mean"]
    assert [list(row) for row in table.rows] == [
        ["0", "none", "1.00", "1.00", "1.00"],
        ["0", "smart", "2.00 (0.60)", "1.25 (0.60)", "1.62 (0.60)"],
        ["1", "none", "1.00", NOTHING, "1.00"],
        ["1", "smart", "2.50 (0.60)", NOTHING, "2.50 (0.60)"],
    ]


def test_every_model_mode_and_batch_size_has_a_table_of_its_own(tmp_path: Path) -> None:
    others = ({}, {"batch size": 8}, {"mode": "long"}, {"model": "large"})
    runs = runs_of(*(make_run(tmp_path / str(i), settings=other) for i, other in enumerate(others)))
    assert len(speed_tables(runs)) == 4


def test_speed_is_not_shown_where_processes_shared_a_device(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", devices=["host cpu", "host cpu"])
    (table,) = speed_tables(runs_of(run))
    assert [list(row)[2:] for row in table.rows] == [[NOTHING, NOTHING], [f"{NOTHING} (0.60)"] * 2]
    assert "shared a device" in table.note
    assert "2.00" not in to_markdown([details(runs_of(run))])
    assert "Speedup against batch size" not in page(runs_of(run))


def test_accuracy_has_its_interval_and_long_explanations_have_none(tmp_path: Path) -> None:
    short, long = (
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", template="chartqa/long/msd", settings={"mode": "long"}),
    )
    (table,) = accuracy_tables(runs_of(short, long))
    assert [list(row) for row in table.rows] == [["0", policy, "75.00 [30.06, 95.44]"] for policy in ("none", "smart")]


def test_details_count_equal_answers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", differs=2)
    row = dict(zip((table := details(runs_of(run))).columns, table.rows[1], strict=True))
    assert row["equal to plain"] == "3 / 4"
    assert row["acceptance length"] == "3.00"
    assert row["tokens/s"] == "200.0"
    saved = json.loads((run / "differing.jsonl").read_text())
    assert saved == {"sample": "2", "policy": "smart", "none": [1, 2, 2], "differing": [1, 2, 99]}


def test_details_name_the_model_where_there_are_several(tmp_path: Path) -> None:
    runs = runs_of(make_run(tmp_path / "a"), make_run(tmp_path / "b", settings={"model": "big"}))
    table = details(runs)
    assert table.columns[:3] == ["model", "data set", "policy"]
    assert [row[0] for row in table.rows] == ["tiny", "tiny", "big", "big"]
    assert table.labels == 3
    assert "model" not in details(runs[:1]).columns


def test_the_batch_figure_compares_the_same_data_sets(tmp_path: Path) -> None:
    """A data set that was run at one batch size only would bend the line."""
    slow, fast, many = make_run(tmp_path / "a", 100.0), make_run(tmp_path / "b", 25.0, dataset="textvqa"), tmp_path
    shown = page(runs_of(slow, fast, make_run(many / "c", 50.0, settings={"batch size": 4})))
    figure = shown[shown.index("Speedup against batch size") : shown.index("Acceptance by depth")]
    assert re.findall(r"<title>([^<]*)</title>", figure) == ["1", "2"]
    apart = page(runs_of(fast, many / "c"))
    assert "Speedup against batch size" not in apart


def test_markdown_tables_are_well_formed(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    text = write_report([make_run(tmp_path / "a", settings={"model": "a|b"})], None, path)
    assert path.read_text() == text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


class _Outside(HTMLParser):
    """Collects what a page would fetch, and checks that tags are closed in order."""

    void = frozenset({"meta", "img", "line", "polyline", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.void:
            self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.void or self.tags.pop() == tag


def test_the_page_is_one_file_with_pictures_inside(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", question="<script>alert(1)</script> & so on?")
    (folder / "thumbnails").mkdir()
    tiny.picture(1).save(folder / "thumbnails" / "3.jpg")
    other = make_run(tmp_path / "b", settings={"batch size": 4})
    write_report([folder, other], tmp_path / "report.html", None)
    text = (tmp_path / "report.html").read_text()
    parser = _Outside()
    parser.feed(text)
    assert parser.tags == []
    assert [source[:23] for source in parser.fetched] == ["data:image/jpeg;base64,"]
    assert not {"script", "link", "iframe", "a"} & set(parser.seen)
    assert "http" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert "8 of 8 answers with drafting have the very token ids" in text
    for heading in ("Speedup (acceptance rate)", "Accuracy", "Speedup against batch size", "Acceptance by depth"):
        assert heading in text
    for chart in re.findall(r"<svg.*?</svg>", text):
        ET.fromstring(chart)


def test_the_page_names_the_machines_once_each(tmp_path: Path) -> None:
    runs = runs_of(*(make_run(tmp_path / str(number), threads=threads) for number, threads in enumerate((1, 1, 2))))
    assert "Measured on a cpu (float32, torch threads: 1); a cpu (float32, torch threads: 2)." in page(runs)


def test_the_slowest_come_first_and_failures_are_listed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    result = json.loads((folder / "result.json").read_text())
    result["failures"] = [{"sample": "9", "policy": "none", "error": "a <broken> picture"}]
    write_json(folder / "result.json", result)
    text = page(runs_of(folder))
    assert re.findall(r"<strong>(\d+) ms", text) == ["53", "52", "51", "50"]
    assert "a &lt;broken&gt; picture" in text


def test_runs_that_cannot_be_reported_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="the run is not finished; run its command again"):
        read_run(tmp_path)
    write_json(tmp_path / "result.json", {"schema": 0})
    with pytest.raises(InputError, match="another version"):
        read_run(tmp_path)


@pytest.mark.parametrize(("highest", "last"), [(0.0, 1e-9), (0.9, 1.0), (1.0, 1.0), (1.53, 2.0), (7.0, 8.0), (23, 25)])
def test_ticks_are_round_and_reach_the_top(highest: float, last: float) -> None:
    ticks = nice_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] >= highest
    assert len(ticks) <= 7
    if highest:
        assert ticks[-1] == last


def test_charts_draw_every_point_inside() -> None:
    series = {"a": [(1, 1.0), (8, 2.5), (32, 0.5)], "b <c>": [(8, 1.5)]}
    text = line_chart(series, Axes("batch", "speedup", [1, 8, 32], reference=1.0), "a & b")
    root = ET.fromstring(text)
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter("circle")]
    assert len(dots) == 4
    assert all(0 < x < width and 0 < y < height for x, y in dots)
    assert dots[0][0] < dots[1][0] < dots[2][0]
    assert dots[1][1] < dots[0][1] < dots[2][1]  # larger is higher
    assert "b &lt;c&gt;" in legend(list(series))
