"""The tiny targets load like hub checkpoints, and the oracle is plain transformers fed with the right prompt."""

import json
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoProcessor

import tiny

VISION_FAMILIES = ("llava", "qwen2_vl")


@pytest.fixture
def folder(request, family):
    return request.getfixturevalue(f"{family}_folder")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_byte_is_one_token(family, folder):
    tokenizer = tiny.reference(folder).tokenizer
    text = "".join(map(chr, range(128))) + "é漢🙂 ¡\u00ad"
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    for token in tiny._VOCABULARIES[family].specials:
        assert tokenizer(f"a{token}b", add_special_tokens=False)["input_ids"][1] >= 256
    assert tokenizer.decode([104, 105, tokenizer.eos_token_id], skip_special_tokens=True) == "hi"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_dtype_seed_and_build_time(family, tmp_path):
    started = time.perf_counter()
    double = tiny.build(family, tmp_path / "a", seed=3)
    assert time.perf_counter() - started < 5  # far less when nothing else runs
    single = tiny.build(family, tmp_path / "b", seed=3, dtype=torch.float32)
    other = tiny.build(
        family, tmp_path / "c", seed=4, extra_vocab=5, num_hidden_layers=2, generation={"repetition_penalty": 1.3}
    )
    models = [tiny.reference(each).model for each in (double, single, other)]
    assert [model.dtype for model in models] == [torch.float64, torch.float32, torch.float64]
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(a.float(), b) for a, b in pairs)
    assert models[2].get_output_embeddings().weight.shape[0] == models[0].get_output_embeddings().weight.shape[0] + 5
    assert models[2].config.get_text_config().num_hidden_layers == 2
    assert models[2].generation_config.repetition_penalty == 1.3
    assert json.loads((other / "generation_config.json").read_text())["repetition_penalty"] == 1.3


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_output_is_varied(family, seed, tmp_path):
    folder = tiny.build(family, tmp_path, seed=seed)
    pictures = [None, tiny.picture(1), tiny.picture(2)] if family in VISION_FAMILIES else [None]
    for question in ("what is it?", "how many?"):
        outputs = [tiny.reference_generate(folder, image, question) for image in pictures]
        assert len({tuple(output) for output in outputs}) == len(pictures)
        for output in outputs:
            assert len(output) == 40
            assert len(set(output)) > 10


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_session_targets_answer_at_length(family, folder):
    image = tiny.picture(0) if family in VISION_FAMILIES else None
    output = tiny.reference_generate(folder, image, "what is it?")
    assert len(output) == 40
    assert len(set(output)) > 10
    model = tiny.reference(folder).model
    assert tiny.reference_generate(model, image, "what is it?") == output
    stopped = tiny.reference_generate(folder, image, "what is it?", eos_token_id=output[4])
    assert stopped == output[: output.index(output[4]) + 1]


def test_prompts(llava_folder, qwen2_vl_folder, llama_folder, qwen2_folder):
    def prompt(folder, images):
        return tiny.reference(folder).tokenizer.decode(tiny.reference_inputs(folder, images, "why?")["input_ids"][0])

    one, two = tiny.picture(0), tiny.picture(1, (30, 90))
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    end = "why?<|im_end|>\n<|im_start|>assistant\n"
    vision = "<|vision_start|>{}<|vision_end|>"
    assert prompt(llava_folder, one) == "<s>USER: " + "<image>" * 4 + "\nwhy? ASSISTANT:"
    assert prompt(llava_folder, [one, two]) == "<s>USER: " + ("<image>" * 4 + "\n") * 2 + "why? ASSISTANT:"
    assert prompt(llava_folder, None) == "<s>USER: why? ASSISTANT:"
    pads = [vision.format("<|image_pad|>" * count) for count in (4, 3)]
    assert prompt(qwen2_vl_folder, [one, two]) == system + pads[0] + pads[1] + end
    assert prompt(qwen2_vl_folder, None) == prompt(qwen2_folder, None) == system + end
    assert prompt(llama_folder, None) == "<s>[user] why?\n[assistant] "


def test_llava_inputs_are_those_of_its_processor(llava_folder):
    processor = AutoProcessor.from_pretrained(llava_folder)
    content = [{"type": "image", "image": tiny.picture(5)}, {"type": "text", "text": "why?"}]
    chat = [{"role": "user", "content": content}]
    expected = processor.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    inputs = tiny.reference_inputs(llava_folder, tiny.picture(5), "why?")
    assert torch.equal(inputs["input_ids"], expected["input_ids"])
    assert torch.equal(inputs["pixel_values"], expected["pixel_values"].double())


def test_qwen2_vl_positions_are_those_of_pictures(qwen2_vl_folder):
    images = [tiny.picture(0, (90, 60)), tiny.picture(1, (40, 112))]
    inputs = tiny.reference_inputs(qwen2_vl_folder, images, "why?")
    model = tiny.reference(qwen2_vl_folder).model
    positions, delta = model.model.get_rope_index(
        **{name: inputs[name] for name in ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")}
    )
    assert not torch.equal(positions[0], positions[1])
    assert delta.item() < 0
    assert int(positions.max()) + 1 - inputs["input_ids"].shape[1] == delta.item()
    first = tiny.reference_generate(qwen2_vl_folder, images, "why?")
    tiny.reference_generate(qwen2_vl_folder, None, "and now?")
    assert tiny.reference_generate(qwen2_vl_folder, images, "why?") == first
    del inputs["mm_token_type_ids"]
    output = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    assert output[0, inputs["input_ids"].shape[1] :].tolist() != first


def test_picture():
    assert tiny.picture(1, (30, 20)).size == (30, 20)
    assert tiny.picture(1).tobytes() == tiny.picture(1).tobytes() != tiny.picture(2).tobytes()


def test_the_oracle_does_not_know_mmsmart():
    lines = Path(tiny.__file__).read_text().splitlines()
    assert not [line for line in lines if line.startswith(("import mmsmart", "from mmsmart"))]
