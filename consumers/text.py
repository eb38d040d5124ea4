"""Text of token ids, by the tokenizer that a store keeps of its stream."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.errors import InputError, StoreError
from tokenmill.store import StreamInfo, read_tokenizer, tokenizer_path

from . import arguments

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class StoredTokenizer:
    """The tokenizer of a stream, read and loaded when it is asked for; another process does so again."""

    def __init__(self, store: Path, info: StreamInfo) -> None:
        self._store = store
        self.info = info

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._store, self.info)

    @cached_property
    def library(self) -> "Tokenizer | None":
        """What decodes; None where tokens are raw bytes."""
        if read_tokenizer(self._store, self.info) is None:
            return None
        from tokenizers import Tokenizer, __version__  # noqa: PLC0415 - few loops want text

        try:
            return Tokenizer.from_file(str(tokenizer_path(self._store, self.info)))
        except MemoryError:
            raise
        except Exception as error:
            raise StoreError(
                f"the tokenizer of {self.info.name} cannot be loaded by tokenizers {__version__}, which is installed "
                f"here ({error}): install the version that the stream was milled with, or a later one"
            ) from error


class HasTokenizer:
    """What reads tokens of a stream, and can show their text."""

    _tokenizer: StoredTokenizer

    def decode(self, tokens: Any) -> str:
        """Return the text of one row of token ids, by the stream's own tokenizer.

        Special tokens are shown, bytes that are no UTF-8 are U+FFFD, and ids below 0, as of masked labels, are left
        out. The first call loads the tokenizer, which the store keeps beside the stream.

        Raises:
            InputError: these are no row of ids of the stream.
            StoreError: the tokenizer needs a later version of the library ``tokenizers``.
            DamagedError: the tokenizer is missing in the store, or another one than the stream's.
        """
        given = tokens.cpu() if hasattr(tokens, "cpu") else tokens  # numpy takes no tensor of another device
        ids = [number for number in arguments.row_of("tokens", given).tolist() if number >= 0]
        info, library = self._tokenizer.info, self._tokenizer.library
        size = info.recipe.get("vocabulary_size")
        if size is not None and max(ids, default=0) >= size:
            raise InputError(f"tokens hold the id {max(ids)}: give ids of {info.name}, from 0 to {size - 1}")
        if library is None:
            return bytes(ids).decode(errors="replace")
        text: str = library.decode(ids, skip_special_tokens=False)
        return text
