"""Reports over finished runs: tables in the form of the SMART paper's table 1, as Markdown or one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mmsmart.errors import InputError
from mmsmart.eval.merge import RESULT, SCHEMA
from mmsmart.eval.results import read_json
from mmsmart.eval.settings import BASELINE

NOTHING = "-"
_SPEED_ONLY = "/msd"
"""Prompts of long explanations, whose accuracies mean nothing."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        path: Its folder.
        result: What ``result.json`` holds.
    """

    path: Path
    result: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """What was run."""
        settings: dict[str, Any] = self.result["settings"]
        return settings

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return str(self.settings["dataset"])

    @property
    def setting(self) -> tuple[str, str, int]:
        """What a table is for: model, mode and batch size."""
        return str(self.settings["model"]), str(self.settings["mode"]), int(self.settings["batch size"])

    @property
    def policies(self) -> dict[str, Any]:
        """Figures by policy."""
        policies: dict[str, Any] = self.result["policies"]
        return policies

    @property
    def claims_speed(self) -> bool:
        """Whether its times may be claimed."""
        return bool(self.result["speed"]["claimed"])


@dataclass(frozen=True)
class Table:
    """A table of texts; the first ``labels`` columns name the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    labels: int = 2


def read_run(path: Path) -> Run:
    """Reads a run's folder.

    Raises:
        InputError: No finished run of this version there.
    """
    folder = path.parent if path.name == RESULT else path
    file = folder / RESULT
    if not folder.is_dir():
        raise InputError(f"no such run folder: {folder}")
    if not file.is_file():
        raise InputError(f"{folder} holds no {RESULT}: the run is not finished; run its command again to go on")
    result = read_json(file)
    if result.get("schema") != SCHEMA or not isinstance(result.get("policies"), dict):
        raise InputError(f"{file} is of another version; run its command again")
    return Run(folder, result)


def write_report(paths: Sequence[Path], html: Path | None, markdown: Path | None) -> str:
    """Reads runs and writes the files that are asked for; returns the Markdown.

    Raises:
        InputError: A run that cannot be read.
    """
    runs = [read_run(path) for path in paths]
    text = to_markdown(all_tables(runs))
    if markdown is not None:
        markdown.write_text(text, encoding="utf-8")
    if html is not None:
        from mmsmart.eval.report_html import page

        html.write_text(page(runs), encoding="utf-8")
    return text


def all_tables(runs: Sequence[Run]) -> list[Table]:
    """Every table of a report, in order."""
    return [*speed_tables(runs), *accuracy_tables(runs), details(runs)]


def to_markdown(tables: Iterable[Table]) -> str:
    """Tables as Markdown."""
    parts = []
    for table in tables:
        rule = ["---"] * table.labels + ["---:"] * (len(table.columns) - table.labels)
        lines = [f"| {' | '.join(map(_cell, row))} |" for row in (table.columns, rule, *table.rows)]
        note = [table.note, ""] if table.note else []
        parts.append("\n".join([f"### {table.title}", "", *note, *lines, ""]))
    return "\n".join(parts)


def speed_tables(runs: Sequence[Run]) -> list[Table]:
    """Table 1 of arXiv 2604.09731 for each model, mode and batch size: SR (beta) of policies x data sets, by T."""
    note = (
        "Speedup over plain decoding, end to end (share of the drafted tokens that were accepted). "
        "Means are over the data sets shown."
    )
    if not all(run.claims_speed for run in runs):
        note += f" {NOTHING}: the timed processes shared a device, so no speedup is claimed."
    return _tables("Speedup (acceptance rate)", runs, _speed_cell, _speed_mean, note)


def accuracy_tables(runs: Sequence[Run]) -> list[Table]:
    """Official accuracies with 95 % intervals, of runs whose prompts ask for an answer that can be scored."""
    scored = [run for run in runs if any(not name.endswith(_SPEED_ONLY) for name in run.result["templates"])]
    note = "Official metric in percent [95 % interval], of the samples that did not fail."
    return _tables("Accuracy", scored, _accuracy_cell, None, note)


