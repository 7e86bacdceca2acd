"""What people hand to a model in practice (G13..G24 and the picture traps), replayed against plain transformers."""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import transformers
from PIL import Image

import mmsmart
import support
import tiny
from drafters import ScriptedDrafter
from mmsmart import images
from support import LENGTH, ROWS, VLMS, Row


@pytest.fixture
def folder(request, family):
    return request.getfixturevalue(f"{family}_folder")


@pytest.fixture(scope="module")
def engines(llava_folder, qwen2_vl_folder):
    """Engines that no test changes."""
    return {"llava": support.load(llava_folder, "chain"), "qwen2_vl": support.load(qwen2_vl_folder, "chain")}


def answer(engine, image, question="What?"):
    return engine.generate(image, question, max_new_tokens=LENGTH).token_ids


def plain(folder, image, question="What?"):
    return tiny.reference_generate(folder, image, question, max_new_tokens=LENGTH)


SHORT_AND_LONG = (
    Row("What?", ((1, (60, 48)),)),
    Row("How many bars are there in this picture?", ((2, (60, 48)),)),
)


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("rows", [SHORT_AND_LONG, ROWS], ids=["short and long", "ragged"])
@pytest.mark.parametrize("kind", ["right", "wrong", "ngram"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_g13_padding_changes_no_answer(family, folder, rows, kind, side):
    answers = [support.expected(folder, row) for row in rows]
    engine = support.load(folder, "likelihood:depth=2,top_k=3,total=8", support.drafter_of(kind, answers))
    engine.target.tokenizer.padding_side = side
    for _ in range(2):
        outputs = engine.generate_batch([row.request() for row in rows])
        assert [output.token_ids for output in outputs] == answers
    assert engine.target.tokenizer.padding_side == side


@pytest.mark.parametrize(
    ("family", "token"),
    [
        ("llava", "<image>"),
        ("qwen2_vl", "<|image_pad|>"),
        ("qwen2_vl", "<|video_pad|>"),
        ("qwen2_vl", "<|vision_start|>"),
    ],
)
@pytest.mark.parametrize("with_picture", [True, False])
def test_g14_a_placeholder_in_the_question_is_an_error_that_names_it(family, token, with_picture, folder):
    engine = support.load(folder)
    forwards = support.language_forwards(engine)
    picture = tiny.picture(1) if with_picture else None
    with pytest.raises(mmsmart.InputError) as caught:
        engine.generate(picture, f"what does {token} mean")
    assert token in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(mmsmart.InputError, match="request 1"):
        engine.generate_batch([ROWS[0].request(), mmsmart.Request(picture, token)])
    assert forwards.count == 0
    assert support.ask(engine, ROWS[0]).token_ids == support.expected(folder, ROWS[0])


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("size", [(27, 40), (10, 10), (332, 27), (40, 4), (28, 28)])
def test_g15_small_pictures_are_answered(family, size, folder, engines):
    picture = tiny.picture(5, size)
    assert answer(engines[family], picture) == plain(folder, picture)


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize(
    ("size", "scaled"), [((1, 1), (28, 28)), ((3, 3), (28, 28)), ((1, 3), (28, 56)), ((3, 1), (56, 28))]
)
def test_g15_the_smallest_pictures_are_those_of_their_colour(family, size, scaled, folder, engines):
    # One to three pixels a side look like a channel axis; in one colour they must be what a larger one is.
    colour = (200, 30, 90)
    larger = Image.new("RGB", scaled, colour)
    assert answer(engines[family], Image.new("RGB", size, colour)) == plain(folder, larger)
    assert plain(folder, larger) != plain(folder, Image.new("RGB", larger.size, (30, 200, 90)))


@pytest.mark.parametrize(("size", "ratio"), [((5, 1100), "220"), ((1, 201), "201"), ((201, 1), "201")])
def test_g16_an_extreme_aspect_ratio_is_refused_before_model_work(size, ratio, qwen2_vl_folder):
    engine = support.load(qwen2_vl_folder)
    language, vision = support.language_forwards(engine), support.vision_forwards(engine)
    with pytest.raises(mmsmart.ImageError, match=ratio) as caught:
        engine.generate(Image.new("RGB", size), "What?")
    assert "200" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert language.count == vision.count == 0
    assert support.ask(engine, ROWS[0]).token_ids == support.expected(qwen2_vl_folder, ROWS[0])


@pytest.mark.parametrize("size", [(1, 200), (200, 1), (4, 800)])
def test_g16_an_aspect_ratio_of_200_is_answered(size, engines):
    assert len(answer(engines["qwen2_vl"], tiny.picture(1, size))) == LENGTH


@pytest.mark.parametrize("size", [(1, 300), (300, 1)])
def test_g16_llava_takes_any_aspect_ratio(size, engines):
    assert len(answer(engines["llava"], tiny.picture(1, size))) == LENGTH


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("route", ["pil", "png", "palette"])
def test_g17_hidden_colours_of_transparent_pixels_stay_hidden(family, route, folder, engines):
    clear = Image.new("RGBA", (40, 30), (255, 0, 0, 0))
    if route == "palette":
        clear = Image.new("P", (40, 30), 0)
        clear.putpalette([255, 0, 0])
        clear.info["transparency"] = 0
    given = clear
    if route == "png":
        given = _encoded(clear, "PNG")
    white = plain(folder, Image.new("RGB", (40, 30), "white"))
    assert answer(engines[family], given) == white != plain(folder, Image.new("RGB", (40, 30), (255, 0, 0)))


def _encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _turned():
    """A JPEG of 80 x 40 whose EXIF says that it stands upright as 40 x 80, and that upright picture."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _encoded(tiny.picture(6, (80, 40)), "JPEG", exif=exif.tobytes(), quality=95)
    return data, Image.open(io.BytesIO(data)).convert("RGB").transpose(Image.Transpose.ROTATE_270)


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("route", ["str", "path", "bytes", "file", "open file", "pil", "loaded pil", "list"])
def test_g18_exif_orientation_by_every_route(family, route, folder, engines, tmp_path):
    data, upright = _turned()
    path = tmp_path / "turned.jpg"
    path.write_bytes(data)
    loaded = Image.open(io.BytesIO(data))
    loaded.load()
    with path.open("rb") as opened:
        image = {
            "str": str(path),
            "path": path,
            "bytes": data,
            "file": io.BytesIO(data),
            "open file": opened,
            "pil": Image.open(io.BytesIO(data)),
            "loaded pil": loaded,
            "list": [str(path)],
        }[route]
        if family == "qwen2_vl":
            grid = engines[family].target.encode(images.load_all(image), "What?").images[0].grid
            assert grid[1] > grid[2]
        assert answer(engines[family], image) == plain(folder, upright)
    lying = Image.open(io.BytesIO(data)).convert("RGB").copy()
    assert plain(folder, lying) != plain(folder, upright)


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("form", ["L", "2-D array", "3-D array of one channel", "LA", "1-D is refused"])
def test_g19_grey_pictures(family, form, folder, engines):
    grey = tiny.picture(7, (40, 30)).convert("L")
    values = np.asarray(grey)
    image = {
        "L": grey,
        "2-D array": values,
        "3-D array of one channel": values[:, :, None],
        "LA": grey.convert("LA"),
        "1-D is refused": values[0],
    }[form]
    if form == "1-D is refused":
        with pytest.raises(mmsmart.ImageError, match="shape"):
            answer(engines[family], image)
    else:
        assert answer(engines[family], image) == plain(folder, grey.convert("RGB"))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_g20_past_the_position_limit_is_refused_before_any_forward(family, folder):
    row = support.rows_of(family)[0]
    engine = support.load(folder)
    language = support.language_forwards(engine)
    vision = support.vision_forwards(engine) if family in VLMS else None
    length = tiny.reference_inputs(folder, row.images, row.question)["input_ids"].shape[1]
    with pytest.raises(mmsmart.InputError) as caught:
        support.ask(engine, row, max_new_tokens=1024 - length + 1)
    message = str(caught.value)
    assert f"{length} tokens" in message
    assert "1024" in message
    assert f"at most {1024 - length}" in message
    assert "\n" not in message
    with pytest.raises(mmsmart.InputError, match="1024"):
        engine.stream(row.images, row.question, max_new_tokens=1024)  # at the call, not at the first chunk
    with pytest.raises(mmsmart.InputError, match=r"request 1.*1024"):
        engine.generate_batch([row.request(), row.request(max_new_tokens=1024)])
    assert language.count == 0
    assert vision is None or vision.count == 0


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("kind", ["none", "right"])
def test_g20_the_last_position_can_be_used(family, kind, tmp_path):
    row = ROWS[0]
    probe = tiny.build(family, tmp_path / "probe")
    length = tiny.reference_inputs(probe, row.images, row.question)["input_ids"].shape[1]
    folder = tiny.build(family, tmp_path / "tight", max_position_embeddings=length + 10)
    wanted = support.expected(folder, row, 10)
    policy = "none" if kind == "none" else "likelihood:depth=4,top_k=2,total=9"
    engine = support.load(folder, policy, ScriptedDrafter([wanted]))
    assert support.ask(engine, row, max_new_tokens=10).token_ids == wanted
    with pytest.raises(mmsmart.InputError, match=str(length + 10)):
        support.ask(engine, row, max_new_tokens=11)


@pytest.mark.parametrize("family", VLMS)
def test_g20_a_picture_that_does_not_fit_is_never_cut(family, tmp_path):
    folder = tiny.build(family, tmp_path, max_position_embeddings=4)
    engine = support.load(folder)
    forwards = support.vision_forwards(engine)
    image = tiny.picture(1, (112, 84))
    length = tiny.reference_inputs(folder, image, "hi")["input_ids"].shape[1]
    with pytest.raises(mmsmart.InputError, match=rf"{length} tokens.*limit of 4 .*smaller picture"):
        engine.generate(image, "hi", max_new_tokens=1)
    assert forwards.count == 0


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("question", ["", "   ", "\n\t", None])
def test_g21_an_empty_question_is_one_clear_error(family, question, folder):
    engine = support.load(folder)
    forwards = support.language_forwards(engine)
    image = tiny.picture(1) if family in VLMS else None
    for ask in (engine.generate, engine.stream):
        with pytest.raises(mmsmart.InputError, match="question is empty") as caught:
            ask(image, question)
        assert "\n" not in str(caught.value)
    assert forwards.count == 0


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("image", [None, [], ()])
def test_g22_text_only_questions(family, image, folder):
    engine = support.load(folder, "chain")
    vision = support.vision_forwards(engine)
    wanted = support.expected(folder, Row("hi"))
    assert answer(engine, image, "hi") == wanted
    outputs = engine.generate_batch([ROWS[0].request(), mmsmart.Request(image, "hi", ROWS[0].request().sampling)])
    assert [output.token_ids for output in outputs] == [support.expected(folder, ROWS[0]), wanted]
    assert vision.count == 1  # for the one picture


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_g22_a_text_model_refuses_pictures(family, folder):
    engine = support.load(folder)
    with pytest.raises(mmsmart.InputError, match="text model"):
        engine.generate(tiny.picture(1), "hi")


@pytest.mark.parametrize("change", ["keys left out", "null", "file missing", "says default"])
@pytest.mark.parametrize("strategy", ["default", "full"])
def test_g23_an_old_processor_config_is_filled_from_the_model(change, strategy, tmp_path):
    tokens = {"default": 4, "full": 5}[strategy]
    outer = {"vision_feature_select_strategy": strategy, "image_seq_length": tokens}
    folder = tiny.build("llava", tmp_path / "model", outer=outer)
    wanted = support.expected(folder, ROWS[1])
    file = folder / "processor_config.json"
    config = json.loads(file.read_text())
    fields = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
    assert all(field in config for field in fields)
    if change == "keys left out":
        config = {key: value for key, value in config.items() if key not in fields}
    elif change == "null":
        config |= dict.fromkeys(fields)
    elif change == "says default":
        config["vision_feature_select_strategy"] = "default"
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    (old / file.name).write_text(json.dumps(config))
    if change == "file missing":
        assert (old / "preprocessor_config.json").exists()
        (old / file.name).unlink()
    engine = support.load(old, "chain")
    encoded = engine.target.encode(ROWS[1].images, ROWS[1].question)
    assert encoded.image_mask.sum() == 2 * tokens
    assert support.ask(engine, ROWS[1]).token_ids == wanted


@pytest.mark.parametrize("family", VLMS)
def test_g24_loading_never_asks_for_the_auto_processor(family, folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("AutoProcessor was called")

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", refuse)
    for name in ("Qwen2VLProcessor", "LlavaProcessor"):
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", refuse)
    assert support.ask(support.load(folder), ROWS[0]).token_ids == support.expected(folder, ROWS[0])


def test_g24_qwen2_vl_works_where_torchvision_cannot_be_imported(qwen2_vl_folder, tmp_path):
    ROWS[0].images[0].save(tmp_path / "picture.png")
    script = textwrap.dedent(
        f"""
        import sys
        sys.modules["torchvision"] = None  # as if it were not installed
        import mmsmart
        engine = mmsmart.load({str(qwen2_vl_folder)!r}, dtype="float64")
        print(engine.generate({str(tmp_path / "picture.png")!r}, "What?", max_new_tokens={LENGTH}).token_ids)
        """
    )
    root = str(pathlib.Path(mmsmart.__file__).parents[1])
    env = {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == support.expected(qwen2_vl_folder, ROWS[0])


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("form", ["uint8", "float", "float32", "channels first", "uint16"])
def test_trap_arrays_are_brought_to_8_bits_once(family, form, folder, engines):
    picture = tiny.picture(8, (40, 30))
    values = np.asarray(picture)
    image = {
        "uint8": values,
        "float": values / 255,
        "float32": (values / 255).astype(np.float32),
        "channels first": values.transpose(2, 0, 1),
        "uint16": values.astype(np.uint16) * 257,
    }[form]
    assert answer(engines[family], image) == plain(folder, picture)


@pytest.mark.parametrize("family", VLMS)
@pytest.mark.parametrize("width", [28, 60])
def test_trap_a_picture_three_pixels_high_is_not_channels_first(family, width, engines):
    picture = tiny.picture(8, (width, 3))
    engine = engines[family]
    processor = engine.target.image_processor
    pixels = processor(picture, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    for image in (picture, np.asarray(picture)):
        encoded = engine.target.encode(images.load_all(image), "never asked")
        assert encoded.images[0].tensors["pixel_values"].equal(pixels)


@pytest.mark.parametrize("family", VLMS)
def test_trap_every_kind_of_file_is_taken(family, folder, engines, tmp_path):
    picture = tiny.picture(9, (50, 40))
    path = tmp_path / "picture.png"
    picture.save(path)
    wanted = plain(folder, picture)
    for image in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), [path], (picture,)):
        assert answer(engines[family], image) == wanted


def test_trap_a_damaged_picture_names_its_place(engines, tmp_path):
    path = tmp_path / "half.jpg"
    path.write_bytes(_encoded(tiny.picture(1), "JPEG")[:400])
    with pytest.raises(mmsmart.ImageError, match=r"half\.jpg"):
        answer(engines["llava"], str(path))
    with pytest.raises(mmsmart.ImageError, match=r"request 1: image 1: "):
        engines["llava"].generate_batch([ROWS[0].request(), mmsmart.Request([tiny.picture(1), path], "What?")])


@pytest.mark.parametrize("cap", [0, -1, True, 2.0])
def test_trap_max_new_tokens_below_one_is_refused(cap, llava_folder):
    engine = support.load(llava_folder)
    forwards = support.language_forwards(engine)
    for ask in (engine.generate, engine.stream):
        with pytest.raises(mmsmart.InputError, match=r"max_new_tokens.*at least 1"):
            ask(tiny.picture(1), "What?", max_new_tokens=cap)
    assert forwards.count == 0
