"""The layers of the house: each imports only what stands before it, and heavy libraries stay where they belong."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    {"errors", "config", "registry", "embedded", "turns", "command", "files", "rotary", "attention"},
    {"pixels", "images", "tree", "sampling"},
    {"verification", "kv_cache", "masks", "packed", "stats", "costs", "policies"},
    {"targets", "drafters"},
    {"drafting", "sequence"},
    {"batch"},
    {"engine"},
    {"profiling"},
    {"api"},
    {"training", "eval"},
    {"bench"},
    {"cli"},
    {"__main__", "app"},
)
WITHIN = {
    "pixels": 0,
    "images": 1,
    "errors": 0,
    "config": 1,
    "registry": 1,
    "embedded": 2,
    "tree": 0,
    "sampling": 1,
    "command": 1,
}
HOMES = {
    "transformers": {"targets", "drafters", "kv_cache", "training"},
    "tokenizers": {"training"},
    "gradio": {"app"},
    "datasets": {"eval"},
    "matplotlib": {"training", "eval", "costs", "app", "bench"},
}
MAX_FILE_LINES, MAX_FUNCTION_LINES, P90_FUNCTION_LINES = 350, 50, 30


def sources() -> list[Path]:
    return [*sorted((ROOT / "mmsmart").rglob("*.py")), *sorted((ROOT / "app").rglob("*.py"))]


def unit(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] == "app" else parts[1]


def imports(path: Path) -> set[str]:
    """Imported modules, those for type checking only left out."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(name: str) -> int:
    return next((i for i, names in enumerate(LAYERS) if name in names), -1)


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_what_stands_before(path: Path) -> None:
    mine = unit(path)
    if mine == "__init__":
        return
    assert layer(mine) >= 0, f"{mine} has no layer: add it to LAYERS"
    for module in imports(path):
        top, *rest = module.split(".")
        if top == "mmsmart" and rest and layer(rest[0]) >= 0 and rest[0] != mine:
            place, theirs = (layer(mine), WITHIN.get(mine, 0)), (layer(rest[0]), WITHIN.get(rest[0], 0))
            assert theirs <= place, f"{path}: {mine} must not import {rest[0]}"
        homes = HOMES.get(top)
        assert homes is None or mine in homes, f"{path}: {top} belongs to {homes}"


def test_policies_know_no_model_and_models_know_no_policy() -> None:
    for path in sources():
        mine, names = unit(path), {m.split(".")[1] for m in imports(path) if m.startswith("mmsmart.")}
        if mine == "policies":
            assert not names & {"targets", "drafters", "engine"}, path
        if mine in {"targets", "drafters", "verification"}:
            assert "policies" not in names, path
        if mine == "verification":
            assert not names & {"targets", "drafters"}, path


def test_the_package_does_not_know_the_app() -> None:
    for path in sorted((ROOT / "mmsmart").rglob("*.py")):
        assert not {m for m in imports(path) if m.split(".")[0] in {"app", "gradio"}}, path


def test_only_the_page_knows_gradio() -> None:
    """The app's logic is tested without it."""
    users = {path.name for path in (ROOT / "app").rglob("*.py") if {m for m in imports(path) if m.startswith("gradio")}}
    assert users == {"ui.py", "server.py"}


def test_functions_and_files_stay_short() -> None:
    lengths: list[int] = []
    for path in sources():
        text = path.read_text()
        assert text.count("\n") <= MAX_FILE_LINES, f"{path} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {length} lines"
                lengths.append(length)
    lengths.sort()
    assert lengths[int(0.9 * (len(lengths) - 1))] < P90_FUNCTION_LINES


def test_nothing_happens_at_import() -> None:
    import subprocess
    import sys

    code = "import sys, mmsmart; print([m for m in ('torch', 'transformers', 'PIL') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"
