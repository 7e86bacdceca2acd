import pytest

from mmsmart.errors import InputError
from mmsmart.policies.static import StaticTree
from mmsmart.registry import DRAFTERS, POLICIES, TARGETS, create, load_class, lookup


@pytest.mark.parametrize("table", [TARGETS, DRAFTERS, POLICIES])
def test_every_row_names_a_class_that_exists(table):
    for name in table:
        assert isinstance(load_class(table, "thing", name), type)


def test_a_misspelt_name_gets_the_nearest_and_all_known():
    with pytest.raises(InputError, match=r"unknown policy 'best-frist'; did you mean 'best-first'\? known: ") as caught:
        lookup(POLICIES, "policy", "best-frist")
    assert all(name in str(caught.value) for name in POLICIES)


def test_a_missing_option_is_named_with_the_way_to_write_it():
    with pytest.raises(InputError, match=r"drafter 'msd' needs checkpoint; write it as msd:checkpoint=\.\.\."):
        create(DRAFTERS, "drafter", "msd")


def test_a_name_near_to_none_gets_no_hint():
    with pytest.raises(InputError, match=r"unknown drafter 'zzz'; known: "):
        lookup(DRAFTERS, "drafter", "zzz")


@pytest.mark.parametrize("spec", ["likelihood:depth=3,top_k=2,total=7", " likelihood : depth = 3 , top_k=2,total= 7,"])
def test_options_are_read_as_numbers(spec):
    policy = create(POLICIES, "policy", spec)
    assert (policy.depth, policy.top_k, policy.total) == (3, 2, 7)


def test_no_options_are_the_defaults():
    assert create(DRAFTERS, "drafter", "ngram").longest == 4
    assert create(DRAFTERS, "drafter", "ngram:").longest == 4


def test_the_table_of_a_static_tree_can_be_given_as_an_option():
    policy = create(POLICIES, "policy", "static:paths=((0,),(1,),(0,0))")
    assert isinstance(policy, StaticTree)
    assert policy.paths == ((0,), (1,), (0, 0))


def test_an_unknown_option_is_refused_with_those_that_exist():
    with pytest.raises(InputError, match=r"policy 'chain' has no option 'dept'; it takes: depth"):
        create(POLICIES, "policy", "chain:dept=3")
    with pytest.raises(InputError, match=r"policy 'none' has no option 'depth'; it takes: none"):
        create(POLICIES, "policy", "none:depth=3")


@pytest.mark.parametrize("spec", ["chain:3", "chain:depth"])
def test_an_option_without_a_value_is_refused(spec):
    with pytest.raises(InputError, match="name=value"):
        create(POLICIES, "policy", spec)


@pytest.mark.parametrize(
    ("table", "spec", "wrong"),
    [
        (POLICIES, "chain:depth=0", "0"),
        (POLICIES, "chain:depth=two", "two"),
        (POLICIES, "likelihood:total=-1", "-1"),
        (POLICIES, "likelihood:depth=1.5", "1.5"),
        (POLICIES, "best-first:nodes=True", "True"),
        (POLICIES, "static:paths=abc", "abc"),
        (POLICIES, "static:paths=5", "5"),
        (POLICIES, "static:paths=()", r"\(\)"),
        (DRAFTERS, "ngram:longest=0", "0"),
        (DRAFTERS, "ngram:shortest=9", "9"),
        (DRAFTERS, "ngram:horizon=0", "0"),
        (DRAFTERS, "ngram:longest=four", "four"),
        (DRAFTERS, "ngram:longest=2.5", "2.5"),
        (DRAFTERS, "ngram:horizon=many", "many"),
    ],
)
def test_a_wrong_option_value_is_an_input_error_that_quotes_it(table, spec, wrong):
    with pytest.raises(InputError, match=wrong):
        create(table, "thing", spec)
