"""Names to classes, lazily: a new drafter, policy, target or embedded model is one row here and one file."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

from mmsmart.errors import InputError

TARGETS: dict[str, str] = {  # config.model_type -> class
    "llava": "mmsmart.targets.llava:LlavaTarget",
    "qwen2_vl": "mmsmart.targets.qwen2_vl:Qwen2VLTarget",
    "llama": "mmsmart.targets.causal_lm:CausalLMTarget",
    "qwen2": "mmsmart.targets.causal_lm:CausalLMTarget",
}
DRAFTERS: dict[str, str] = {
    "ngram": "mmsmart.drafters.ngram:NgramDrafter",
    "eagle": "mmsmart.drafters.eagle:EagleDrafter",
    "msd": "mmsmart.drafters.msd:MSDDrafter",
}
POLICIES: dict[str, str] = {
    "none": "mmsmart.policies.none:NoDrafting",
    "chain": "mmsmart.policies.chain:Chain",
    "static": "mmsmart.policies.static:StaticTree",
    "likelihood": "mmsmart.policies.likelihood:Likelihood",
    "best-first": "mmsmart.policies.best_first:BestFirst",
    "smart": "mmsmart.policies.smart:Smart",
    "rate-optimal": "mmsmart.policies.rate_optimal:RateOptimal",
}
TASKS: dict[str, str] = {  # data sets of the evaluation
    "vqav2": "mmsmart.eval.tasks.vqav2:VQAv2",
    "chartqa": "mmsmart.eval.tasks.chartqa:ChartQA",
    "textvqa": "mmsmart.eval.tasks.textvqa:TextVQA",
    "ai2d": "mmsmart.eval.tasks.ai2d:AI2D",
    "scienceqa": "mmsmart.eval.tasks.scienceqa:ScienceQA",
    "hallusionbench": "mmsmart.eval.tasks.hallusionbench:HallusionBench",
    "mmsmart-charts": "mmsmart.eval.tasks.mmsmart_charts:MmsmartCharts",
}
EMBEDDED_MODELS: dict[str, str] = {  # name -> folder under assets/models
    "tiny-llava": "tiny-llava",
    "tiny-qwen2-vl": "tiny-qwen2-vl",
}
EMBEDDED_DRAFTERS: dict[str, str] = {  # name -> folder under assets/models
    "tiny-llava-msd": "tiny-llava-msd",
    "tiny-qwen2-vl-msd": "tiny-qwen2-vl-msd",
}
PUBLISHED_DRAFTERS: dict[str, str] = {  # target -> the drafter that ``drafter="auto"`` takes
    "tiny-llava": "msd:checkpoint=tiny-llava-msd",
    "tiny-qwen2-vl": "msd:checkpoint=tiny-qwen2-vl-msd",
    "llava-hf/llava-1.5-7b-hf": "msd:checkpoint=lucylyn/MSD-LLaVA1.5-7B",
    "llava-hf/llava-1.5-13b-hf": "msd:checkpoint=lucylyn/MSD-LLaVA1.5-13B",
    "Qwen/Qwen2-VL-7B-Instruct": "msd:checkpoint=lucylyn/MSD-Qwen2VL-7B-Instruct",
    "lmsys/vicuna-7b-v1.3": "eagle:checkpoint=yuhuili/EAGLE-Vicuna-7B-v1.3",
    "lmsys/vicuna-13b-v1.3": "eagle:checkpoint=yuhuili/EAGLE-Vicuna-13B-v1.3",
    "lmsys/vicuna-33b-v1.3": "eagle:checkpoint=yuhuili/EAGLE-Vicuna-33B-v1.3",
    "meta-llama/Llama-2-7b-chat-hf": "eagle:checkpoint=yuhuili/EAGLE-llama2-chat-7B",
    "meta-llama/Llama-2-13b-chat-hf": "eagle:checkpoint=yuhuili/EAGLE-llama2-chat-13B",
    "meta-llama/Llama-2-70b-chat-hf": "eagle:checkpoint=yuhuili/EAGLE-llama2-chat-70B",
    "meta-llama/Meta-Llama-3-8B-Instruct": "eagle:checkpoint=yuhuili/EAGLE-LLaMA3-Instruct-8B",
    "meta-llama/Meta-Llama-3-70B-Instruct": "eagle:checkpoint=yuhuili/EAGLE-LLaMA3-Instruct-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "eagle:checkpoint=yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
    "Qwen/Qwen2-7B-Instruct": "eagle:checkpoint=yuhuili/EAGLE-Qwen2-7B-Instruct",
    "Qwen/Qwen2-72B-Instruct": "eagle:checkpoint=yuhuili/EAGLE-Qwen2-72B-Instruct",
}
DEFAULT_MODEL = "tiny-llava"


def lookup(table: Mapping[str, str], kind: str, name: str) -> str:
    """The table's row for a name.

    Raises:
        InputError: The name is unknown; the message lists the nearest and all that exist.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"unknown {kind} {name!r}; {hint}known: {', '.join(sorted(table))}")


def load_class(table: Mapping[str, str], kind: str, name: str) -> Any:
    """Imports and returns the class that a table names."""
    module, _, attribute = lookup(table, kind, name).partition(":")
    return getattr(importlib.import_module(module), attribute)


def create(table: Mapping[str, str], kind: str, spec: str) -> Any:
    """Builds an object from ``"name"`` or ``"name:option=value,option=value"``.

    Raises:
        InputError: Unknown name or option, or a value that the class refuses.
    """
    name, _, rest = spec.partition(":")
    cls = load_class(table, kind, name.strip())
    options = _parse_options(spec, rest)
    parameters = inspect.signature(cls).parameters
    accepted = list(parameters)
    for key, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise InputError(f"{kind} {name!r} needs {key}; write it as {name}:{key}=...")
    for key in options:
        if key not in accepted:
            raise InputError(f"{kind} {name!r} has no option {key!r}; it takes: {', '.join(accepted) or 'none'}")
    return cls(**options)


# A comma before the next ``name=`` (or the end): those inside a list or tuple stay.
_OUTER_COMMA = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=|\s*$)")


def _parse_options(spec: str, rest: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in _OUTER_COMMA.split(rest))):
        key, sign, value = part.partition("=")
        if not sign:
            raise InputError(f"cannot read {part!r} in {spec!r}; write options as name=value, separated by commas")
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[key.strip()] = value.strip()
    return options
