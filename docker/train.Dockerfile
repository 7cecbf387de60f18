# An image that trains, on GPUs where there are some. From the root of the repository:
#   docker build -f docker/train.Dockerfile -t acclimate-train .
#   docker run --gpus all --shm-size 8g -v "$PWD:/work" acclimate-train train photos --out runs/sites
FROM python:3.12-slim
ENV PIP_NO_CACHE_DIR=1 ACCLIMATE_CACHE=/work/.cache
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --constraint constraints.txt ".[lite,onnx,heic,dicom,remote]"
WORKDIR /work
ENTRYPOINT ["acclimate"]
CMD ["--help"]
