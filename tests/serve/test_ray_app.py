"""The deployment on Ray, on a local one."""

import logging
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from acclimate.rehearse.training import train
from acclimate.serve.ray_app import deploy
from acclimate.serve.tokens import SCOPES, add_token
from fixtures.servers import files, pictures

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def serve() -> Any:
    ray = pytest.importorskip("ray")
    serve = pytest.importorskip("ray.serve")  # with the packages of ray[serve]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield serve
    serve.shutdown()
    ray.shutdown()


def test_two_replicas_share_one_database(serve: Any, tree: Path, tmp_path: Path, tiny: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run, path = tmp_path / "main", tmp_path / "tokens.json"
    train(tiny("erm"), Manifest.open(tree), run, device="cpu")
    secret = add_token(path, SCOPES)
    settings = {"run": str(run), "database": f"sqlite:///{tmp_path / 'a.sqlite'}"}
    with pytest.raises(ConfigError, match="tokens"):
        deploy(settings)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(
        deploy({**settings, "tokens": str(path), "replicas": "2"}),
        name="acclimate",
        route_prefix="/",
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        assert client.get("/v1/sites").status_code == 401
        client.headers["Authorization"] = f"Bearer {secret}"
        assert client.put("/v1/sites/north").status_code == 200
        added = client.post("/v1/sites/north/images", files=files(pictures(6)))
        assert added.json()["added"] == 6
        answer = client.post("/v1/sites/north/predict", files=files(pictures(3)))
        assert len(answer.json()["predictions"]) == 3
        assert client.get("/v1/sites/north").json()["images"] == 6
