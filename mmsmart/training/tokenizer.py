"""The tokenizer of the embedded models: words of the synthetic language are one token each, all other text is bytes.

The vocabulary is built, not learned: specials, the 256 bytes, then the words with and without a leading space. With
``ignore_merges`` a piece of text that is a word in the vocabulary is that token at once, so no merge table is needed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mmsmart.training.facts import COLORS, MONTHS, SHAPES, SIZES, TOPICS, WORDS

PAD, BOS, EOS, UNKNOWN, IMAGE = "<pad>", "<s>", "</s>", "<unk>", "<image>"
SPACE = "Ġ"
SPECIALS = (PAD, BOS, EOS, UNKNOWN, IMAGE)
MAX_LENGTH = 2048
VOCABULARY_SIZE = 640
LARGEST_TOTAL = 475
STARTERS = """
Describe Do Does How Is Rank Report Sort USER What Where Which describe do does how is rank report sort what where
which
"""
INNER_WORDS = """
+ - 0 = ASSISTANT Above Add At Be It No Take Test The There This Yes a about above all an and apart are at bar bars
between biggest bottom brief center chart circles color colour diamonds difference do does down ends fall far from
gap go goes has have highest in is it item items kind large larger largest left line longest lowest many middle much
no none not number objects of one or order picture pie plus point right rise see shape shapes shortest show shows
size slice slices smaller smallest squares stars starts sum tallest than the there this title to together top total
trend triangles type up value values wide with yes you
"""
LATER_STARTERS = """
List list Tell tell Please please Can can Are are Count count Name name Compare compare There there
"""
LATER_WORDS = """
image please list me month months that these object add for on below Below graph fewest most least shown form place
position maximum minimum average can what which how they each
"""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}"
    "{{ 'USER: ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\\n' }}{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}"
    "{{ ' ASSISTANT:' if add_generation_prompt or not loop.last else '' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{% if message['content'] is string %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ ' ' + part['text'] }}{% endif %}{% endfor %}"
    "{{ eos_token }}"
    "{% endif %}"
    "{% endif %}"
    "{% endfor %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer of the family "llava"; the same code always gives the same ids."""
    names: dict[str, Any] = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNKNOWN}
    names["extra_special_tokens"] = {"image_token": IMAGE}
    return assemble_tokenizer([*SPECIALS], words(), CHAT_TEMPLATE, **names)


def assemble_tokenizer(
    specials: list[str], pieces: Iterable[str], template: str, later_specials: Sequence[str] = (), **names: Any
) -> PreTrainedTokenizerFast:
    """Makes a tokenizer of special tokens, the 256 bytes, words, and more special tokens, in this order of ids.

    Args:
        specials: Special tokens with the first ids.
        pieces: Words as the pre-tokenizer cuts them.
        template: Chat template.
        later_specials: Special tokens with the last ids.
        names: Which special token is ``pad_token``, ``eos_token`` and so on.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = list(dict.fromkeys([*specials, *alphabet, *pieces, *later_specials]))
    if len(tokens) > VOCABULARY_SIZE:
        raise AssertionError(f"{len(tokens)} tokens do not fit the vocabulary of {VOCABULARY_SIZE}")
    model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    # Answers begin with the space that follows "ASSISTANT:"; decoded text does not.
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    all_specials = (*specials, *later_specials)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in all_specials])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        **names,
    )
    fast.chat_template = template
    return fast


def words() -> Iterator[str]:
    """Pieces of the synthetic language as the pre-tokenizer cuts them, in a fixed order: append, never insert."""
    numbers = [str(n) for n in (*range(1, 10), *range(10, LARGEST_TOTAL + 1, 5))]
    for word in (*WORDS, *MONTHS, *TOPICS, *COLORS, *SHAPES, *SIZES, *numbers, *map(str.lower, (*MONTHS, *TOPICS))):
        yield SPACE + word
    for starters, inner in ((STARTERS, INNER_WORDS), (LATER_STARTERS, LATER_WORDS)):
        yield from starters.split()
        yield from (SPACE + word for word in inner.split())
