"""What a data set is, from facts alone: `store_facts`, `add_broker_facts`; as `croissant`, as a `card`, or as JSON."""

from .card import card
from .croissant import croissant
from .facts import DataSetFacts, add_broker_facts, store_facts

__all__ = ["DataSetFacts", "add_broker_facts", "card", "croissant", "store_facts"]
