"""From text to token ids: tokenizer engines, one module each, behind `Engine`.

`load_tokenizer` fetches what the setting ``tokenizer`` names, `open_engine` makes an engine of it. Importing this
package imports no tokenizer library; opening an engine imports the one that it needs.
"""

from tokenmill.stages.engines.opening import (
    AUTO,
    REFERENCE,
    Choice,
    EngineName,
    choose_engine,
    open_engine,
    reference_of,
)
from tokenmill.stages.engines.probe import PROBE, probe
from tokenmill.stages.engines.protocol import TOKENIZER_FAILED, Encoder, Engine, TokenBatch, joined
from tokenmill.stages.engines.tokenizer_file import RAW_BYTES, TokenizerFile, load_tokenizer
from tokenmill.stages.engines.vocabulary import dtype_for, end_of_document_id

__all__ = [
    "AUTO",
    "PROBE",
    "RAW_BYTES",
    "REFERENCE",
    "TOKENIZER_FAILED",
    "Choice",
    "Encoder",
    "Engine",
    "EngineName",
    "TokenBatch",
    "TokenizerFile",
    "choose_engine",
    "dtype_for",
    "end_of_document_id",
    "joined",
    "load_tokenizer",
    "open_engine",
    "probe",
    "reference_of",
]
