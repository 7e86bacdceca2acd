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
from mmsmart.training.rows import SizedEncoders
from mmsmart.training.saving import load_target
from mmsmart.training.score import score_target
from mmsmart.training.stage import RunFolder, run_stage
from mmsmart.training.vision import VisionStage
from mmsmart.training.warm import adopt_weights

STAGE_ORDER = ("vision", "drill", "main", "regress", "joint", "save", "card")
DRILL_FILLER_WEIGHT = 0.15
FILLER_WEIGHT = 0.3
SCORE_SEED = 0
SCORED_SIZES = 2
"""So many of a family's other sizes of pictures are scored for the card, each with a fifth of the questions."""


@dataclass(frozen=True)
class Pipeline:
    """One run of the recipe.

    Attributes:
        family: What is built.
        preset: How long each stage trains.
        tokenizer: The tokenizer of the family.
        folder: Checkpoints and logs.
        model_folder: Where the finished model goes.
        seed: Seed of weights, pictures and questions.
        questions: Held-out questions that are asked for the model card.
        note: A remark for the model card.
        warm_start: Another run whose language model stage "main" starts from, in the place of a drill of its own.
    """

    family: Family
    preset: Preset
    tokenizer: PreTrainedTokenizerFast
    folder: RunFolder
    model_folder: Path
    seed: int = 0
    questions: int = 300
    note: str = ""
    warm_start: RunFolder | None = None

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
        """Writes the joint stage's model, finished or as far as it has come; before it, the plugged-in one, grown."""
        if self.folder.load("joint") is None:
            self.family.save(self.family.grow(self._plugged_in()), self.tokenizer, self.model_folder)
            return
        model = self.family.grow(self._new_model())
        whole = self._whole(model)
        whole.load_state_dict(self._trained("joint", ended=False))
        self.family.save(model, self.tokenizer, self.model_folder)

    def card(self) -> None:
        """Scores the saved model as users load it, and writes its card."""
        target = load_target(self.model_folder)
        scores = score_target(target, self.questions, SCORE_SEED)
        sizes = self.family.view.other_sizes[:SCORED_SIZES]
        fewer = max(1, self.questions // 5)
        others = {size: score_target(target, fewer, SCORE_SEED, size).claimed for size in sizes}
        run = RunFacts(
            self.family.name,
            self.folder,
            self.preset,
            self.seed,
            SCORE_SEED,
            self.family.card_notes,
            self.note,
            self.warm_start,
        )
        write_card(self.model_folder, run, scores, others)

    def _vision(self) -> None:
        settings = self.preset.stages["vision"]
        tower = self.family.tower(self._new_model())
        width, view = self.family.feature_width, self.family.view
        stage = VisionStage(tower, width, settings.batch, self.seed, settings.compiled, view)
        run_stage(stage, settings, self.folder)

    def _drill(self) -> None:
        """Learns to look things up; a language model from another run has learned it there."""
        if self.warm_start is not None:
            return
        module = self._oracle_reader(self._new_model())
        encoders = self._encoders(DRILL_FILLER_WEIGHT)
        stage = LanguageStage("drill", module, encoders, self.preset.rows["drill"], self.seed, self.family.view)
        run_stage(stage, self.preset.stages["drill"], self.folder)

    def _main(self) -> None:
        module = self._oracle_reader(self._new_model())
        module.load_state_dict(self._drilled(module))
        rows, encoders = self.preset.rows["main"], self._encoders(FILLER_WEIGHT)
        stage = LanguageStage("main", module, encoders, rows, self.seed, self.family.view, frozen_embeddings=True)
        run_stage(stage, self.preset.stages["main"], self.folder)

    def _regress(self) -> None:
        """Needs vision and drill (or the warm start) only: later stages leave embeddings and oracle as they are."""
        settings = self.preset.stages["regress"]
        model = self._new_model()
        module = self._oracle_reader(model)
        module.load_state_dict(self._drilled(module))
        picture = self._picture(model)
        picture.tower.load_state_dict(_part(self._trained("vision"), "tower."))
        stage = RegressStage(picture, module.oracle, module.reader.table, settings.batch, self.seed, settings.compiled)
        run_stage(stage, settings, self.folder)

    def _joint(self) -> None:
        model = self.family.grow(self._plugged_in())
        rows, encoders = self.preset.rows["joint"], self._encoders(FILLER_WEIGHT)
        stage = JointStage(self._whole(model), encoders, rows, self.seed, self.family.joint_trains_tower)
        run_stage(stage, self.preset.stages["joint"], self.folder)

    def _plugged_in(self) -> Any:
        """The shallow model with both trained halves."""
        model = self._new_model()
        self._oracle_reader(model).load_state_dict(self._trained("main"))
        self._picture(model).load_state_dict(self._trained("regress"))
        return model

    def _new_model(self) -> Any:
        return self.family.build(self.tokenizer, self.seed)

    def _oracle_reader(self, model: Any) -> OracleReader:
        rows, columns = self.family.view.grid()
        patches = rows * columns if self.family.view.has_places else 0
        oracle = OracleTokens(self.tokenizer, patches, self.family.text_width)
        return OracleReader(LanguageReader(model), oracle)

    def _picture(self, model: Any) -> PictureReader:
        return PictureReader(self.family.tower(model), self.family.projector(model), self.family.view)

    def _whole(self, model: Any) -> WholeReader:
        return WholeReader(self._picture(model), LanguageReader(model))

    def _encoders(self, filler_weight: float) -> SizedEncoders:
        return SizedEncoders(self.tokenizer, self.family.view, self.family.form, filler_weight)

    def _drilled(self, module: OracleReader) -> dict[str, Any]:
        """Weights that know how to look things up: of the drill, or of the other run's language model."""
        if self.warm_start is None:
            return self._trained("drill")
        checkpoint = self.warm_start.load("main")
        if checkpoint is None:
            raise ModelError(f"{self.warm_start.path} has no checkpoint of stage 'main' to start from")
        return adopt_weights(module.state_dict(), checkpoint["module"], self.family.rotary_pairs)

    def _trained(self, stage: str, ended: bool = True) -> dict[str, Any]:
        checkpoint = self.folder.load(stage)
        if checkpoint is None or (ended and not checkpoint["done"]):
            raise ModelError(f"stage {stage!r} has not ended in {self.folder.path}; run it first with --stage {stage}")
        weights: dict[str, Any] = checkpoint["module"]
        return weights


def _part(weights: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The weights whose names begin with a prefix, without it."""
    return {name[len(prefix) :]: weight for name, weight in weights.items() if name.startswith(prefix)}
