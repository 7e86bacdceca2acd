"""Normal forms of free answers: the EvalAI rules of VQA v2 and their TextVQA variant.

The tables are data of the official scorer (github.com/GT-Vision-Lab/VQA, ``vqaEval.py``, also in facebookresearch/mmf),
kept entry for entry: a "repaired" table would give other scores than the published ones.
"""

import re

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = frozenset({"a", "an", "the"})
_NUMBER_TABLE = "none=0 zero=0 one=1 two=2 three=3 four=4 five=5 six=6 seven=7 eight=8 nine=9 ten=10"
_CONTRACTION_TABLE = """
aint=ain't arent=aren't cant=can't couldve=could've couldnt=couldn't couldn'tve=couldn't've couldnt've=couldn't've
didnt=didn't doesnt=doesn't dont=don't hadnt=hadn't hadnt've=hadn't've hadn'tve=hadn't've hasnt=hasn't
havent=haven't hed=he'd hed've=he'd've he'dve=he'd've hes=he's howd=how'd howll=how'll hows=how's Id've=I'd've
I'dve=I'd've Im=I'm Ive=I've isnt=isn't itd=it'd itd've=it'd've it'dve=it'd've itll=it'll let's=let's maam=ma'am
mightnt=mightn't mightnt've=mightn't've mightn'tve=mightn't've mightve=might've mustnt=mustn't mustve=must've
neednt=needn't notve=not've oclock=o'clock oughtnt=oughtn't ow's'at='ow's'at 'ows'at='ow's'at 'ow'sat='ow's'at
shant=shan't shed've=she'd've she'dve=she'd've she's=she's shouldve=should've shouldnt=shouldn't
shouldnt've=shouldn't've shouldn'tve=shouldn't've somebody'd=somebodyd somebodyd've=somebody'd've
somebody'dve=somebody'd've somebodyll=somebody'll somebodys=somebody's someoned=someone'd someoned've=someone'd've
someone'dve=someone'd've someonell=someone'll someones=someone's somethingd=something'd
somethingd've=something'd've something'dve=something'd've somethingll=something'll thats=that's thered=there'd
thered've=there'd've there'dve=there'd've therere=there're theres=there's theyd=they'd theyd've=they'd've
they'dve=they'd've theyll=they'll theyre=they're theyve=they've twas='twas wasnt=wasn't wed've=we'd've
we'dve=we'd've weve=we've werent=weren't whatll=what'll whatre=what're whats=what's whatve=what've whens=when's
whered=where'd wheres=where's whereve=where've whod=who'd whod've=who'd've who'dve=who'd've wholl=who'll whos=who's
whove=who've whyll=why'll whyre=why're whys=why's wont=won't wouldve=would've wouldnt=wouldn't
wouldnt've=wouldn't've wouldn'tve=wouldn't've yall=y'all yall'll=y'all'll y'allll=y'all'll yall'd've=y'all'd've
y'alld've=y'all'd've y'all'dve=y'all'd've youd=you'd youd've=you'd've you'dve=you'd've youll=you'll youre=you're
youve=you've
"""
NUMBERS = dict(pair.split("=") for pair in _NUMBER_TABLE.split())
CONTRACTIONS = dict(pair.split("=") for pair in _CONTRACTION_TABLE.split())
"""Without ``its``, with ``somebody'd`` the wrong way round, and with four keys that lower case never meets."""

_PERIOD = re.compile(r"\.(?!\d)")
_MOST_PERIODS = 32
"""The official code passes a flag of this value where ``re.sub`` takes the number of replacements."""
_COMMA_IN_NUMBER = re.compile(r"\d,\d")


def vqa_normalize(answer: str) -> str:
    """Normal form of VQA v2: white space, punctuation, periods, numbers and articles, contractions, in this order."""
    return " ".join(_words(strip_punctuation(clean_space(answer))))


def textvqa_normalize(answer: str) -> str:
    """Normal form of TextVQA: lower-cased, without ``,`` and ``?``, ``'s`` split off, then as `vqa_normalize`."""
    text = answer.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    return vqa_normalize(text)


def clean_space(answer: str) -> str:
    """The answer on one line, without space around it."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def strip_punctuation(text: str, period: re.Pattern[str] = _PERIOD) -> str:
    """Deletes a mark that stands beside a space anywhere in the text, writes a space for the others.

    In a text with a comma inside a number all marks are deleted. Periods not before a digit go as well.

    Args:
        text: The answer.
        period: Which periods to delete.
    """
    delete_all = _COMMA_IN_NUMBER.search(text) is not None
    stripped = text
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        stripped = stripped.replace(mark, "" if beside_space or delete_all else " ")
    return period.sub("", stripped, count=_MOST_PERIODS)


def _words(text: str) -> list[str]:
    words = (NUMBERS.get(word, word) for word in text.lower().split())
    return [CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES]
