import json

import numpy as np
import pytest

from mmsmart.costs.estimate import estimate
from mmsmart.costs.fit import SmartCurves, fit_curves
from mmsmart.costs.online import CostModel
from mmsmart.costs.profiler import _rising
from mmsmart.costs.table import CostTable, Grid
from mmsmart.errors import InputError

GRID = Grid((1, 4, 8), (1, 8), (100, 300), (((1, 3), (2, 4)), ((4, 6), (8, 10)), ((8, 10), (16, 18))))
TABLE = CostTable(GRID, GRID, 0.5, {"device": "cpu", "model": "m"})


def test_a_grid_is_exact_on_its_points_linear_between_and_clamped_outside():
    assert GRID.at([1, 4, 8], 8, 300).tolist() == [4, 10, 18]
    assert GRID.at(6, 1, 100) == pytest.approx(6)
    assert GRID.at(4, 4.5, 200) == pytest.approx((4 + 6 + 8 + 10) / 4)
    assert GRID.at([0, 99], 99, 1).tolist() == [2, 16]


def test_a_table_survives_the_disk(tmp_path):
    TABLE.save(tmp_path / "a" / "t.json")
    assert CostTable.load(tmp_path / "a" / "t.json", TABLE.settings) == TABLE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["settings"].update(device="gpu"), "device 'gpu' instead of 'cpu'"),
        (lambda r: r.update(schema=0), "another version"),
        (lambda r: r.pop("verify"), "cannot be read"),
    ],
)
def test_a_table_of_other_settings_is_refused_with_a_sentence(tmp_path, change, words):
    path = tmp_path / "t.json"
    TABLE.save(path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=words) as caught:
        CostTable.load(path, {"device": "cpu", "model": "m"})
    assert "python -m mmsmart profile" in str(caught.value)


def test_corrections_follow_what_is_measured_each_kind_apart():
    model = CostModel(TABLE)
    for _ in range(60):
        model.observe_verify(2 * float(GRID.at(4, 1, 100)), 4, 1, 100)
    assert model.verify_ms(4, 1, 100) == pytest.approx(2 * 4 + 0.5, rel=0.02)
    assert model.plain_ms(1, 100) == pytest.approx(1)
    model.observe_draft(0.0, 1.0)  # nothing measured, nothing learnt
    assert model.factors["draft"] == 1.0


def test_one_hiccup_does_not_spoil_the_table():
    model = CostModel(TABLE)
    model.observe_verify(1e6, 4, 1, 100)
    assert model.factors["verify"] < 1.5


def test_the_papers_curves_are_recovered_from_five_points():
    true = SmartCurves(draft_slope=0.4, gamma=12.0, delta=0.03, rho=0.8, plain_ms=10)
    n = np.array([1, 10, 30, 60, 120])
    verify = true.spec_ms(n) - true.draft_slope * n
    found = fit_curves(n, true.draft_slope * n, n, verify, 10)
    again = found.spec_ms(n) - found.draft_slope * n
    assert found.draft_slope == pytest.approx(0.4)
    assert again == pytest.approx(verify, rel=0.03)


def test_equation_15_is_the_derivative_of_equation_9():
    curves = SmartCurves(0.4, 12.0, 0.03, 0.8, 10)
    for n in (2.0, 17.0, 60.0):
        slope = (curves.spec_ms(n + 1e-4) - curves.spec_ms(n - 1e-4)) / 2e-4
        assert curves.marginal_ms(n) == pytest.approx(slope, rel=1e-4)


def test_noise_that_says_larger_is_cheaper_is_averaged_out():
    assert _rising([5, 7, 6, 8]) == [5, 6.5, 6.5, 8]
    assert _rising([3, 2, 1]) == [2, 2, 2]
    assert _rising([1, 2, 3]) == [1, 2, 3]


def test_an_estimate_says_that_it_is_one():
    table = estimate(layers=10, drafter_layers=1, device="cpu")
    assert not table.measured
    assert table.verify.at(64, 1, 0) > table.verify.at(1, 1, 0) == 1
    assert table.draft.at(1, 1, 0) < 0.2
