"""Settings: one set of names for flags, TOKENMILL_… variables and the TOML file, in that order of precedence."""

from .connection import SECRETS, ConnectionSettings
from .load import Loaded, load_settings, load_with_origins
from .model import Settings, Stream, TopicSettings, dead_letter_topic, produced_topic
from .registry import RegistrySettings

__all__ = [
    "SECRETS",
    "ConnectionSettings",
    "Loaded",
    "RegistrySettings",
    "Settings",
    "Stream",
    "TopicSettings",
    "dead_letter_topic",
    "load_settings",
    "load_with_origins",
    "produced_topic",
]
