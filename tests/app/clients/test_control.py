"""What is said where a stream was settled otherwise."""

from dataclasses import replace

import pytest

from tests.mills import RAW, RECIPE
from tokenmill.app.clients.control import require_fingerprint
from tokenmill.errors import FingerprintError
from tokenmill.genesis import Genesis
from tokenmill.opening import complete

NOW = complete(RECIPE, RAW, None)[0]


def test_a_stream_of_the_same_recipe_is_continued() -> None:
    """Nothing is raised."""
    require_fingerprint(Genesis("s", NOW, (0,), 8), NOW)


def test_other_settings_can_be_set_back() -> None:
    """They are named, with both values."""
    genesis = Genesis("s", replace(NOW, min_chars=3), (0,), 8)
    with pytest.raises(FingerprintError, match=r"min_chars: 3 != 0.*: set them back, or .* stream_suffix"):
        require_fingerprint(genesis, NOW)


@pytest.mark.parametrize("mode", ["auto", "json"])
def test_a_stream_of_earlier_decoding_rules_is_refused_with_what_to_do(mode: str) -> None:
    """No setting brings the rules back: the version that made the stream does, or a new stream."""
    now = complete(replace(RECIPE, decode=mode), RAW, None)[0]
    before = replace(now, steps=({"name": "not_empty"},))
    with pytest.raises(FingerprintError, match=rf'decode = "{mode}" has other rules since: .* stream_suffix'):
        require_fingerprint(Genesis("s", before, (0,), 8), now)


def test_a_stream_of_plain_text_is_continued() -> None:
    """Its fingerprint is the one that it always had."""
    now = complete(replace(RECIPE, decode="text"), RAW, None)[0]
    require_fingerprint(Genesis("s", replace(now, steps=({"name": "not_empty"},)), (0,), 8), now)
