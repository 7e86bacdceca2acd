"""Training a drafter: the target's own answers, a resumable loop, a checkpoint in the published layout."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

import tiny
from mmsmart import cli
from mmsmart.api import load
from mmsmart.drafters.head import EagleHead
from mmsmart.engine import Engine
from mmsmart.errors import InputError
from mmsmart.training.drafter.answers import Answered, answer_all, read_answers, usable
from mmsmart.training.drafter.examples import Examples, ExampleStore, make_example
from mmsmart.training.drafter.loop import DrafterSettings, DrafterTrainer, head_loss
from mmsmart.training.drafter.publish import new_head_config
from mmsmart.training.drafter.questions import Question, load_questions
from mmsmart.training.drafter.unroll import UnrolledHead


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
    source = data / "questions.jsonl" if family == "llama" else data  # a file will do, and a folder of them
    assert train(source, tmp_path / "out", folder) == 0
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
    answer_all(engine, questions, tmp_path, max_new_tokens=8)
    answered = read_answers(target, questions, tmp_path, max_new_tokens=8)

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
    assert whole.keys() == resumed.keys()
    for key in whole:
        assert torch.equal(whole[key], resumed[key]), key


def answers(engine: Engine, questions: list[Question], folder: Path, length: int = 6) -> list[Answered]:
    answer_all(engine, questions, folder, max_new_tokens=length)
    return read_answers(engine.target, questions, folder, max_new_tokens=length)


def test_answers_are_cached_whole_lines_only(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    engine = load(str(llava_folder), drafter="ngram")
    questions, _ = load_questions(str(data), 99, 0)
    first, cache = answers(engine, questions, tmp_path), tmp_path / "answers-0.jsonl"
    whole = cache.read_bytes()
    cache.write_bytes(whole[: whole.index(b"\n", 40) + 9])  # killed in the middle of a line
    assert answers(engine, questions, tmp_path) == first
    assert cache.read_bytes() == whole
    engine.target.model.forward = None  # from here on no model work is left
    assert answers(engine, questions[::-1], tmp_path) == first[::-1]
    cache.write_bytes(whole + b"{}\n")
    with pytest.raises(InputError, match=f"{cache}:{len(questions) + 1} is no answer"):
        answers(engine, questions, tmp_path)


def test_answers_of_another_length_or_to_other_questions_are_not_taken_for_these(
    data: Path, tmp_path: Path, llava_folder: Path
) -> None:
    engine = load(str(llava_folder), drafter="ngram")
    questions, held_out = load_questions(str(data), 99, 0)
    long, short = answers(engine, questions, tmp_path, 6), answers(engine, questions, tmp_path, 4)
    assert [len(a.token_ids) for a in long] == [6] * len(questions)
    assert [a.token_ids for a in short] == [a.token_ids[:4] for a in long]
    assert [a.question for a in answers(engine, held_out, tmp_path)] == held_out
    with pytest.raises(InputError, match="none of 11 questions got an answer of two tokens"):
        answers(engine, questions, tmp_path, 1)


def test_processes_share_the_questions(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    engine = load(str(llava_folder), drafter="ngram")
    questions, _ = load_questions(str(data), 99, 0)
    for process in range(2):
        answer_all(engine, questions, tmp_path / "two", max_new_tokens=6, share=(process, 2))
    lines = [len(path.read_text().splitlines()) for path in sorted((tmp_path / "two").iterdir())]
    assert sum(lines) == len(questions)
    assert min(lines) > 1
    together = read_answers(engine.target, questions, tmp_path / "two", max_new_tokens=6)
    assert together == answers(engine, questions, tmp_path / "one")


def test_an_unreadable_picture_leaves_its_question_out(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    (data / "4.png").write_bytes(b"no picture")
    engine = load(str(llava_folder), drafter="ngram")
    questions, held_out = load_questions(str(data), 99, 0)
    everything = [*questions, *held_out]
    bad = [q for q in everything if q.picture and q.picture[0].name == "4.png"]
    assert [a.question for a in answers(engine, everything, tmp_path)] == [q for q in everything if q not in bad]
    assert usable(engine, everything) == [q for q in everything if q not in bad]
    with pytest.raises(InputError, match="none of 1 held-out"):
        usable(engine, bad)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_every_precision_trains_a_head_for_targets_of_either_dtype(
    precision: str, dtype: str, data: Path, tmp_path: Path, qwen2_vl_folder: Path
) -> None:
    def trained(name: str, precision: str, dtype: str) -> tuple[EagleHead, dict[str, float]]:
        AcceleratorState._reset_state(reset_partial_state=True)  # one precision a process, otherwise
        engine = load(str(qwen2_vl_folder), drafter="ngram", dtype=dtype)
        questions, held_out = load_questions(str(data), 99, 0)
        torch.manual_seed(0)
        head = EagleHead(new_head_config(engine.target))
        settings = DrafterSettings(steps=3, batch=4, evaluate_every=3)
        chosen = [Answered(question, tuple(range(30, 40))) for question in questions]
        trainer = DrafterTrainer(engine.target, head, settings, tmp_path / name, precision)
        return trainer.run(chosen, held_out), trainer.progress.curve[-1]

    head, point = trained("this", precision, dtype)
    reference, expected = trained("plain", "no", "float32")
    AcceleratorState._reset_state(reset_partial_state=True)
    assert {p.dtype for p in head.parameters()} == {torch.float32}
    assert point["acceptance_length"] >= 1
    assert point["loss"] == pytest.approx(expected["loss"], rel=0.05)
    moved = torch.cosine_similarity(*(h.fc.weight.flatten() for h in (head, reference)), dim=0)
    assert moved > 0.95


def test_two_processes_train_one_head(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command = [*("-m", "mmsmart", "train", "drafter", "--target", str(llava_folder), "--data", str(data))]
    command += ["--out", str(tmp_path / "out"), "--steps", "4", "--batch", "2", "--evaluate-every", "2"]
    command += ["--max-new-tokens", "8", "--threads", "1", "--minutes", "5"]
    done = subprocess.run([sys.executable, *launcher, *command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("best held-out acceptance length") == 1
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"answers-0.jsonl", "answers-1.jsonl", "best.pt", "checkpoint.pt", "curve.json", "drafter"}
    assert [point["step"] for point in json.loads((tmp_path / "out" / "curve.json").read_text())] == [2, 4]
    assert load(str(llava_folder), drafter=str(tmp_path / "out" / "drafter")).drafter.needs_hidden_states


def test_training_stops_early_and_keeps_the_best(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    target = load(str(llava_folder), drafter="ngram", dtype="float32").target
    questions, held_out = load_questions(str(data), 99, 0)
    settings = DrafterSettings(steps=99, batch=2, evaluate_every=1, patience=2, learning_rate=0.0)
    chosen = [Answered(question, tuple(range(30, 40))) for question in questions]
    trainer = DrafterTrainer(target, EagleHead(new_head_config(target)), settings, tmp_path, "no")
    trainer.run(chosen, held_out)
    assert trainer.progress.step == 3  # the first is the best, two more are no better
    assert len(trainer.progress.curve) == 3


def test_only_rows_that_predict_the_answer_are_graded(data: Path, llava_folder: Path) -> None:
    target = load(str(llava_folder), drafter="ngram", dtype="float64").target
    questions, _ = load_questions(str(data), 99, 0)
    answered = [Answered(question, (10 + index, 11, 12, 13)) for index, question in enumerate(questions[:3])]
    for pictures in (True, False):
        examples = Examples.stacked([make_example(target, one, pictures=pictures) for one in answered])
        assert examples.graded.sum(dim=1).tolist() == [3, 3, 3]  # token 1 comes from the prefill, 2..4 are drafted
        for row in range(3):
            graded = examples.graded[row].nonzero()[:, 0]
            assert examples.rows.token_ids[row, graded].tolist() == list(answered[row].token_ids[:-1])
            logits = target.logits(examples.wanted[row, graded])
            assert logits.shape == (3, target.vocab_size)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_an_example_is_the_same_whatever_stands_beside_it_and_whatever_is_kept(
    family: str, data: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(f"{family}_folder")
    target = load(str(folder), drafter="ngram", dtype="float32").target
    questions, _ = load_questions(str(data), 99, 0)
    answered = [Answered(question, tuple(range(10, 13 + index))) for index, question in enumerate(questions[:4])]
    alone = [make_example(target, one, pictures=True) for one in answered]
    store, small = (ExampleStore(target, pictures=True, budget_bytes=b) for b in (2**30, 1))
    target.embed_images([target.encode(one.question.pictures(), one.question.text) for one in answered])
    for chosen in ([0, 2], [3, 2, 2], [0, 1, 2, 3]):
        for (found,) in (kept.batches([answered[i] for i in chosen]) for kept in (store, small)):
            for row, index in enumerate(sorted(chosen)):  # the shortest first
                count, rows = int(alone[index].rows.counts[0]), found.rows
                assert int(rows.counts[row]) == count
                assert torch.equal(rows.token_ids[row, :count], alone[index].rows.token_ids[0])
                assert torch.equal(rows.states[row, :count], alone[index].rows.states[0])
                assert torch.equal(rows.is_picture[row, :count], alone[index].rows.is_picture[0])
                assert torch.equal(found.wanted[row, :count], alone[index].wanted[0])
                assert torch.equal(found.graded[row, :count], alone[index].graded[0])
                assert not found.graded[row, count:].any()


@pytest.mark.parametrize(("source", "words"), [("nowhere.jsonl", "nowhere.jsonl"), ("bad", "bad.jsonl:1")])
def test_bad_data_is_refused_by_file_and_line(source: str, words: str, tmp_path: Path) -> None:
    if source == "bad":
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "bad.jsonl").write_text('{"picture": 3}\n')
    with pytest.raises(InputError, match=words):
        load_questions(str(tmp_path / source), 9, 0)


def test_a_run_begins_with_a_published_head_and_is_not_gone_on_with_under_other_settings(
    data: Path, tmp_path: Path, llava_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, tmp_path / "first", llava_folder) == 0
    start = ("--start", str(tmp_path / "first" / "drafter"), "--card-questions", "1")
    assert train(data, tmp_path / "second", llava_folder, *start, "--learning-rate", "1e-9") == 0
    first, second = (load_file(tmp_path / name / "drafter" / "model.safetensors") for name in ("first", "second"))
    for key, value in first.items():  # at this rate nothing is learned beyond the last bit of a bfloat16
        assert torch.allclose(value.float(), second[key].float(), rtol=1e-2, atol=1e-6)
    assert train(data, tmp_path / "second", llava_folder, *start, "--learning-rate", "1e-3") == 2
    assert "learning_rate 1e-09, now 0.001" in capsys.readouterr().err
    more = (*start, "--learning-rate", "1e-9", "--steps", "9")  # a longer run is the same run
    assert train(data, tmp_path / "second", llava_folder, *more) == 0
    assert json.loads((tmp_path / "second" / "curve.json").read_text())[-1]["step"] == 9


def test_the_card_has_a_table_for_every_source(data: Path, tmp_path: Path, llava_folder: Path) -> None:
    mixture = ("--data", str(data), "mmsmart-foreign", "--questions", "6", "4", "--card-questions", "1")
    assert train(data, tmp_path / "out", llava_folder, *mixture) == 0
    card = (tmp_path / "out" / "drafter" / "README.md").read_text()
    assert f"Questions of `{data}`" in card
    assert "Questions of `mmsmart-foreign`" in card
    assert card.count("| all | chain of 5 |") == 2


def test_a_step_reads_its_sequences_in_parts_of_like_lengths(data: Path, llava_folder: Path) -> None:
    target = load(str(llava_folder), drafter="ngram", dtype="float32").target
    questions, _ = load_questions(str(data), 99, 0)
    answered = [Answered(question, tuple(range(10, 13 + 9 * (index % 3)))) for index, question in enumerate(questions)]
    store = ExampleStore(target, pictures=True)
    whole, parts = store.batches(answered)[0], store.batches(answered, 3)
    assert sum(len(part.graded) for part in parts) == len(answered)
    assert sum(part.graded.numel() for part in parts) < whole.graded.numel()
    torch.manual_seed(0)
    model = UnrolledHead(EagleHead(new_head_config(target)), 2)
    settings, total = DrafterSettings(), int(whole.graded.sum())
    together = head_loss(model, target, whole, settings)
    apart = sum(head_loss(model, target, part, settings) * (int(part.graded.sum()) / total) for part in parts)
    assert torch.allclose(together, torch.as_tensor(apart), rtol=1e-5)
