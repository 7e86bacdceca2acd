import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import tiny
from mmsmart.config import SamplingParams
from mmsmart.sequence import IncrementalText, Sequence

EOS, OTHER_EOS = 257, 258
BYTES = tiny.byte_tokenizer("llama")  # byte b is token b; 256 `<s>`, 257 `</s>`, 258 `<pad>`
TEXTS = ["héllo wörld", "漢字🙂 and é", "a👩‍👩‍👧b", "\u00ad\u200b", "plain", "🏳️‍🌈\n\n¡x"]


class Pieces:
    """A tokenizer whose tokens are any byte strings, also ones that end inside a character."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def decode(self, token_ids, skip_special_tokens=False):
        return b"".join(self.pieces[i] for i in token_ids).decode(errors="replace")


def sequence(stop=(), cap=10_000, eos=(EOS,), tokenizer=BYTES):
    return Sequence(SamplingParams(max_new_tokens=cap, stop=stop), eos, tokenizer)


def feed(answer, ids, size):
    """Commits blocks of `size`; returns what was taken and the text after each block."""
    taken, shown = 0, []
    for start in range(0, len(ids), size):
        taken += answer.commit(ids[start : start + size])
        shown.append(answer.text)
        if answer.finish_reason:
            break
    return taken, shown


def blocks(rng, ids):
    while ids:
        size = int(rng.integers(1, 6))
        yield ids[:size]
        ids = ids[size:]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("end", [EOS, OTHER_EOS])
def test_any_end_token_ends_ids_and_text_at_its_place_inside_a_block(size, end):
    answer = sequence(eos=(EOS, OTHER_EOS))
    taken, _ = feed(answer, [*b"hello", end, *b"more"], size)
    assert (answer.token_ids, answer.text, answer.finish_reason) == ([*b"hello", end], "hello", "eos")
    assert taken == 6


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_the_cap_ends_inside_a_block(size):
    answer = sequence(cap=4)
    taken, _ = feed(answer, [*b"hello", EOS], size)
    assert (answer.token_ids, answer.text, answer.finish_reason, taken) == ([*b"hell"], "hell", "length", 4)
    assert answer.remaining == 0


def test_an_end_token_on_the_last_place_is_the_reason_not_the_cap():
    answer = sequence(cap=3)
    answer.commit([*b"hi", EOS])
    assert answer.finish_reason == "eos"


def test_a_stop_string_on_the_last_place_is_the_reason_not_the_cap():
    answer = sequence(cap=4, stop="END")
    answer.commit([*b"xEND"])
    assert (answer.finish_reason, answer.text) == ("stop", "x")


def test_a_character_cut_by_the_cap_is_shown_as_decode_shows_it():
    answer = sequence(cap=2)
    answer.commit([97, *"漢".encode()])
    assert answer.text == BYTES.decode(answer.token_ids, skip_special_tokens=True) == "a\ufffd"


def test_nothing_is_taken_after_the_end():
    answer = sequence()
    answer.commit([65, EOS])
    assert answer.commit([66]) == 0
    assert (answer.token_ids, answer.text) == ([65, EOS], "A")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "stop", "shown", "ids"),
    [
        ("one\n\ntwo\n\nthree", ("\n\n",), "one", "one\n\n"),  # the first completion of several
        ("abcde", ("cd", "bcde"), "ab", "abcd"),  # completed first, though begun later
        ("abcde", ("bc", "c"), "a", "abc"),  # both end at one token: the text ends before the earlier one
        ("aab", ("ab",), "a", "aab"),  # a false start overlaps the real one
        ("ababac", ("abac",), "ab", "ababac"),
        ("xéy漢z", ("y漢",), "xé", "xéy漢"),  # ends with the last byte of a character
        ("stop", ("s",), "", "s"),
        ("no end her", ("END",), "no end her", "no end her"),
    ],
)
def test_a_stop_string_ends_at_its_first_completion_in_blocks_of_any_size(size, text, stop, shown, ids):
    for extra in ((), (EOS,)):
        answer = sequence(stop=stop)
        stopped = ids != text or text.endswith(stop)
        feed(answer, [*text.encode(), *extra], size)
        tail = [] if stopped else list(extra)
        assert answer.token_ids == [*ids.encode(), *tail]
        assert answer.finish_reason == ("stop" if stopped else "eos" if extra else None)
        assert answer.text == shown or (answer.finish_reason is None and shown.startswith(answer.text))


def test_the_beginning_of_a_stop_string_is_held_back_and_released_when_it_was_none():
    answer, shown = sequence(stop="<end>"), []
    for byte in b"a<en b<e":
        answer.commit([byte])
        shown.append(answer.text)
    assert shown == ["a", "a", "a", "a", "a<en ", "a<en b", "a<en b", "a<en b"]
    answer.commit([EOS])
    assert answer.text == "a<en b<e"


def test_a_held_beginning_is_released_at_the_cap():
    answer = sequence(stop="<end>", cap=4)
    answer.commit([*b"ab<e"])
    assert (answer.text, answer.finish_reason) == ("ab<e", "length")


def test_random_stop_strings_end_where_the_whole_text_first_holds_one():
    rng = np.random.default_rng(0)
    reasons = set()
    for _ in range(400):
        ids = rng.choice(list("abé".encode()), size=20).tolist()
        stop = tuple("".join(rng.choice(list("abé"), size=rng.integers(1, 4))) for _ in range(rng.integers(1, 4)))
        cap = int(rng.integers(1, 25))
        end = next((n for n in range(1, 21) if any(s in BYTES.decode(ids[:n]) for s in stop)), None)
        answer, shown = sequence(stop=stop, cap=cap), ""
        for block in blocks(rng, [*ids, EOS]):
            answer.commit(block)
            assert answer.text.startswith(shown)
            shown = answer.text
            if answer.finish_reason:
                break
        reasons.add(answer.finish_reason)
        if end is not None and end <= cap:
            whole = BYTES.decode(ids[:end])
            assert answer.token_ids == ids[:end]
            assert answer.finish_reason == "stop"
            assert answer.text == whole[: min(whole.find(s) for s in stop if s in whole)]
        else:
            assert answer.token_ids == [*ids, EOS][:cap]
            assert answer.finish_reason == ("eos" if cap >= 21 else "length")
            assert answer.text == BYTES.decode(ids[:cap])
    assert reasons == {"stop", "eos", "length"}


def test_a_stop_string_is_seen_in_a_token_that_also_begins_the_next_character():
    # Byte-level vocabularies hold such tokens; transformers' `generate` stops here, too.
    tokenizer = Pieces(b"one", b".\xe6", b"\xbc\xa2", b" two")
    answer = sequence(stop=".", eos=(), tokenizer=tokenizer)
    answer.commit([0, 1, 2, 3])
    assert (answer.token_ids, answer.text, answer.finish_reason) == ([0, 1], "one", "stop")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_whole_characters_only_are_shown_and_in_the_end_all(text, size):
    answer = sequence()
    _, shown = feed(answer, [*text.encode(), EOS], size)
    assert all(text.startswith(part) for part in shown)
    assert answer.text == text


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_not_held_back_longer_than_a_character_needs(text):
    decoder, shown = IncrementalText(BYTES), ""
    for i, byte in enumerate(text.encode(), 1):
        shown += decoder.push([byte])
        assert shown == text.encode()[:i].decode(errors="ignore")


def test_random_bytes_give_the_text_of_decode_in_blocks_of_any_size():
    rng = np.random.default_rng(2)
    alphabet = [0x00, 0x41, 0x7F, 0x80, 0xA9, 0xBF, 0xC2, 0xC3, 0xE2, 0x82, 0xAC, 0xED, 0xA0, 0xEF, 0xBD, 0xF0, 0x9F,
                0xF4, 0x90, 0xFF, 256, 258]  # fmt: skip
    for trial in range(300):
        source = alphabet if trial % 2 else np.arange(256)
        ids = rng.choice(source, size=rng.integers(1, 30)).tolist()
        answer, shown = sequence(), ""
        for block in blocks(rng, [*ids, EOS]):
            answer.commit(block)
            assert answer.text.startswith(shown)  # what was shown is never taken back
            shown = answer.text
        assert answer.text == BYTES.decode(ids, skip_special_tokens=True), ids


def test_a_replacement_character_that_the_model_wrote_is_shown():
    answer = sequence()
    answer.commit([*"a\ufffd".encode()])
    answer.commit([*b"b", EOS])
    assert answer.text == "a\ufffdb"


def metaspace_tokenizer(decoder):
    """Words with `▁` in front, single bytes as `<0x..>`, as in the Llama vocabularies made by SentencePiece."""
    words = ["▁", "▁▁", "▁a", "b", "▁the", "é", ".", "▁.", "▁n", "'t", "\n"]
    vocabulary = {w: i for i, w in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, fuse_unk=True))
    core.decoder = decoder
    core.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>"), len(words)


LLAMA_DECODER = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
)


@pytest.mark.parametrize("decoder", [LLAMA_DECODER, decoders.Metaspace()], ids=["llama", "metaspace"])
def test_leading_spaces_of_a_sentencepiece_vocabulary_survive_at_every_block_edge(decoder):
    tokenizer, words = metaspace_tokenizer(decoder)
    rng = np.random.default_rng(3)
    byte_runs = "é漢🙂" if decoder is LLAMA_DECODER else ""
    for _ in range(300):
        ids = []
        for _ in range(rng.integers(1, 12)):
            kind = rng.random()
            if kind < 0.2 and byte_runs:
                ids += [words + byte for byte in byte_runs[rng.integers(3)].encode()]
            elif kind < 0.3:
                ids.append(tokenizer.eos_token_id)  # a special token inside an answer shows nothing
            else:
                ids.append(int(rng.integers(words)))
        answer = sequence(eos=(), tokenizer=tokenizer, cap=len(ids))
        for block in blocks(rng, ids):
            answer.commit(block)
            assert "\ufffd" not in answer.text
        assert answer.text == tokenizer.decode(ids, skip_special_tokens=True), ids


def test_the_first_space_is_dropped_once_and_the_others_kept():
    tokenizer, _ = metaspace_tokenizer(LLAMA_DECODER)
    the, space = tokenizer.convert_tokens_to_ids(["▁the", "▁"])
    decoder = IncrementalText(tokenizer)
    assert [decoder.push([i]) for i in (the, the, space, the)] == ["the", " the", " ", " the"]


def test_a_long_answer_decodes_a_few_tokens_at_a_time():
    class Counting:
        most = 0

        def decode(self, token_ids, skip_special_tokens=False):
            self.most = max(self.most, len(token_ids))
            return BYTES.decode(token_ids, skip_special_tokens=skip_special_tokens)

    tokenizer = Counting()
    answer = sequence(tokenizer=tokenizer, stop="zzz")
    for _ in range(50):
        answer.commit([*"añ漢🙂".encode()])
    assert tokenizer.most <= 16
