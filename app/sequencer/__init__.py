"""The sequencer: judges which documents were seen before, of all partitions and topics of a domain, in one order.

Its app is `tokenmill.app.sequencer.app`; docs/reliability.md has the rules ("Duplicates across partitions").
"""
