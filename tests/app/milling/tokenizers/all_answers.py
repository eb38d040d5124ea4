"""What the engines answer with the library ``tokenizers`` that Python finds: ``python -m ... FOLDER`` prints JSON.

By the name of each ``tokenizer.json`` in the folder: all that gets into a stream, as hashes, and what people are told.
"""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks.corpus import documents
from tests.mills import RECIPE
from tests.vocabularies.texts import COLLECTION, LONG, SPECIAL_LOOKING
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.tokenizers import EngineName, SpecialTokens, TokenizerFile, choose_engine
from tokenmill.app.milling.tokenizers.hugging_face import HuggingFace, lengthening, template_of
from tokenmill.app.milling.tokenizers.vocabulary import Description, end_of, token_for
from tokenmill.errors import SettingsError


def main(folder: Path) -> None:
    files = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.json"))}
    print(json.dumps({"version": tokenizers.__version__} | {name: _answers(files[name]) for name in files}))  # noqa: T201


def _answers(content: bytes) -> dict[str, Any]:
    file = TokenizerFile("file", content)
    reference = HuggingFace(content)
    names = [*reference.added_tokens[:50], *SPECIAL_LOOKING]
    texts = [*COLLECTION, *(text[:20_000] for text in LONG), *names, *(f"x{name} {name}é" for name in names)]
    normalize = lengthening(content)
    # of prose and code for each vocabulary, so that all of them together get 50 MB
    corpus = [document.text for document in documents(3670, 5_000_000)]
    answers = {
        "corpus": [_ids(file, engine, "text", corpus) for engine in ("tokenizers", "auto")],
        "ids": {special: _ids(file, "tokenizers", special, texts) for special in ("text", "tokens")},
        "auto": _ids(file, "auto", "text", texts),
        "normalized": normalize and _hash([normalize(text) for text in texts]),
        "decoded": _hash([reference.decode([number]) for number in range(0, reference.vocabulary_size, 7)]),
        "special": repr(Description.of(file)),
        "roles": [repr(token_for(role, file, reference)) for role in ("pad", "bos", "unk")],
        "end": repr(end_of(file, reference)),
        "names": [reference.added_tokens[:500], sorted(reference.found_tokens)[:500], reference.token_id("a")],
        "fingerprint": complete(replace(RECIPE, packing="rows"), file, None, "tokenizers")[0].fingerprint.hex(),
    }
    try:
        return answers | {"template": template_of(file)}
    except SettingsError as error:
        return answers | {"template": str(error)}


def _ids(file: TokenizerFile, engine: EngineName, special: SpecialTokens, texts: list[str]) -> str:
    return _hash([ids.tolist() for ids in choose_engine(file, engine, special)[0].encode(texts)])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
