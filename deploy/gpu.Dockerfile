# The server on an NVIDIA GPU: docker build -t specdec-hal-gpu -f deploy/gpu.Dockerfile . && docker run --gpus all \
#   -p 8000:8000 -e SPECDEC_HAL_API_KEY=secret -v FOLDER:/model:ro specdec-hal-gpu --model /model
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS build
RUN apt-get update \
  && apt-get install -y --no-install-recommends g++ make python3-venv \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# --build-arg VERSION=0.2.0: the context has no history.
ARG VERSION
RUN python3 -m venv /venv \
  && SPECDEC_HAL_BUILD_VERSION=$VERSION /venv/bin/pip install --no-cache-dir '.[transformers,models,serve,structured]'

FROM nvidia/cuda:13.0.1-base-ubuntu24.04
# Triton compiles its launchers with a C compiler.
RUN apt-get update \
  && apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 python3 python3-dev \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --create-home --uid 10001 specdec
COPY --from=build /venv /venv
COPY configs /app/configs
COPY models /app/models
USER 10001
WORKDIR /app
# The only folders that are written: mount /cache to keep compiled kernels and downloaded models.
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HF_HOME=/cache/huggingface TRITON_CACHE_DIR=/cache/triton
VOLUME ["/cache", "/tmp"]
EXPOSE 8000
HEALTHCHECK --start-period=180s CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["specdec-hal", "serve", "--config", "/app/configs/serve.yaml", "--host", "0.0.0.0", "--set", "runner.max_num_seqs=64"]
