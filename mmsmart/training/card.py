"""Writes the model card that lies beside the weights."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from mmsmart.training.facts import MAX_ITEMS
from mmsmart.training.presets import Preset
from mmsmart.training.questions import CLAIMED_KINDS, KINDS, heldout_samples
from mmsmart.training.score import Scores
from mmsmart.training.stage import RunFolder

TEMPLATE = """---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---

# tiny-{family}

A very small, real `{architecture}` that answers questions about plain charts and scenes of shapes. It comes
inside the package `mmsmart`, so that the package works, and can be tested and measured, with no download.
Trained from scratch on synthetic pictures: it knows nothing about photographs, nor about charts that look
different from its own.

* {parameters:.1f} M parameters, {layers} text layers of width {width}, vision tower of {vision_layers} layers
  on {side}x{side} pixels ({tokens} visual tokens), vocabulary {vocabulary}; bfloat16, {megabytes:.1f} MB.
* Prompt: `<s>USER: <image>\\n{{question}} ASSISTANT:` (the chat template writes it). Context: {context} tokens.
* Licence: Apache-2.0. No picture, text or weight from anybody else went into it.

## How well it answers

Final sentence right to the letter, greedy decoding by transformers' own `generate`, the saved bfloat16 weights
loaded as float32, held-out pictures (seed {score_seed}): **{right} of {asked} ({share:.1%}) on the claimed
kinds**.
`python -m mmsmart train score --model {model_folder} --questions {questions}` gives this table:

{table}

One example of each kind (about held-out pictures, with the right answers):

{examples}

A question may be written without capitals and question mark; "Be brief." after a question leaves the listing
out where the answer does not need it. The wording of an answer is a function of the wording of the question.

## How it was made

`python -m mmsmart train target --family {family} --out {run_folder} --model {model_folder} --seed {seed}`

Pictures and questions come from seeded generators (`mmsmart/training`); whether a picture is a training or a
held-out picture is a function of its content, so no held-out picture was ever trained on. Stages, each
resumable with the same command and `--stage NAME`:

{stages}

On {machine}; `vision` then `regress` ran in one one-thread process beside `drill` then `main` in another,
`joint` on both cores. The schedule follows the clock where the machine is slower than planned, so a rerun gives
a model as good, not the same bits. {note}

## Limits

* Only pictures like its own: 3 to {max_items} bars, points or slices with printed values in steps of five, or 2
  to {max_items} shapes. Everything is scaled to {side}x{side} pixels, so keep pictures near square. Other
  pictures get fluent nonsense.
* Only questions like its own, in English, one picture a question, no dialogue.
* {unclaimed}
"""

STAGE_NOTES = {
    "vision": "vision tower alone, dense labels for each patch",
    "drill": "4-layer language model on oracle tokens, brief lookups only",
    "main": "the same on all kinds, embeddings frozen",
    "regress": "vision tower and projector onto the oracle tokens",
    "joint": "plugged together, grown to full depth, vision tower frozen",
}


@dataclass(frozen=True)
class RunFacts:
    """What the card says of the training run.

    Attributes:
        family: Name of the family.
        folder: Run folder with the stages' checkpoints.
        preset: The recipe that was followed.
        seed: Seed of the training run.
        score_seed: Seed of the held-out questions.
        note: A remark on this run.
    """

    family: str
    folder: RunFolder
    preset: Preset
    seed: int
    score_seed: int
    note: str = ""


def write_card(model_folder: Path, run: RunFacts, scores: Scores) -> None:
    """Writes ``README.md`` beside the weights, with the held-out scores of the saved model."""
    config = transformers.AutoConfig.from_pretrained(model_folder, local_files_only=True)
    weights = (model_folder / "model.safetensors").stat().st_size
    text, vision = config.text_config, config.vision_config
    claimed = scores.claimed
    card = TEMPLATE.format(
        family=run.family,
        architecture=config.architectures[0],
        parameters=weights / 2e6,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        vision_layers=vision.num_hidden_layers,
        side=vision.image_size,
        tokens=config.image_seq_length,
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
        examples=_examples(),
        seed=run.seed,
        stages=_stages(run.folder, run.preset),
        machine=_machine(),
        max_items=MAX_ITEMS,
        note=run.note,
        unclaimed=_unclaimed(),
    )
    (model_folder / "README.md").write_text(card)


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
        return path.name
