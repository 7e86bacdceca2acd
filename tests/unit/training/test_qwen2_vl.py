"""The family "qwen2_vl": batched towers and positions equal transformers' own, growth changes nothing, it all runs."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast

import mmsmart
from mmsmart.errors import ModelError
from mmsmart.training.__main__ import main
from mmsmart.training.facts import sample_facts
from mmsmart.training.growth import grow
from mmsmart.training.language import LanguageReader, OracleReader
from mmsmart.training.oracle import OracleTokens
from mmsmart.training.pictures import draw_picture, draw_varied, pixels
from mmsmart.training.questions import heldout_samples, questions_about
from mmsmart.training.qwen2_vl import Qwen2VLFamily, build_model
from mmsmart.training.rows import RowEncoder, SizedEncoders
from mmsmart.training.saving import LoadedTarget, load_target
from mmsmart.training.score import answer_pictures, prompt_of
from mmsmart.training.tokenizer import build_tokenizer as build_llava_tokenizer
from mmsmart.training.vision import normalize
from mmsmart.training.warm import adopt_weights
from tiny import reference_generate

FAMILY = Qwen2VLFamily()
SIZES = [(128, 128), (144, 112), (96, 96), (160, 128)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return FAMILY.build_tokenizer()


@pytest.fixture(scope="module")
def saved(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = build_model(tokenizer, 2, seed=1)
    torch.nn.init.normal_(model.lm_head.weight, generator=torch.Generator().manual_seed(0))
    FAMILY.save(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def target(saved: Path) -> LoadedTarget:
    return load_target(saved)


def _images(size: tuple[int, int], count: int = 2) -> list[Image.Image]:
    rng = random.Random(3)
    return [draw_varied(sample_facts(rng, "train"), rng, size) for _ in range(count)]


def _inputs(target: LoadedTarget, size: tuple[int, int]) -> dict[str, Any]:
    processed = target.image_processor(images=_images(size, 1), return_tensors="pt")
    rows, columns = FAMILY.view.grid(size)
    ids = target.tokenizer(prompt_of(target, "What is this?", rows * columns), return_tensors="pt").input_ids
    types = (ids == target.model.config.image_token_id).int()
    return {"input_ids": ids, "mm_token_type_ids": types, **processed}


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
def test_batched_tower_equals_transformers_own(target: LoadedTarget, size: tuple[int, int]) -> None:
    images = _images(size)
    processed = target.image_processor(images=images, return_tensors="pt")
    own = target.model.get_image_features(processed["pixel_values"], processed["image_grid_thw"]).pooler_output
    batch = normalize(torch.from_numpy(pixels(images)))
    tokens = FAMILY.projector(target.model)(FAMILY.view.features(FAMILY.tower(target.model), batch))
    assert tokens.shape[1] == len(own[0])
    for row, expected in zip(tokens, own, strict=True):
        assert torch.allclose(row, expected, atol=2e-5)


@pytest.mark.parametrize("size", SIZES)
def test_positions_equal_get_rope_index(target: LoadedTarget, size: tuple[int, int]) -> None:
    sample = heldout_samples(1)[0]
    rows = RowEncoder(target.tokenizer, FAMILY.view.grid(size), 0.3, FAMILY.form).encode([[sample]], 256)
    length = int((rows.segments >= 0).sum())
    ids = rows.ids[:, :length]
    grid = target.image_processor(images=_images(size, 1), return_tensors="pt")["image_grid_thw"]
    types = (ids == target.model.config.image_token_id).int()
    positions, _ = target.model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grid)
    assert torch.equal(rows.positions[:, :, :length], positions)


def test_rows_are_what_the_chat_template_writes(target: LoadedTarget) -> None:
    sample = heldout_samples(1)[0]
    rows = RowEncoder(target.tokenizer, (8, 8), 0.3, FAMILY.form).encode([[sample]], 256)
    prompt = prompt_of(target, sample.question, 64) + f" {sample.answer}<|im_end|>"
    ids = target.tokenizer(prompt).input_ids
    assert rows.ids[0, : len(ids)].tolist() == ids
    assert int((rows.segments >= 0).sum()) == len(ids)
    as_text = [{"role": "user", "content": sample.question}]
    assert sample.question in target.tokenizer.apply_chat_template(as_text, tokenize=False)


def test_packed_rows_equal_single_questions(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(tokenizer, 2, seed=1).double().eval()
    samples = questions_about(sample_facts(random.Random(2), "train"), 3, random.Random(3))
    encoder = SizedEncoders(tokenizer, FAMILY.view, FAMILY.form, 0.3)((144, 112))
    reader = LanguageReader(model)

    def logits(asked: list[Any]) -> tuple[torch.Tensor, Any]:
        rows = encoder.encode([asked], 384)
        return reader(reader.table[rows.ids], rows.attention_mask(), rows.positions), rows

    with torch.no_grad():
        together, packed = logits(samples)
        for span, sample in zip(packed.finals, samples, strict=True):
            alone, single = logits([sample])
            own = single.finals[0]
            assert (alone[0, own.start : own.stop] - together[0, span.start : span.stop]).abs().max() < 1e-9


@torch.no_grad()
@pytest.mark.parametrize("layers", [3, 5])
def test_growth_leaves_the_function_exactly_unchanged(target: LoadedTarget, layers: int) -> None:
    deep = grow(target.model, layers).eval()
    assert deep.config.text_config.num_hidden_layers == layers
    inputs = _inputs(target, (144, 112))
    assert torch.equal(target.model(**inputs).logits, deep(**inputs).logits)


def test_words_have_the_ids_of_the_other_family(tokenizer: PreTrainedTokenizerFast) -> None:
    other = build_llava_tokenizer()
    for text in ("Which bar is the tallest?", " The value of tea is 35.", " It shows big red star.\n"):
        assert tokenizer(text).input_ids == other(text, add_special_tokens=False).input_ids
    assert len(tokenizer("<|im_start|>assistant\n").input_ids) == 3


def test_warm_start_keeps_fast_rotary_pairs(tokenizer: PreTrainedTokenizerFast) -> None:
    own = OracleReader(LanguageReader(build_model(tokenizer, 1, seed=1)), OracleTokens(tokenizer, 0, 256)).state_dict()
    other = {name: torch.randn(weight.shape) for name, weight in own.items() if not name.endswith(".bias")}
    adopted = adopt_weights(own, other, FAMILY.rotary_pairs)
    name = "reader.text.layers.0.self_attn.q_proj.weight"
    assert torch.equal(adopted[name][32 + 16 + 6], other[name][32 + 16 + 3])
    assert not adopted[name.replace("weight", "bias")].any()
    with pytest.raises(ModelError, match=r"norm\.weight is missing there"):
        adopt_weights(own, {k: v for k, v in other.items() if k != "reader.text.norm.weight"}, FAMILY.rotary_pairs)


@pytest.mark.parametrize(("size", "grid"), [((128, 128), 64), ((384, 384), 64), ((112, 144), 63), ((48, 48), 16)])
def test_pictures_keep_their_resolution(target: LoadedTarget, size: tuple[int, int], grid: int) -> None:
    processed = target.image_processor(images=[Image.new("RGB", size)], return_tensors="pt")
    assert int(processed["image_grid_thw"].prod()) == 4 * grid


def test_engine_and_batches_answer_as_generate(saved: Path, target: LoadedTarget) -> None:
    facts = sample_facts(random.Random(1), "heldout")
    picture = draw_picture(facts, 144).resize((144, 112))
    expected = reference_generate(saved, picture, "What is this?", max_new_tokens=12)
    engine = mmsmart.load(str(saved), dtype="float32")
    output = engine.generate(picture, "What is this?", max_new_tokens=12)
    assert list(output.token_ids) == expected
    answers = answer_pictures(target, [picture, draw_picture(facts)], ["What is this?", "How many bars are there?"])
    assert len(answers) == 2


def test_smoke_run_end_to_end(tmp_path: Path) -> None:
    first, second = tmp_path / "llava", tmp_path / "qwen"
    for stage in ("drill", "main"):
        assert main(["target", "--out", str(first), "--preset", "smoke", "--stage", stage]) == 0
    command = ["target", "--family", "qwen2_vl", "--out", str(second), "--preset", "smoke", "--questions", "1"]
    assert main([*command, "--warm-start", str(first)]) == 0
    card = (second / "model" / "README.md").read_text()
    assert "--warm-start" in card
    assert "144x112" in card
    assert "<|vision_start|><|image_pad|><|vision_end|>{question}<|im_end|>" in card
    assert (second / "model" / "model.safetensors").stat().st_size < 24_000_000
    assert main(["score", "--model", str(second / "model"), "--questions", "1", "--size", "96x96"]) == 0
    assert main(["score", "--model", str(second / "model"), "--size", "96"]) == 2
