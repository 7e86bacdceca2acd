"""Pixel values of any depth and mode -> plain 8-bit RGB. `mmsmart.images` finds the picture, this file its colours."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmsmart.errors import ImageError

_FLOAT_SLACK = 1e-3  # what resampling and half precision leave outside 0..1
_EIGHT_BITS, _SIXTEEN_BITS = 255, 65535
_SIXTEEN_BIT_FORMATS = frozenset({"PNG", "PPM"})  # their mode "I" is 16 bits wide, whatever the values


def channels_last(array: NDArray[Any], what: str) -> NDArray[Any]:
    """View (H, W), (H, W, C) or (3, H, W) as (H, W, C); (3, W, 3) and (3, W, 4) count as (H, W, C).

    Raises:
        ImageError: Any other shape, or no pixels.
    """
    if array.size == 0:
        raise ImageError(f"{what} is empty; a picture needs at least one pixel")
    if array.ndim == 2:
        return array[:, :, None]
    if array.ndim == 3 and array.shape[2] in (1, 3, 4):
        return array
    if array.ndim == 3 and array.shape[0] == 3:
        return array.transpose(1, 2, 0)
    raise ImageError(f"{what} is no picture; pass (H, W), (H, W, 1), (H, W, 3), (H, W, 4) or (3, H, W)")


def array_to_rgb(pixels: NDArray[Any], what: str) -> Image.Image:
    """A new RGB image from an array (H, W, C) with C = 1, 3 or 4 of bools, integers or floats.

    Raises:
        ImageError: Values outside the range that the type stands for, or no numbers at all.
    """
    if pixels.dtype.kind == "b":
        samples = pixels.astype(np.uint8) * np.uint8(_EIGHT_BITS)
    elif pixels.dtype.kind in "ui":
        is_wide = pixels.dtype.kind == "u" and pixels.dtype.itemsize == 2
        samples = _integers_to_bytes(pixels, _SIXTEEN_BITS if is_wide else _EIGHT_BITS, what)
    elif pixels.dtype.kind == "f":
        samples = _floats_to_bytes(pixels, what)
    else:
        raise ImageError(f"{what} holds no pixel values; pass uint8 in 0..255 or floats in 0..1")
    if samples.shape[2] == 1:
        samples = samples[:, :, 0]
    return image_to_rgb(Image.fromarray(np.ascontiguousarray(samples)), None, what)


def image_to_rgb(image: Image.Image, key: int | tuple[int, ...] | None, what: str) -> Image.Image:
    """A new RGB image without metadata, transparency laid on white, from a loaded image of any mode.

    Args:
        image: Loaded image; for the mode "I" its `format` decides the depth.
        key: Sample or colour that stands for "transparent" in grey and RGB images, in the range of the image.
        what: Name of the picture for messages.

    Raises:
        ImageError: Values outside the range that the mode stands for.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        rgb = Image.fromarray(_wide_grey_to_bytes(image, key, what)).convert("RGB")
    elif image.mode in ("P", "PA", "LA", "La", "RGBA", "RGBa"):
        straight = image.convert("LA") if image.mode == "La" else image
        colours = straight.convert("RGBA")
        rgb = Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours).convert("RGB")
    else:
        rgb = image.convert("RGB")
        if key is not None and image.mode in ("1", "L", "RGB"):
            pixels = np.array(rgb)
            pixels[(pixels == key).all(axis=2)] = _EIGHT_BITS
            rgb = Image.fromarray(pixels)
    fresh = Image.new("RGB", rgb.size)
    fresh.paste(rgb)
    return fresh


def _wide_grey_to_bytes(image: Image.Image, key: int | tuple[int, ...] | None, what: str) -> NDArray[np.uint8]:
    values = np.asarray(image)
    if image.mode == "F":
        return _floats_to_bytes(values, what)
    is_wide = image.mode != "I" or image.format in _SIXTEEN_BIT_FORMATS or int(values.max()) > _EIGHT_BITS
    grey = _integers_to_bytes(values, _SIXTEEN_BITS if is_wide else _EIGHT_BITS, what)
    if isinstance(key, int):
        grey[values == key] = _EIGHT_BITS
    return grey


def _integers_to_bytes(values: NDArray[Any], top: int, what: str) -> NDArray[np.uint8]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > top:
        raise ImageError(f"{what} has values {low}..{high}, outside 0..{top}; scale them to 0..{top} first")
    if top == _EIGHT_BITS:
        return values.astype(np.uint8)
    return ((values.astype(np.uint32) * _EIGHT_BITS + top // 2) // top).astype(np.uint8)


def _floats_to_bytes(values: NDArray[Any], what: str) -> NDArray[np.uint8]:
    if not np.isfinite(values).all():
        raise ImageError(f"{what} has NaN or infinite values; replace them, then pass floats in 0..1")
    low, high = float(values.min()), float(values.max())
    if low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK:
        scale = _EIGHT_BITS
    elif low >= -0.5 and 2 <= high < _EIGHT_BITS + 0.5:
        scale = 1
    else:
        raise ImageError(f"{what} has values {low:.6g}..{high:.6g}, neither 0..1 nor 0..255; scale them to 0..1 first")
    scaled = np.rint(values.astype(np.float64) * scale)
    return np.clip(scaled, 0, _EIGHT_BITS).astype(np.uint8)