def details(runs: Sequence[Run]) -> Table:
    """One row a run and policy; the model is named where there are several."""
    columns = [
        *("data set", "policy", "mode", "batch", "T", "samples", "failed", "equal to plain", "speedup"),
        *("decode speedup", "tokens/s", "acceptance rate", "acceptance length", "first token ms", "new tokens"),
    ]
    rows = [_detail(run, policy) for run in runs for policy in run.policies]
    if len({run.setting[0] for run in runs}) > 1:
        columns.insert(0, "model")
        models = [run.setting[0] for run in runs for _ in run.policies]
        rows = [[model, *row] for model, row in zip(models, rows, strict=True)]
    note = "Acceptance length: tokens a round, bonus included. Equal: samples whose token ids are plain decoding's."
    return Table("Details", columns, rows, note, labels=columns.index("policy") + 1)


def percent_with_interval(figures: dict[str, Any]) -> str:
    """``81.25 [77.20, 84.71]``."""
    if figures["percent"] is None:
        return NOTHING
    if figures["low"] is None:
        return f"{figures['percent']:.2f}"
    return f"{figures['percent']:.2f} [{figures['low']:.2f}, {figures['high']:.2f}]"


def _tables(
    title: str,
    runs: Sequence[Run],
    cell: Callable[[Run, str], str],
    mean: Callable[[Sequence[Run], str], str] | None,
    note: str,
) -> list[Table]:
    tables = []
    for setting in dict.fromkeys(run.setting for run in runs):
        mine = [run for run in runs if run.setting == setting]
        model, mode, batch = setting
        datasets = list(dict.fromkeys(run.dataset for run in mine))
        rows = []
        for temperature in sorted({run.settings["temperature"] for run in mine}):
            same = {run.dataset: run for run in mine if run.settings["temperature"] == temperature}  # the last wins
            for policy in dict.fromkeys(policy for run in same.values() for policy in run.policies):
                having = {name: run for name, run in same.items() if policy in run.policies}
                cells = [cell(having[name], policy) if name in having else NOTHING for name in datasets]
                ending = [mean(list(having.values()), policy)] if mean else []
                rows.append([f"{temperature:g}", policy, *cells, *ending])
        columns = ["T", "policy", *datasets, *(["mean"] if mean else [])]
        tables.append(Table(f"{title}: {model}, {mode} answers, batch {batch}", columns, rows, note))
    return tables


def _speed_cell(run: Run, policy: str) -> str:
    speed = run.policies[policy]["speed"]
    return _pair(speed["speedup"] if run.claims_speed else None, speed, policy)


def _speed_mean(runs: Sequence[Run], policy: str) -> str:
    speeds = [run.policies[policy]["speed"] for run in runs]
    ratios = [speed["speedup"] for speed in speeds]
    known = all(run.claims_speed for run in runs) and None not in ratios
    return _pair(
        fmean(ratios) if known else None,
        {"acceptance_rate": fmean(s["acceptance_rate"] for s in speeds), "drafted": sum(s["drafted"] for s in speeds)},
        policy,
    )


def _pair(speedup: float | None, speed: dict[str, Any], policy: str) -> str:
    ratio = NOTHING if speedup is None else f"{speedup:.2f}"
    return ratio if policy == BASELINE or not speed["drafted"] else f"{ratio} ({speed['acceptance_rate']:.2f})"


def _accuracy_cell(run: Run, policy: str) -> str:
    metrics = run.policies[policy]["metrics"]
    return percent_with_interval(next(iter(metrics.values()))) if metrics else NOTHING


def _detail(run: Run, policy: str) -> list[str]:
    settings, figures = run.settings, run.policies[policy]
    speed, equality = figures["speed"], figures["equality"]
    claimed = {name: value if run.claims_speed else None for name, value in speed.items()}
    return [
        run.dataset,
        policy,
        str(settings["mode"]),
        str(settings["batch size"]),
        f"{settings['temperature']:g}",
        str(run.result["samples"]),
        str(run.result["failed"]),
        f"{equality['equal']} / {equality['compared']}" if equality else NOTHING,
        _number(claimed["speedup"], 2),
        _number(claimed["decode_speedup"], 2),
        _number(claimed["tokens_per_s"], 1),
        _number(speed["acceptance_rate"] if speed["drafted"] else None, 3),
        _number(speed["mean_acceptance_length"], 2),
        _number(claimed["first_token_ms"], 1),
        str(speed["new_tokens"]),
    ]


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
