"""Settings: one set of names for flags, TOKENMILL_… variables and the TOML file, in that order of precedence."""

from .connections import ConnectionSettings, RegistrySettings
from .load import Loaded, load_settings, load_with_origins
from .model import SECRETS, Settings, TopicSettings
from .values import Domain, Stream, dead_letter_topic, produced_topic, rejected_topic

__all__ = [
    "SECRETS",
    "ConnectionSettings",
    "Domain",
    "Loaded",
    "RegistrySettings",
    "Settings",
    "Stream",
    "TopicSettings",
    "dead_letter_topic",
    "load_settings",
    "load_with_origins",
    "produced_topic",
    "rejected_topic",
]
