"""Data sets: every form in which rows come, prompts word for word, scores per split, and what bad rows do."""

import base64
import dataclasses
import gc
import io
import itertools
import json
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from mmsmart import images
from mmsmart.errors import ImageError, InputError
from mmsmart.eval.data import files
from mmsmart.eval.data.source import DataRequest
from mmsmart.eval.tasks.base import EvalSample, Mean, Score, Shard, Task
from mmsmart.registry import TASKS, create

ROOT = Path(__file__).parents[3]
FAMILIES = ("llava", "qwen2_vl", "llama")
SHARED_TASKS = ("vqav2", "chartqa", "textvqa", "ai2d", "scienceqa", "hallusionbench")
TEN = ["red"] * 10


def task(spec: str) -> Task:
    made: Task = create(TASKS, "data set", spec)
    return made


def png(color: str = "red", size: tuple[int, int] = (8, 6)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, "PNG")
    return stream.getvalue()


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def samples(spec: str, data: Path | None = None, **options: Any) -> list[EvalSample]:
    request = DataRequest(data, limit=options.pop("limit", None), seed=options.pop("seed", 0))
    made = task(spec)
    return list(made.samples(made.open(request), limit=request.limit, **options))


@pytest.fixture
def shared() -> Path:
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with the pictures that the rows of these tests name."""
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png())
    return tmp_path


# ---- forms


def chart_rows() -> list[dict[str, Any]]:
    kinds = ("human_test", "augmented_test", "human_test")
    return [
        {"id": f"c{i}", "image": f"{i}.png", "question": f"How many {i}?", "answer": str(i), "type": kind}
        for i, kind in enumerate(kinds)
    ]


def check_charts(found: list[EvalSample]) -> None:
    assert [sample.question for sample in found] == ["How many 0?", "How many 1?", "How many 2?"]
    assert [sample.references for sample in found] == [("0",), ("1",), ("2",)]
    assert [sample.groups["type"] for sample in found] == ["human", "augmented", "human"]
    assert [sample.error for sample in found] == ["", "", ""]
    for sample in found:
        assert images.load(sample.images[0]).size == (8, 6)


def test_jsonl_file_and_folder(pictures: Path) -> None:
    path = write_jsonl(pictures / "chartqa.jsonl", chart_rows())
    write_jsonl(pictures / "other.jsonl", [{"question": "not this file"}])
    check_charts(samples("chartqa", path))
    check_charts(samples("chartqa", pictures))
    assert [sample.id for sample in samples("chartqa", path)] == ["0:c0", "1:c1", "2:c2"]


def test_relative_pictures_do_not_depend_on_the_working_directory(
    pictures: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(pictures / "chartqa.jsonl", chart_rows())
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    check_charts(samples("chartqa", pictures))


def test_metadata_jsonl_with_file_names(pictures: Path) -> None:
    rows = [{**row, "file_name": row["image"], "image": None} for row in chart_rows()]
    write_jsonl(pictures / "metadata.jsonl", rows)
    check_charts(samples("chartqa", pictures))


def test_folder_named_like_its_file(pictures: Path) -> None:
    folder = pictures / "my_charts"
    folder.mkdir()
    rows = [{**row, "image": str(pictures / row["image"])} for row in chart_rows()]  # absolute paths
    write_jsonl(folder / "my_charts.jsonl", rows)
    write_jsonl(folder / "notes.jsonl", [])
    check_charts(samples("chartqa", folder))


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"version": 1, "questions": rows}])
def test_json_list_bare_or_inside_an_object(pictures: Path, wrap: Any) -> None:
    path = pictures / "charts.json"
    path.write_text(json.dumps(wrap(chart_rows())), encoding="utf-8")
    check_charts(samples("chartqa", path))


def test_tsv_with_base64_and_picture_references(tmp_path: Path) -> None:
    encoded = base64.b64encode(png()).decode()
    long = base64.b64encode(png(size=(8, 6)) + b"\0" * 200_000).decode()  # longer than csv's own limit for a cell
    lines = ["index\timage\tquestion\tanswer\tsplit\tnote"]
    lines.append(f"10\t{encoded}\tHow many 0?\t0\ttest_human\t")
    lines.append("11\t10\tHow many 1?\t1\ttest_augmented\t")
    lines.append(f'12\t{long}\t"How many 2?"\t2\ttest_human\t')
    lines.append("13\t10\tAgain?\t3\ttest_human\t")
    path = tmp_path / "ChartQA_TEST.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = samples("chartqa", path)
    check_charts(found[:3])
    assert found[3].images == found[0].images
    assert [sample.id for sample in found] == ["0:10", "1:11", "2:12", "3:13"]


def test_tsv_answer_lists_and_lettered_options(tmp_path: Path) -> None:
    encoded = base64.b64encode(png()).decode()
    path = tmp_path / "TextVQA_VAL.tsv"
    path.write_text(f"index\timage\tquestion\tanswer\n1\t{encoded}\twhat?\t{TEN}\n", encoding="utf-8")
    assert samples("textvqa", path)[0].references == tuple(TEN)
    path = tmp_path / "AI2D_TEST.tsv"
    path.write_text(
        f"index\timage\tquestion\tanswer\tA\tB\tC\tD\n1\t{encoded}\twhat?\tB\tx\ty\tz\t\n", encoding="utf-8"
    )
    (sample,) = samples("ai2d", path)
    assert (sample.references, sample.choices) == (("B",), ("x", "y", "z"))


def test_hallusionbench_tsv_index(tmp_path: Path) -> None:
    encoded = base64.b64encode(png()).decode()
    path = tmp_path / "HallusionBench.tsv"
    row = f"VS_chart_2_3_1_0\t{encoded}\tIs it?\tNo\tVS"
    path.write_text(f"index\timage\tquestion\tanswer\tcategory\n{row}\n", encoding="utf-8")
    (sample,) = samples("hallusionbench", path)
    expected = {"category": "VS", "subcategory": "chart", "set_id": "3", "figure_id": "1", "question_id": "0"}
    assert sample.groups == {**expected, "gt_answer": "0"}
    assert sample.references == ("0",)


@pytest.mark.parametrize("root", [".", "test"])
def test_chartqa_in_its_original_layout(tmp_path: Path, root: str) -> None:
    folder = tmp_path / "test"
    (folder / "png").mkdir(parents=True)
    (folder / "png" / "a.png").write_bytes(png())
    human = [{"imgname": "a.png", "query": "Which?", "label": "Yes"}]
    augmented = [{"imgname": "a.png", "query": "When?", "label": "2014"}, "not a row"]
    (folder / "test_human.json").write_text(json.dumps(human))
    (folder / "test_augmented.json").write_text(json.dumps(augmented))
    first, second, third = samples("chartqa", tmp_path / root)
    assert (first.question, first.references, first.groups) == ("Which?", ("Yes",), {"type": "human"})
    assert (second.id, second.references, second.groups) == ("1", ("2014",), {"type": "augmented"})
    assert "not an object" in third.error
    assert images.load(second.images[0]).size == (8, 6)


@pytest.mark.parametrize(
    ("number", "kind"), [(0, "human"), (1, "augmented"), ("0", "human"), ("human", "human"), ("augmented", "augmented")]
)
def test_chartqa_types_of_other_copies(tmp_path: Path, number: Any, kind: str) -> None:
    row = {"image": "a.png", "query": "q", "label": ["3"], "human_or_machine": number}
    (sample,) = samples("chartqa", write_jsonl(tmp_path / "chartqa.jsonl", [row]))
    assert (sample.references, sample.groups) == (("3",), {"type": kind})


@pytest.mark.parametrize(
    "answers",
    [
        TEN,
        [{"answer": "red", "answer_confidence": "yes", "answer_id": i} for i in range(10)],
        {"answer": TEN, "answer_id": list(range(10))},
    ],
)
def test_vqa_answers_in_each_layout(tmp_path: Path, answers: Any) -> None:
    row = {"image": "a.png", "question": "q", "answers": answers, "answer_type": "other", "question_type": "what"}
    (sample,) = samples("vqav2", write_jsonl(tmp_path / "vqav2.jsonl", [row]))
    assert sample.references == tuple(TEN)
    assert sample.groups == {"answer_type": "other", "question_type": "what"}


def test_label_lists_written_as_text_stay_text(tmp_path: Path) -> None:
    row = {"image": "a.png", "question": "q", "answer": "[2014, 2016]"}
    (sample,) = samples("chartqa", write_jsonl(tmp_path / "chartqa.jsonl", [row]))
    assert sample.references == ("[2014, 2016]",)


# ---- the package datasets: parquet, saved data sets, the hub


def test_parquet_and_saved_data_sets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = chart_rows()
    columns = {name: [row[name] for row in rows] for name in ("question", "answer", "type")}
    pictures = [{"bytes": png(), "path": None}, {"bytes": png(), "path": "b.png"}, {"bytes": png()[:40], "path": None}]
    features = datasets.Features({**{name: datasets.Value("string") for name in columns}, "image": datasets.Image()})
    made = datasets.Dataset.from_dict({**columns, "image": pictures}, features=features)
    (tmp_path / "pq" / "data").mkdir(parents=True)
    made.to_parquet(str(tmp_path / "pq" / "data" / "test-00000-of-00001.parquet"))
    made.select([0]).to_parquet(str(tmp_path / "pq" / "data" / "train-00000-of-00001.parquet"))
    made.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"test": made, "train": made.select([0])}).save_to_disk(str(tmp_path / "both"))
    file = tmp_path / "pq" / "data" / "test-00000-of-00001.parquet"
    for place in (tmp_path / "pq", file, tmp_path / "saved", tmp_path / "both"):
        found = samples("chartqa", place)
        assert [sample.references for sample in found] == [("0",), ("1",), ("2",)], place
        assert images.load(found[1].images[0]).size == (8, 6)
        with pytest.raises(ImageError):
            images.load(found[2].images[0])


@pytest.mark.parametrize("limit", [None, 2])
def test_the_hub_route_on_a_real_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = chart_rows()
    features = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.Value("string"), "image": datasets.Image()}
    )
    columns = {name: [row[name] for row in rows] for name in ("question", "answer")}
    pictures = [{"bytes": png(), "path": None}] * 3
    folder = tmp_path / "somebody" / "charts"
    folder.mkdir(parents=True)
    made = datasets.Dataset.from_dict({**columns, "image": pictures}, features=features)
    made.to_parquet(str(folder / "test-00000-of-00001.parquet"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    charts = task("chartqa")
    source = charts.open(DataRequest(hub_id=str(folder), limit=limit))
    found = list(charts.samples(source, limit=limit))
    assert [sample.references for sample in found] == [("0",), ("1",), ("2",)][: limit or 3]
    assert all(images.load(sample.images[0]).size == (8, 6) for sample in found)
    assert str(folder) in source.description


def test_parquet_written_by_pandas(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    rows = [{**row, "image": {"bytes": png(), "path": None}} for row in chart_rows()]
    pandas.DataFrame(rows).to_parquet(tmp_path / "any.parquet")
    check_charts(samples("chartqa", tmp_path))


def test_broken_parquet_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "test.parquet").write_bytes(b"xx")
    with pytest.raises(InputError, match=r"test\.parquet"):
        samples("chartqa", tmp_path)


class FakeStream:
    """What ``load_dataset`` returns, as far as it is used."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def decode(self, enable: bool) -> "FakeStream":
        assert enable is False
        return self

    def __iter__(self) -> Iterator[Any]:
        for row in self.rows:
            if isinstance(row, BaseException):
                raise row
            yield row


