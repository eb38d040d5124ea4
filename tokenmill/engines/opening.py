"""From a tokenizer to an engine."""

from tokenmill.engines.protocol import Engine
from tokenmill.engines.raw_bytes import RawBytes
from tokenmill.engines.tokenizer_file import TokenizerFile


def open_engine(tokenizer: TokenizerFile) -> Engine:
    """Return the engine for ``tokenizer``.

    Raises:
        SettingsError: the file is no tokenizer, or one that cannot encode every text.

    """
    if tokenizer.content is None:
        return RawBytes()
    # imported here: who needs raw bytes, or only the protocol, needs no tokenizer library
    from tokenmill.engines.hugging_face import HuggingFace  # noqa: PLC0415

    return HuggingFace(tokenizer.content)
