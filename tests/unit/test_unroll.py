import numpy as np
import torch

from mmsmart.drafters.head import EagleHead, HeadConfig
from mmsmart.drafters.rows import Rows
from mmsmart.kv_cache import RaggedCache
from mmsmart.training.drafter.unroll import UnrolledHead

CONFIG = HeadConfig(24, 40, num_heads=4, num_kv_heads=2, head_dim=6, vocab_size=30, qkv_bias=True, input_layernorm=True)


def chain_at(head: EagleHead, rows: Rows, start: int, steps: int) -> list[torch.Tensor]:
    """A chain behind true row `start` as the drafter runs it: cache, one row a step."""
    cache = RaggedCache(1, 1, capacity=32)
    cache.begin(start + 1, torch.device("cpu"))
    fused = torch.where(rows.is_picture[..., None], rows.states, head.fuse(rows.token_ids, rows.states))
    output = head(fused[:, : start + 1], torch.arange(start + 1)[None], None, cache)[:, -1:]
    cache.advance([start + 1])
    outputs = [output]
    for step in range(1, steps):
        at = start + step
        cache.begin(1, torch.device("cpu"))
        output = head(head.fuse(rows.token_ids[:, at : at + 1], output), torch.tensor([[at]]), None, cache)
        cache.advance([1])
        outputs.append(output)
    return [o[0, 0] for o in outputs]


@torch.inference_mode()
def test_every_start_of_the_unrolled_run_equals_its_own_chain() -> None:
    torch.manual_seed(0)
    head, count, steps = EagleHead(CONFIG).double(), 9, 4
    is_picture = torch.zeros(1, count, dtype=torch.bool)
    is_picture[0, 1:3] = True
    states = torch.randn(1, count, 24, dtype=torch.float64)
    rows = Rows(torch.randint(0, 30, (1, count)), states, is_picture, np.array([count]))
    outputs = UnrolledHead(head, steps)(rows.token_ids, rows.states, rows.is_picture)
    for start in range(3, count - steps + 1):
        for step, expected in enumerate(chain_at(head, rows, start, steps)):
            torch.testing.assert_close(outputs[step][0, start + step], expected, rtol=1e-10, atol=1e-10)