class FakeHub:
    """A stand-in for the package ``datasets``: some ids answer, all calls are kept."""

    def __init__(self, answers: dict[str, list[Any]], error: BaseException) -> None:
        self.answers, self.error = answers, error
        self.calls: list[tuple[Any, dict[str, Any]]] = []
        self.config = SimpleNamespace(HF_HUB_OFFLINE=False)

    def load_dataset(self, *args: Any, **options: Any) -> FakeStream:
        self.calls.append((args, options))
        if args[0] not in self.answers:
            raise self.error
        return FakeStream(self.answers[args[0]])


def fake_hub(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Any]], error: BaseException) -> FakeHub:
    hub = FakeHub(answers, error)
    monkeypatch.setitem(sys.modules, "datasets", hub)  # type: ignore[arg-type]
    return hub


def hub_rows() -> list[dict[str, Any]]:
    return [{**row, "image": {"bytes": png(), "path": None}} for row in chart_rows()]


def test_hub_tries_both_owners_and_streams_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = fake_hub(monkeypatch, {"lmms-lab-encoder/ChartQA": hub_rows()}, FileNotFoundError("moved"))
    made = task("chartqa")
    source = made.open(DataRequest(limit=2))
    assert [args[0] for args, _ in hub.calls] == ["lmms-lab/ChartQA", "lmms-lab-encoder/ChartQA"]
    assert all(options == {"split": "test", "streaming": True} for _, options in hub.calls)
    assert len(list(made.samples(source, limit=2))) == 2
    check_charts(list(made.samples(source)))
    assert "lmms-lab-encoder/ChartQA" in source.description


