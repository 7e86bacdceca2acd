"""The command line as a user meets it: results on stdout, one line for each error, exit statuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from mmsmart import cli
from mmsmart.api import load


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "picture.png"
    tiny.picture(4).save(path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_is_the_last_line_and_equals_the_engine(
    capsys: pytest.CaptureFixture[str], llava_folder: Path, picture: str
) -> None:
    arguments = ("generate", picture, "what is it?", "--model", str(llava_folder), "--max-new-tokens", "12", "--json")
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    record = json.loads(out.splitlines()[-1])
    expected = load(str(llava_folder)).generate(picture, "what is it?", max_new_tokens=12)
    assert record["text"] == expected.text
    assert record["token_ids"] == expected.token_ids
    assert record["finish_reason"] == "length"
    assert record["stats"]["new_tokens"] == 12


def test_stream_prints_the_same_text(capsys: pytest.CaptureFixture[str], llava_folder: Path, picture: str) -> None:
    arguments = ("generate", picture, "what is it?", "--model", str(llava_folder), "--max-new-tokens", "12")
    _, whole, _ = run(capsys, *arguments)
    status, streamed, _ = run(capsys, *arguments, "--stream")
    assert (status, streamed) == (0, whole)


def test_several_pictures_and_none(capsys: pytest.CaptureFixture[str], qwen2_vl_folder: Path, picture: str) -> None:
    base = ("--model", str(qwen2_vl_folder), "--max-new-tokens", "9", "--json")
    _, two, _ = run(capsys, "generate", picture, "hm?", "--image", picture, *base)
    _, one, _ = run(capsys, "generate", picture, "hm?", *base)
    _, none, _ = run(capsys, "generate", "none", "hm?", *base)
    prompts = [json.loads(out.splitlines()[-1])["stats"]["prompt_tokens"] for out in (two, one, none)]
    assert prompts[0] > prompts[1] > prompts[2]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("generate", "missing.png", "hm?"), 1, "missing.png"),
        (("generate", "none", "  "), 2, "question is empty"),
        (("generate", "none", "hm?", "--temperature", "-1"), 2, "temperature must be at least 0, got -1.0"),
        (("generate", "none", "hm?", "--top-p", "1.7"), 2, "top_p must be in (0, 1], got 1.7"),
        (("generate", "none", "hm?", "--max-new-tokens", "0"), 2, "max_new_tokens"),
        (("generate", "none", "hm?", "--policy", "likelyhood"), 2, "did you mean 'likelihood'"),
        (("generate", "none", "hm?", "--policy", "chain:deep=3"), 2, "has no option 'deep'"),
        (("generate", "none", "hm?", "--drafter", "gram"), 2, "unknown drafter 'gram'"),
        (("generate", "none", "hm?", "--device", "abacus"), 2, "unknown device 'abacus'"),
        (("generate", "none", "hm?", "--dtype", "int3"), 2, "unknown dtype 'int3'"),
        (("generate", "none", "hm?", "--model", "./nowhere"), 1, "no such folder: ./nowhere"),
        (("generate", "none", "hm?", "--model", "no/such-model"), 1, "no/such-model"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], llava_folder: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    if "--model" not in arguments:
        arguments = (*arguments, "--model", str(llava_folder))
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (status, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [(), ("genrate",), ("generate", "a.png"), ("generate", "a", "b", "--nope")])
def test_usage_errors_exit_2_in_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_info_names_what_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "info", "--json")
    facts = json.loads(out)
    assert status == 0
    assert {"device", "torch", "transformers", "models", "drafters", "policies"} <= set(facts)
    assert "tiny-llava" in facts["models"]


def test_a_reader_that_goes_away_is_no_traceback(llava_folder: Path, picture: str) -> None:
    command = f"{sys.executable} -m mmsmart generate {picture} hm --model {llava_folder} --stream | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)
    assert b"Traceback" not in result.stderr
