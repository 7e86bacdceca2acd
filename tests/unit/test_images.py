"""`images.load`: pixel by pixel, every route and every refusal."""

import base64
import io
import os
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageSequence

from mmsmart import images
from mmsmart.errors import ImageError

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def noise(height: int = 5, width: int = 7, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)


def refused(image, *words: str, **options) -> str:
    """The message of the one ImageError; every word is in it, on one line."""
    with pytest.raises(ImageError) as caught:
        images.load(image, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    for word in words:
        assert word in message, message
    return message


def png(width: int, height: int, depth: int, colour: int, rows: list[bytes], extra: bytes = b"") -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    transparency = chunk(b"tRNS", extra) if extra else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + transparency + chunk(b"IDAT", data) + chunk(b"IEND", b"")


# --- routes and orientation -----------------------------------------------------------------------------------------

UPRIGHT = noise(4, 6)
STORED = {  # the array that a camera stores for each orientation, so that turning it gives UPRIGHT
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: UPRIGHT.transpose(1, 0, 2)[::-1],
    7: UPRIGHT[::-1, ::-1].transpose(1, 0, 2),
    8: UPRIGHT.transpose(1, 0, 2)[:, ::-1],
}


def turned(orientation: int, kind: str = "PNG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(Image.fromarray(np.ascontiguousarray(STORED[orientation])), kind, exif=exif)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_by_every_route(orientation, kind, tmp_path):
    data = turned(orientation, kind)
    path = tmp_path / f"picture.{kind.lower()}"
    path.write_bytes(data)
    with_exif = Image.open(io.BytesIO(data))
    with_exif.getexif()
    decoded = Image.open(io.BytesIO(data))
    decoded.load()
    data_string = "data:image/png;base64," + base64.b64encode(data).decode()
    with path.open("rb") as file:
        routes = [str(path), path, data, bytearray(data), memoryview(data), io.BytesIO(data), file, data_string]
        routes += [Image.open(path), with_exif, decoded, Image.open(io.BytesIO(data)).copy()]
        for route in routes:
            assert np.array_equal(pixels(images.load(route)), UPRIGHT), route


def test_orientation_of_jpeg():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(Image.new("RGB", (80, 40), RED), "JPEG", exif=exif)
    assert images.load(data).size == (40, 80)
    assert images.load(Image.open(io.BytesIO(data))).size == (40, 80)


@pytest.mark.parametrize("exif", [b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0rubbish", b"\xff"])
def test_damaged_exif_spoils_nothing(exif):
    data = encode(Image.fromarray(UPRIGHT), exif=exif)
    assert np.array_equal(pixels(images.load(data)), UPRIGHT)


def test_result_is_new_and_bare():
    exif = Image.Exif()
    exif[0x0112] = 1
    source = Image.open(io.BytesIO(encode(Image.fromarray(UPRIGHT), exif=exif)))
    loaded = images.load(source)
    assert loaded is not source
    assert not loaded.info
    assert not loaded.getexif()
    loaded.putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(pixels(source), UPRIGHT)
    array = UPRIGHT.copy()
    images.load(array).putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(array, UPRIGHT)


# --- transparency ---------------------------------------------------------------------------------------------------


def test_hidden_colours_stay_hidden():
    assert (pixels(images.load(Image.new("RGBA", (40, 30), (255, 0, 0, 0)))) == 255).all()


@pytest.mark.parametrize("alpha", [0, 1, 64, 128, 254, 255])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGBa", "La", "PA"])
def test_alpha_on_white(mode, alpha):
    colour = (200, 100, 50) if "RGB" in mode else (90, 90, 90)
    image = Image.new("RGBA", (3, 2), (*colour, alpha))
    if mode == "PA":
        image = Image.new("PA", (3, 2), (7, alpha))
        image.putpalette([channel for index in range(256) for channel in (index * 0 + 90,) * 3])
    elif mode != "RGBA":
        image = image.convert("LA").convert(mode) if mode == "La" else image.convert(mode)
    assert image.mode == mode
    expected = [round(alpha / 255 * c + 255 - alpha) for c in colour]
    assert np.abs(pixels(images.load(image)) - expected).max() <= 1


def test_palette_with_one_transparent_index_and_with_many():
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2])
    one, many = encode(image, transparency=1), encode(image, transparency=bytes([255, 128, 0]))
    assert pixels(images.load(one)).tolist() == [[list(RED), list(WHITE), list(BLUE)]]
    assert pixels(images.load(many)).tolist() == [[list(RED), [127, 255, 127], list(WHITE)]]
    assert pixels(images.load(Image.open(io.BytesIO(many)))).tolist() == pixels(images.load(many)).tolist()
    assert pixels(images.load(encode(image, "GIF", transparency=2))).tolist() == [[list(RED), list(GREEN), list(WHITE)]]


@pytest.mark.parametrize(
    ("depth", "row", "key", "expected"),
    [
        (1, b"\x40", 1, [0, 255, 0]),
        (1, b"\x40", 0, [255, 255, 255]),
        (2, b"\x18", 1, [0, 255, 170]),
        (4, b"\x05\x90", 5, [0, 255, 153]),
        (8, bytes([0, 10, 20]), 10, [0, 255, 20]),
        (16, struct.pack(">3H", 0, 1000, 65535), 1000, [0, 255, 255]),
        (16, struct.pack(">3H", 257, 514, 25700), 9, [1, 2, 100]),
    ],
)
def test_grey_png_with_a_transparent_sample(depth, row, key, expected):
    data = png(3, 1, depth, 0, [row], struct.pack(">H", key))
    lazy, decoded = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(data))
    assert pixels(images.load(data))[0, :, 0].tolist() == expected
    assert pixels(images.load(lazy))[0, :, 0].tolist() == expected
    if depth not in (2, 4):  # once decoded, Pillow no longer knows the width of the samples
        decoded.load()
        assert pixels(images.load(decoded))[0, :, 0].tolist() == expected


def test_colour_png_with_a_transparent_colour():
    eight = png(2, 1, 8, 2, [bytes([9, 8, 7, 1, 2, 3])], struct.pack(">3H", 9, 8, 7))
    sixteen = png(
        2, 1, 16, 2, [struct.pack(">6H", 2304, 2048, 1792, 256, 512, 768)], struct.pack(">3H", 2304, 2048, 1792)
    )
    for data in (eight, sixteen):
        assert pixels(images.load(data)).tolist() == [[list(WHITE), [1, 2, 3]]]


# --- modes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX"])
def test_exact_modes(mode):
    image = Image.fromarray(noise()).convert(mode)
    assert np.array_equal(pixels(images.load(image)), pixels(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "LAB"])
def test_colour_spaces(mode):
    image = Image.new("RGB", (4, 3), (200, 100, 50))
    if mode == "LAB":
        image = ImageCms.profileToProfile(
            image, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
        )
    else:
        image = image.convert(mode)
    assert image.mode == mode
    assert np.abs(pixels(images.load(image)) - (200, 100, 50)).max() <= 3
    if mode != "HSV":
        # Pillow 12.3 cannot read the uncompressed YCbCr TIFF that it writes.
        data = encode(image, "TIFF", compression="tiff_lzw")
        assert np.abs(pixels(images.load(data)) - (200, 100, 50)).max() <= 3


def test_cmyk_jpeg_is_not_inverted():
    data = encode(Image.new("RGB", (16, 16), (200, 100, 50)).convert("CMYK"), "JPEG", quality=100)
    assert b"Adobe" in data
    assert np.abs(pixels(images.load(data)) - (200, 100, 50)).max() <= 4


def test_sixteen_bit_grey():
    values = np.array([[0, 257, 1000, 32768, 65535]], np.uint16)
    expected = [0, 1, 4, 128, 255]
    for kind in ("PNG", "TIFF"):
        data = encode(Image.fromarray(values), kind)
        assert pixels(images.load(data))[0, :, 1].tolist() == expected
        assert pixels(images.load(Image.open(io.BytesIO(data))))[0, :, 1].tolist() == expected
    for mode, order in (("I;16", "<u2"), ("I;16B", ">u2"), ("I;16L", "<u2")):
        image = Image.frombytes(mode, (5, 1), values.astype(order).tobytes())
        assert pixels(images.load(image))[0, :, 2].tolist() == expected
    assert pixels(images.load(Image.fromarray(values.astype(np.int32))))[0, :, 0].tolist() == expected
    dim = encode(Image.fromarray(np.array([[0, 100, 200]], np.uint16)))
    assert pixels(images.load(dim))[0, :, 0].tolist() == [0, 0, 1]  # the file is 16 bits wide, so it is dark
    pgm = b"P5 2 1 65535\n" + struct.pack(">2H", 200, 65535)
    assert pixels(images.load(pgm))[0, :, 0].tolist() == [1, 255]
    assert pixels(images.load(b"P5 2 1 65535\n" + struct.pack(">2H", 200, 255)))[0, :, 0].tolist() == [1, 1]


def test_modes_i_and_f():
    assert pixels(images.load(Image.new("I", (2, 2), 200))).max() == 200
    assert pixels(images.load(Image.new("F", (2, 2), 0.5))).tolist()[0][0] == [128] * 3
    assert pixels(images.load(Image.new("F", (2, 2), 90.0))).tolist()[0][0] == [90] * 3
    refused(Image.new("I", (2, 2), 70000), "70000", "65535")
    refused(Image.new("I", (2, 2), -1), "-1")
    refused(Image.new("F", (2, 2), float("nan")), "NaN")
    refused(Image.new("F", (2, 2), 1000.0), "1000")


# --- arrays and tensors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda array: array, lambda array: torch.from_numpy(array)], ids=["numpy", "torch"])
def test_array_types(make):
    array = noise()
    unit = array / 255
    for values in (array, unit, unit.astype(np.float32), array.astype(np.float64), array.astype(np.int64)):
        assert np.array_equal(pixels(images.load(make(values))), array), values.dtype
    assert np.abs(pixels(images.load(make(unit.astype(np.float16)))) - array).max() <= 1
    wide = array.astype(np.uint16) * 257
    assert np.array_equal(pixels(images.load(make(wide))), array)
    assert np.array_equal(pixels(images.load(make(array > 99))), (array > 99) * 255)
    assert np.array_equal(pixels(images.load(make(np.asfortranarray(array[::2, ::2]).copy()))), array[::2, ::2])


@pytest.mark.parametrize("make", [lambda array: array, lambda array: torch.from_numpy(array)], ids=["numpy", "torch"])
def test_array_shapes(make):
    array = noise()
    grey = array[:, :, :1].copy()
    assert np.array_equal(pixels(images.load(make(array.transpose(2, 0, 1).copy()))), array)
    assert np.array_equal(pixels(images.load(make(grey))), np.repeat(grey, 3, 2))
    assert np.array_equal(pixels(images.load(make(grey[:, :, 0].copy()))), np.repeat(grey, 3, 2))
    rows = noise(3, 8)
    assert np.array_equal(pixels(images.load(make(rows))), rows)  # (3, W, 3) is H, W, C
    assert images.load(make(noise(3, 8, 4))).size == (8, 3)
    clear = np.concatenate([array, np.zeros((5, 7, 1), np.uint8)], 2)
    assert (pixels(images.load(make(clear))) == 255).all()
    assert images.load(make(np.zeros((1, 1), np.uint8))).size == (1, 1)
    for shape in [(), (5,), (5, 7, 2), (4, 5, 7), (1, 5, 7), (1, 5, 7, 3), (0, 7, 3), (5, 0), (5, 7, 0)]:
        refused(make(np.zeros(shape, np.uint8)), str(shape))


def test_array_values():
    for bad in (np.nan, np.inf, -np.inf):
        refused(np.full((2, 2), bad), "NaN or infinite")
    refused(np.full((2, 2), -0.5), "-0.5", "0..1")
    refused(np.full((2, 2), 1.5), "1.5", "0..1")
    refused(np.full((2, 2), 300.0), "300")
    refused(np.full((2, 2), 256), "256", "0..255")
    refused(np.full((2, 2), -1), "-1")
    refused(np.full((2, 2), 2**40, np.uint64), str(2**40))
    for bad in (np.zeros((2, 2), complex), np.full((2, 2), None), np.full((2, 2), "x")):
        refused(bad, "no pixel values")
    assert pixels(images.load(np.array([[-1e-7, 1 + 1e-6]])))[0, :, 0].tolist() == [0, 255]
    refused(np.zeros((11, 10)), "110 pixels", max_pixels=109)


def test_other_tensors():
    values = torch.rand(4, 5, 3, requires_grad=True)
    assert np.array_equal(pixels(images.load(values)), pixels(images.load(values.detach().numpy())))
    assert pixels(images.load(torch.ones(4, 5, dtype=torch.bfloat16))).min() == 255
    refused(torch.zeros(4, 5).to_sparse(), "dense")
    refused(torch.zeros(4, 5, dtype=torch.complex64), "no pixel values")


def test_neither_torch_nor_transformers_is_imported():
    code = "import sys, mmsmart.images; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# --- animations and the caller's objects ----------------------------------------------------------------------------


def animation(kind: str) -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    return encode(
        frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {})
    )


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("frame", [0, 1, 2])
def test_first_frame_and_the_object_untouched(kind, frame):
    data = animation(kind)
    assert pixels(images.load(data))[0, 0].tolist() == list(RED)
    image = Image.open(io.BytesIO(data))
    image.seek(frame)
    image.load()
    image.putpixel((3, 3), image.getpixel((0, 0)))
    mode, before = image.mode, image.copy()
    assert pixels(images.load(image))[0, 0].tolist() == list(RED)
    assert (image.tell(), image.mode, image.tobytes()) == (frame, mode, before.tobytes())
    if frame < 2:
        image.seek(frame + 1)
        assert image.convert("RGB").getpixel((0, 0)) == (GREEN, BLUE)[frame]
    each_frame = ImageSequence.Iterator(Image.open(io.BytesIO(data)))
    assert [images.load(each.copy()).getpixel((0, 0)) for each in each_frame] == [RED, GREEN, BLUE]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_an_edited_frame_stays_edited(kind):
    image = Image.open(io.BytesIO(animation(kind)))
    image.seek(1)
    image.load()
    image.paste(image.crop((0, 0, 1, 1)).point(lambda value: 255 - value), (4, 4))
    before = image.tobytes()
    images.load(image)
    assert image.tobytes() == before
    image.seek(2)
    assert image.convert("RGB").getpixel((0, 0)) == BLUE


