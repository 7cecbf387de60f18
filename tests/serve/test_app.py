"""All routes, asked as a client asks them."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

from acclimate.data.images import read_pixels
from acclimate.serve.tokens import SCOPES, Tokens, add_token
from fixtures.models import CLASSES, SIZE, make_trained
from fixtures.servers import files, pictures

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = "/v1/sites/north"


def said(answer: httpx.Response, status: int, code: str) -> str:
    """The sentence of a refusal."""
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    return str(answer.json()["error"]["message"])


def test_the_life_of_a_site(running: Any) -> None:
    client, images = running.client, pictures(8)
    assert client.get("/v1/sites").json()["models"] == ["main"]
    added = client.post(f"{SITE}/images", files=files(images)).json()
    assert (added["added"], added["repeated"], len({*added["pictures"]})) == (8, 0, 8)
    site = client.get(SITE).json()
    assert (site["name"], site["model"], site["images"]) == ("north", "main", 8)
    assert [entry["what"] for entry in site["history"]] == ["created", "images"]
    labels = {added["pictures"][0]: "ant", added["pictures"][1]: "bee"}
    assert client.post(f"{SITE}/labels", json={"labels": labels}).json()["labelled"] == 2
    chosen = client.get(f"{SITE}/suggest", params={"count": 3}).json()["pictures"]
    assert {one["picture"] for one in chosen} <= {*added["pictures"]} - {*labels}
    assert client.post(f"{SITE}/rollback").json()["labelled"] == 0
    assert client.post(f"{SITE}/rollback", json={"revision": 1}).json()["images"] == 0
    assert client.delete(SITE).status_code == 204
    said(client.get(SITE), 404, "unknown_site")
    said(client.delete(SITE), 404, "unknown_site")


def test_answers_are_those_of_the_service_in_order(running: Any) -> None:
    images = pictures(5)
    running.client.post(f"{SITE}/images", files=files(images[:3]))
    expected = running.service.predict("north", images)
    answer = running.client.post(f"{SITE}/predict", files=files(images)).json()["predictions"]
    assert [one["label"] for one in answer] == [one.label for one in expected]
    np.testing.assert_allclose(
        [one["probability"] for one in answer], [one.probability for one in expected], atol=1e-6
    )


def test_an_unreadable_image_keeps_its_place(running: Any) -> None:
    images = [*pictures(2), b"no image"]
    one, two, problem = running.client.post(f"{SITE}/predict", files=files(images)).json()[
        "predictions"
    ]
    assert one["label"] in CLASSES and two["label"] in CLASSES
    assert problem["label"] is None and problem["error"]
    added = running.client.post(f"{SITE}/images", files=files(images)).json()
    assert added["pictures"][2] is None
    assert [entry["index"] for entry in added["unreadable"]] == [2]


def test_where_no_image_can_be_read_that_is_an_error(running: Any) -> None:
    for route in ("images", "predict"):
        answer = running.client.post(f"{SITE}/{route}", files=files([b"x", b"y"]))
        assert "2 images" in said(answer, 422, "unreadable_image")


def test_a_repeated_call_counts_once(running: Any) -> None:
    images, key = pictures(3), {"Idempotency-Key": "a-1"}
    first = running.client.post(f"{SITE}/images", files=files(images), headers=key).json()
    again = running.client.post(f"{SITE}/images", files=files(images), headers=key).json()
    assert (first["added"], again["added"], again["again"]) == (3, 3, True)
    assert again["site"]["images"] == 3
    other = running.client.post(f"{SITE}/images", files=files(pictures(3, 1)), headers=key)
    assert "a-1" in said(other, 409, "key_reused")


def test_labels_may_come_with_images(running: Any) -> None:
    form = {"labels": ["ant", "", "bee"]}
    answer = running.client.post(f"{SITE}/images", files=files(pictures(3)), data=form)
    assert answer.json()["labelled"] == 2
    few = running.client.post(f"{SITE}/images", files=files(pictures(2, 1)), data=form)
    assert "2 images and 3 labels" in said(few, 400, "bad_request")


def test_unsure_images_have_no_label(running: Any) -> None:
    sure = {"unsure_below": 0.999999}
    answer = running.client.post(f"{SITE}/predict", files=files(pictures(2)), params=sure).json()
    assert [one["label"] for one in answer["predictions"]] == [None, None]
    assert {one["unsure"] for one in answer["predictions"]} <= {*CLASSES}


@pytest.mark.slow
def test_export_gives_the_same_probabilities(start: Any) -> None:
    running, images = start(timeout=300), pictures(6)
    running.client.put(SITE)
    running.client.post(f"{SITE}/images", files=files(images))
    answer = running.client.get(f"{SITE}/export")
    session = onnxruntime.InferenceSession(answer.content)
    rows = np.stack([read_pixels(image, SIZE) for image in images])
    expected = [one.probabilities for one in running.service.predict("north", images)]
    np.testing.assert_allclose(session.run(None, {"images": rows})[0], expected, atol=1e-4)


def test_a_site_moves_to_another_model(start: Any) -> None:
    running = start(also={"next": make_trained("rehearsed", seed=1)})
    assert running.client.put(SITE, json={"model": "next"}).json()["model"] == "next"
    assert running.client.post(f"{SITE}/move", json={"model": "main"}).json()["model"] == "main"
    said(running.client.post(f"{SITE}/move", json={"model": "none"}), 400, "unknown_name")
    said(running.client.put(SITE, json={"model": "next"}), 400, "bad_request")


def test_the_map(running: Any) -> None:
    running.client.post(f"{SITE}/images", files=files(pictures(4)))
    assert [*running.client.get("/v1/map").json()["main"]] == ["training", "sites"]


@pytest.mark.parametrize("name", ["-a", "a b", "a" * 101, "%C3%A4", "a%00", "..."])
def test_names_of_sites(running: Any, name: str) -> None:
    assert "name" in said(running.client.put(f"/v1/sites/{name}"), 400, "bad_request")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "", '{"modell": "main"}'),
        ("PUT", "", '{"model": 1}'),
        ("PUT", "", '{"model": "none"}'),
        ("POST", "/labels", ""),
        ("POST", "/labels", "[]"),
        ("POST", "/labels", '{"labels": {"00": "ant"}}'),
        ("POST", "/labels", '{"labels": {"0123456789abcdef": "ant"}}'),
        ("POST", "/labels", '{"labels": {"0123456789abcdef": "dog"}}'),
        ("POST", "/labels", '{"labels": {"0123456789abcdef": 1}}'),
        ("POST", "/labels", '{"labels": {"0123456789abcdef": "\\ud800"}}'),
        ("PUT", "", '{"\\ud800": 1}'),
        ("POST", "/rollback", '{"revision": 0}'),
        ("POST", "/rollback", '{"revision": 100000000000000000000000}'),
        ("POST", "/rollback", '{"revision": "1"}'),
        ("POST", "/move", "{}"),
        ("POST", "/move", "nothing"),
        ("GET", "/suggest?count=0", ""),
        ("GET", "/suggest?count=many", ""),
        ("POST", "/predict?at_least=2", ""),
        ("POST", "/predict?at_least=nan", ""),
    ],
)
def test_wrong_bodies_and_parameters(running: Any, method: str, path: str, body: str) -> None:
    answer = running.client.request(method, f"{SITE}{path}", content=body.encode())
    assert answer.status_code == 400, answer.text
    assert {*answer.json()["error"]} == {"code", "message"}


def test_what_there_is_not(running: Any) -> None:
    said(running.client.get("/v1/nothing"), 404, "no_route")
    said(running.client.patch(SITE), 405, "wrong_method")
    said(running.client.post(f"{SITE}/predict", json={}), 415, "wrong_type")
    said(
        running.client.post("/v1/sites/none/predict", files=files(pictures(1))), 404, "unknown_site"
    )


# Limits


def test_limits_of_a_call(start: Any) -> None:
    running = start(images=2, sites=1, body_mib=1)
    assert running.client.put(SITE).status_code == 200
    many = running.client.post(f"{SITE}/images", files=files(pictures(3)))
    assert "2" in said(many, 413, "over_limit")
    assert "1 site" in said(running.client.put("/v1/sites/south"), 413, "over_limit")
    large = running.client.post(f"{SITE}/images", files=files([bytes(2 << 20)]))
    assert "1 MiB" in said(large, 413, "over_limit")
    streamed = running.client.post(f"{SITE}/labels", content=(bytes(1 << 16) for _ in range(40)))
    assert "1 MiB" in said(streamed, 413, "over_limit")
    assert running.client.get(SITE).status_code == 200


def test_a_full_queue_says_when_to_come_again(start: Any) -> None:
    running = start(queue=4)
    running.client.put(SITE)
    with running.service.batcher.reserve(3):
        answer = running.client.post(f"{SITE}/predict", files=files(pictures(2)))
    assert answer.headers["retry-after"] == "1"
    said(answer, 429, "busy")
    assert running.client.post(f"{SITE}/predict", files=files(pictures(2))).status_code == 200


def test_as_many_requests_as_may_be(start: Any) -> None:
    running = start(requests=1)

    def slow() -> Any:
        assert other.get("/v2/health/live").status_code == 429
        yield b"{}"

    with httpx.Client(base_url=running.url) as other:
        assert running.client.put(SITE, content=slow()).status_code == 200
    assert running.client.get("/v2/health/live").status_code == 200


def test_a_body_that_does_not_arrive(start: Any) -> None:
    running = start(timeout=1)

    def slow() -> Any:
        yield b"{"
        time.sleep(2)
        yield b"}"

    said(running.client.put(SITE, content=slow()), 408, "slow_body")


def test_work_that_does_not_end(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(timeout=1)
    monkeypatch.setattr(running.service, "site", lambda name: time.sleep(2))
    answer = running.client.get(SITE)
    said(answer, 503, "timeout")
    assert answer.headers["retry-after"] == "1"


def test_a_form_must_be_whole(running: Any) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\n' + pictures(1)[0]
    for body, status in ((part + b"\r\n--x--\r\n", 200), (part + b"\r\n", 400), (part, 400)):
        answer = running.client.post(f"{SITE}/predict", content=body, headers=headers)
        assert answer.status_code == status


# Who may


def test_scope_by_scope(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    secrets = {scope: add_token(path, [scope]) for scope in SCOPES}
    client = start(Tokens(path)).client
    routes = [
        ("observe", "GET", SITE),
        ("observe", "GET", "/v1/sites"),
        ("observe", "GET", "/v1/map"),
        ("observe", "GET", "/metrics"),
        ("observe", "GET", f"{SITE}/suggest"),
        ("observe", "GET", f"{SITE}/drift"),
        ("observe", "POST", f"{SITE}/images"),
        ("observe", "POST", f"{SITE}/labels"),
        ("predict", "POST", f"{SITE}/predict"),
        ("predict", "GET", "/v2/models/main"),
        ("predict", "POST", "/v2/models/main/infer"),
        ("admin", "GET", f"{SITE}/export"),
        ("admin", "POST", f"{SITE}/rollback"),
        ("admin", "POST", f"{SITE}/move"),
        ("admin", "DELETE", SITE),
        ("admin", "PUT", SITE),
    ]
    described = client.get("/openapi.json").json()["paths"]
    guarded = {
        (method.upper(), path)
        for path, methods in described.items()
        for method, facts in methods.items()
        if facts.get("security")
    }
    assert len(guarded) == len(routes)
    for needed, method, route in routes:
        for scope, secret in secrets.items():
            answer = client.request(method, route, headers={"Authorization": f"Bearer {secret}"})
            assert (answer.status_code == 403) == (scope != needed), (scope, method, route)
        for header in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            answer = client.request(method, route, headers=header)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/v2/health/ready").status_code == 200


def test_who_may_not_is_told_before_the_body_is_read(start: Any, tmp_path: Path) -> None:
    add_token(tmp_path / "tokens.json", ["admin"])
    running = start(Tokens(tmp_path / "tokens.json"), body_mib=1)
    answer = running.client.post(f"{SITE}/images", content=(bytes(1000) for _ in range(3000)))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [{"Host": "example.org"}, {"Host": "["}, {"Origin": "https://example.org"}, {"Origin": "null"}],
)
def test_without_tokens_no_page_from_elsewhere_may_ask(running: Any, headers: Any) -> None:
    said(running.client.get("/v1/sites", headers=headers), 403, "foreign_origin")


def test_the_page_of_the_server_itself_may_ask(running: Any) -> None:
    assert running.client.get("/v1/sites", headers={"Origin": running.url}).status_code == 200
    assert running.client.get("/").status_code == 200


# What it says of itself


def test_metrics_and_what_remains_of_a_deleted_site(running: Any) -> None:
    running.client.post(f"{SITE}/images", files=files(pictures(8)))
    text = running.client.get("/metrics").text
    assert 'acclimate_site_images{site="north"} 8.0' in text
    route = 'method="POST",route="/v1/sites/{name}/images",status="200"'
    assert f"acclimate_requests_total{{{route}}} 1.0" in text
    for name in ("request_duration_seconds_bucket", "batch_images_sum", "queue_depth", "sites 1.0"):
        assert f"acclimate_{name}" in text
    running.client.delete(SITE)
    assert "north" not in running.client.get("/metrics").text


def test_invented_paths_and_methods_make_no_series(running: Any) -> None:
    for method in ("PROPFIND", "MKCOL", "LOCK", "COPY", "SEARCH"):
        running.client.request(method, f"/v1/nothing/{method}")
    text = running.client.get("/metrics").text
    assert 'acclimate_requests_total{method="other",route="other",status="404"} 5.0' in text


def test_only_some_sites_have_series(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acclimate.serve.telemetry.SITES", 2)
    for name in ("a", "b", "c"):
        running.client.put(f"/v1/sites/{name}")
    running.client.post(f"{SITE}/images", files=files(pictures(2)))
    text = running.client.get("/metrics").text
    assert "acclimate_sites 4.0" in text
    assert text.count("acclimate_site_images{") == 2
    assert 'acclimate_site_images{site="north"} 2.0' in text


def test_logs_hold_neither_images_nor_tokens(
    start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from acclimate.serve.telemetry import JsonLines

    secret = add_token(tmp_path / "tokens.json", SCOPES, "camera-7")
    client = start(Tokens(tmp_path / "tokens.json")).client
    client.headers["Authorization"] = f"Bearer {secret}"
    with caplog.at_level(logging.INFO, "acclimate.serve"):
        client.put(SITE)
        client.post(f"{SITE}/predict", files=files(pictures(2)), params={"unsure_below": 0.1})
        client.get(f"/v1/sites/no?token={secret}")
        end = time.monotonic() + 10
        while len(caplog.records) < 3 and time.monotonic() < end:
            time.sleep(0.01)  # a line is written after its answer
    lines = [JsonLines().format(record) for record in caplog.records]
    _, predicted, unknown = map(json.loads, lines)
    assert (predicted["status"], predicted["images"], predicted["token"]) == (200, 2, "camera-7")
    assert unknown["path"] == "/v1/sites/no"
    assert not any(secret in line or "\n" in line for line in lines)


def test_a_fault_of_the_server_is_one_line_and_no_secret(
    running: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ZeroDivisionError("of the inside")

    monkeypatch.setattr(running.service, "site", fail)
    with caplog.at_level(logging.INFO, "acclimate.serve"):
        sentence = said(running.client.get(SITE), 500, "internal")
    assert "inside" not in sentence
    fault = next(record for record in caplog.records if record.levelname == "ERROR")
    assert fault.exc_info is not None


def test_the_openapi_in_the_repository_is_that_of_the_server(running: Any) -> None:
    stored = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert running.client.get("/openapi.json").json() == stored, "run `make docs`"
