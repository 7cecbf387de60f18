"""What a server takes. Its command line has an option for each."""

from dataclasses import dataclass

from acclimate.config import setting


@dataclass(frozen=True, kw_only=True)
class Limits:
    images: int = setting(500, "most images of one call", at_least=1, at_most=10_000)
    image_mib: int = setting(32, "largest encoded image, in MiB", at_least=1, at_most=2048)
    body_mib: int = setting(64, "largest body of a request, in MiB", at_least=1, at_most=2048)
    memory_mib: int = setting(512, "most bodies of requests under way, in MiB", at_least=1)
    requests: int = setting(512, "most requests under way", at_least=1)
    queue: int = setting(2048, "most images under way", at_least=1)
    timeout: float = setting(60.0, "most seconds of a request", at_least=1)
    sites: int = setting(10_000, "most sites", at_least=1)
    pictures: int = setting(100_000, "most different images of one site", at_least=1)
    classifiers: int = setting(2000, "most sites whose classifiers are in memory", at_least=1)