def test_a_frame_whose_file_is_gone(tmp_path):
    path = tmp_path / "a.gif"
    path.write_bytes(animation("GIF"))
    with Image.open(path) as image:
        image.seek(1)
    refused(image, "PIL image")


@pytest.mark.parametrize("position", [0, 5, "end"])
def test_file_objects_keep_their_position_and_stay_open(position, tmp_path):
    data = encode(Image.fromarray(UPRIGHT))
    path = tmp_path / "a.png"
    path.write_bytes(data)
    with path.open("rb") as file:
        for stream in (file, io.BytesIO(data)):
            stream.seek(len(data) if position == "end" else position)
            before = stream.tell()
            assert np.array_equal(pixels(images.load(stream)), UPRIGHT)
            assert (stream.tell(), stream.closed) == (before, False)
            stream.seek(0)
    bad = io.BytesIO(b"not a picture")
    bad.seek(3)
    refused(bad, "BytesIO", "PNG or JPEG")
    assert (bad.tell(), bad.closed) == (3, False)


def test_unseekable_and_unreadable_files(tmp_path):
    class Pipe:
        def __init__(self, data):
            self.data = data

        def read(self):
            return self.data

    assert np.array_equal(pixels(images.load(Pipe(encode(Image.fromarray(UPRIGHT))))), UPRIGHT)
    refused(Pipe("text"), "str instead of bytes", "'rb'")
    refused(io.StringIO("text"), "'rb'")
    closed = io.BytesIO(b"x")
    closed.close()
    refused(closed, "closed")
    with (tmp_path / "out").open("wb") as write_only:
        refused(write_only, "cannot be read")


