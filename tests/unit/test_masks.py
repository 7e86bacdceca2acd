"""Tree masks against the definition, slot by slot."""

import numpy as np
import pytest
import torch

from mmsmart.masks import tree_mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[4, 4], [2, 5], [0, 3]])
def test_a_query_sees_committed_slots_and_what_it_may_of_the_tree(dtype: torch.dtype, lengths: list[int]) -> None:
    rng = np.random.default_rng(1)
    sees = rng.random((2, 3, 4)) < 0.5
    view = max(lengths) + 4
    mask = tree_mask(np.array(lengths), sees, view, torch.zeros(1, dtype=dtype))
    assert mask.shape == (2, 1, 3, view)
    assert mask.dtype == dtype
    for row, length in enumerate(lengths):
        for query in range(3):
            for slot in range(view):
                tree_slot = slot - length
                visible = slot < length or (tree_slot < 4 and bool(sees[row, query, tree_slot]))
                expected = 0.0 if visible else torch.finfo(dtype).min
                assert float(mask[row, 0, query, slot]) == expected
