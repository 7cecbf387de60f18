"""DomainBed's way of training ERM on images, written down plainly to be measured against.

One endless loader of worker processes per domain, PIL transforms in them, float32, deterministic
algorithms, batch norm frozen, Adam, and a loss that is read after every step; validation through
loaders of the same kind. Nothing here is called by the library.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from acclimate.learn.models.weights import import_timm, import_torchvision

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Files(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A domain: paths, labels, and the transform that its images go through."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], transform: Any) -> None:
        self.paths, self.labels, self.transform = paths, labels, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.paths[index].open("rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), self.labels[index]


def transforms(size: int, *, augmented: bool) -> Any:
    import_torchvision()
    from torchvision import transforms as T

    normalise = T.Normalize(mean=MEAN, std=STD)
    if not augmented:
        return T.Compose([T.Resize((size, size)), T.ToTensor(), normalise])
    return T.Compose(
        [
            T.RandomResizedCrop(size, scale=(0.7, 1.0)),
            T.RandomHorizontalFlip(),
            T.ColorJitter(0.3, 0.3, 0.3, 0.3),
            T.RandomGrayscale(),
            T.ToTensor(),
            normalise,
        ]
    )


def endless(data: Files, batch: int, workers: int) -> Iterator[Any]:
    sampler = torch.utils.data.RandomSampler(data, replacement=True)
    batches = torch.utils.data.BatchSampler(sampler, batch_size=batch, drop_last=True)
    loader = torch.utils.data.DataLoader(data, num_workers=workers, batch_sampler=_Forever(batches))
    return iter(loader)


class _Forever(torch.utils.data.Sampler[list[int]]):
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self.sampler


class Incumbent:
    def __init__(self, backbone: str, classes: int, device: torch.device) -> None:
        torch.manual_seed(0)
        network = import_timm().create_model(backbone, pretrained=False, num_classes=0)
        self.network = nn.Sequential(network, nn.Linear(network.num_features, classes)).to(device)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=5e-5, weight_decay=0.0)
        self.device = device

    def train_mode(self) -> None:
        self.network.train()
        for part in self.network.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()

    def update(self, parts: Sequence[tuple[Tensor, Tensor]]) -> float:
        x = torch.cat([images for images, _ in parts])
        y = torch.cat([labels for _, labels in parts])
        loss = F.cross_entropy(self.network(x), y)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.item()

    def accuracy(self, data: Files, workers: int) -> float:
        loader = torch.utils.data.DataLoader(data, batch_size=64, num_workers=workers)
        self.network.eval()
        right = 0.0
        with torch.no_grad():
            for x, y in loader:
                found = self.network(x.to(self.device)).argmax(1)
                right += (found == y.to(self.device)).float().sum().item()
        self.train_mode()
        return right / max(len(data), 1)


def measure(
    train: Sequence[Files],
    held_out: Sequence[Files],
    unseen: Files,
    *,
    backbone: str,
    classes: int,
    device: torch.device,
    per_domain: int,
    steps: int,
    warm: int,
    validate_every: int,
    workers: int,
) -> dict[str, float]:
    """Images per second of the steps alone, and seconds from the first line to the last, with
    validation every `validate_every` steps and the unseen domain scored once, at the end."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        started = time.perf_counter()
        model = Incumbent(backbone, classes, device)
        model.train_mode()
        loaders = zip(*(endless(data, per_domain, workers) for data in train), strict=True)
        seconds = 0.0
        for step in range(steps):
            begun = time.perf_counter()
            model.update([(x.to(device), y.to(device)) for x, y in next(loaders)])
            if step >= warm:
                seconds += time.perf_counter() - begun
            if (step + 1) % validate_every == 0:
                for data in held_out:
                    model.accuracy(data, workers)
        model.accuracy(unseen, workers)
        whole = time.perf_counter() - started
        rate = (steps - warm) * per_domain * len(train) / seconds
        return {"images/s": rate, "seconds": whole}
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