# --- refusals -------------------------------------------------------------------------------------------------------


def test_size_is_checked_before_decoding():
    bomb = png(20000, 20000, 8, 2, [b"\0"])
    for route in (bomb, io.BytesIO(bomb), "data:image/png;base64," + base64.b64encode(bomb).decode()):
        refused(route, "400000000 pixels", f"max_pixels={images.DEFAULT_MAX_PIXELS}")
    limit = Image.MAX_IMAGE_PIXELS
    small = png(30, 30, 8, 2, [b"\0"])  # its pixels are missing: decoding would say so
    refused(small, "30 x 30 = 900 pixels", "max_pixels=899", max_pixels=899)
    refused(Image.open(io.BytesIO(small)), "900", "899", max_pixels=899)
    refused(small, "max_pixels must be at least 1", max_pixels=0)
    refused(small, "damaged")
    assert limit == Image.MAX_IMAGE_PIXELS


def test_size_warning_is_one_image_error_also_from_threads():
    between = png(10000, 10000, 8, 0, [b"\0"])  # Pillow warns from 89 and raises from 179 million pixels
    messages = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=lambda: messages.append(refused(between, "100000000"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(messages) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused(between, "100000000 pixels")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_truncated_and_corrupt_files(kind):
    data = encode(Image.fromarray(noise(40, 40)), kind)
    refused(data[: len(data) // 2], "bytes object")
    refused(data[:20], "bytes object")
    random = np.random.default_rng(0)
    for _ in range(150):
        corrupt = bytearray(data)
        for place in random.integers(0, min(len(data), 400), 4):
            corrupt[place] = random.integers(0, 256)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert images.load(bytes(corrupt)).mode == "RGB"
        except ImageError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_paths(tmp_path, monkeypatch):
    refused(tmp_path / "no.png", "no such file: ", "no.png")
    refused(str(tmp_path / "no.png" / "x"), "no such file: ")
    refused(tmp_path, "is a folder")
    refused("", "empty")
    refused("a\0b", "cannot open")
    refused("A" * 5000, "cannot open")
    empty, text = tmp_path / "empty.png", tmp_path / "text.png"
    empty.touch()
    text.write_text("hello")
    refused(empty, "empty.png", "is empty")
    refused(text, "text.png", "not a picture")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")

    def denied(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    refused(text, "no permission", "text.png")


def test_addresses():
    for address in ("http://a.b/c.png", "https://a.b/c.png", "HTTPS://a.b/c.png", "s3://a/b.png", Path("http://a.b/c")):
        refused(address, "download it first")
    refused("data:text/plain;base64,aGk=", "data:image/")
    refused("data:image/png,abc", "base64")
    refused("data:image/png;base64,!!!", "broken base64")
    refused("data:image/png;base64,", "empty")
    data = base64.b64encode(encode(Image.fromarray(UPRIGHT))).decode()
    wrapped = "DATA:image/png;charset=utf-8;base64," + "\n".join(data[i : i + 60] for i in range(0, len(data), 60))
    assert np.array_equal(pixels(images.load(wrapped)), UPRIGHT)
    assert np.array_equal(pixels(images.load(wrapped.replace("+", "%2B").replace("=", "%3D"))), UPRIGHT)


@pytest.mark.parametrize("value", [None, 3, 2.5, True, {"bytes": b""}, object(), [[1, 2], [3, 4]], (), np.float32(1)])
def test_wrong_types(value):
    refused(value, f"no picture in a {type(value).__name__}", "pass a path")


def test_empty_and_closed_images():
    refused(b"", "empty")
    refused(bytearray(), "empty")
    refused(Image.new("RGB", (0, 5)), "0 x 5")
    closed = Image.new("RGB", (5, 5))
    closed.close()
    refused(closed, "PIL image")
    with Image.open(io.BytesIO(encode(Image.fromarray(UPRIGHT)))) as lazy:
        pass
    lazy.close()
    refused(lazy, "PIL image")


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (1500, 5), (27, 40)])
def test_small_and_narrow_pictures(size):
    image = Image.new("RGB", size, GREEN)
    assert images.load(encode(image)).size == size
    assert images.load(image).getpixel((size[0] - 1, size[1] - 1)) == GREEN


# --- load_all and fingerprint ---------------------------------------------------------------------------------------


def test_load_all(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (3, 2), RED).save(path)
    blue = Image.new("RGB", (2, 2), BLUE)
    assert images.load_all(None) == images.load_all([]) == images.load_all(()) == []
    assert [image.size for image in images.load_all(str(path))] == [(3, 2)]
    assert len(images.load_all(path.read_bytes())) == len(images.load_all(np.zeros((4, 5)))) == 1
    assert [image.size for image in images.load_all((path, blue))] == [(3, 2), (2, 2)]
    for bad in ([blue, None], [blue, "no.png"], [blue, [blue]]):
        with pytest.raises(ImageError, match=r"^image 1: "):
            images.load_all(bad)
    with pytest.raises(ImageError, match="no picture in a generator"):
        images.load_all(image for image in (blue,))
    with pytest.raises(ImageError, match=r"^image 0: .*max_pixels=3"):
        images.load_all([blue], max_pixels=3)


def test_fingerprint():
    image = images.load(UPRIGHT)
    assert images.fingerprint(image) == images.fingerprint(images.load(encode(image)))
    changed = image.copy()
    changed.putpixel((0, 0), (1, 2, 3))
    flat, other = Image.new("RGB", (2, 6)), Image.new("RGB", (6, 2))
    prints = {images.fingerprint(each) for each in (image, changed, flat, other)}
    assert len(prints) == 4
    with pytest.raises(ImageError, match=r"images\.load"):
        images.fingerprint(Image.new("L", (2, 2)))
