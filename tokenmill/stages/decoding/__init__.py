"""From a record's bytes to a document. A decoder is a pure function of the bytes and its own parameters.

``auto`` (`auto.py`) for any producer, ``json`` (`json_objects.py`) and ``text`` (`plain_text.py`) for strict ones;
``avro``, ``protobuf`` and ``json_schema`` (`framed_values.py`) where values name a schema of a registry;
``module:function`` (`custom.py`) for a user's own. A new format is one new module with a `Decoder`, and a line in
`opening.py`.
"""

from tokenmill.stages.decoding.custom import FunctionDecoder
from tokenmill.stages.decoding.framed_values import FramedDecoder, RegisteredSchema, SchemaSource
from tokenmill.stages.decoding.opening import FORMATS, MODES, open_decoder
from tokenmill.stages.decoding.protocol import Decoder, one_by_one
from tokenmill.stages.decoding.reasons import REASONS

__all__ = [
    "FORMATS",
    "MODES",
    "REASONS",
    "Decoder",
    "FramedDecoder",
    "FunctionDecoder",
    "RegisteredSchema",
    "SchemaSource",
    "one_by_one",
    "open_decoder",
]
