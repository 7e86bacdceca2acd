"""Plain decoding through mmsmart's loop against transformers' ``generate``: speed, per-round overhead, peak memory.

    python eval/plain_decode.py --batch 1,8 --json eval/results/plain_decode.json

Both sides start from the same pictures and questions, answer greedily without an EOS for a fixed number of tokens, in
one process, in turn (ours, theirs, ours, ...); figures are medians. Peak memory is taken in a process of its own for
each side.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import mmsmart
from mmsmart.embedded import model_folder
from mmsmart.engine import Engine, Request
from mmsmart.registry import EMBEDDED_MODELS
from mmsmart.training.pictures import draw_picture
from mmsmart.training.questions import heldout_samples

Sample = tuple[Any, str]


class Transformers:
    """The other side, as its users write it: processor with left padding, then ``generate``."""

    def __init__(self, folder: str, engine: Engine) -> None:
        self.model = engine.target.model
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        self.processor.tokenizer.padding_side = "left"

    def answer(self, samples: list[Sample], tokens: int) -> Any:
        """New ids ``[B, tokens]``."""
        prompts = [
            self.processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}],
                add_generation_prompt=True,
            )
            for _, question in samples
        ]
        special = not prompts[0].startswith(self.processor.tokenizer.bos_token)
        pictures = [picture for picture, _ in samples]
        inputs = self.processor(
            images=pictures, text=prompts, padding=True, add_special_tokens=special, return_tensors="pt"
        )
        with torch.inference_mode():
            ids = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        return ids[:, inputs["input_ids"].shape[1] :]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds and result of a call."""
    start = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - start), result


def compare(engine: Engine, other: Transformers, samples: list[Sample], tokens: int, repeats: int) -> dict[str, Any]:
    """Medians of both sides for one batch, interleaved."""
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    sampling = mmsmart.SamplingParams(max_new_tokens=tokens)
    requests = [Request(picture, question, sampling) for picture, question in samples]
    identical = True
    for turn in range(repeats + 1):
        engine.target.forget_images()
        ours_ms, outputs = timed(lambda: engine.generate_batch(requests))
        first_ms, _ = timed(lambda: other.answer(samples, 1))
        theirs_ms, ids = timed(lambda: other.answer(samples, tokens))
        if turn == 0:
            identical = [o.token_ids for o in outputs] == ids.tolist()
            continue  # warm-up
        stats = outputs[0].stats  # rows of one length are in every round together
        note("ours_ms", ours_ms)
        note("theirs_ms", theirs_ms)
        note("ours_decode_ms", stats.decode_ms)
        note("theirs_decode_ms", theirs_ms - first_ms)
        note("ours_first_token_ms", ours_ms - stats.decode_ms)
        note("theirs_first_token_ms", first_ms)
        note("speed", theirs_ms / ours_ms)
        note("decode_speed", (theirs_ms - first_ms) / stats.decode_ms)
        note("overhead", 1 - stats.verify_ms / stats.decode_ms)
    result: dict[str, Any] = {name: round(statistics.median(values), 3) for name, values in rows.items()}
    return result | {"batch": len(samples), "tokens": tokens, "identical": identical}


def peak_memory(arguments: argparse.Namespace, side: str, batch: int) -> float:
    """Peak resident MB of a process that only answers one batch on one side (Linux)."""
    command = [sys.executable, __file__, "--model", arguments.model, "--side", side, "--batch", str(batch)]
    command += ["--tokens", str(arguments.tokens), "--threads", str(arguments.threads)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def one_side(arguments: argparse.Namespace, engine: Engine, other: Transformers, samples: list[Sample]) -> None:
    """Answers one batch on one side and prints the process's peak memory."""
    if arguments.side == "ours":
        sampling = mmsmart.SamplingParams(max_new_tokens=arguments.tokens)
        engine.generate_batch([Request(picture, question, sampling) for picture, question in samples])
    else:
        other.answer(samples, arguments.tokens)
    status = Path("/proc/self/status").read_text()  # ru_maxrss would begin at the parent's
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def main() -> None:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llava", help="embedded name or folder")
    parser.add_argument("--batch", default="1,8", help="batch sizes, separated by commas")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of every answer")
    parser.add_argument("--repeats", type=int, default=15, help="turns, of which medians are taken")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sizes = [int(size) for size in arguments.batch.split(",")]
    folder = str(model_folder(arguments.model)) if arguments.model in EMBEDDED_MODELS else arguments.model
    engine = mmsmart.load(arguments.model, policy="none", dtype="float32")
    engine.target.model.generation_config.eos_token_id = None
    engine.target.tokenizer.eos_token = None
    other = Transformers(folder, engine)
    drawn = [(draw_picture(sample.facts), sample.question) for sample in heldout_samples(max(sizes))]
    if arguments.side:
        one_side(arguments, engine, other, drawn[: sizes[0]])
        return
    table = []
    for size in sizes:
        row = compare(engine, other, drawn[:size], arguments.tokens, arguments.repeats)
        memory = {side: peak_memory(arguments, side, size) for side in ("ours", "theirs")}
        row |= {f"{side}_peak_mb": round(mb, 1) for side, mb in memory.items()}
        row["memory_ratio"] = round(memory["ours"] / memory["theirs"], 3)
        table.append(row)
        print("\n".join(f"{name:18} {value}" for name, value in row.items()), end="\n\n")
    record = {
        "command": " ".join(["python", *sys.argv]),
        "model": arguments.model,
        "dtype": "float32",
        "threads": arguments.threads,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": table,
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
