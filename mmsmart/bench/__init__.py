"""``python -m mmsmart bench``: every way of answering the same questions, timed in turn in one process."""
