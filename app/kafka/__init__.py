"""Kafka outside Faust: clients, topics, and reading the project's own topics.

- `clients` makes all clients, reads ranges of logs, and waits for brokers and topics;
- `cluster` asks aiokafka's private parts, and adds what it lacks while brokers are away;
- `security` is TLS and logins, and why brokers refuse us; `schema_registry` is another server's client;
- `topics` says which topics the settings need, creates and checks them;
- `control_log` holds the records of a control topic, and `control_topic` settles and finds streams by them;
- `token_topic` reads messages, and what a worker resumes from;
- `fastpath` replaces parts of aiokafka for speed, where a process installs it.
"""
