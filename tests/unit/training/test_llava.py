"""The family "llava": growth changes nothing, packed rows are what they claim, the saved folder loads."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast

from mmsmart.errors import InputError, ModelError
from mmsmart.training.facts import sample_facts
from mmsmart.training.families import get_family
from mmsmart.training.language import LanguageReader, row_logits
from mmsmart.training.llava import build_model, grow
from mmsmart.training.pictures import draw_picture, pixels
from mmsmart.training.questions import heldout_samples, questions_about
from mmsmart.training.regress import PictureReader
from mmsmart.training.rows import RowEncoder
from mmsmart.training.saving import load_target, save_target
from mmsmart.training.score import answer_samples, prompt_of
from mmsmart.training.tokenizer import build_tokenizer
from mmsmart.training.vision import normalize


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def _inputs(tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    sample = heldout_samples(1)[0]
    prompt = f"<s>USER: {'<image>' * 64}\n{sample.question} ASSISTANT:"
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    images = normalize(torch.from_numpy(pixels([draw_picture(sample.facts)])))
    return {"input_ids": ids, "pixel_values": images}


@torch.no_grad()
@pytest.mark.parametrize("layers", [3, 5])
def test_growth_leaves_the_function_exactly_unchanged(tokenizer: PreTrainedTokenizerFast, layers: int) -> None:
    shallow = build_model(tokenizer, 2, seed=1).eval()
    deep = grow(shallow, layers).eval()
    assert deep.config.text_config.num_hidden_layers == layers
    inputs = _inputs(tokenizer)
    assert torch.equal(shallow(**inputs).logits, deep(**inputs).logits)


@torch.no_grad()
def test_picture_reader_equals_the_models_own_features(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(tokenizer, 1, seed=1).eval()
    images = _inputs(tokenizer)["pixel_values"]
    reader = PictureReader(model.model.vision_tower, model.model.multi_modal_projector)
    features = model.model.get_image_features(images)
    own = features.pooler_output if hasattr(features, "pooler_output") else features
    assert torch.equal(reader(images)[0], own[0])


@torch.no_grad()
def test_packed_rows_equal_single_questions(tokenizer: PreTrainedTokenizerFast) -> None:
    import random

    model = build_model(tokenizer, 2, seed=1).double().eval()
    facts = sample_facts(random.Random(2), "train")
    samples = questions_about(facts, 3, random.Random(3))
    encoder = RowEncoder(tokenizer, (8, 8), 0.3)
    reader = LanguageReader(model)
    visual = torch.randn(1, 64, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", enabled=False):
        packed = encoder.encode([samples], 384)
        embeddings = reader.text.get_input_embeddings()(packed.ids)
        embeddings[:, encoder.image_start : encoder.image_stop] = visual
        together = reader(embeddings, packed.attention_mask(), packed.positions)
        for span, sample in zip(packed.finals, samples, strict=True):
            single = encoder.encode([[sample]], 384)
            embeddings = reader.text.get_input_embeddings()(single.ids)
            embeddings[:, encoder.image_start : encoder.image_stop] = visual
            alone = reader(embeddings, single.attention_mask(), single.positions)
            own = single.finals[0]
            apart = alone[0, own.start : own.stop] - together[0, span.start : span.stop]
            assert apart.abs().max() < 1e-9


@torch.no_grad()
def test_row_logits_have_one_row_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    import random

    model = build_model(tokenizer, 1, seed=1).eval()
    facts = sample_facts(random.Random(2), "train")
    encoder = RowEncoder(tokenizer, (8, 8), 0.3)
    rows = encoder.encode([questions_about(facts, 2, random.Random(3))], 192)
    reader = LanguageReader(model)
    logits = row_logits(reader, reader, encoder, rows, torch.zeros(1, 64, 256))
    assert logits.shape == (1, 192, model.config.text_config.vocab_size)


def test_saved_folder_loads_and_answers(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_target(build_model(tokenizer, 1, seed=1), tokenizer, tmp_path)
    target = load_target(tmp_path)
    assert next(target.model.parameters()).dtype == torch.float32
    assert "Hi ASSISTANT:" in prompt_of(target, "Hi", 64)
    wide = target.image_processor(images=[Image.new("RGB", (300, 90))], return_tensors="pt").pixel_values
    assert wide.shape == (1, 3, 128, 128)
    facts = heldout_samples(1)[0].facts
    seen = target.image_processor(images=[draw_picture(facts)], return_tensors="pt").pixel_values
    assert torch.allclose(seen, normalize(torch.from_numpy(pixels([draw_picture(facts)]))), atol=1e-5)
    assert len(answer_samples(target, heldout_samples(3), batch=2)) == 3


def test_errors_name_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="train target"):
        load_target(tmp_path / "nothing")
    with pytest.raises(InputError, match="did you mean 'llava'"):
        get_family("lava")
