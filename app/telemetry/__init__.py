"""What is counted and measured, how the numbers of several processes become one page, and who may ask for it.

`worker_metrics` names what a worker counts, `measuring` measures its partitions. `reporting` puts
plain values of all that into a heartbeat; the supervisor adds up what all processes of all workers ever counted, and
`server` shows it. Labels are closed sets, never a record's text.
"""
