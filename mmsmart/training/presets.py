"""How long each stage trains: the full recipe, and a smoke run of seconds that shows that everything fits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mmsmart.training.language import RowSettings
from mmsmart.training.stage import StageSettings


@dataclass(frozen=True)
class Preset:
    """Settings of every stage, and of the rows of the language stages."""

    stages: dict[str, StageSettings]
    rows: dict[str, RowSettings]

    def with_stages(self, stages: Mapping[str, StageSettings]) -> "Preset":
        """Returns the preset with the settings of some stages replaced."""
        return replace(self, stages={**self.stages, **stages})

    def with_length(self, stage: str, minutes: float | None, steps: int | None) -> "Preset":
        """Returns the preset with one stage's length changed."""
        settings = self.stages[stage]
        settings = replace(settings, minutes=minutes or settings.minutes, steps=steps or settings.steps)
        return self.with_stages({stage: settings})


PRESETS: dict[str, Preset] = {
    "full": Preset(
        {
            "vision": StageSettings(steps=1600, batch=32, learning_rate=2e-3, minutes=16, compiled=True),
            "drill": StageSettings(steps=700, batch=8, learning_rate=2.5e-3, minutes=10, evaluate_every=50),
            "main": StageSettings(steps=4000, batch=8, learning_rate=2e-3, minutes=53),
            "regress": StageSettings(steps=1200, batch=32, learning_rate=1e-3, minutes=12, compiled=True),
            "joint": StageSettings(steps=2400, batch=8, learning_rate=6e-4, minutes=24),
        },
        {
            "drill": RowSettings(batch=8, length=256, questions=10, lookup_only=True),
            "main": RowSettings(batch=8, length=384, questions=9),
            "joint": RowSettings(batch=8, length=384, questions=9),
        },
    ),
    "smoke": Preset(
        {
            name: StageSettings(steps=3, batch=2, learning_rate=1e-3, evaluate_every=3)
            for name in ("vision", "drill", "main", "regress", "joint")
        },
        {
            "drill": RowSettings(batch=2, length=160, questions=2, lookup_only=True),
            "main": RowSettings(batch=2, length=192, questions=2),
            "joint": RowSettings(batch=2, length=192, questions=2),
        },
    ),
}
