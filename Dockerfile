# The server with the embedded model, on the CPU: docker build -t specdec-hal . && docker run -p 8000:8000 \
#   -e SPECDEC_HAL_API_KEY=secret specdec-hal
# Another model: -v FOLDER:/model, and the arguments `--set model.path=/model` behind the image's name.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# --build-arg VERSION=0.2.0: the context has no history.
ARG VERSION
RUN python -m venv /venv \
  && SPECDEC_HAL_BUILD_VERSION=$VERSION /venv/bin/pip install --no-cache-dir '.[paddle,models,serve]'

FROM python:3.11-slim-bookworm
# PaddlePaddle's wheel loads OpenMP's runtime.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
  && useradd --create-home --uid 10001 specdec
COPY --from=build /venv /venv
COPY configs /app/configs
COPY models /app/models
USER 10001
WORKDIR /app
ENV PATH=/venv/bin:$PATH
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["specdec-hal", "serve", "--config", "/app/configs/serve.yaml", "--host", "0.0.0.0"]
