"""What the fault tests share: a seed that repeats a run, and how hard the workers are pressed."""

import os
import random
import secrets

import pytest

SEED_VARIABLE = "FAULT_SEED"


@pytest.fixture
def rng() -> random.Random:
    """Random numbers from a seed that is printed; ``FAULT_SEED=<number>`` repeats a run's choices."""
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(32))
    print(f"{SEED_VARIABLE}={seed}")  # noqa: T201 - pytest shows it with a failure
    return random.Random(seed)
