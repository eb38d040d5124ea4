"""Which requests a mill may still take over: a function of its chains' published cursors."""

from hypothesis import given
from hypothesis import strategies as st

from tests.mills import RECIPE
from tokenmill.app.kafka.control_log import ControlLog, skip_record, skip_request_record
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.mill.skip_list import SkipList, has_passed
from tokenmill.app.settings import Settings, Stream
from tokenmill.wire.chain import NO_RECORD, Cursor
from tokenmill.wire.genesis import Genesis

CURSORS = st.builds(
    lambda offset, taken, begun: Cursor(offset, taken, 0, offset if taken or begun else offset - 1),
    st.integers(0, 9),
    st.integers(0, 1),
    st.booleans(),
)
"""Some are in the middle of a record: it gave tokens, or made a block leave."""


def skip_list(*logs: list[tuple[bytes, bytes]]) -> SkipList:
    """Return the list of streams whose control topics say this."""
    streams = []
    for number, records in enumerate(logs):
        control = ControlLog()
        for record in records:
            control.add(*record)
        stream = Stream(f"raw.{number}", "raw", str(number))
        streams.append(Settled(stream, Genesis(stream.name, RECIPE, (0,), 1), control))
    return SkipList(Settings(), streams)


@given(st.lists(CURSORS, min_size=1, max_size=3), st.integers(0, 9))
def test_a_request_is_wanted_until_a_chain_has_passed_it(cursors: list[Cursor], offset: int) -> None:
    """The furthest chain decides; one that has begun the document has passed it."""
    wanted = skip_list([skip_request_record(0, offset)], []).wanted(0, cursors)
    settled = max(max(cursor.next_offset - 1, cursor.last_offset) for cursor in cursors)
    assert wanted == ([offset] if settled < offset else [])
    assert bool(wanted) != any(has_passed(cursor, offset) for cursor in cursors)


def test_what_stands_on_one_streams_list_only_is_still_wanted() -> None:
    """A mill died between the two: the next one finishes it. What stands on all of them is not asked for again."""
    asked, done = skip_request_record(0, 5), skip_record(0, 5)
    start = [Cursor(0, 0, 0, NO_RECORD)] * 2
    assert skip_list([asked, done], [asked]).wanted(0, start) == [5]
    assert skip_list([asked, done], [asked, done]).wanted(0, start) == []
    assert skip_list([asked, done], [asked]).in_force(0) == {5}
    assert skip_list([asked], [asked]).in_force(0) == frozenset()
    assert skip_list([asked], [asked]).wanted(1, start) == []
