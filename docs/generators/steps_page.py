"""``docs/steps.md``, from the code: ``make docs``."""

from collections.abc import Iterator
from typing import Any, Final

from tokenmill.app.milling.curation.words import CHUNK_CHARACTERS
from tokenmill.app.milling.steps.pipeline import MAX_STEPS, PROFILES, STEPS, toml_value
from tokenmill.parameters import MAX_LIST_BYTES, parameters_of
from tokenmill.recipe import step_in_words

PAGE: Final = """\
# Steps: filters and transforms of documents

<!-- Made by `make docs` from the code; a test compares. -->

What happens to a document between the raw topic and the tokenizer, in this order: `normalize`, `function`, the list
`steps`, empty texts out, `min_chars`. Each step gets what the one before it left, and either changes the document, lets
it pass, or filters it out for a reason. The list is part of the fingerprint: another one is another stream.

```toml
# tokenmill.toml
[[steps]]
name = "gopher_quality"
min_doc_words = 20

[[steps]]
name = "regex"
regex_exp = "(?i)all rights reserved"
```

or, where nothing is changed, by name: `steps = ["fineweb-2024"]`, `--steps language,gopher`, or JSON:
`TOKENMILL_STEPS='[{{"name": "length", "min_words": 5}}]'`. A recipe has {most} steps at most. They need the extra
`curation` (`pip install '.[curation]'`), which the container image has.

- `tokenmill steps list` lists all of them.
- `tokenmill steps show fineweb-2024` writes a profile out as TOML, with every parameter, to be pasted and changed.

Parameters and reasons are named as in datatrove 0.10 where it has them. Totals count a document that is filtered out
under `step.reason`, as `gopher_quality.gopher_short_doc`; the second step of a name is `regex_2`.

## Try it on files

```bash
tokenmill try corpus.jsonl --profile fineweb-2024
tokenmill try 'pages/*.warc.gz' --limit 10000
tokenmill try notes/ --steps language,gopher --examples 20
tokenmill try corpus.jsonl --json > funnel.json
```

runs the recipe of the settings over files, before any of it is in Kafka, and changes nothing. It shows:

- the funnel: what each step drops, by reason, and what is kept, in documents, bytes and tokens; dead letters by reason;
  lengths and languages of what is kept;
- the speed of each step, in MB of text a second on one core, and how many texts it changes;
- examples of each reason (`--examples`; one, and five with `--all`), with file and line, the numbers that decided and
  a beginning of the text; texts that steps changed, before and after, from shortly before the first change on; texts
  that are kept. They are chosen evenly over all documents, and are the same in each call.

Files are read, and documents are made of them, as [`tokenmill produce`](produce.md) does, with the same `--format`,
`--field`, `--where` and the like; what it would not send is named, and counted as passed over. Settings are those of
the service: `tokenmill.toml`, variables, flags. So the figures are those that `tokenmill ledger` shows once the same
files are produced, and settings that please go to the service as they are. `--profile NAME` puts a profile's steps in
place of the setting `steps`; `--topic NAME` takes the settings of another one of `raw_topics`. Without a tokenizer,
tokens are bytes. Where the recipe has no list of steps, there are figures of each step all the same, which messages and
ledger leave out then.

Memory does not grow with the files. `--limit N` ends after so many documents, and Ctrl-C shows the figures so far: its
exit code is 130 then.

## Profiles

{profiles}

A profile's name stands for its steps: the recipe holds these, so a stream stays what it is when a later version of
TokenMill changes a profile. FineWeb replaces personal data after its last filter, and so does `fineweb-2024`: filters
see the text as it was written. What it leaves out of FineWeb's pipeline are the list of URLs (`url` takes your own),
text extraction, language (put `language` with `languages = ["en"]` before it) and near-duplicates.

## Lists

A list stands in the settings, as `words = ["one", "two"]`, or in a file, as `words = "words.txt"`: one entry a line in
UTF-8, at most {mib} MiB; empty lines and lines that begin with `#` are left out. A path is relative to the working
directory. **The content decides, not the path**: its SHA-256 is in the recipe, so a worker whose file has another
content is refused, as with another tokenizer. The content is on the stream's control topic; `verify` and `trace` need
no file. Of `decontaminate`, only hashes are there, not the evaluation texts.

## Verdicts beside datatrove

`gopher_quality`, `gopher_repetition`, `c4_quality`, `c4_paragraph` and `fineweb_quality` give the verdicts, reasons and
texts of datatrove 0.10.1. `make test-peers` compares them, document by document. Words and sentences are those of
spaCy's blank English pipeline, whose version is in the fingerprint. What differs on purpose:

- Of more than {chunk:,} characters without white space, every {chunk:,} are tokenized by themselves, so that no text
  takes more than a fixed multiple of plain text's time; datatrove's time grows with the square of the length. Words
  that cross a cut count as two.
- The word `IS_ALPHA` breaks spaCy. datatrove leaves it out of a text from the second such text of a process on, and
  TokenMill always.
- Where datatrove divides by zero and ends (a text without words, bounds of length switched off), a share is 0.
- The reason `< 3 paragraphs` is `too_few_paragraphs`.

- An IP address that `replace_pii` replaces is not part of a longer number, as the end of `256.1.1.1` is.

## Verdicts that hang on how a text is written

Most filters look at characters and words as they stand, so the same sentences, written down in another way, may get
another verdict. What is levelled by which step:

| what differs | verdicts that change | levelled by |
|---|---|---|
| capitals throughout | stop words, `words`, `regex`; `language` folds them itself | `fold_capitals` |
| lines that end with CR, or CR and LF | counts of lines and paragraphs | `fix_unicode`: `fix_line_breaks` |
| marks apart from their letters | lengths, shares, `words`, `regex` | `fix_unicode`: `normalization = "NFC"` |
| a wrong character set, references (`&amp;`) | symbols, terminal punctuation, words | `fix_unicode` |
| curly quotation marks | `words`, `regex` | `fix_unicode`: `uncurl_quotes` |
| ligatures, full-width letters | words | `fix_unicode`: `fix_latin_ligatures`, `fix_character_width` |

The profile `fineweb-levelled` has the first four; `fineweb-2024` stays what datatrove gives. These steps change the
text that is trained on.

A rule that changes (`replace_pii`, `language`: version 2) holds for new streams. A settled stream keeps its own.

## All steps

{steps}
"""


