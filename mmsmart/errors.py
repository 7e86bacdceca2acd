"""Errors that a caller can act on: each names the value that is wrong and the way out, in one line."""


class MmsmartError(Exception):
    """Base of every error that mmsmart raises on purpose."""


class InputError(MmsmartError, ValueError):
    """A question, setting or file that cannot be used as given."""


class ImageError(InputError):
    """A picture that cannot be read or shown to a target."""


class ModelError(MmsmartError):
    """A model or drafter that cannot be loaded, or that does not fit its partner."""


class NumericalError(MmsmartError, ArithmeticError):
    """NaN or infinity where a probability was due."""
