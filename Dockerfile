# TokenMill in containers. Three targets:
#
#   docker build -t tokenmill .                         the service and its commands; no torch
#   docker build -t tokenmill-tools --target tools .    the same with all that `produce` and `pack` read: parquet, Arrow,
#                                                       WARC, Hugging Face, object stores, databases (whose drivers are
#                                                       yours to add); and Dask's client. Of exports only Lance, with its
#                                                       220 MB, is left out
#   docker build -t tokenmill-train --target train .    the service's with torch; runs examples/train_gpt.py
#
# Build arguments:
#   PYTHON_IMAGE      the base of all
#   VERSION REVISION  written into the labels
#   TORCH_INDEX_URL   a package index with another build of torch (for the CPU alone, say); by default it is the one of
#                     the lock, which needs an NVIDIA GPU to be fast, and 6 GB
#
# A package index of your own: a build secret with a pip.conf (--secret id=pip.conf,src=$HOME/.config/pip/pip.conf).
#
# What changes often comes last: after a change of the code, only the wheel is built and installed again.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
# A folder of its own for what pip keeps between builds: whose home it would be depends on who builds.
ENV PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore


# Every file is named with its hash in the lock. The base's pip installs into our environment, which has none.
FROM base AS dependencies
COPY requirements/service.txt /lock/
RUN --mount=type=secret,id=pip.conf --mount=type=cache,target=/var/cache/pip \
    python -m venv --without-pip /opt/tokenmill \
    && python -m pip --python /opt/tokenmill/bin/python install --quiet --require-hashes \
        --requirement /lock/service.txt


FROM base AS wheel
WORKDIR /source
# setuptools, which builds the wheel, is taken from the developers' lock.
COPY requirements/checkout.txt ./
RUN --mount=type=secret,id=pip.conf --mount=type=cache,target=/var/cache/pip \
    python -m venv /opt/build \
    && awk '/^[a-z]/ { wanted = /^setuptools==/ } wanted' checkout.txt > build.txt \
    && /opt/build/bin/pip install --quiet --require-hashes --requirement build.txt
COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY tokenmill tokenmill
COPY app app
COPY consumers consumers
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir /wheels .


FROM ${PYTHON_IMAGE} AS runtime
# A fixed number, so that volumes keep their owner over all versions; no name service has to know it.
RUN groupadd --gid 10001 tokenmill \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tokenmill \
    && install --directory --owner 10001 --group 10001 /store /data
COPY --from=dependencies /opt/tokenmill /opt/tokenmill
# The root file system may be read-only: what libraries keep (a tokenizer from the hub) goes to /tmp, a tmpfs.
ENV PATH=/opt/tokenmill/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
ENV TOKENMILL_STORE=/store
# Kernels of filters are compiled when the image is built, for any processor of its kind: at the first start of a
# container it would take a minute.
ENV NUMBA_CPU_NAME=generic
WORKDIR /data
STOPSIGNAL SIGTERM


FROM runtime AS tools
COPY requirements/tools.txt /lock/
RUN --mount=type=secret,id=pip.conf --mount=type=cache,target=/var/cache/pip \
    PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_CACHE_DIR=/var/cache/pip PIP_ROOT_USER_ACTION=ignore \
    /usr/local/bin/python -m pip --python /opt/tokenmill/bin/python install --quiet --require-hashes \
        --requirement /lock/tools.txt
COPY --from=wheel /wheels /wheels
RUN PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    /usr/local/bin/python -m pip --python /opt/tokenmill/bin/python install --quiet --no-deps --no-index /wheels/*.whl
RUN python -c "from tokenmill.app.milling.curation.choosing import compile_kernels; compile_kernels()"
USER 10001:10001
LABEL org.opencontainers.image.title="TokenMill tools" \
    org.opencontainers.image.description="TokenMill's commands, with all that they read." \
    org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["tokenmill"]
CMD ["--help"]


FROM runtime AS train
ARG TORCH_INDEX_URL=""
COPY requirements/train.txt /lock/
# Another index has other files, so the hashes of the lock cannot hold there; its version does.
RUN --mount=type=secret,id=pip.conf --mount=type=cache,target=/var/cache/pip \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_CACHE_DIR=/var/cache/pip PIP_ROOT_USER_ACTION=ignore \
    && if [ -n "$TORCH_INDEX_URL" ]; then \
        /usr/local/bin/python -m pip --python /opt/tokenmill/bin/python install --quiet --index-url "$TORCH_INDEX_URL" \
            "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' /lock/train.txt)"; \
    else \
        /usr/local/bin/python -m pip --python /opt/tokenmill/bin/python install --quiet --require-hashes \
            --requirement /lock/train.txt; \
    fi
COPY --from=wheel /wheels /wheels
RUN PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    /usr/local/bin/python -m pip --python /opt/tokenmill/bin/python install --quiet --no-deps --no-index /wheels/*.whl
COPY examples /opt/tokenmill/examples
USER 10001:10001
LABEL org.opencontainers.image.title="TokenMill trainer" \
    org.opencontainers.image.description="A small GPT that trains on a store of TokenMill while it grows." \
    org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["python", "/opt/tokenmill/examples/train_gpt.py"]
CMD ["/store", "raw-text.train"]


# The last one: what a build without a target makes.
FROM runtime AS service
COPY --from=wheel /wheels /wheels
RUN PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    /usr/local/bin/python -m pip --python /opt/tokenmill/bin/python install --quiet --no-deps --no-index /wheels/*.whl
RUN python -c "from tokenmill.app.milling.curation.choosing import compile_kernels; compile_kernels()"
USER 10001:10001
EXPOSE 9464
ARG VERSION=unknown
ARG REVISION=unknown
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s CMD ["python", "-P", "-m", "tokenmill.app.telemetry.health"]
LABEL org.opencontainers.image.title="TokenMill" \
    org.opencontainers.image.description="Raw text in Kafka becomes training-ready token blocks, once each." \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["tokenmill"]
CMD ["serve"]
