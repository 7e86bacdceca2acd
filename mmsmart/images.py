"""Any picture that a person has -> a new, upright RGB image.

One rule for every route: the first frame, turned as its EXIF orientation says, transparency laid on white, samples
brought to 8 bits. What cannot be brought there without guessing is refused with one `ImageError`.
"""

import base64
import binascii
import hashlib
import io
import os
import re
import reprlib
import stat
import struct
import urllib.parse
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from mmsmart.errors import ImageError
from mmsmart.pixels import array_to_rgb, channels_last, image_to_rgb


@runtime_checkable
class TensorLike(Protocol):
    """A `torch.Tensor`, known by what it can do, so that torch need not be imported here."""

    def detach(self) -> Any:
        """The values without their gradient."""

    def cpu(self) -> Any:
        """The values in main memory."""

    def is_floating_point(self) -> bool:
        """Whether the values are floats."""


ImageInput: TypeAlias = (
    str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | BinaryIO
    | Image.Image
    | np.ndarray[Any, np.dtype[Any]]
    | TensorLike
)

DEFAULT_MAX_PIXELS = 178956970 // 2
"""Where Pillow begins to warn: 256 MiB as RGB."""

_ACCEPTED = "pass a path, bytes, an open binary file, a PIL image, a numpy array or a torch tensor"
_REMOTE = re.compile(r"(https?|ftp|s3|gs|hf|file):/", re.IGNORECASE)
_DATA_URL = re.compile(r"data:image/[^,]*;base64,", re.IGNORECASE)
_DECODE_ERRORS = (
    OSError,
    SyntaxError,  # Pillow's word for a broken chunk
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    ImportError,  # an optional codec that this Pillow lacks
    MemoryError,
    Warning,  # where the caller turned warnings into errors
    struct.error,
    zlib.error,
    Image.DecompressionBombError,  # an inner picture larger than the header said
)
_TURN = {  # EXIF orientation -> what sets it right
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def load(image: ImageInput, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
    """Read one picture as a new, upright RGB image; the caller's object stays as it was.

    Integers are scaled by their range: mode "I;16" and uint16 arrays by 65535; mode "I" by 65535 when it comes from a
    PNG or PPM or holds a value above 255, else it is taken as 8 bits. Floats within 0..1 are scaled by 255, floats
    that reach 2..255 are taken as they are, and what lies between is refused. Arrays are (H, W), (H, W, 1), (H, W, 3),
    (H, W, 4) or (3, H, W); (3, W, 3) and (3, W, 4) are read as H, W, C. Of an animation the first frame is taken, also
    when the caller's PIL object stands at another one (pass `frame.copy()` for that one).

    Args:
        image: Path, `data:image/...;base64,` string, encoded bytes, open binary file (read from its start, its position
            restored), PIL image, numpy array or torch tensor.
        max_pixels: Largest width times height, checked before decoding. Pillow's own limit, twice
            `PIL.Image.MAX_IMAGE_PIXELS`, holds as well.

    Returns:
        RGB image of at least 1 x 1 pixel, without metadata.

    Raises:
        ImageError: The picture cannot be read, is too large, or its values cannot be brought to 8 bits.
    """
    if max_pixels < 1:
        raise ImageError(f"max_pixels must be at least 1, got {max_pixels}")
    if isinstance(image, Image.Image):
        return _from_pil(image, max_pixels)
    if isinstance(image, str):
        return _from_text(image, max_pixels)
    if isinstance(image, os.PathLike):
        return _from_path(os.fsdecode(image), max_pixels)
    if isinstance(image, bytes | bytearray | memoryview):
        return _from_bytes(bytes(image), f"bytes object of length {len(image)}", max_pixels)
    if isinstance(image, np.ndarray):
        return _from_array(image, f"array of shape {image.shape} and type {image.dtype}", max_pixels)
    if isinstance(image, TensorLike):
        return _from_tensor(image, max_pixels)
    if hasattr(image, "read"):
        return _from_file(image, max_pixels)
    raise ImageError(f"no picture in a {type(image).__name__}: {_short(image)}; {_ACCEPTED}")


def load_all(
    images: ImageInput | Sequence[ImageInput] | None, *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> list[Image.Image]:
    """Read no picture (None or []), one, or each of a list or tuple.

    Raises:
        ImageError: As `load`; for a list or tuple it names the index of the picture.
    """
    if images is None:
        return []
    if not isinstance(images, list | tuple):
        return [load(images, max_pixels=max_pixels)]  # type: ignore[arg-type]  # load refuses other sequences itself
    loaded = []
    for index, image in enumerate(images):
        try:
            loaded.append(load(image, max_pixels=max_pixels))
        except ImageError as error:
            raise ImageError(f"image {index}: {error}") from error
    return loaded


def fingerprint(image: Image.Image) -> str:
    """Hash of the size and pixels of an image that `load` returned: equal pictures, equal keys.

    Raises:
        ImageError: The image is not RGB.
    """
    if image.mode != "RGB":
        raise ImageError(f"a fingerprint needs an RGB image, got mode {image.mode!r}; pass it through images.load")
    header = f"{image.width}x{image.height}:".encode()
    return hashlib.sha256(header + image.tobytes()).hexdigest()


def _from_text(text: str, max_pixels: int) -> Image.Image:
    if not text.lower().startswith("data:"):
        return _from_path(text, max_pixels)
    header = _DATA_URL.match(text)
    if header is None:
        raise ImageError(f"a data string must begin with data:image/<type>;base64, got {_short(text)}")
    payload = "".join(urllib.parse.unquote(text[header.end() :]).split())
    try:
        data = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"broken base64 in {_short(text)} ({_line(error)}); encode the picture anew") from error
    return _from_bytes(data, f"data string {_short(text)}", max_pixels)


def _from_path(path: str, max_pixels: int) -> Image.Image:
    if _REMOTE.match(path):  # Path("http://x") is "http:/x"
        raise ImageError(f"pictures are not fetched from an address: {_short(path)}; download it first, pass its path")
    with _open_path(path) as file:
        return _decode(file, f"file {_short(path)}", max_pixels)


def _open_path(path: str) -> BinaryIO:
    if not path:
        raise ImageError("the path of the picture is empty; pass the path of a file")
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{_short(path)} is a folder; pass the path of a picture in it")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{_short(path)} is not a regular file; read it first and pass the bytes")
        if status.st_size == 0:
            raise ImageError(f"file {_short(path)} is empty; pass the path of a picture")
        return open(path, "rb")
    except ImageError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ImageError(f"no such file: {_short(path)}; check the path") from error
    except PermissionError as error:
        raise ImageError(f"no permission to read {_short(path)}; change its rights or copy it") from error
    except (OSError, ValueError) as error:
        raise ImageError(f"cannot open {_short(path)} ({_line(error)}); check the path") from error


def _from_file(file: Any, max_pixels: int) -> Image.Image:
    what = f"file object {_short(getattr(file, 'name', None) or type(file).__name__)}"
    if isinstance(file, io.TextIOBase):
        raise ImageError(f"{what} is open as text; open it with mode 'rb'")
    try:
        seekable = file.seekable() if hasattr(file, "seekable") else hasattr(file, "seek")
        position = file.tell() if seekable else 0
        if seekable:
            file.seek(0)
        try:
            data = file.read()
        finally:
            if seekable:
                file.seek(position)
    except _DECODE_ERRORS as error:
        raise ImageError(f"{what} cannot be read ({_line(error)}); pass its bytes or its path") from error
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ImageError(f"{what} gave {type(data).__name__} instead of bytes; open it with mode 'rb'")
    return _from_bytes(bytes(data), what, max_pixels)


def _from_bytes(data: bytes, what: str, max_pixels: int) -> Image.Image:
    if not data:
        raise ImageError(f"{what} is empty; pass the encoded picture")
    return _decode(io.BytesIO(data), what, max_pixels)


def _decode(stream: BinaryIO, what: str, max_pixels: int) -> Image.Image:
    try:
        with Image.open(stream) as opened:
            return _upright_rgb(opened, what, max_pixels)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(f"{what} is not a picture that Pillow knows; save it as PNG or JPEG") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{what} is too large for max_pixels={max_pixels} ({_line(error)}); scale it down") from error
    except _DECODE_ERRORS as error:
        raise ImageError(f"{what} is damaged or unsupported ({_line(error)}); save it anew as PNG or JPEG") from error


def _from_pil(image: Image.Image, max_pixels: int) -> Image.Image:
    what = f"PIL image of mode {image.mode!r} and size {image.width} x {image.height}"
    try:
        _check_size(image.size, what, max_pixels)
        return _upright_rgb(_first_frame(image), what, max_pixels)
    except ImageError:
        raise
    except _DECODE_ERRORS as error:
        raise ImageError(f"{what} cannot be read ({_line(error)}); open it anew, pass its path or bytes") from error


def _first_frame(image: Image.Image) -> Image.Image:
    """Frame 0, while the caller's object keeps its own frame and pixels."""
    position = image.tell()
    if position == 0:
        return image
    if (anew := _opened_anew(image)) is not None:
        return anew
    kept = image.copy()  # seeking forth and back undoes the caller's edits
    try:
        image.seek(0)
        return image.copy()
    finally:
        image.seek(position)
        image.load()
        if (image.mode, image.size) == (kept.mode, kept.size):
            image.paste(kept)


def _opened_anew(image: Image.Image) -> Image.Image | None:
    """A second reader of the same file, as Pillow's APNG reader cannot always go back; None for WebP (no file kept)."""
    stream: Any = getattr(image, "_fp", None)  # where Pillow keeps the file of an animation
    try:
        position = stream.tell()
        stream.seek(0)
        anew = Image.open(io.BytesIO(stream.read()))
        stream.seek(position)
    except _DECODE_ERRORS:
        return None
    return anew if anew.format == image.format else None


def _from_tensor(tensor: TensorLike, max_pixels: int) -> Image.Image:
    what = f"tensor of shape {tuple(getattr(tensor, 'shape', ()))} and type {getattr(tensor, 'dtype', 'unknown')}"
    try:
        values = tensor.detach().cpu()
        if tensor.is_floating_point():
            values = values.float()  # numpy knows no bfloat16
        array = np.asarray(values.numpy())
    except _DECODE_ERRORS as error:
        raise ImageError(f"{what} cannot be read ({_line(error)}); pass a dense tensor") from error
    return _from_array(array, what, max_pixels)


def _from_array(array: np.ndarray[Any, Any], what: str, max_pixels: int) -> Image.Image:
    pixels = channels_last(array, what)
    _check_size((pixels.shape[1], pixels.shape[0]), what, max_pixels)
    return array_to_rgb(pixels, what)


def _check_size(size: tuple[int, int], what: str, max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"{what} has no pixels ({width} x {height}); a picture needs at least one")
    if (pixels := width * height) > max_pixels:
        shape = f"{width} x {height} = {pixels} pixels"
        raise ImageError(f"{what} has {shape}, more than max_pixels={max_pixels}; scale it down")


def _upright_rgb(image: Image.Image, what: str, max_pixels: int) -> Image.Image:
    _check_size(image.size, what, max_pixels)
    key = _transparent_sample(image)
    image.load()
    rgb = image_to_rgb(image, key, what)
    try:
        turn = _TURN.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _DECODE_ERRORS:  # damaged metadata spoils no picture
        turn = None
    return rgb if turn is None else rgb.transpose(turn)


def _transparent_sample(image: Image.Image) -> int | tuple[int, ...] | None:
    """The colour that a PNG or GIF declares transparent, in the decoded image's range; ask before `image.load()`.

    Pillow gives the sample as the file has it, although it widens 2 and 4 bit samples and narrows 16 bit colours.
    """
    key = image.info.get("transparency")
    tile = getattr(image, "tile", None)
    layout = tile[0][3] if tile else None
    if isinstance(key, int) and image.mode == "L":
        return key * {"L;2": 85, "L;4": 17}.get(layout if isinstance(layout, str) else "", 1)
    if isinstance(key, tuple) and len(key) == 3 and (layout == "RGB;16B" or max(key) > 255):
        return tuple(sample >> 8 for sample in key)
    return key if isinstance(key, int | tuple) else None


def _short(value: object) -> str:
    """`repr` on one line, cut in the middle."""
    printer = reprlib.Repr()
    printer.maxstring = printer.maxother = 120
    return " ".join(printer.repr(value).split())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
