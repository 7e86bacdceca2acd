"""Scores a saved target on held-out questions, with transformers' own ``generate``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import CLAIMED_KINDS, KINDS, Sample, final_answer_correct, heldout_samples
from mmsmart.training.saving import LoadedTarget
from mmsmart.training.view import USUAL_SIZE

BATCH = 16
MAX_NEW_TOKENS = 128


@dataclass(frozen=True)
class KindScore:
    """Right answers of one kind of question."""

    kind: str
    right: int
    asked: int

    @property
    def share(self) -> float:
        """Right answers per question."""
        return self.right / max(1, self.asked)


@dataclass(frozen=True)
class Scores:
    """Held-out scores of every kind, and a line for every wrong answer."""

    kinds: tuple[KindScore, ...]
    errors: tuple[str, ...] = ()

    @property
    def claimed(self) -> KindScore:
        """The claimed kinds together."""
        claimed = [score for score in self.kinds if score.kind in CLAIMED_KINDS]
        return KindScore("claimed", sum(score.right for score in claimed), sum(score.asked for score in claimed))

    def table(self) -> str:
        """Markdown table of all kinds."""
        lines = ["| kind | right | asked | share | claimed |", "| --- | --- | --- | --- | --- |"]
        for score in (*self.kinds, self.claimed):
            mark = "yes" if score.kind in CLAIMED_KINDS else "no" if score.kind in KINDS else ""
            lines.append(f"| {score.kind} | {score.right} | {score.asked} | {score.share:.3f} | {mark} |")
        return "\n".join(lines)


def score_target(target: LoadedTarget, questions: int, seed: int = 0, size: tuple[int, int] = USUAL_SIZE) -> Scores:
    """Asks held-out questions.

    Args:
        target: A saved target as users load it.
        questions: How many questions of the claimed kinds, in turn; each other kind gets ten.
        seed: Seed of the held-out questions.
        size: Width and height of the pictures in pixels.
    """
    others = [kind for kind in KINDS if kind not in CLAIMED_KINDS]
    samples = heldout_samples(questions, seed, CLAIMED_KINDS)
    if others:
        samples += heldout_samples(10 * len(others), seed, others)
    predictions = answer_samples(target, samples, size=size)
    scores = []
    for kind in KINDS:
        pairs = [pair for pair in zip(predictions, samples, strict=True) if pair[1].kind == kind]
        right = sum(final_answer_correct(prediction, sample) for prediction, sample in pairs)
        scores.append(KindScore(kind, right, len(pairs)))
    errors = [
        f"{sample.kind}: {sample.question} | right: {sample.answer} | got: {prediction}"
        for prediction, sample in zip(predictions, samples, strict=True)
        if not final_answer_correct(prediction, sample)
    ]
    return Scores(tuple(scores), tuple(errors))


def answer_samples(
    target: LoadedTarget, samples: Sequence[Sample], batch: int = BATCH, size: tuple[int, int] = USUAL_SIZE
) -> list[str]:
    """Answers questions greedily, in batches padded on the left.

    Returns:
        One answer per sample.
    """
    answers: list[str] = []
    for start in tqdm(range(0, len(samples), batch), desc="score", mininterval=2.0):
        chunk = samples[start : start + batch]
        pictures = [draw_picture(sample.facts, max(size)) for sample in chunk]
        if size[0] != size[1]:
            pictures = [picture.resize(size, Image.Resampling.BICUBIC) for picture in pictures]
        answers += answer_pictures(target, pictures, [sample.question for sample in chunk])
    return answers


def prompt_of(target: LoadedTarget, question: str, image_tokens: int) -> str:
    """The prompt of one question about one picture, its image token repeated for every visual token."""
    content = [{"type": "image"}, {"type": "text", "text": question}]
    messages: Any = [{"role": "user", "content": content}]
    prompt: Any = target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    image: Any = target.tokenizer.convert_ids_to_tokens(target.model.config.image_token_id)
    return str(prompt).replace(image, image * image_tokens)


@torch.no_grad()
def answer_pictures(target: LoadedTarget, pictures: Sequence[Image.Image], questions: Sequence[str]) -> list[str]:
    """Answers one batch of questions, one picture each."""
    images = target.image_processor(images=list(pictures), return_tensors="pt")
    counts = _image_tokens(target, images, len(pictures))
    prompts = [prompt_of(target, question, count) for question, count in zip(questions, counts, strict=True)]
    inputs = target.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    if "image_grid_thw" in images:
        images["mm_token_type_ids"] = (inputs.input_ids == target.model.config.image_token_id).int()
    output = target.model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        **images,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    new_tokens = output[:, inputs.input_ids.shape[1] :]
    answers: list[str] = target.tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
    return [answer.strip() for answer in answers]


def _image_tokens(target: LoadedTarget, images: Any, pictures: int) -> list[int]:
    """Visual tokens of each picture."""
    if "image_grid_thw" not in images:
        return [target.model.config.image_seq_length] * pictures
    patches_a_token = target.model.config.vision_config.spatial_merge_size**2
    counts: list[int] = (images["image_grid_thw"].prod(-1) // patches_a_token).tolist()
    return counts
