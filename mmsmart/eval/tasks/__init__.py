"""Data sets: one file and one row of ``mmsmart.registry.TASKS`` each."""
