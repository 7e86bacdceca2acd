"""The embedded model and the sample pictures, as they are shipped."""

from pathlib import Path

import pytest
from PIL import Image

from mmsmart.training.questions import CLAIMED_KINDS, KINDS, final_answer_correct, heldout_samples
from mmsmart.training.saving import MAX_WEIGHT_BYTES, LoadedTarget, load_target
from mmsmart.training.score import answer_pictures, answer_samples, score_target
from mmsmart.training.showcase import EXHIBITS

ASSETS = Path(__file__).parents[3] / "assets"
MODEL = ASSETS / "models" / "tiny-llava"


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    return load_target(MODEL)


def test_folder_is_whole_and_small() -> None:
    names = {path.name for path in MODEL.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert {"chat_template.jinja", "preprocessor_config.json", "processor_config.json", "README.md"} <= names
    assert (MODEL / "model.safetensors").stat().st_size < MAX_WEIGHT_BYTES


def test_card_reports_every_kind() -> None:
    card = (MODEL / "README.md").read_text()
    for kind in KINDS:
        assert f"| {kind} |" in card
    assert "apache-2.0" in card


def test_it_answers_claimed_questions(target: LoadedTarget) -> None:
    scores = score_target(target, 2 * len(CLAIMED_KINDS), seed=77)
    assert scores.claimed.share >= 0.8


def test_it_reads_values(target: LoadedTarget) -> None:
    samples = heldout_samples(40, seed=78, kinds=["value"])
    answers = answer_samples(target, samples)
    right = sum(final_answer_correct(answer, sample) for answer, sample in zip(answers, samples, strict=True))
    assert right >= 38


def test_sample_pictures_are_heldout() -> None:
    assert {exhibit.facts().split() for exhibit in EXHIBITS} == {"heldout"}


def test_readme_question(target: LoadedTarget) -> None:
    facts = EXHIBITS[0].facts()
    picture = Image.open(ASSETS / "pictures" / EXHIBITS[0].name)
    tallest = max(facts.items, key=lambda item: item.value)
    (answer,) = answer_pictures(target, [picture], ["Which bar is the tallest?"])
    assert answer.endswith(f"The tallest bar is {tallest.word} {tallest.value}.")
