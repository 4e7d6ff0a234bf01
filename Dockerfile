# Vespiary's images: `--target broker` and `--target operator`. No compiler is left in either.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/vespiary && /opt/vespiary/bin/pip install --no-cache-dir --upgrade pip
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY native native
COPY crds crds
COPY broker broker
COPY operator operator
RUN /opt/vespiary/bin/pip install --no-cache-dir .

FROM build AS build-operator
RUN /opt/vespiary/bin/pip install --no-cache-dir '.[operator]'

FROM python:3.11-slim-bookworm AS base
RUN groupadd --gid 10001 vespiary \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin vespiary
ENV PATH=/opt/vespiary/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    LOGNAME=vespiary
WORKDIR /
USER 10001:10001

FROM base AS operator
LABEL org.opencontainers.image.title="Vespiary operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-operator /opt/vespiary /opt/vespiary
ENTRYPOINT ["vespiary-operator"]

FROM base AS broker
LABEL org.opencontainers.image.title="Vespiary broker" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/vespiary /opt/vespiary
EXPOSE 61616 61613 8161
ENTRYPOINT ["vespiary"]
CMD ["run", "--config", "/etc/vespiary/broker.yaml"]
