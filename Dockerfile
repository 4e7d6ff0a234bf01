# Vespiary's images: `--target broker`, `--target operator`, `--target pipeline`. No compiler is left in any.
FROM python:3.11-slim-bookworm AS dependencies
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/vespiary && /opt/vespiary/bin/pip install --no-cache-dir --upgrade pip
WORKDIR /src
# What others wrote is a layer of its own, which a change of ours leaves as it is.
COPY pyproject.toml ./
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' > /tmp/requirements \
 && /opt/vespiary/bin/pip install --no-cache-dir -r /tmp/requirements

FROM dependencies AS wheel
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > /tmp/requirements \
 && /opt/vespiary/bin/pip install --no-cache-dir -r /tmp/requirements
COPY setup.py MANIFEST.in README.md LICENSE ./
COPY native native
COPY crds crds
COPY broker broker
COPY operator operator
COPY pipeline pipeline
RUN /opt/vespiary/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM dependencies AS build
COPY --from=wheel /wheel /wheel
RUN /opt/vespiary/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

FROM dependencies AS build-operator
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["operator"], sep="\n")' > /tmp/requirements \
 && /opt/vespiary/bin/pip install --no-cache-dir -r /tmp/requirements
COPY --from=wheel /wheel /wheel
RUN /opt/vespiary/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

FROM dependencies AS build-pipeline
RUN python3 -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*extras["pipeline"], *extras["lake"], sep="\n")' > /tmp/requirements \
 && /opt/vespiary/bin/pip install --no-cache-dir -r /tmp/requirements
COPY --from=wheel /wheel /wheel
RUN /opt/vespiary/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

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
# Two threads talk to the API server; an arena for each processor is memory and no speed.
ENV MALLOC_ARENA_MAX=2
LABEL org.opencontainers.image.title="Vespiary operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-operator /opt/vespiary /opt/vespiary
ENTRYPOINT ["vespiary-operator"]

FROM base AS pipeline
USER root
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless libnss-wrapper \
 && rm -rf /var/lib/apt/lists/*
USER 10001:10001
# Spark's scratch files; the root file system may be read-only.
ENV SPARK_LOCAL_DIRS=/scratch
VOLUME /scratch
LABEL org.opencontainers.image.title="Vespiary pipeline" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-pipeline /opt/vespiary /opt/vespiary
ENTRYPOINT ["vespiary-pipeline"]

FROM base AS broker
LABEL org.opencontainers.image.title="Vespiary broker" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/vespiary /opt/vespiary
EXPOSE 61616 5672 1883 61613 8161
ENTRYPOINT ["vespiary"]
CMD ["run", "--config", "/etc/vespiary/broker.yaml"]
