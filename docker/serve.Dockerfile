# An image that serves a run on CPUs. From the root of the repository:
#   docker build -f docker/serve.Dockerfile -t acclimate-serve .
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/runs/sites:/model:ro" -v sites:/data \
#     -v "$PWD/tokens.json:/tokens.json:ro" acclimate-serve
# INDEX is a further package index: with that of PyTorch's CPU builds the image is some 4 GB smaller.
FROM python:3.12-slim
ARG INDEX=""
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 ACCLIMATE_CACHE=/data/cache
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN pip install ${INDEX:+--extra-index-url "$INDEX"} --constraint constraints.txt torch torchvision
COPY src src
RUN pip install --constraint constraints.txt ".[serve,postgres,onnx,lite]" \
    && useradd --uid 1000 --no-create-home acclimate \
    && mkdir /data && chown acclimate /data
USER acclimate
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", \
    "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/v2/health/ready')"]
ENTRYPOINT ["acclimate", "serve", "/model", "--host", "0.0.0.0", "--token-file", "/tokens.json"]
CMD ["--database", "sqlite:////data/sites.sqlite"]
