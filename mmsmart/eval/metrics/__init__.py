"""Metrics: pure functions on strings.

A function with a data set's name follows that data set's official scorer, blemishes included; what forgives more than
the official rule ends in ``_tolerant`` and is reported beside it, never in its place.
"""

from mmsmart.eval.metrics.chartqa import chartqa_relaxed, chartqa_relaxed_tolerant
from mmsmart.eval.metrics.choice import ai2d_mcq, ai2d_mcq_tolerant, scienceqa_mcq, scienceqa_mcq_tolerant
from mmsmart.eval.metrics.hallusion import (
    HallusionBenchScores,
    HallusionBenchTally,
    hallusion_verdict,
    hallusion_yesno,
    hallusionbench_aggregate,
)
from mmsmart.eval.metrics.normalize import textvqa_normalize, vqa_normalize
from mmsmart.eval.metrics.vqa import textvqa_accuracy, vqa_accuracy

__all__ = [
    "HallusionBenchScores",
    "HallusionBenchTally",
    "ai2d_mcq",
    "ai2d_mcq_tolerant",
    "chartqa_relaxed",
    "chartqa_relaxed_tolerant",
    "hallusion_verdict",
    "hallusion_yesno",
    "hallusionbench_aggregate",
    "scienceqa_mcq",
    "scienceqa_mcq_tolerant",
    "textvqa_accuracy",
    "textvqa_normalize",
    "vqa_accuracy",
    "vqa_normalize",
]
