# The CPU image: analysis, reports and the MCP server; with EXTRAS=run,mcp also runs on a CPU.
#   docker build -t llm-perf-opt .
#   docker build -t llm-perf-opt:run --build-arg EXTRAS=run,mcp .
#   docker run --rm -v "$PWD:/work" llm-perf-opt ingest --trace trace.json.gz --out result
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE constraints.txt ./
COPY src ./src
ARG EXTRAS=mcp
# One environment is copied below; the tools that built it are left behind.
RUN python -m venv /opt/llm-perf-opt && \
    /opt/llm-perf-opt/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt ".[${EXTRAS}]" && \
    /opt/llm-perf-opt/bin/pip uninstall --yes --quiet pip && \
    find /opt/llm-perf-opt -name __pycache__ -type d -prune -exec rm -rf {} +

FROM python:3.11-slim
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="llm-perf-opt" \
      org.opencontainers.image.description="Where LLM and VLM inference time goes, how far it is from the hardware, and what to change first" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 1000 --create-home profiler && mkdir /work && chown profiler:profiler /work
COPY --from=build /opt/llm-perf-opt /opt/llm-perf-opt
ENV PATH="/opt/llm-perf-opt/bin:${PATH}" PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["llm-perf-opt"]
CMD ["--help"]
