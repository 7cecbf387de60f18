"""Predicted images, looked at beside those who predict: is each site still the same site?

Images wait in memory until there are enough of them to look at. What they come to is in the store,
and every replica adds to it. A new image, label or model of a site begins a new watch. Images that
were waiting when a server was killed are missing as evidence, which does no other harm: evidence is
valid whenever somebody looks, and at whatever images.
"""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from acclimate.core.errors import AcclimateError
from acclimate.core.text import reason_of
from acclimate.learn.embeddings.pictures import in_16_bits, picture_hashes
from acclimate.serve.batcher import Made
from acclimate.serve.calls import Decoded, picture_id
from acclimate.serve.store import Store
from acclimate.serve.tables import Row
from acclimate.watch import Baseline, Watch, Window
from acclimate.watch.baseline import NO_HASHES, is_poor

ENOUGH = 100  # images of a site that are looked at together
MOST_PENDING = 1000  # and those that may wait: predictions may be faster than looks
HELD = 50  # baselines in memory, each with the features of a site's sample
LOGGER = logging.getLogger("acclimate.serve")


def window_of(decoded: Decoded, made: Made | None) -> Window:
    """Images of a call and what the backbone made of them, each once."""
    hashes, new = picture_hashes(decoded.stored, {})
    features = torch.zeros(0, 0) if made is None or made.features is None else made.features
    unreadable = torch.unique(torch.tensor(decoded.unreadable, dtype=torch.int64))
    return Window(hashes[new], in_16_bits(features[new]), is_poor(decoded.stored[new]), unreadable)


def _joined(windows: Sequence[Window], width: int) -> Window:
    """All of their images, each once; features are this wide."""
    nothing = Window(NO_HASHES, torch.zeros(0, width).half(), np.zeros(0, bool))
    every = [nothing, *windows]
    hashes = torch.cat([window.hashes for window in every])
    rows = np.unique(hashes.numpy(), return_index=True)[1]
    features = torch.cat([window.features for window in every if len(window)] or [nothing.features])
    poor = np.concatenate([window.poor for window in every])
    unreadable = torch.unique(torch.cat([window.unreadable for window in every]))
    return Window(hashes[rows], features[rows], poor[rows], unreadable)


class Watcher:
    """One thread that looks at the images of all sites."""

    def __init__(self, store: Store, baseline: Callable[[str], tuple[Row, Baseline]]) -> None:
        """`baseline` makes that of a site as it is now, and tells of which row."""
        self.store, self._make = store, baseline
        self._pending: dict[str, list[Window]] = {}
        self._changing, self._looking = threading.Lock(), threading.Lock()
        self._baselines: OrderedDict[tuple[int, int], tuple[Row, Baseline]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="watch")

    def see(self, row: Row, window: Window) -> None:
        """Images of a site, to be looked at once there are enough."""
        with self._changing:
            pending = self._pending.setdefault(row.name, [])
            before = sum(one.total for one in pending)
            if before < MOST_PENDING:
                pending.append(window)
        if before < ENOUGH <= before + window.total:
            self._thread.submit(self._look_beside, row)

    def report(self, row: Row) -> dict[str, Any]:
        """What all images so far come to: `WatchReport`, images to label by their ids, and the
        `history` of the evidence."""
        with self._looking:
            return self._look(row)

    def forget(self, name: str) -> None:
        with self._changing:
            self._pending.pop(name, None)

    def close(self) -> None:
        """Finish the look that is under way, and stop."""
        self._thread.shutdown(cancel_futures=True)

    def _look_beside(self, row: Row) -> None:
        try:
            self.report(row)
        except AcclimateError as error:  # the site is gone, or has too few images
            LOGGER.info("not watched", extra={"facts": {"why": reason_of(error)}})
        except Exception:
            LOGGER.exception("a look at a site failed")

    def _look(self, row: Row) -> dict[str, Any]:
        with self._changing:
            pending = self._pending.pop(row.name, [])
        row, baseline = self._baseline(row)
        window = _joined(pending, baseline.sample.stored.shape[1])
        report: dict[str, Any]
        while True:
            stored = self.store.watch(row)
            so_far = Watch.start(baseline)
            if stored is not None and stored.baseline == baseline.digest:
                if not window.total:
                    report = json.loads(stored.report)
                    return report
                so_far = Watch.from_dict(json.loads(stored.watch))
            after, found = so_far.look(baseline, window)
            ids = [picture_id(int(window.hashes[place])) for place in found.to_label]
            facts = {**found.to_dict(), "to_label": ids, "history": [*after.history]}
            values = {"baseline": baseline.digest, "watch": json.dumps(after.to_dict())}
            values["report"] = json.dumps(facts)
            drift = max(look.evidence / look.threshold for look in after.looks)
            if not window.total or self.store.keep_watch(row, stored, drift, values):
                report = json.loads(values["report"])
                return report

    def _baseline(self, row: Row) -> tuple[Row, Baseline]:
        """As it was made last, unless the site has changed since."""
        made = self._baselines.get((row.id, row.revision)) or self._make(row.name)
        self._baselines[made[0].id, made[0].revision] = made
        self._baselines.move_to_end((made[0].id, made[0].revision))
        while len(self._baselines) > HELD:
            self._baselines.popitem(last=False)
        return made