def page() -> str:
    """Return docs/steps.md."""
    return PAGE.format(
        most=MAX_STEPS,
        chunk=CHUNK_CHARACTERS,
        mib=MAX_LIST_BYTES >> 20,
        profiles="\n".join(_profiles()),
        steps="\n\n".join("\n".join(_step(name)) for name in STEPS),
    )


def _profiles() -> Iterator[str]:
    yield "| profile | version | steps | what it is |"
    yield "|---|---|---|---|"
    for name, profile in PROFILES.items():
        steps = ", ".join(f"`{step_in_words(step)}`" for step in profile.steps)
        yield f"| `{name}` | {profile.version} | {steps} | {profile.summary} |"


def _step(name: str) -> Iterator[str]:
    step = STEPS[name]
    yield f"### {name}"
    yield ""
    yield from (line.strip().replace("``", "`") for line in (step.__doc__ or "").strip().split("\n"))
    if parameters := parameters_of(step):
        yield ""
        yield "| parameter | type | default | what it does |"
        yield "|---|---|---|---|"
    for parameter in parameters:
        words = parameter.description.replace("``", "`").replace("|", r"\|")
        kind = parameter.kind_in_words.replace("|", r"\|")
        yield f"| `{parameter.name}` | {kind} | {_default(parameter)} | {words} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "must be given"
    return "not set" if parameter.default is None else f"`{toml_value(parameter.default)}`".replace("|", r"\|")


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is this program's output
