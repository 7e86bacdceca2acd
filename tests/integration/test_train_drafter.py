"""Training a drafter: the target's own answers, a resumable loop, a checkpoint in the published layout."""

import json
from pathlib import Path

import pytest
import torch

import tiny
from mmsmart import cli
from mmsmart.api import load
from mmsmart.drafters.head import EagleHead
from mmsmart.errors import InputError
from mmsmart.training.drafter.answers import Answered, answer_all
from mmsmart.training.drafter.examples import ExampleStore, make_examples
from mmsmart.training.drafter.loop import DrafterSettings, DrafterTrainer
from mmsmart.training.drafter.publish import new_head_config
from mmsmart.training.drafter.questions import load_questions


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = []
    for index in range(10):
        tiny.picture(index).save(folder / f"{index}.png")
        rows.append({"question": f"what is number {index}?", "image": f"{index}.png"})
    rows.append({"conversations": [{"from": "human", "value": "<image>\nand this?"}], "image": "3.png"})
    rows.append({"question": "only words?", "image": None})
    (folder / "questions.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return folder


def train(data: Path, out: Path, folder: Path, *more: str) -> int:
    return cli.main(
        [
            *("train", "drafter", "--target", str(folder), "--data", str(data), "--out", str(out)),
            *("--steps", "6", "--batch", "3", "--evaluate-every", "3", "--max-new-tokens", "8", *more),
        ]
    )


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "llama"])
def test_the_command_trains_a_drafter_that_loads_like_a_published_one(family: str, data: Path, tmp_path: Path) -> None:
    folder = tiny.build(family, tmp_path / family, dtype=torch.bfloat16)
    if family == "llama":
        rows = [{"question": f"what is {index}?"} for index in range(8)]
        (data / "questions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert train(data, tmp_path / "out", folder) == 0
    engine = load(str(folder), drafter=str(tmp_path / "out" / "drafter"), policy="chain:depth=3")
    plain = load(str(folder), policy="none")
    pictures = [] if family == "llama" else [tiny.picture(1)]
    output = engine.generate(pictures, "what?", max_new_tokens=9)
    assert output.token_ids == plain.generate(pictures, "what?", max_new_tokens=9).token_ids
    assert output.stats.drafted > 0


def test_a_killed_run_goes_on_where_it_stopped(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    target = load(str(llava_folder), drafter="ngram", dtype="float32").target
    engine = load(str(llava_folder), drafter="ngram", dtype="float32")
    questions, held_out = load_questions(str(data), 99, 0)
    answered = answer_all(engine, questions, tmp_path / "answers.jsonl", max_new_tokens=8)

    def run(folder: Path, *limits: int) -> dict[str, torch.Tensor]:
        for steps in limits:
            torch.manual_seed(0)
            head = EagleHead(new_head_config(target))
            trainer = DrafterTrainer(
                target, head, DrafterSettings(steps=8, batch=2, evaluate_every=4), folder, precision="no"
            )
            if steps < 8:  # as if killed after the first checkpoint
                with pytest.raises(KeyboardInterrupt):
                    interrupted(trainer, steps).run(answered, held_out)
            else:
                trainer.run(answered, held_out)
        state: dict[str, torch.Tensor] = torch.load(folder / "checkpoint.pt", weights_only=True)["head"]
        return state

    def interrupted(trainer: DrafterTrainer, steps: int) -> DrafterTrainer:
        plain_step = trainer._step

        def step(chosen: list[Answered]) -> float:
            if trainer.progress.step >= steps:
                raise KeyboardInterrupt
            return plain_step(chosen)

        trainer._step = step  # type: ignore[method-assign,assignment]
        return trainer

    whole, resumed = run(tmp_path / "whole", 8), run(tmp_path / "resumed", 6, 8)
    for key in whole:  # kept hidden states come from batches of other sizes: equal but for rounding
        torch.testing.assert_close(whole[key], resumed[key], rtol=1e-3, atol=1e-4)


def test_answers_are_cached_whole_lines_only(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    engine = load(str(llava_folder), drafter="ngram")
    questions, _ = load_questions(str(data), 99, 0)
    cache = tmp_path / "answers.jsonl"
    first = answer_all(engine, questions, cache, max_new_tokens=6)
    whole = cache.read_bytes()
    cache.write_bytes(whole[: whole.index(b"\n", 40) + 9])  # killed in the middle of a line
    again = answer_all(engine, questions, cache, max_new_tokens=6)
    assert [a.token_ids for a in again] == [a.token_ids for a in first]
    assert cache.read_bytes() == whole


def test_an_unreadable_picture_leaves_its_question_out(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    (data / "4.png").write_bytes(b"no picture")
    engine = load(str(llava_folder), drafter="ngram")
    questions, held_out = load_questions(str(data), 99, 0)
    everything = [*questions, *held_out]
    answered = answer_all(engine, everything, tmp_path / "answers.jsonl", max_new_tokens=4)
    assert len(answered) == len(everything) - 1


def test_only_rows_that_predict_the_answer_are_graded(data: Path, llava_folder: Path) -> None:
    target = load(str(llava_folder), drafter="ngram", dtype="float64").target
    questions, _ = load_questions(str(data), 99, 0)
    answered = [Answered(question, (10 + index, 11, 12, 13)) for index, question in enumerate(questions[:3])]
    for pictures in (True, False):
        examples = make_examples(target, answered, pictures=pictures)
        assert examples.graded.sum(dim=1).tolist() == [3, 3, 3]  # token 1 comes from the prefill, 2..4 are drafted
        for row in range(3):
            graded = examples.graded[row].nonzero()[:, 0]
            assert examples.rows.token_ids[row, graded].tolist() == list(answered[row].token_ids[:-1])
            logits = target.logits(examples.wanted[row, graded])
            assert logits.shape == (3, target.vocab_size)


def test_kept_examples_are_those_made_anew(data: Path, llava_folder: Path) -> None:
    target = load(str(llava_folder), drafter="ngram", dtype="float64").target
    questions, _ = load_questions(str(data), 99, 0)
    answered = [Answered(question, tuple(range(10, 13 + index))) for index, question in enumerate(questions[:4])]
    store, small = (ExampleStore(target, pictures=True, budget_bytes=b) for b in (2**30, 1))
    for chosen in ([answered[0], answered[2]], [answered[3], answered[2], answered[2]], answered):
        wanted = make_examples(target, chosen, pictures=True)
        for found in (store.batch(chosen), small.batch(chosen)):
            assert torch.equal(found.graded, wanted.graded)
            assert found.rows.counts.tolist() == wanted.rows.counts.tolist()
            torch.testing.assert_close(found.wanted[wanted.graded], wanted.wanted[wanted.graded])


@pytest.mark.parametrize(("source", "words"), [("nowhere.jsonl", "nowhere.jsonl"), ("bad", "bad.jsonl:1")])
def test_bad_data_is_refused_by_file_and_line(source: str, words: str, tmp_path: Path) -> None:
    if source == "bad":
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "bad.jsonl").write_text('{"picture": 3}\n')
    with pytest.raises(InputError, match=words):
        load_questions(str(tmp_path / source), 9, 0)
