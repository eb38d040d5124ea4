"""Lab: look at a corpus before it is used. Its texts, their lengths, and the characters in them.

python examples/labs/characters.py my_texts/*.jsonl --rare 5
"""

# ruff: noqa: INP001 - a script, no part of a package

import sys
import unicodedata
from collections import Counter

import lab
import numpy as np
from corpus import arguments, items_of, ran_with

from tokenmill.app.sources import Refused


def main() -> None:
    """Count texts, lengths and characters."""
    parser = arguments(__doc__)
    parser.add_argument("--rare", type=int, default=3, help="characters of fewer texts are shown as rare")
    parser.add_argument("--shown", type=int, default=200, help="so many of the characters are printed")
    options = parser.parse_args()
    print(ran_with())
    characters: Counter[str] = Counter()
    lengths: list[int] = []
    refused: list[Refused] = []
    for item in items_of(options):
        if isinstance(item, Refused):
            refused.append(item)
            continue
        text = item.text
        lengths.append(len(text))
        characters.update(set(text))
    if not lengths:
        why = f": {refused[0].where}: {refused[0].why}" if refused else ""
        sys.exit(f"there are no texts in {' '.join(options.texts)}{why}")
    found = np.array(lengths)
    percent = np.percentile(found, (5, 50, 95)).astype(int).tolist()
    print(f"{len(found):,} texts, {found.sum():,} characters")
    print(f"5 % have {percent[0]:,} characters or fewer, half {percent[1]:,}, 95 % {percent[2]:,}")
    print(f"{len(refused):,} entries are no texts" if refused else "all entries are texts")
    print(f"{len(characters):,} different characters")
    print(" ".join(map(ascii, sorted(characters)[: options.shown])) + (" …" if len(characters) > options.shown else ""))
    kinds = Counter(unicodedata.category(character)[0] for character in characters)
    print(", ".join(f"{name} {kinds[kind]}" for kind, name in KINDS.items() if kinds[kind]))
    rare = sorted(character for character, count in characters.items() if count < options.rare)
    print(f"{len(rare):,} are in fewer than {options.rare} texts: {' '.join(map(ascii, rare[:20]))}")


KINDS = {
    "L": "letters",
    "M": "marks",
    "N": "digits",
    "P": "punctuation",
    "S": "symbols",
    "Z": "spaces",
    "C": "controls",
}

if __name__ == "__main__":
    lab.run(main)
