"""The runner: every sample under every policy, a row each, written as it comes; what was interrupted goes on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmsmart.api import load, with_policy
from mmsmart.config import SamplingParams
from mmsmart.embedded import model_folder
from mmsmart.engine import Engine, Request
from mmsmart.eval.arms import FAILURES, Answer, answer, one_line
from mmsmart.eval.data.files import fingerprint
from mmsmart.eval.data.source import Source
from mmsmart.eval.folder import Done, Grouping, RunFolder
from mmsmart.eval.progress import Progress
from mmsmart.eval.provenance import Process, provenance
from mmsmart.eval.results import ResultRow
from mmsmart.eval.settings import RunSettings
from mmsmart.eval.slowest import Slowest, save_thumbnail
from mmsmart.eval.tasks.base import EvalSample, Shard, Task
from mmsmart.profiling import settings_of
from mmsmart.registry import EMBEDDED_MODELS

_WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Asked:
    """A sample with the request that it becomes; ``error`` instead where it cannot be asked."""

    sample: EvalSample
    request: Request | None = None
    template: str = ""
    error: str = ""


def run(settings: RunSettings, path: Path, *, arguments: Sequence[str] = (), progress: bool = True) -> None:
    """Runs this process's part of an evaluation; `mmsmart.eval.merge.merge` makes the result of all parts.

    Args:
        settings: What to do.
        path: The run's folder; an interrupted run in it goes on.
        arguments: The command line, for the record.
        progress: Show a bar on stderr (process 0 only).

    Raises:
        InputError: The data cannot be had, or the folder holds another run.
        ModelError: The model cannot be loaded.
    """
    process = Process.from_environment()
    task = settings.task()
    source = task.open(settings.request)
    arms = load_arms(settings, process)
    runner = Runner(
        settings, task, source, arms, RunFolder(path, process, Grouping(process.count, settings.batch_size))
    )
    runner.run(arguments, progress=progress and process.number == 0)


def load_arms(settings: RunSettings, process: Process) -> dict[str, Engine]:
    """An engine for each policy, all on one target and drafter."""
    options = {"device_map": settings.device_map} if settings.device_map else {}
    device = process.device(settings.device)
    first, *others = settings.policies
    common: dict[str, Any] = {"device": device, "dtype": settings.dtype, "profile": settings.profile, **options}
    engine = load(settings.model, drafter=settings.drafter, policy=first, **common)
    return {first: engine} | {policy: with_policy(engine, policy, profile=settings.profile) for policy in others}


class Runner:
    """Answers the samples group by group: each group by every policy, the order of the policies alternating.

    So that load on the machine meets all policies alike; pictures are encoded anew for each of them.
    """

    def __init__(
        self, settings: RunSettings, task: Task, source: Source, arms: Mapping[str, Engine], folder: RunFolder
    ) -> None:
        self.settings, self.task, self.source, self.arms, self.folder = settings, task, source, arms, folder
        self._engine = next(iter(arms.values()))
        self._slowest = Slowest(settings.policies[-1])
        self._warm = False

    def run(self, arguments: Sequence[str] = (), *, progress: bool = False) -> None:
        """Answers what no earlier session has.

        Raises:
            InputError: The folder holds another run, or the data breaks off.
        """
        process, limit = self.folder.process, self.settings.request.limit
        total = None if limit is None else len(range(process.number, limit, process.count))
        with Progress(self.task.name, self.settings.policies, total, shown=progress) as bar:

            def replay(row: ResultRow) -> None:
                bar.add(row)
                self._slowest.offer(row)

            session = {"source": self.source.description, **provenance(self._engine, arguments)}
            done = self.folder.begin(self._identity(), session, replay)
            shard = Shard(process.number, process.count)
            samples = self.task.samples(self.source, limit=limit, shard=shard, done=done)
            for number, group in itertools.groupby(samples, lambda sample: done.grouping.number(sample.index)):
                self._group(number, list(group), done, bar)
        self.folder.finish()

    def _group(self, number: int, samples: Sequence[EvalSample], done: Done, bar: Progress) -> None:
        todo = {p: [s.id for s in samples if (s.id, p) not in done.pairs] for p in self.settings.policies}
        if not any(todo.values()):
            return
        asked = [self._asked(sample) for sample in samples]
        good = [one for one in asked if not one.error]
        self._warm_up(good)
        for policy in self.settings.policies[:: 1 if number % 2 == 0 else -1]:
            if not todo[policy]:
                continue
            # All of the group again, also where some are written: the size of a batch is part of its speed.
            requests = [one.request for one in good if one.request is not None]
            answers = iter(answer(self.arms[policy], requests) if requests else [])
            rows = [self._row(one, policy, None if one.error else next(answers)) for one in asked]
            rows = [row for row in rows if row.sample in todo[policy]]
            self._keep_pictures(rows, samples)
            self.folder.append(rows)
            for row in rows:
                bar.add(row)
            bar.show()

    def _asked(self, sample: EvalSample) -> Asked:
        """Checks a sample by preparing it once, so that a bad one fails alone, under every policy alike."""
        if sample.error:
            return Asked(sample, error=sample.error)
        try:
            prompt = self.task.prompt(sample, self.settings.mode, self._engine.target.model.config.model_type)
            sampling = self.settings.sampling(self.task, sample.index)
            request = Request(list(sample.images), prompt.text, sampling)
            self._engine.prepare(request)
        except FAILURES as error:
            return Asked(sample, error=one_line(error))
        return Asked(sample, request, prompt.template_id)

    def _row(self, asked: Asked, policy: str, answer: Answer | None) -> ResultRow:
        sample = asked.sample
        row = ResultRow(sample.id, sample.index, policy, asked.template, sample.question, sample.references)
        if answer is None or answer.output is None:
            return replace(row, error=asked.error if answer is None else answer.error)
        output = answer.output
        return replace(
            row,
            text=output.text,
            token_ids=tuple(output.token_ids),
            finish_reason=output.finish_reason,
            score=self.task.score(sample, output.text),
            speed=answer.speed,
        )

    def _warm_up(self, good: Sequence[Asked]) -> None:
        """Answers shortly under every policy, once, so that first-time costs are in no figure."""
        if self._warm or not good:
            return
        self._warm = True
        for engine in self.arms.values():
            requests = [_shortened(one.request) for one in good if one.request is not None]
            with contextlib.suppress(*FAILURES):  # what is wrong will show in the rows
                answer(engine, requests)

    def _keep_pictures(self, rows: Sequence[ResultRow], samples: Sequence[EvalSample]) -> None:
        pictures = {sample.id: sample.images for sample in samples}
        for row in rows:
            if self._slowest.offer(row):
                save_thumbnail(self.folder.path, row.index, pictures[row.sample])

    def _identity(self) -> dict[str, Any]:
        """What an answer and its time depend on: an interrupted run goes on only under the same."""
        settings, engine = self.settings, self._engine
        facts = settings_of(engine)
        return {
            "dataset": settings.dataset,
            "data": self.source.fingerprint,
            "mode": settings.mode,
            "model": settings.model,
            "weights": _weights(settings.model),
            "drafter": facts["drafter"],
            "policies": list(settings.policies),
            "measured costs": settings.measure_costs,
            "batch size": settings.batch_size,
            "limit": settings.request.limit,
            "seed": settings.request.seed,
            "max new tokens": settings.new_tokens(self.task),
            "temperature": settings.temperature,
            "dtype": str(engine.target.dtype).removeprefix("torch."),
            "device": facts["device"],
            "threads": facts["threads"],
            "processes": self.folder.process.count,
        }


def _weights(model: str) -> str:
    """Changes when the weights in a local folder change; "" for the hub, whose files are versioned there."""
    folder = model_folder(model) if model in EMBEDDED_MODELS else Path(model)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return fingerprint(files) if files else ""


def _shortened(request: Request) -> Request:
    sampling: SamplingParams = request.sampling
    return replace(request, sampling=replace(sampling, max_new_tokens=min(sampling.max_new_tokens, _WARM_UP_TOKENS)))