def test_hub_downloads_without_a_limit_and_takes_another_id(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = fake_hub(monkeypatch, {"me/charts": hub_rows()}, FileNotFoundError("moved"))
    task("chartqa").open(DataRequest(hub_id="me/charts"))
    assert hub.calls == [(("me/charts", None), {"split": "test", "streaming": False})]


def test_offline_a_downloaded_copy_is_read_even_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = fake_hub(monkeypatch, {"lmms-lab/ChartQA": hub_rows()}, FileNotFoundError("moved"))
    hub.config.HF_HUB_OFFLINE = True
    task("chartqa").open(DataRequest(limit=1))
    assert hub.calls[0][1]["streaming"] is False


@pytest.mark.parametrize(("subset", "config"), [("image", "ScienceQA-IMG"), ("full", "ScienceQA-FULL")])
def test_scienceqa_configurations(monkeypatch: pytest.MonkeyPatch, subset: str, config: str) -> None:
    row = {"image": None, "question": "q", "choices": ["x", "y"], "answer": 1, "hint": "h", "grade": "grade7"}
    hub = fake_hub(monkeypatch, {"lmms-lab/ScienceQA": [row]}, FileNotFoundError())
    made = task(f"scienceqa:subset={subset}")
    (sample,) = made.samples(made.open(DataRequest()))
    assert hub.calls[0][0] == ("lmms-lab/ScienceQA", config)
    assert (sample.images, sample.references, sample.error) == ((), ("B",), "")
    assert sample.groups == {"picture": "text", "grades": "7-12"}


@pytest.mark.parametrize("name", SHARED_TASKS)
@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach it\non the Hub (OfflineModeIsEnabled)"),
        RuntimeError("Dataset scripts are no longer supported, but found textvqa.py"),
        ValueError("Unknown split"),
    ],
)
def test_unreachable_hub_is_one_sentence_that_says_what_to_pass(
    monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    fake_hub(monkeypatch, {}, error)
    with pytest.raises(InputError) as caught:
        task(name).open(DataRequest(limit=3))
    message = str(caught.value)
    assert "--data" in message
    assert "--hub-id" in message
    assert "lmms-lab-encoder/" in message
    assert "\n" not in message


def test_http_errors_of_the_hub_client_are_caught_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    http_error = HfHubHTTPError.__bases__[0]
    error = http_error.__new__(http_error)
    fake_hub(monkeypatch, {}, error)
    with pytest.raises(InputError, match="--data"):
        task("chartqa").open(DataRequest())


def test_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"mmsmart\[eval\].*pass --data"):
        task("vqav2").open(DataRequest())
    (tmp_path / "test.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"mmsmart\[eval\].*convert it to JSONL"):
        task("vqav2").open(DataRequest(tmp_path))


def test_a_hub_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, {"lmms-lab/ChartQA": [*hub_rows(), ConnectionError("gone")]}, FileNotFoundError())
    made = task("chartqa")
    stream = made.samples(made.open(DataRequest()))
    check_charts(list(itertools.islice(stream, 3)))
    with pytest.raises(InputError, match="broke off after 3 rows"):
        next(stream)


