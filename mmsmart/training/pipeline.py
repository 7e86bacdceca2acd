"""The whole making of a target: stages in order, each from the checkpoints of the ones before it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from mmsmart.errors import InputError, ModelError
from mmsmart.training.card import RunFacts, write_card
from mmsmart.training.families import Family
from mmsmart.training.joint import JointStage, WholeReader
from mmsmart.training.language import LanguageReader, LanguageStage, OracleReader
from mmsmart.training.oracle import OracleTokens
from mmsmart.training.presets import Preset
from mmsmart.training.regress import PictureReader, RegressStage
from mmsmart.training.rows import RowEncoder
from mmsmart.training.saving import load_target
from mmsmart.training.score import score_target
from mmsmart.training.stage import RunFolder, run_stage
from mmsmart.training.vision import VisionStage

STAGE_ORDER = ("vision", "drill", "main", "regress", "joint", "save", "card")
DRILL_FILLER_WEIGHT = 0.15
FILLER_WEIGHT = 0.3
SCORE_SEED = 0


@dataclass(frozen=True)
class Pipeline:
    """One run of the recipe.

    Attributes:
        family: What is built.
        preset: How long each stage trains.
        tokenizer: The tokenizer of all families.
        folder: Checkpoints and logs.
        model_folder: Where the finished model goes.
        seed: Seed of weights, pictures and questions.
        questions: Held-out questions that are asked for the model card.
        note: A remark for the model card.
    """

    family: Family
    preset: Preset
    tokenizer: PreTrainedTokenizerFast
    folder: RunFolder
    model_folder: Path
    seed: int = 0
    questions: int = 300
    note: str = ""

    def run(self, stage: str | None = None) -> None:
        """Runs one stage, or all that have not ended.

        Raises:
            InputError: If there is no such stage.
            ModelError: If a stage that this one builds on has not ended.
        """
        actions: dict[str, Callable[[], None]] = {
            "vision": self._vision,
            "drill": self._drill,
            "main": self._main,
            "regress": self._regress,
            "joint": self._joint,
            "save": self.save,
            "card": self.card,
        }
        if stage is not None and stage not in actions:
            raise InputError(f"unknown stage {stage!r}; the stages are {', '.join(STAGE_ORDER)}")
        for name in STAGE_ORDER if stage is None else (stage,):
            actions[name]()

    def save(self) -> None:
        """Writes the joint stage's model, finished or as far as it has come; before it, the plugged-in model."""
        if self.folder.load("joint") is None:
            self.family.save(self._plugged_in(), self.tokenizer, self.model_folder)
            return
        model = self.family.grow(self._new_model())
        whole = _whole(model)
        whole.load_state_dict(self._trained("joint", ended=False))
        self.family.save(model, self.tokenizer, self.model_folder)

    def card(self) -> None:
        """Scores the saved model as users load it, and writes its card."""
        scores = score_target(load_target(self.model_folder), self.questions, SCORE_SEED)
        run = RunFacts(self.family.name, self.folder, self.preset, self.seed, SCORE_SEED, self.note)
        write_card(self.model_folder, run, scores)

    def _vision(self) -> None:
        settings = self.preset.stages["vision"]
        tower = self._new_model().model.vision_tower
        stage = VisionStage(tower, self.family.vision_width, settings.batch, self.seed, settings.compiled)
        run_stage(stage, settings, self.folder)

    def _drill(self) -> None:
        module = self._oracle_reader(self._new_model())
        encoder = self._encoder(DRILL_FILLER_WEIGHT)
        stage = LanguageStage("drill", module, encoder, self.preset.rows["drill"], self.seed)
        run_stage(stage, self.preset.stages["drill"], self.folder)

    def _main(self) -> None:
        module = self._oracle_reader(self._new_model())
        module.load_state_dict(self._trained("drill"))
        encoder = self._encoder(FILLER_WEIGHT)
        stage = LanguageStage("main", module, encoder, self.preset.rows["main"], self.seed, frozen_embeddings=True)
        run_stage(stage, self.preset.stages["main"], self.folder)

    def _regress(self) -> None:
        """Needs the drill only: later stages leave embeddings and oracle as they are."""
        settings = self.preset.stages["regress"]
        model = self._new_model()
        module = self._oracle_reader(model)
        module.load_state_dict(self._trained("drill"))
        picture = PictureReader(model.model.vision_tower, model.model.multi_modal_projector)
        picture.tower.load_state_dict(_part(self._trained("vision"), "tower."))
        stage = RegressStage(picture, module.oracle, module.reader.table, settings.batch, self.seed, settings.compiled)
        run_stage(stage, settings, self.folder)

    def _joint(self) -> None:
        model = self.family.grow(self._plugged_in())
        stage = JointStage(_whole(model), self._encoder(FILLER_WEIGHT), self.preset.rows["joint"], self.seed)
        run_stage(stage, self.preset.stages["joint"], self.folder)

    def _plugged_in(self) -> Any:
        """The shallow model with both trained halves."""
        model = self._new_model()
        self._oracle_reader(model).load_state_dict(self._trained("main"))
        PictureReader(model.model.vision_tower, model.model.multi_modal_projector).load_state_dict(
            self._trained("regress")
        )
        return model

    def _new_model(self) -> Any:
        return self.family.build(self.tokenizer, self.seed)

    def _oracle_reader(self, model: Any) -> OracleReader:
        oracle = OracleTokens(self.tokenizer, self.family.grid**2, self.family.text_width)
        return OracleReader(LanguageReader(model), oracle)

    def _encoder(self, filler_weight: float) -> RowEncoder:
        return RowEncoder(self.tokenizer, self.family.grid**2, filler_weight)

    def _trained(self, stage: str, ended: bool = True) -> dict[str, Any]:
        checkpoint = self.folder.load(stage)
        if checkpoint is None or (ended and not checkpoint["done"]):
            raise ModelError(f"stage {stage!r} has not ended in {self.folder.path}; run it first with --stage {stage}")
        weights: dict[str, Any] = checkpoint["module"]
        return weights


def _whole(model: Any) -> WholeReader:
    picture = PictureReader(model.model.vision_tower, model.model.multi_modal_projector)
    return WholeReader(picture, LanguageReader(model))


def _part(weights: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The weights whose names begin with a prefix, without it."""
    return {name[len(prefix) :]: weight for name, weight in weights.items() if name.startswith(prefix)}
