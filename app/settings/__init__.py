"""Settings: one set of names for flags, TOKENMILL_… variables and the TOML file, in that order of precedence."""

from .model import SECRETS, ConnectionSettings, Loaded, Settings, TopicSettings, load_settings, load_with_origins
from .values import Domain, Stream, dead_letter_topic, produced_topic, rejected_topic

__all__ = [
    "SECRETS",
    "ConnectionSettings",
    "Domain",
    "Loaded",
    "Settings",
    "Stream",
    "TopicSettings",
    "dead_letter_topic",
    "load_settings",
    "load_with_origins",
    "produced_topic",
    "rejected_topic",
]
