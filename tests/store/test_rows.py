"""Block rows."""

from zlib import crc32

from tests.store.chains import make_chain, make_info
from tokenmill.store.commit_log import BLOCK_ROW, chain_after, entry_span, make_rows


def test_a_row_says_where_its_entry_ends_and_what_its_bytes_hash_to() -> None:
    """Rows continue a document table of any length."""
    info = make_info()
    chain = make_chain(info, 3)
    rows = make_rows(memoryview(chain.tokens), chain.entries, chain.chains, docs_bytes=100)
    assert rows.dtype == BLOCK_ROW
    assert rows.dtype.itemsize == 32
    assert rows["docs_end"][2] == 100 + sum(map(len, chain.entries))
    assert rows["tokens_crc"][1] == crc32(chain.tokens[info.block_bytes : 2 * info.block_bytes])
    assert rows["entry_crc"][1] == crc32(chain.entries[1])
    assert chain_after(rows, 2) == chain.chains[2]


def test_an_entry_spans_from_the_end_of_the_one_before() -> None:
    """The first one begins with the file."""
    chain = make_chain(make_info(), 2)
    rows = make_rows(memoryview(chain.tokens), chain.entries, chain.chains, docs_bytes=0)
    ends = [len(chain.entries[0]), len(chain.entries[0]) + len(chain.entries[1])]
    assert [entry_span(rows, 0), entry_span(rows, 1)] == [(0, ends[0]), (ends[0], ends[1])]
