"""What a catalog answers to a name that it does not have, or has and cannot give."""

import pytest

from mimetic.catalog import Catalog, Entry
from mimetic.errors import ConfigError

SOME = {"act": Entry(target="mimetic.policies.act.policy:ACT"), "pi0": Entry()}


@pytest.mark.parametrize(
    ("entries", "name", "hint"),
    [
        (SOME, "atc", "did you mean `act`?"),
        (SOME, "zebra", "available: act"),
        (SOME, "pi0", "available: act"),
        ({"pusht": Entry()}, "zebra", "none is available yet"),
        ({"pusht": Entry()}, "pusht", "none is available yet"),
    ],
)
def test_the_hint_names_what_there_is(entries, name, hint):
    with pytest.raises(ConfigError) as caught:
        Catalog("thing", entries)[name]
    assert caught.value.hint == hint
