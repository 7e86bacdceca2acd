"""Writes the model card that lies beside the weights."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from mmsmart.training.facts import MAX_ITEMS
from mmsmart.training.presets import Preset
from mmsmart.training.questions import CLAIMED_KINDS, KINDS, heldout_samples
from mmsmart.training.score import KindScore, Scores
from mmsmart.training.stage import RunFolder

TEMPLATE = """---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---

# tiny-{title}

A very small, real `{architecture}` that answers questions about plain charts and scenes of shapes. It comes
inside the package `mmsmart`, so that the package works, and can be tested and measured, with no download.
Trained from scratch on synthetic pictures: it knows nothing about photographs, nor about charts that look
different from its own.

* {parameters:.1f} M parameters, {layers} text layers of width {width}, vision tower of {vision_layers} layers
  on {seen}, vocabulary {vocabulary}; bfloat16, {megabytes:.1f} MB.
* Prompt: `{prompt}` (the chat template writes it). Context: {context} tokens.
* Licence: Apache-2.0. No picture, text or weight from anybody else went into it.

## How well it answers

Final sentence right to the letter, greedy decoding by transformers' own `generate`, the saved bfloat16 weights
loaded as float32, held-out pictures (seed {score_seed}): **{right} of {asked} ({share:.1%}) on the claimed
kinds**.
`python -m mmsmart train score --model {model_folder} --questions {questions}` gives this table:

{table}
{other_sizes}
One example of each kind (about held-out pictures, with the right answers):

{examples}

A question may be written without capitals and question mark; "Be brief." after a question leaves the listing
out where the answer does not need it. The wording of an answer is a function of the wording of the question.

## How it was made

`python -m mmsmart train target --family {family} --out {run_folder} --model {model_folder} --seed {seed}{warm_start}`

Pictures and questions come from seeded generators (`mmsmart/training`); whether a picture is a training or a
held-out picture is a function of its content, so no held-out picture was ever trained on. Stages, each
resumable with the same command and `--stage NAME`:

{stages}

On {machine}; {processes} The schedule follows the clock where the machine is slower than planned, so a rerun gives
a model as good, not the same bits. {note}

## Limits

* Only pictures like its own: 3 to {max_items} bars, points or slices with printed values in steps of five, or 2
  to {max_items} shapes. {scaling} Other pictures get fluent nonsense.
* Only questions like its own, in English, one picture a question, no dialogue.
* {unclaimed}
"""

STAGE_NOTES = {
    "vision": "vision tower alone, dense labels for each patch",
    "drill": "4-layer language model on oracle tokens, brief lookups only",
    "main": "4-layer language model on oracle tokens, all kinds, embeddings frozen",
    "regress": "vision tower and projector onto the oracle tokens",
    "joint": "plugged together and grown to full depth",
}


@dataclass(frozen=True)
class CardNotes:
    """What the card says of a family.

    Attributes:
        seen: Sizes of the pictures that the vision tower sees.
        scaling: What becomes of pictures of other sizes.
        processes: How the stages were spread over processes.
    """

    seen: str
    scaling: str
    processes: str


@dataclass(frozen=True)
class RunFacts:
    """What the card says of the training run.

    Attributes:
        family: Name of the family.
        folder: Run folder with the stages' checkpoints.
        preset: The recipe that was followed.
        seed: Seed of the training run.
        score_seed: Seed of the held-out questions.
        notes: What the card says of the family.
        note: A remark on this run.
        warm_start: Run from which the language model started, if any.
    """

    family: str
    folder: RunFolder
    preset: Preset
    seed: int
    score_seed: int
    notes: CardNotes
    note: str = ""
    warm_start: RunFolder | None = None


def write_card(
    model_folder: Path, run: RunFacts, scores: Scores, other_sizes: Mapping[tuple[int, int], KindScore] | None = None
) -> None:
    """Writes ``README.md`` beside the weights.

    Args:
        model_folder: Folder of the saved model.
        run: How it was made.
        scores: Its held-out scores.
        other_sizes: Its score on the claimed kinds for pictures of other widths and heights.
    """
    config = transformers.AutoConfig.from_pretrained(model_folder, local_files_only=True)
    weights = (model_folder / "model.safetensors").stat().st_size
    text = config.text_config
    claimed = scores.claimed
    card = TEMPLATE.format(
        family=run.family,
        title=run.family.replace("_", "-"),
        architecture=config.architectures[0],
        parameters=weights / 2e6,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        vision_layers=config.vision_config.num_hidden_layers,
        seen=run.notes.seen,
        prompt=_prompt(model_folder),
        vocabulary=text.vocab_size,
        megabytes=weights / 1e6,
        context=text.max_position_embeddings,
        score_seed=run.score_seed,
        right=claimed.right,
        asked=claimed.asked,
        share=claimed.share,
        questions=claimed.asked,
        model_folder=_relative(model_folder),
        run_folder=_relative(run.folder.path),
        table=scores.table(),
        other_sizes=_other_sizes(other_sizes or {}),
        examples=_examples(),
        seed=run.seed,
        warm_start=f" --warm-start {_relative(run.warm_start.path)}" if run.warm_start else "",
        stages=_stages(run.folder, run.preset),
        machine=_machine(),
        processes=run.notes.processes,
        scaling=run.notes.scaling,
        max_items=MAX_ITEMS,
        note=run.note,
        unclaimed=_unclaimed(),
    )
    (model_folder / "README.md").write_text(card)


def _prompt(model_folder: Path) -> str:
    """The chat template's prompt with its line breaks spelled out."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model_folder, local_files_only=True)
    content = [{"type": "image"}, {"type": "text", "text": "{question}"}]
    messages = [{"role": "user", "content": content}]
    prompt: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return prompt.replace("\n", "\\n")


def _other_sizes(scores: Mapping[tuple[int, int], KindScore]) -> str:
    if not scores:
        return ""
    parts = [f"{width}x{height}: {s.right} of {s.asked} ({s.share:.1%})" for (width, height), s in scores.items()]
    return f"\nPictures of other sizes (`--size WIDTHxHEIGHT`): {', '.join(parts)}.\n"


def _stages(folder: RunFolder, preset: Preset) -> str:
    lines = ["| stage | what | steps | batch | minutes |", "| --- | --- | --- | --- | --- |"]
    for name, note in STAGE_NOTES.items():
        checkpoint = folder.load(name)
        if checkpoint is not None:
            minutes = checkpoint["elapsed_s"] / 60
            lines.append(f"| {name} | {note} | {checkpoint['step']} | {preset.stages[name].batch} | {minutes:.1f} |")
    return "\n".join(lines)


def _examples() -> str:
    lines = ["| kind | question | answer |", "| --- | --- | --- |"]
    for sample in heldout_samples(len(KINDS), seed=1, brief_share=0.0):
        lines.append(f"| {sample.kind} | {sample.question} | {sample.answer} |")
    return "\n".join(lines)


def _unclaimed() -> str:
    names = [kind for kind in KINDS if kind not in CLAIMED_KINDS]
    if not names:
        return "All kinds in the table are claimed; the weaker ones show there."
    return f"Not claimed, because it fails too often: {', '.join(names)}."


def _machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}, no GPU), torch {torch.__version__}, {platform.system()}"


def _relative(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return f"runs/{path.name}"
