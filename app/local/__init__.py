"""A Kafka on this machine, without installing one, and the directory in which one local TokenMill keeps everything.

`broker` starts it, from the `jars` that are locked in ``broker.lock.toml``; `local_state` is the directory, which
`demo` and `up` share.
"""
