"""Programs that others wrote, against a real server."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.serve.tokens import SCOPES, Tokens, add_token
from fixtures.models import CLASSES, SIZE
from fixtures.servers import files, pictures
from fixtures.uploads import pixels, uploads

pytestmark = [pytest.mark.full, pytest.mark.slow]


def infer_input(values: np.ndarray, kind: str, *, binary: bool) -> Any:
    from tritonclient.http import InferInput

    tensor = InferInput("images", values.shape, kind)
    return tensor.set_data_from_numpy(values, binary_data=binary)


def test_a_client_of_the_open_inference_protocol(running: Any) -> None:
    http = pytest.importorskip("tritonclient.http")
    rows = pixels(3)
    running.client.post("/v1/sites/north/images", files=files(pictures(6, 1)))
    expected = running.service.predict("north", uploads(rows))
    north = {"site": "north"}
    client = http.InferenceServerClient(running.url.removeprefix("http://"))
    try:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("main") and not client.is_model_ready("none")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        metadata = client.get_model_metadata("main")
        assert metadata["inputs"][0]["shape"] == [-1, 3, SIZE, SIZE]
        encoded = np.array(uploads(rows), dtype=np.object_)
        asked = [
            infer_input(rows, "UINT8", binary=True),
            infer_input(rows, "UINT8", binary=False),
            infer_input(encoded, "BYTES", binary=True),
        ]
        for tensor in asked:
            answer = client.infer("main", [tensor], parameters=north, request_id="7")
            assert answer.get_response()["id"] == "7"
            probabilities = answer.as_numpy("probabilities")
            np.testing.assert_allclose(
                probabilities, [one.probabilities for one in expected], atol=1e-6
            )
            labels = [label.decode() for label in answer.as_numpy("labels")]
            assert labels == [one.likeliest for one in expected]
            assert {*labels} <= {*CLASSES}
        plain = http.InferRequestedOutput("probabilities", binary_data=False)
        answer = client.infer("main", asked[:1], outputs=[plain], parameters=north)
        assert answer.as_numpy("probabilities").shape == (3, len(CLASSES))
        with pytest.raises(Exception, match="no site 'south'"):
            client.infer("main", asked[:1], parameters={"site": "south"})
        with pytest.raises(Exception, match=r"parameters\.site"):
            client.infer("main", asked[:1])
        for packed in ("gzip", "deflate"):
            with pytest.raises(Exception, match=packed):
                client.infer(
                    "main", asked[:1], parameters=north, request_compression_algorithm=packed
                )
    finally:
        client.close()


SCHEMATHESIS = """
import sys
import schemathesis.cli
sys.argv = ["schemathesis", *sys.argv[1:]]
schemathesis.cli.schemathesis()
"""
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,ignored_auth"
)
CONFIGURATION = '[parameters]\n"path.name" = "north"\n'


@pytest.mark.parametrize("named", [False, True])
def test_no_request_makes_the_server_fail(start: Any, tmp_path: Path, named: bool) -> None:
    """Generated from the OpenAPI; `named`: all about a site that is there."""
    pytest.importorskip("schemathesis")
    path = tmp_path / "tokens.json"
    secret = add_token(path, SCOPES)
    running = start(Tokens(path))
    token = f"Authorization: Bearer {secret}"
    running.client.headers["Authorization"] = f"Bearer {secret}"
    running.client.put("/v1/sites/north")
    running.client.post("/v1/sites/north/images", files=files(pictures(6)))
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION if named else "")
    command = [sys.executable, "-c", SCHEMATHESIS, "run", f"{running.url}/openapi.json"]
    command += ["--checks", CHECKS, "--max-examples", "30"]
    command += ["--seed", "1", "--header", token, "--request-timeout", "30", "--no-shrink"]
    command += ["--exclude-path", "/v1/sites/{name}/export", "--suppress-health-check", "all"]
    command += ["--continue-on-failure", "--generation-database", "none"]
    if named:
        command += ["--exclude-method", "DELETE"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    text = running.client.get("/metrics").text
    requests = [line for line in text.splitlines() if line.startswith("acclimate_requests_total")]
    assert sum(float(line.split()[-1]) for line in requests) > 300
    assert not [line for line in requests if 'status="5' in line]
    assert running.client.get("/v1/sites").status_code == 200