def test_g30_no_script_is_run_and_the_flag_is_never_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "mmsmart" / "eval").rglob("*.py")]
    assert sources
    assert not any("trust_remote_code" in source for source in sources)
    script = tmp_path / "x.py"
    script.write_text("raise SystemExit('was run')")
    with pytest.raises(InputError, match="scripts are never run"):
        task("textvqa").open(DataRequest(script))
    with pytest.raises(InputError, match=r"no rows in the folder.*textvqa\.jsonl"):
        task("textvqa").open(DataRequest(tmp_path))
    for name in SHARED_TASKS:
        hub = task(name).hub
        assert hub is not None
        assert not set(hub.ids) & {"facebook/textvqa", "HuggingFaceM4/VQAv2", "HuggingFaceM4/OK-VQA"}


def test_g30_local_files_work_without_network_and_package(monkeypatch: pytest.MonkeyPatch, pictures: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    check_charts(samples("chartqa", write_jsonl(pictures / "chartqa.jsonl", chart_rows())))


# ---- refusals


def test_unknown_places_and_forms(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file or folder.*--hub-id"):
        task("chartqa").open(DataRequest(tmp_path / "missing"))
    (tmp_path / "charts.xml").write_text("<a/>")
    with pytest.raises(InputError, match=r"'\.xml'"):
        task("chartqa").open(DataRequest(tmp_path / "charts.xml"))
    for text in ("{", '{"a": 1}', "3"):
        (tmp_path / "charts.json").write_text(text)
        with pytest.raises(InputError, match=r"charts\.json"):
            samples("chartqa", tmp_path / "charts.json")


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.tsv"])
def test_empty_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n" if name.endswith("l") else "")
    with pytest.raises(InputError, match="holds no rows"):
        samples("chartqa", tmp_path / name)


def test_requests_and_options_are_checked() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        DataRequest(limit=0)
    with pytest.raises(InputError, match="not both"):
        DataRequest(Path("x"), "a/b")
    with pytest.raises(InputError, match="got 2 of 2"):
        Shard(2, 2)
    with pytest.raises(InputError, match="did you mean 'chartqa'"):
        task("chartQA")
    with pytest.raises(InputError, match="subset 'half'"):
        task("scienceqa:subset=half")
    with pytest.raises(InputError, match="leave --data"):
        task("mmsmart-charts").open(DataRequest(Path("x")))


# ---- bad rows


def test_g27_bad_rows_become_samples_with_an_error(pictures: Path) -> None:
    good = chart_rows()
    (pictures / "cut.jpg").write_bytes(png()[:30])
    path = pictures / "chartqa.jsonl"
    lines = [
        json.dumps(good[0]).encode(),
        b'{"question": "never closed',
        b"[1, 2]",
        b'{"question": "\xff\xfe"}',
        json.dumps({"image": "0.png", "answer": "1"}).encode(),
        json.dumps({"image": "0.png", "question": "  ", "answer": "1"}).encode(),
        json.dumps({"question": "no picture", "answer": "1"}).encode(),
        json.dumps({"image": 3, "question": "a number for a picture", "answer": "1"}).encode(),
        json.dumps({"image": "iVBORw0KGgo*", "question": "q", "answer": "1"}).encode(),
        json.dumps({"image": "cut.jpg", "question": "truncated", "answer": "1"}).encode(),
        json.dumps({"image": "missing.png", "question": "missing", "answer": "1"}).encode(),
        json.dumps(good[1]).encode(),
    ]
    path.write_bytes(b"\n".join(lines))
    found = samples("chartqa", path)
    assert [sample.index for sample in found] == list(range(12))
    assert [bool(sample.error) for sample in found] == [False, *[True] * 8, False, False, False]
    hints = ("line 2", "line 3", "line 4", "question", "empty", "picture", "int", "base64")
    for sample, hint in zip(found[1:9], hints, strict=True):
        assert hint in sample.error, sample.error
    for sample in found[9:11]:  # the file shows itself only when it is decoded
        with pytest.raises(ImageError):
            images.load(sample.images[0])
    assert images.load(found[11].images[0]).size == (8, 6)


def test_bad_tsv_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(b"question\tanswer\timage\none\t1\ta.png\na\tb\tc\td\ntwo\t2\ta.png\nshort\n\xff\t3\ta.png\n")
    found = samples("chartqa", path)
    assert [sample.question for sample in found] == ["one", "", "two", "short", "\ufffd"]
    assert "4 cells, the header 3" in found[1].error
    assert "no picture" in found[3].error


@pytest.mark.parametrize(
    ("name", "row", "hint"),
    [
        ("ai2d", {"question": "q", "answer": "0"}, "two options"),
        ("ai2d", {"question": "q", "options": ["x", "y"], "answer": "2"}, "'2'"),
        ("ai2d", {"question": "q", "options": ["x", "y"], "answer": "C"}, "'C'"),
        ("scienceqa", {"question": "q", "choices": ["x", "y"], "answer": -1}, "'-1'"),
        ("textvqa", {"question": "q", "answers": ["x"] * 9}, "has 9"),
        ("vqav2", {"question": "q", "answers": 3}, "int"),
        ("vqav2", {"question": "q", "answers": [{"text": "x"}]}, "answer record"),
        ("hallusionbench", {"question": "q", "gt_answer": "1", "category": "VD"}, "missing: subcategory"),
        ("hallusionbench", {"question": "q", "gt_answer": "maybe"}, "'maybe'"),
    ],
)
def test_rows_that_lack_what_their_data_set_needs(tmp_path: Path, name: str, row: dict[str, Any], hint: str) -> None:
    path = write_jsonl(tmp_path / f"{name}.jsonl", [{"image": "a.png", **row}])
    (sample,) = samples(name, path)
    assert hint in sample.error
    assert sample.error.startswith("row 0: ")


# ---- reading in parts


def test_shards_are_a_partition_and_limits_count_before_them(tmp_path: Path) -> None:
    rows = [{"id": "same", "image": "a.png", "question": f"q{i}", "answer": "1"} for i in range(11)]
    path = write_jsonl(tmp_path / "chartqa.jsonl", rows)
    whole = samples("chartqa", path)
    assert len({sample.id for sample in whole}) == 11
    parts = [samples("chartqa", path, shard=Shard(number, 3)) for number in range(3)]
    assert sorted(itertools.chain(*parts), key=lambda sample: sample.index) == whole
    limited = [samples("chartqa", path, limit=4, shard=Shard(number, 3)) for number in range(3)]
    assert [len(part) for part in limited] == [2, 1, 1]
    assert samples("chartqa", path, limit=2, shard=Shard(2, 3)) == []


@pytest.mark.parametrize("spec", ["chartqa", "mmsmart-charts"])
def test_finished_ids_are_passed_over(tmp_path: Path, spec: str) -> None:
    rows = [{"image": "a.png", "question": f"q{i}", "answer": "1"} for i in range(6)]
    path = write_jsonl(tmp_path / "chartqa.jsonl", rows) if spec == "chartqa" else None
    whole = samples(spec, path, limit=6)
    rest = samples(spec, path, limit=6, done={whole[0].id, whole[3].id})
    assert [sample.id for sample in rest] == [whole[i].id for i in (1, 2, 4, 5)]


def test_rows_can_be_read_again(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "chartqa.jsonl", [{"image": "a.png", "question": "q", "answer": "1"}])
    made = task("chartqa")
    source = made.open(DataRequest(path))
    assert list(made.samples(source)) == list(made.samples(source))


def test_fingerprint_follows_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("x" * 50)
    second.write_text("x" * 50)
    assert files.fingerprint([first]) == files.fingerprint([second])
    monkeypatch.setattr(files, "HASHED_BYTES", 10)
    kept = files.fingerprint([first])
    for text in ("y" + "x" * 49, "x" * 49 + "y", "x" * 51):
        second.write_text(text)
        assert files.fingerprint([second]) != kept


def test_rows_of_a_file_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "vqav2.jsonl"
    with open(path, "w") as file:
        for i in range(3000):
            file.write(json.dumps({"image": "a.png", "question": f"q{i}" * 50, "answers": TEN}) + "\n")
    made = task("vqav2")
    source = made.open(DataRequest(path))
    tracemalloc.start()
    summary = made.summarize(made.score(sample, "red") for sample in made.samples(source))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summary.metrics["vqa_accuracy"].count == 3000
    assert peak < 400_000 < path.stat().st_size


def test_drawn_samples_are_made_one_block_at_a_time_and_not_kept() -> None:
    made = task("mmsmart-charts:count=1_000_000_000")
    stream = made.samples(made.open(DataRequest()))
    drawn = [weakref.ref(sample.images[0]) for sample in itertools.islice(stream, 70)]
    gc.collect()
    assert sum(picture() is not None for picture in drawn) <= 1


# ---- mmsmart-charts


def test_charts_come_from_the_seed_alone() -> None:
    first, again, other = (samples("mmsmart-charts", limit=70, seed=seed) for seed in (1, 1, 2))
    assert [sample.question for sample in first] == [sample.question for sample in again]
    assert [sample.images[0].tobytes() for sample in first] == [sample.images[0].tobytes() for sample in again]  # type: ignore[union-attr]
    assert [sample.question for sample in first] != [sample.question for sample in other]
    assert len({sample.question for sample in first}) > 40
    assert {"scene", "bar", "pie"} < {sample.groups["picture"] for sample in first}


def test_charts_accept_the_answer_in_either_form() -> None:
    from mmsmart.eval.tasks.mmsmart_charts import _rows
    from mmsmart.training.questions import BRIEF

    made = task("mmsmart-charts")
    for row in itertools.islice(_rows(5), 120):
        full, brief = row.fields["full"], row.fields["brief"]
        sample = made.read(str(row.index), row)
        assert full.facts == brief.facts
        assert full.facts.split() == "heldout"
        assert made.prompt(sample, "short", "llava").text == brief.question == f"{full.question} {BRIEF}"
        assert made.prompt(sample, "long", "llava").text == full.question
        for answer in (full.answer, brief.answer):
            score = made.score(sample, answer)
            assert score is not None
            assert score.values == {"final_answer": 1.0}
        wrong = made.score(sample, "I do not know.")
        assert wrong is not None
        assert wrong.values == {"final_answer": 0.0}


def test_charts_have_a_default_number() -> None:
    assert len(samples("mmsmart-charts:count=33,size=32")) == 33
    assert samples("mmsmart-charts:size=32", limit=1)[0].images[0].size == (32, 32)  # type: ignore[union-attr]


# ---- prompts


def sample_of(name: str) -> EvalSample:
    return EvalSample("0", 0, "is {this} it?", choices=("x", "y"), extra={"hint": "Look."})


EXPLAIN = "For the following question, provide a detailed explanation of your reasoning leading to the answer."
LETTERS = "is {this} it?\nA. x\nB. y\nAnswer with the option's letter from the given choices directly."
QWEN_LETTERS = "Question: is {this} it?\nOptions:\nA. x\nB. y\nPlease select the correct answer from the options above."
PHRASE = "\nAnswer the question using a single word or phrase."
QWEN_PHRASE = "is {this} it?\nPlease try to answer the question with short words or phrases if possible."
SHORT = {
    "vqav2": ("is {this} it?" + PHRASE, QWEN_PHRASE, "is {this} it?" + PHRASE),
    "textvqa": ("Is {this} it?" + PHRASE, QWEN_PHRASE, "Is {this} it?" + PHRASE),
    "chartqa": ("is {this} it?" + PHRASE, QWEN_PHRASE, "is {this} it?\nAnswer the question with a single word."),
    "ai2d": (LETTERS, QWEN_LETTERS, LETTERS),
    "scienceqa": (f"Context: Look.\n{LETTERS}", f"Hint: Look.\n{QWEN_LETTERS}", f"Context: Look.\n{LETTERS}"),
    "hallusionbench": ("is {this} it?", "is {this} it? Please answer yes or no.", "is {this} it?"),
}
LONG = {
    "vqav2": f"is {{this}} it?\n{EXPLAIN}",
    "textvqa": f"Is {{this}} it?\n{EXPLAIN}",
    "chartqa": f"is {{this}} it?\n{EXPLAIN}",
    "ai2d": f"is {{this}} it?\nA. x\nB. y\n{EXPLAIN}",
    "scienceqa": f"Context: Look.\nis {{this}} it?\nA. x\nB. y\n{EXPLAIN}",
    "hallusionbench": f"{EXPLAIN}is {{this}} it?",
}


@pytest.mark.parametrize("name", SHARED_TASKS)
def test_prompts_word_for_word(name: str) -> None:
    made = task(name)
    for family, style, text in zip(FAMILIES, ("llava", "qwen2_vl", "lmms-eval"), SHORT[name], strict=True):
        prompt = made.prompt(sample_of(name), "short", family)
        assert (prompt.text, prompt.template_id) == (text, f"{name}/short/{style}")
        prompt = made.prompt(sample_of(name), "long", family)
        assert (prompt.text, prompt.template_id) == (LONG[name], f"{name}/long/msd")
    assert made.max_new_tokens("long") == 512
    assert made.max_new_tokens("short") == {"textvqa": 128, "hallusionbench": 128}.get(name, 16)


def test_unknown_mode() -> None:
    with pytest.raises(InputError, match="'medium'; known: short, long"):
        task("vqav2").prompt(sample_of("vqav2"), "medium", "llava")  # type: ignore[arg-type]


def test_scienceqa_prompts_equal_those_of_llava(shared: Path) -> None:
    rows = [json.loads(line) for line in (shared / "scienceqa" / "scienceqa.jsonl").read_text().splitlines()]
    made = task("scienceqa")
    for sample, row in zip(samples("scienceqa", shared / "scienceqa"), rows, strict=True):
        assert made.prompt(sample, "short", "llava").text == row["llava_prompt"]


def test_textvqa_prompts_with_ocr_tokens_equal_those_of_llava(shared: Path, tmp_path: Path) -> None:
    lines = (shared / "textvqa" / "textvqa_val_annotations_noimages.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "Reference OCR token: " in row.get("llava_prompt", "")]
    assert len(rows) > 100
    for row in rows:
        row["ocr_tokens"] = row["llava_prompt"].split("\n")[1].removeprefix("Reference OCR token: ").split(", ")
        row["image"] = "a.png"
    path = write_jsonl(tmp_path / "textvqa.jsonl", rows)
    with_ocr, without = task("textvqa:ocr=True"), task("textvqa")
    for sample, row in zip(with_ocr.samples(with_ocr.open(DataRequest(path))), rows, strict=True):
        prompt = with_ocr.prompt(sample, "short", "llava")
        assert (prompt.text, prompt.template_id) == (row["llava_prompt"], "textvqa/short/llava-ocr")
        assert "OCR" not in with_ocr.prompt(sample, "short", "qwen2_vl").text
        assert "OCR" not in without.prompt(sample, "short", "llava").text


# ---- scores


def test_scores_per_type(tmp_path: Path) -> None:
    rows = [
        {"image": "a.png", "question": "q", "answer": "100", "type": kind}
        for kind in ("human_test", "human_test", "augmented_test")
    ]
    made = task("chartqa")
    found = samples("chartqa", write_jsonl(tmp_path / "chartqa.jsonl", rows))
    answers = ("104", "107", "100.")
    summary = made.summarize(made.score(sample, text) for sample, text in zip(found, answers, strict=True))
    assert list(summary.metrics) == ["chartqa_relaxed", "chartqa_relaxed_tolerant"]
    assert summary.metrics["chartqa_relaxed"].percent == 66.67
    assert {name: group["chartqa_relaxed"].percent for name, group in summary.groups["type"].items()} == {
        "human": 50.0,
        "augmented": 100.0,
    }


def test_scores_survive_json() -> None:
    score = Score({"aAcc": 1.0}, "Yes", {"category": "VD"})
    assert Score(**json.loads(json.dumps(dataclasses.asdict(score)))) == score


def test_samples_without_references_are_asked_but_not_scored(tmp_path: Path) -> None:
    made = task("vqav2")
    rows = [{"image": "a.png", "question": "q", **answer} for answer in ({}, {"answer": "x"}, {"answers": TEN})]
    found = samples("vqav2", write_jsonl(tmp_path / "vqav2.jsonl", rows))
    assert [sample.error for sample in found] == ["", "", ""]
    summary = made.summarize(made.score(sample, "red") for sample in found)
    assert (summary.unscored, summary.metrics["vqa_accuracy"]) == (2, Mean(1.0, 1.0, 1))
    blank = write_jsonl(tmp_path / "textvqa.jsonl", [{"image": "a.png", "question": "q", "answers": [""] * 10}])
    assert samples("textvqa", blank)[0].references == ()


def test_mean_and_its_error() -> None:
    mean = Mean()
    assert (mean.value, mean.percent, mean.standard_error) == (None, None, None)
    for value in (1.0, 0.0, 1.0, 1.0):
        mean = mean.plus(value)
    assert (mean.value, mean.percent) == (0.75, 75.0)
    assert mean.standard_error == pytest.approx((0.25 / 4) ** 0.5)


def test_hallusionbench_summary(shared: Path) -> None:
    made = task("hallusionbench")
    found = samples("hallusionbench", shared / "hallusionbench")
    assert not any(sample.error for sample in found)
    assert sum(not sample.images for sample in found) == 29
    scores = [made.score(sample, "Yes" if sample.references == ("1",) else "No.") for sample in found]
    metrics = made.summarize(scores).metrics
    assert list(metrics) == ["aAcc", "hallusion_yesno", "fAcc", "qAcc", "yes_rate"]
    assert [metrics[name].value for name in ("aAcc", "fAcc", "qAcc")] == [1.0, 1.0, 1.0]
    assert metrics["qAcc"].count == 74
    assert metrics["fAcc"].count == 40  # the sets' figure 0 without a picture is no figure
    unclear = made.summarize(made.score(sample, "Who knows?") for sample in found).metrics
    assert unclear["aAcc"].total == 29  # right only where there is no picture
    assert unclear["hallusion_yesno"].total == 0
    again = (Score(**json.loads(json.dumps(dataclasses.asdict(score)))) for score in scores if score is not None)
    assert made.summarize(again).metrics == metrics


# ---- the real samples


COUNTS = {"vqav2": (12, 4), "chartqa": (80, 80), "textvqa": (17, 17), "ai2d": (6, 6), "scienceqa": (40, 40)}


@pytest.mark.parametrize("name", COUNTS)
def test_real_samples(shared: Path, name: str) -> None:
    made = task(name)
    found = samples(name, shared / name)
    assert (len(found), sum(bool(sample.references) for sample in found)) == COUNTS[name]
    assert not any(sample.error for sample in found)
    for sample in found:
        assert images.load(sample.images[0]).mode == "RGB"
    summary = made.summarize(made.score(sample, (*sample.references, "x")[0]) for sample in found)
    assert next(iter(summary.metrics)) == made.metric
    assert summary.metrics[made.metric].value == 1.0


def test_real_annotations_without_pictures(shared: Path) -> None:
    found = samples("textvqa", shared / "textvqa" / "textvqa_val_annotations_noimages.jsonl")
    assert len(found) == 200
    assert all("no picture" in sample.error and len(sample.references) == 10 for sample in found)


def test_easy_vqa_reads_as_vqav2(shared: Path) -> None:
    found = samples("vqav2", shared / "easy_vqa")
    assert len(found) == 120
    assert not any(sample.error for sample in found)


def test_llava_replay_per_picture(shared: Path, tmp_path: Path) -> None:
    lines = (shared / "scienceqa" / "llava15_13b_replay.jsonl").read_text().splitlines()
    replay = [json.loads(line) for line in lines]
    rows = [
        {
            "id": row["pid"],
            "question": "q",
            "choices": list("vwxyz"[: row["num_choices"]]),
            "answer": row["gt"],
            "image": "a.png" if row["is_image"] else None,
        }
        for row in replay
    ]
    made = task("scienceqa")
    source = made.open(DataRequest(write_jsonl(tmp_path / "scienceqa.jsonl", rows)))
    pairs = zip(made.samples(source), replay, strict=True)
    summary = made.summarize(made.score(sample, row["prediction"]) for sample, row in pairs)
    assert summary.metrics["scienceqa_mcq"].percent == 74.39
    assert summary.groups["picture"]["image"]["scienceqa_mcq"].percent == 71.64
