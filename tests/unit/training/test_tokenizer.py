"""The tokenizer: deterministic, one token a word, any text survives, the template takes both shapes of content."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mmsmart.training.facts import COLORS, MONTHS, SHAPES, SIZES, TOPICS, VALUES, WORDS
from mmsmart.training.questions import heldout_samples
from mmsmart.training.tokenizer import VOCABULARY_SIZE, build_tokenizer

TEXTS = ["Which bar is the tallest?", "Größe, 漢字, 🙂", "  two  spaces\tand\nlines ", "1234567890", "don't"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def test_deterministic(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert len(tokenizer) <= VOCABULARY_SIZE


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    # one leading space belongs to the prompt's end, not to the text
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text.removeprefix(" ")


def test_content_words_are_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    for word in (*WORDS, *MONTHS, *TOPICS, *COLORS, *SHAPES, *SIZES, *map(str, VALUES)):
        assert len(tokenizer(f" {word}", add_special_tokens=False).input_ids) == 1, word


def test_no_word_of_a_question_falls_to_bytes(tokenizer: PreTrainedTokenizerFast) -> None:
    for sample in heldout_samples(600, seed=8):
        pieces = tokenizer.tokenize(f"{sample.question} {sample.answer}")
        assert not [piece for piece in pieces if len(piece) == 1 and piece.isalpha() and piece not in "aĠ"], pieces


def test_loads_with_auto_tokenizer(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert loaded(text).input_ids == tokenizer(text).input_ids


def test_template_takes_strings_and_lists(tokenizer: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "How many shapes are there?"}]
    as_list = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
    )
    as_text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "<image>\nHow many shapes are there?"}], add_generation_prompt=True, tokenize=False
    )
    assert as_list == as_text == "<s>USER: <image>\nHow many shapes are there? ASSISTANT:"


def test_template_takes_several_pictures_none_and_a_dialogue(tokenizer: PreTrainedTokenizerFast) -> None:
    two = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Hi"}]
    messages = [{"role": "user", "content": two}, {"role": "assistant", "content": "Yes."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<s>USER: <image>\n<image>\nHi ASSISTANT: Yes.</s>"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<s>USER: Hi ASSISTANT:"
