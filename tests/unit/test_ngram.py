from collections import Counter

import numpy as np
import pytest

import trees
from mmsmart.drafters.base import PromptContext, RoundOutcome
from mmsmart.drafters.ngram import NgramDrafter
from mmsmart.drafting import grow
from mmsmart.errors import InputError
from mmsmart.policies.base import RoundContext
from mmsmart.policies.best_first import BestFirst
from mmsmart.tree import CandidatePool, TreeBatch
from mmsmart.verification import accept

PICTURE = 99


def prompt(tokens):
    ids = np.array(tokens, np.int64)
    return PromptContext(ids, ids == PICTURE)


def drafts(session, roots, depth=6, top_k=8):
    """Each row's drafted paths with their cumulative probability."""
    batch = len(roots)
    context = RoundContext(np.full(batch, depth), np.zeros(batch, np.int64))
    tree = grow(BestFirst(nodes=200, depth=depth, top_k=top_k), session, np.array(roots), context)
    return [
        {
            trees.path(tree, b, i): float(np.exp(tree.log_probs[b, i]))
            for i in range(1, tree.num_nodes)
            if tree.valid[b, i]
        }
        for b in range(batch)
    ]


def tell(session, *emitted):
    """A round without drafts: the committed tokens are all that the session gets to know."""
    tree = TreeBatch.roots([0] * len(emitted))
    session.commit(RoundOutcome(tree, accept(tree, np.zeros((len(emitted), 1), np.int64)), tuple(map(tuple, emitted))))


def of_text(tokens, **options):
    """Drafts after a text whose last token is the root."""
    session = NgramDrafter(**options).open([prompt(tokens[:-1])], np.array(tokens[-1:]))
    return drafts(session, tokens[-1:])[0]


def naive(tokens, longest, shortest, horizon, depth=6):
    """Every earlier occurrence of the longest suffix that has one followed by something, merged by counting."""
    for n in range(min(longest, len(tokens)), shortest - 1, -1):
        suffix = tokens[-n:]
        if PICTURE in suffix:
            continue
        following = []
        for end in range(n, len(tokens)):
            if tokens[end - n : end] == suffix:
                rest = tokens[end : end + horizon]
                following.append(rest[: rest.index(PICTURE)] if PICTURE in rest else rest)
        following = [rest for rest in following if rest]
        if following:
            break
    else:
        return {}
    found = {(): 1.0}
    for length in range(1, depth + 1):
        for parent, mass in list(found.items()):
            if len(parent) == length - 1:
                nexts = Counter(
                    r[length - 1] for r in following if len(r) >= length and tuple(r[: length - 1]) == parent
                )
                for token, count in nexts.items():
                    found[*parent, token] = mass * count / nexts.total()
    del found[()]
    return found


def test_the_longest_suffix_wins_over_shorter_ones_that_occur_more_often():
    assert set(of_text([1, 2, 3, 50, 3, 60, 3, 60, 1, 2, 3], longest=3)) == {
        (50,), (50, 3), (50, 3, 60), (50, 3, 60, 3), (50, 3, 60, 3, 60), (50, 3, 60, 3, 60, 1),
    }  # fmt: skip


def test_all_occurrences_are_merged_with_counts_as_probabilities():
    found = of_text([5, 1, 2, 7, 5, 1, 3, 7, 5, 1, 2, 8, 5], longest=1, horizon=3)
    assert found[1,] == 1
    assert found[1, 2] == pytest.approx(2 / 3)
    assert found[1, 3] == pytest.approx(1 / 3)
    assert found[1, 2, 7] == found[1, 2, 8] == pytest.approx(1 / 3)
    assert max(map(len, found)) == 3


def test_the_most_frequent_continuations_are_kept_when_few_are_wanted():
    session = NgramDrafter(longest=1).open([prompt([5, 1, 5, 2, 5, 2, 5, 3, 5, 3, 5, 3])], np.array([5]))
    assert {path[0] for path in drafts(session, [5], depth=1, top_k=2)[0]} == {2, 3}


def test_a_suffix_that_never_occurred_before_drafts_nothing():
    assert of_text([1, 2, 3, 4]) == {}
    assert of_text([4, 2, 3, 4], shortest=2) == {}
    assert set(of_text([4, 2, 3, 4], horizon=1)) == {(2,)}


def test_pictures_are_neither_matched_across_nor_drafted():
    # 1 | picture | 2 is not the text "1 2", and nothing is read into or behind a picture.
    assert of_text([1, PICTURE, PICTURE, 2, 50, 1, 2], longest=2, shortest=2) == {}
    assert set(of_text([7, 8, PICTURE, 9, 7], longest=1)) == {(8,)}
    assert of_text([7, PICTURE, 8, 7], longest=1) == {}
    assert of_text([PICTURE, 3, PICTURE, 4, PICTURE, 5]) == {}


def test_an_occurrence_before_a_picture_gives_way_to_a_shorter_suffix_that_can_be_continued():
    assert set(of_text([1, 2, PICTURE, 2, 60, 1, 2], longest=2)) >= {(60,)}


def test_random_texts_equal_the_plain_rule():
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens = rng.integers(0, 4, size=rng.integers(2, 30)).tolist()
        tokens = [PICTURE if rng.random() < 0.1 else t for t in tokens[:-1]] + tokens[-1:]
        longest = int(rng.integers(1, 5))
        options = {
            "longest": longest,
            "shortest": int(rng.integers(1, longest + 1)),
            "horizon": int(rng.integers(1, 7)),
        }
        expected = naive(tokens, **options)
        found = of_text(tokens, **options)
        assert found.keys() == expected.keys(), (tokens, options)
        for path, mass in expected.items():
            assert found[path] == pytest.approx(mass, rel=1e-5)


def test_rounds_without_drafting_are_caught_up_and_leaving_rows_take_their_text_along():
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 3, size=n).tolist() for n in (5, 9, 7)]
    session = NgramDrafter().open([prompt(text[:-1]) for text in texts], np.array([text[-1] for text in texts]))
    for step in range(12):
        if step == 6:
            session.select_rows([2, 0])
            texts = [texts[2], texts[0]]
        emitted = [rng.integers(0, 3, size=rng.integers(1, 4)).tolist() for _ in texts]
        tell(session, *emitted)
        texts = [text + new for text, new in zip(texts, emitted, strict=True)]
        if step % 3:
            found = drafts(session, [text[-1] for text in texts])
            for row, text in zip(found, texts, strict=True):
                expected = naive(text, longest=4, shortest=1, horizon=16)
                assert row.keys() == expected.keys()


def test_siblings_are_distinct_and_most_probable_first():
    session = NgramDrafter(longest=1).open([prompt([5, 1, 5, 2, 5, 2, 6, 1])], np.array([5]))
    session.start_round(np.array([5]), np.array([9]))
    answer = session.expand(CandidatePool([5]), np.zeros((1, 1), np.int64), 4)
    assert answer.token_ids[0, 0, :2].tolist() == [2, 1]
    assert np.isfinite(answer.log_probs[0, 0]).tolist() == [True, True, False, False]


@pytest.mark.parametrize("options", [{"longest": 0}, {"shortest": 0}, {"longest": 2, "shortest": 3}, {"horizon": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match="ngram"):
        NgramDrafter(**options)
