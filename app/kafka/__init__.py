"""Kafka outside Faust: clients, topics, and reading the project's own topics.

- `clients` makes all clients and reads ranges of logs; `connections` adds what aiokafka lacks while brokers are away;
  `cluster` asks aiokafka about leaders, connections and metadata; `retry` waits for brokers and topics;
- `security` is TLS and logins, and why brokers refuse us; `schema_registry` is another server's client;
- `topics` says which topics the settings need, creates and checks them;
- `control_log` holds the records of a control topic, `control_topic` settles a stream by them, and `settled_streams`
  finds streams by these topics;
- `token_topic` reads messages, and what a worker resumes from;
- `fastpath` replaces parts of aiokafka for speed, where a process installs it.
"""
