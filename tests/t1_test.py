from dataclasses import replace
from hypothesis import given, settings, strategies as st
from tests.mills import *
from tests.strategies import sources, record_lists, feed_sizes, message_bytes
from tokenmill.milling.reopening import Reopening
@settings(max_examples=600, deadline=None)
@given(sources, record_lists(max_size=30), feed_sizes, message_bytes, st.integers(1,4), st.sampled_from([0,2,5,100]), st.data())
def test_x(source, records, sizes, mb, k, age, data):
    recipes = tuple(replace(r, packing="fit", packing_parameters={"open_blocks":k,"max_age_offsets":age}) for r in source.recipes)
    source = replace(source, recipes=recipes)
    by_offset={r.offset:r for r in records}
    for recipe in recipes:
        ms = write(source, recipe, records, sizes, message_bytes=mb, carries=(True,False))
        blocks = source.blocks(recipe, records)
        assert_follow(ms, blocks, recipe)
        if ms:
            m = data.draw(st.sampled_from(ms))
            ro = Reopening(recipe, source.stages, resume_point(m), source.skips)
            for a,b in ro.ranges: ro.take([r for r in records if a<=r.offset<b])
            point = ro.point()
            chain = source.chain(recipe, point, 1)
            if not m.cursor.within:
                c = chain.carry(m.cursor.next_offset, by_value=True)
                assert (c.open_tokens,c.open_entry,c.references)==(point.open_tokens,point.open_entry,point.references)
                ref = Reference.resumed(recipe, source.stages, PARTITION, point, source.skips)
                assert list(ref.blocks(records)) == blocks[m.end:]
            from tokenmill.milling.partition_mill import PartitionMill
            mill = PartitionMill(source.stages,[chain],source.skips)
            assert_follow(mill.feed(records).messages[recipe.split], blocks, recipe, m.end)
