"""Runs an evaluation and asks transformers' own ``generate`` the same questions: the same answers, the same accuracy?

    python eval/against_generate.py --dataset mmsmart-charts --limit 200 --policies none,rate-optimal --out runs/check

Takes the options of ``python -m mmsmart.eval``, greedy ones; ``--out`` may name a run that is finished already. The
other side is what a user of transformers writes: a processor, a chat template, ``generate``, one question at a time;
it shares the pictures, the questions and the scoring with the evaluation, and nothing else. The exit status is 1 when
an answer differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

from mmsmart import images
from mmsmart.command import Parser, run
from mmsmart.embedded import model_folder
from mmsmart.errors import InputError
from mmsmart.eval.cli import FAILED_SAMPLES, add_commands, given_arguments, run_evaluation, settings_from
from mmsmart.eval.folder import recorded
from mmsmart.eval.provenance import Process, git_state, versions
from mmsmart.eval.results import write_json
from mmsmart.eval.tasks.base import EvalSample, Score
from mmsmart.registry import EMBEDDED_MODELS


class Transformers:
    """A model answering through transformers alone."""

    def __init__(self, model: str, dtype: str, new_tokens: int) -> None:
        source = str(model_folder(model)) if model in EMBEDDED_MODELS else model
        kind = torch.float32 if dtype == "auto" else getattr(torch, dtype)
        self.model: Any = transformers.AutoModelForImageTextToText.from_pretrained(source, dtype=kind).eval()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
        self.processor: Any = _processor(source, self.tokenizer)
        self.new_tokens = new_tokens

    @property
    def family(self) -> str:
        """As the configuration names it."""
        return str(self.model.config.model_type)

    def answer(self, sample: EvalSample, text: str) -> tuple[list[int], str]:
        """Token ids of a greedy answer, end included, and its text."""
        pictures = [images.load(picture) for picture in sample.images]
        content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
        turns = [{"role": "user", "content": content}]
        prompt = self.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        begun = bool(self.tokenizer.bos_token) and prompt.startswith(self.tokenizer.bos_token)
        inputs = self.processor(
            images=pictures or None, text=[prompt], add_special_tokens=not begun, return_tensors="pt"
        ).to(self.model.dtype)
        with torch.inference_mode():
            ids = self.model.generate(**inputs, max_new_tokens=self.new_tokens, do_sample=False)
        mine = ids[0, inputs["input_ids"].shape[1] :].tolist()
        return mine, self.tokenizer.decode(mine, skip_special_tokens=True)


def _processor(source: str, tokenizer: Any) -> Any:
    """The checkpoint's processor."""
    try:
        return transformers.AutoProcessor.from_pretrained(source)
    except ImportError:  # Qwen2-VL's wants torchvision, for videos
        image_processor = transformers.AutoImageProcessor.from_pretrained(source)
        return _Pictures(image_processor, tokenizer, tokenizer.chat_template)


class _Pictures(transformers.Qwen2VLProcessor):  # type: ignore[misc]
    """Qwen2-VL's processor without its part for videos."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)


def asked(arguments: argparse.Namespace) -> Iterator[tuple[EvalSample, dict[str, Any]]]:
    """Every sample of the evaluation with its policies' rows; those that failed under a policy are left out."""
    settings = settings_from(arguments)
    task = settings.task()
    found = recorded(arguments.out, Process.from_environment().count)
    assert found is not None
    rows: dict[int, dict[str, Any]] = {}
    for row in found.all_rows():
        if not row.error:
            rows.setdefault(row.index, {})[row.policy] = row
    for sample in task.samples(task.open(settings.request), limit=settings.request.limit):
        if len(rows.get(sample.index, {})) == len(settings.policies):
            yield sample, rows[sample.index]


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Asks ``generate`` and counts, for each policy, equal answers and the accuracy of both sides."""
    settings = settings_from(arguments)
    task = settings.task()
    other = Transformers(settings.model, settings.dtype, settings.new_tokens(task))
    equal = dict.fromkeys(settings.policies, 0)
    different: list[dict[str, Any]] = []
    scores: dict[str, list[Score]] = {name: [] for name in ("generate", *settings.policies)}
    samples = 0
    for sample, rows in tqdm(asked(arguments), total=settings.request.limit, disable=arguments.no_progress):
        ids, text = other.answer(sample, task.prompt(sample, settings.mode, other.family).text)
        samples += 1
        for name, score in [("generate", task.score(sample, text)), *((p, row.score) for p, row in rows.items())]:
            if score is not None:
                scores[name].append(score)
        for policy, row in rows.items():
            same = list(row.token_ids) == ids and row.text == text
            equal[policy] += same
            if not same:
                different.append({"sample": sample.id, "policy": policy, "generate": ids, "ours": list(row.token_ids)})
    percents = {
        name: {metric: mean.percent for metric, mean in task.summarize(iter(found)).metrics.items()}
        for name, found in scores.items()
    }
    return {"samples": samples, "equal": equal, "accuracy": percents, "different": different}


def both(arguments: argparse.Namespace) -> int:
    """The evaluation, then the comparison; 1 when an answer differs or none could be compared."""
    if arguments.temperature > 0 or arguments.out is None:
        raise InputError("answers can be compared at --temperature 0, and --out must name the run's folder")
    status = run_evaluation(arguments)
    if status not in (0, FAILED_SAMPLES):
        return status
    result = compare(arguments)
    for name, percents in result["accuracy"].items():
        shown = ", ".join(f"{metric} {percent}" for metric, percent in percents.items()) or "nothing to score"
        count = "" if name == "generate" else f", {result['equal'][name]} / {result['samples']} answers as generate's"
        print(f"{name}: {shown}{count}")
    if arguments.json:
        about = {
            "command": " ".join(["python", "eval/against_generate.py", *arguments.given]),
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "git": git_state(),
        }
        write_json(arguments.json, about | result)
    return int(not result["samples"] or bool(result["different"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit status."""
    parser = Parser(prog="python eval/against_generate.py")
    add_commands(parser)
    parser.add_argument("--json", type=Path, help="write the comparison here too")
    parser.set_defaults(run=both)
    arguments = parser.parse_args(argv)
    arguments.given = given_arguments(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return run(lambda: int(arguments.run(arguments)))


if __name__ == "__main__":
    sys.exit(main())
